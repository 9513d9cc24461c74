"""What whole steps taught, as it is kept in files, and described."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from breakeven.cost import StepEffect, StepEffects
from breakeven.simulate import MultiGpuTable
from breakeven.units import format_percent

_FINGERPRINTS_PER_LINE = 7
_SHOWN_PER_KIND = 4


def step_effects_document(effects: StepEffects) -> bytes:
    """Return effects as they are kept in ``cost/step_effects.json``: one to a line."""
    return _document(
        effects,
        effects=[_json(effect) for effect in effects.effects],
        calibrated_on=_fingerprint_lines(effects.calibrated_on),
    )


def multi_gpu_document(table: MultiGpuTable) -> bytes:
    """Return costs of several GPUs as they are kept in ``simulate/multi_gpu.json``."""
    return _document(
        table,
        held_out=[_json(error) for error in table.held_out],
        calibrated_on=_fingerprint_lines(table.calibrated_on),
    )


def describe_step_effects(effects: StepEffects) -> str:
    """Return what was learned as text: the spread, and the largest effects of each kind."""
    spread = effects.spread
    lines = [
        f"{len(effects.calibrated_on)} steps, {len(effects.effects)} effects",
        "spread of what was left out",
        f"  kernels: {spread.calibrated_scale:.2f} times that of benchmarks on a GPU whose steps "
        f"are known, {spread.unseen_scale:.2f} times on others",
        f"  hosts: sigma {spread.known_host_log_sigma:.2f} where its steps are known, "
        f"{spread.unknown_host_log_sigma:.2f} elsewhere",
        "largest effects, as factors on times",
    ]
    kinds: defaultdict[str, list[StepEffect]] = defaultdict(list)
    for effect in effects.effects:
        kinds[effect.kind].append(effect)
    for kind, members in sorted(kinds.items()):
        members.sort(key=lambda effect: (-abs(effect.log_factor), effect.of))
        count = "1 effect" if len(members) == 1 else f"{len(members)} effects"
        lines.append(f"  {kind}: {count}")
        lines += [
            f"    {math.exp(effect.log_factor):6.3f}  {', '.join(effect.of) or 'all'}"
            for effect in members[:_SHOWN_PER_KIND]
        ]
    return "\n".join(lines) + "\n"


def describe_multi_gpu(table: MultiGpuTable) -> str:
    """Return what was learned as text: the costs, and the errors on what was left out."""
    lines = [f"{len(table.calibrated_on)} steps on several GPUs"]
    for title, costs in (("nn.DataParallel", table.data_parallel), ("DDP", table.ddp)):
        lines.append(title)
        lines += [f"  {name}: {value:.4g}" for name, value in msgspec.structs.asdict(costs).items()]
    lines.append("left out                 median    P90  sigma  rows")
    lines += [
        f"{error.strategy + ', ' + error.left_out:23} "
        f"{format_percent(error.median_error_fraction):>7} "
        f"{format_percent(error.p90_error_fraction):>6} {error.log_sigma:6.2f} {error.num_rows:5}"
        for error in table.held_out
    ]
    return "\n".join(lines) + "\n"


def _document(value: msgspec.Struct, **lists: Sequence[str]) -> bytes:
    """Return JSON with a line for each field, and for each of the ``lists`` one per entry."""
    fields = [
        f' "{name}": {_lines(lists[name]) if name in lists else _json(getattr(value, name))}'
        for name in value.__struct_fields__
    ]
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _lines(entries: Sequence[str]) -> str:
    return "[\n" + ",\n".join(f"  {entry}" for entry in entries) + "\n ]" if entries else "[]"


def _fingerprint_lines(fingerprints: Sequence[str]) -> list[str]:
    return [
        ", ".join(map(_json, fingerprints[start : start + _FINGERPRINTS_PER_LINE]))
        for start in range(0, len(fingerprints), _FINGERPRINTS_PER_LINE)
    ]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
