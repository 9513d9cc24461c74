"""Fit the effects that ship to every step of a table, with a spread from steps left out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from breakeven.calibrate.step_fit import StepSample, fit_step_effects
from breakeven.cost import KernelSpread, Spread, StepEffect, StepEffects, load_efficiencies
from breakeven.device import known_device
from breakeven.errors import BreakevenError
from breakeven.progress import Progress
from breakeven.report import LeaveOut, RowPrediction
from breakeven.simulate import Bound
from breakeven.trace import NumberFormat
from breakeven.validate import MeasuredRow, fingerprint
from breakeven.validate.traced_rows import RowOutcome, TracedRows
from lab.held_out import HeldOutPredictor
from lab.step_parts import RowParts, provenance_of

# Kinds of effects of single GPUs, boards and machines.
_OWN_KINDS = frozenset(
    {
        "chip", "chip+units", "device", "machine", "machine+units", "host machine",
        "host machine+phase", "overlap machine",
    }
)  # fmt: skip
_SHOWN_PER_KIND = 4
# Spread before any row is left out: kernels as by benchmarks, hosts as by datasheets.
_NEUTRAL = Spread(
    calibrated=KernelSpread.uniform(1.0),
    unseen=KernelSpread.uniform(1.0),
    known_host_log_sigma=0.2,
    unknown_host_log_sigma=0.35,
)
_COVERAGE_PERCENTILE = 90.0
_LEAST_ROWS = 40
_HOST = "host"
_HOST_BOUNDS = frozenset({Bound.LAUNCH, Bound.SYNC, Bound.HOST_OPTIMIZER})


def calibrate_on_steps(
    rows: Sequence[MeasuredRow],
    own_rows: Sequence[MeasuredRow] = (),
    *,
    command: str,
    progress: Progress,
) -> StepEffects:
    """Fit effects to all steps on single GPUs, and their spread.

    The spread makes the 90 % intervals hold 90 % of the rows left out: by model family for GPUs and
    machines with known steps, by GPU for others. Each figure of the spread comes from the steps
    that it decides: bound by the host, in fp64, or bound by memory or arithmetic. Residuals set
    only these figures; they move no prediction.

    Args:
        rows: Measured steps; those on unknown devices or several GPUs are left out.
        own_rows: Further steps, used only for effects of their own GPUs and machines.
        command: The command that repeats the fit.
        progress: Progress callback.

    Raises:
        BreakevenError: If no row can be learned from.
    """
    rows, own_rows = on_one_gpu(rows), on_one_gpu(own_rows)
    if not rows:
        raise BreakevenError("the table has no step on one GPU of the catalogue")
    scales: dict[LeaveOut, tuple[KernelSpread, float]] = {}
    for protocol in (LeaveOut.MODEL, LeaveOut.GPU):
        progress.begin(f"leaving out each {protocol}")
        predictor = HeldOutPredictor(protocol, progress=progress, spread=_NEUTRAL)
        scales[protocol] = _needed_scales(rows, predictor.predict(rows))
        progress.end()
    spread = Spread(
        calibrated=scales[LeaveOut.MODEL][0],
        unseen=scales[LeaveOut.GPU][0],
        known_host_log_sigma=round(scales[LeaveOut.MODEL][1] * _NEUTRAL.known_host_log_sigma, 3),
        unknown_host_log_sigma=round(scales[LeaveOut.GPU][1] * _NEUTRAL.unknown_host_log_sigma, 3),
    )
    progress.begin("fitting all")
    samples = RowParts(TracedRows.of(rows, progress=progress)).samples(load_efficiencies())
    used = [rows[position] for position in samples]
    provenance = provenance_of(used, command)
    effects = fit_step_effects(list(samples.values()), provenance=provenance, spread=spread)
    if own_rows:
        own = RowParts(TracedRows.of(own_rows, progress=progress)).samples(load_efficiencies())
        used_own = [own_rows[position] for position in own]
        effects = msgspec.structs.replace(
            fit_own_effects([*samples.values(), *own.values()], effects),
            provenance=f"{provenance} Own effects of GPUs and machines: "
            f"{provenance_of(used_own, f'{command} --own')}",
        )
        used += used_own
    progress.end()
    return msgspec.structs.replace(
        effects, calibrated_on=tuple(sorted({fingerprint(row) for row in used}))
    )


def fit_own_effects(samples: Sequence[StepSample], general: StepEffects) -> StepEffects:
    """Fit the effects of single GPUs and machines to more steps, and keep the other effects.

    A table of few GPUs, each with its own software, says little about kernels on other GPUs, but
    has many rows. Everything that it shows is attributed to its own GPUs.

    Args:
        samples: Measured steps, including those that ``general`` was fitted to; a prediction of one
            of them with the result is not unseen.
        general: Effects from tables of many GPUs.
    """
    fitted = fit_step_effects(
        samples,
        provenance=general.provenance,
        spread=general.spread,
        known=general,
        free_kinds=_OWN_KINDS,
    )
    return msgspec.structs.replace(general, effects=fitted.effects)


def on_one_gpu(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows on a single GPU of the catalogue."""
    return [row for row in rows if row.num_devices == 1 and known_device(row.device)]


def _needed_scales(
    rows: Sequence[MeasuredRow], outcomes: Sequence[RowOutcome]
) -> tuple[KernelSpread, float]:
    """Return the factors by which the uncertainties of kernels and of hosts must grow."""
    needed: defaultdict[str, list[float]] = defaultdict(list)
    for row, outcome in zip(rows, outcomes, strict=True):
        if isinstance(outcome, RowPrediction):
            needed[_regime(row, outcome)].append(_half_widths(row.value_ns, outcome))
    # A regime with few rows has no tail, so use that of all kernels.
    of_kernels = [value for name, values in needed.items() if name != _HOST for value in values]

    def scale(name: str) -> float:
        values = needed[name]
        if name != _HOST and len(values) < _LEAST_ROWS:
            values = of_kernels
        return round(float(np.percentile(values, _COVERAGE_PERCENTILE)), 3) if values else 1.0

    names = KernelSpread.__struct_fields__
    return KernelSpread(**{name: scale(name) for name in names}), scale(_HOST)


def _regime(row: MeasuredRow, outcome: RowPrediction) -> str:
    """Return the source of a step's error: the host, or a field of `KernelSpread`."""
    if outcome.bound in _HOST_BOUNDS:
        return _HOST
    if row.precision == NumberFormat.FP64:
        return "fp64"
    return "memory" if outcome.bound is Bound.MEMORY else "compute"


def _half_widths(value_ns: float, outcome: RowPrediction) -> float:
    """Return the error of a prediction, in half-widths of the interval on that side."""
    estimate = outcome.estimate
    end_ns = estimate.high_ns if value_ns > estimate.value_ns else estimate.low_ns
    half_width = abs(np.log(end_ns / estimate.value_ns))
    return float(abs(np.log(value_ns / estimate.value_ns)) / max(half_width, 1e-9))


def describe_step_effects(effects: StepEffects) -> str:
    """Describe the fit as text: the spread, and the largest effects of each kind."""
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
