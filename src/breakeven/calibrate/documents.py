"""What was fitted to operators and to whole steps, as it is kept in files, and described."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from breakeven.calibrate.fit import fit_table
from breakeven.calibrate.tables import read_tables
from breakeven.cost import EfficiencyTable, KernelSpread, StepEffect, StepEffects
from breakeven.errors import BreakevenError
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
        "  kernels: so many times that of benchmarks, on a GPU whose steps are known and on others",
        *(
            f"    {name}: {getattr(spread.calibrated, name):.2f}, "
            f"{getattr(spread.unseen, name):.2f}"
            for name in KernelSpread.__struct_fields__
        ),
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


_PROVENANCE = (
    "Fitted by `breakeven calibrate --from-tables` to public measurements of single operators: "
    "neusight, https://github.com/sitar-lab/NeuSight (torch 2.1 and 2.4, fp32, one operator at a "
    "time on an idle GPU, the fastest rows taken off as dispatch); deepbench, "
    "https://github.com/baidu-research/DeepBench (library calls in C++ loops, 2016-2019); "
    "te42kyfo, https://github.com/te42kyfo/gpu-benches (streams, commit 1c36d50); mlx-benchmark, "
    "https://github.com/TristanBilot/mlx-benchmark (MPS of Apple's chips, each call waited for, "
    "commit 85c5376); and peak GEMM "
    "rates of mli, https://github.com/mli/transformers-benchmarks (commit 3370b2b), and stas00, "
    "https://github.com/stas00/ml-engineering (commit 744d01e). The source of each device names "
    "its tables by these words; CONTRIBUTING.md says what a table holds."
)


def fit_efficiencies(tables: Path) -> EfficiencyTable:
    """Return the efficiencies of devices, fitted to the tables in a folder.

    Args:
        tables: Folder of CSV files; CONTRIBUTING.md says which, and their columns.

    Raises:
        BreakevenError: A table is missing.
    """
    try:
        timed = read_tables(tables)
    except FileNotFoundError as error:
        raise BreakevenError(
            f"there is no table {error.filename}",
            hint="CONTRIBUTING.md lists the tables of a calibration",
        ) from None
    return fit_table(timed, _PROVENANCE)


def efficiencies_document(table: EfficiencyTable) -> bytes:
    """Return a table as it is kept in ``cost/efficiency.json``."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"


def describe_efficiencies(table: EfficiencyTable) -> str:
    """Return the errors of a table as text, a line for each family."""
    lines = ["left out      family, variant, arithmetic        median    P90  sigma  rows"]
    for error in table.held_out:
        name = f"{error.family} {error.variant or '-'} {error.arithmetic}"
        kind = "other vendor" if error.is_other_line else f"{error.num_devices} devices"
        lines.append(
            f"{kind:13} {name:36} {format_percent(error.median_error_fraction):>6} "
            f"{format_percent(error.p90_error_fraction):>6} {error.log_sigma:6.2f} "
            f"{error.num_rows:5}"
        )
    lines.append("own rows")
    for device in table.devices:
        for entry in device.families:
            name = f"{entry.family} {entry.variant or '-'} {entry.arithmetic}"
            lines.append(
                f"{device.device:18} {name:36} {format_percent(entry.median_error_fraction):>6} "
                f"sigma {entry.log_sigma:.2f} rows {entry.num_rows:4} "
                f"compute {entry.compute_fraction:.2f} tile {entry.tile_loss:.1f} "
                f"k {entry.prologue_k:.0f} tiles {entry.tiles} "
                f"memory {entry.memory_fraction:.2f}"
            )
    return "\n".join(lines) + "\n"
