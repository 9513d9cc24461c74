"""weight-update: a small perceptron whose weights are updated on the host, or on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass

from msgspec.structs import replace

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate import Edit, StepPrediction, build_program, simulate
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import Findings, judged_claim, ratio_of, rows, table
from breakeven.systems.published import (
    WEIGHT_UPDATE_BAND,
    WEIGHT_UPDATE_BATCH_SIZE,
    WEIGHT_UPDATE_GPU,
    WEIGHT_UPDATE_MOMENTUM,
    WEIGHT_UPDATE_RUNS,
    WEIGHT_UPDATE_SPEEDUP,
)
from breakeven.trace import Copy, Event, Phase, StepTrace, Sync
from breakeven.units import NS_PER_S, format_digits, format_duration
from breakeven.verdict import Cell, Claim, ColumnKind, RowSource, SystemTable

_HOST = "host"
_VARIANTS = {
    _HOST: "on the host",
    "single": "on device: single",
    "foreach": "on device: foreach",
    "fused": "on device: fused",
}
# What replaced the update on the host: a call of the device's BLAS for each tensor.
_SUCCESSOR = "single"
_GPUS = (WEIGHT_UPDATE_GPU, "T4", "RTX 4090", "A100 SXM4 80GB")
# The script's own update on the host is a method of this name.
_UPDATE_FUNCTION = "step"
# A sync that reads more than a value brings a tensor to the host.
_VALUE_BYTES = 8

_COLUMNS = {
    "update": ColumnKind.TEXT,
    "run": ColumnKind.TIME_NS,
    "step": ColumnKind.TIME_NS,
    "in update": ColumnKind.FRACTION,
    "in copies": ColumnKind.FRACTION,
    "GPU idle": ColumnKind.FRACTION,
    "speed-up": ColumnKind.RATIO,
}
_NOTE = (
    "single: kernels for each tensor, foreach: for all at once, fused: one for the whole update. "
    "in update, in copies: the share of the step that goes away without the update, or if copies "
    "took no time; the copies of an update count as both. GPU idle: neither a kernel nor a copy "
    "runs."
)
_PUBLISHED_NOTE = (
    " Published: whole runs, of a number of steps that is not told; the share is that of the CPU's "
    "time in the update's BLAS calls, with as much again likely in the driver."
)


def run(bench: Bench) -> Findings:
    """Record the step with each kind of update, and predict it on each GPU."""
    traces = {variant: bench.step("mnist_mlp.py", *_options(variant)) for variant in _VARIANTS}
    return Findings(
        host=bench.host_summary(),
        tables=tuple(_gpu_table(bench, traces, gpu) for gpu in _GPUS),
        claims=(_speedup_claim(bench, traces),),
    )


def _options(variant: str) -> tuple[str, ...]:
    batch_size, momentum = str(WEIGHT_UPDATE_BATCH_SIZE), str(WEIGHT_UPDATE_MOMENTUM)
    return ("--batch-size", batch_size, "--momentum", momentum, "--update", variant)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """Parts of a step. The first two overlap.

    Args:
        update_fraction: What goes away without the update.
        copy_fraction: What goes away if copies took no time.
        idle_fraction: When the device runs neither a kernel nor a copy.
    """

    update_fraction: float
    copy_fraction: float
    idle_fraction: float


def step_shares(trace: StepTrace, device: DeviceSpec, host: HostSpec) -> StepShares:
    """Return the parts of a step on a device, from simulating it with and without them."""
    program = build_program(trace)
    without_update = {index: () for index, event in enumerate(trace.events) if is_of_update(event)}
    free_copies = {
        index: _without_bytes(event) for index, event in enumerate(trace.events) if is_copy(event)
    }
    timelines = simulate(
        (
            program,
            program.edited(Edit(replaced=without_update)),
            program.edited(Edit(replaced=free_copies)),
        ),
        (device,),
        host.for_device(device),
    )
    step_ns, no_update_ns, no_copies_ns = (float(time) for time in timelines.step_ns[:, 0, 0])
    busy_ns = float(timelines.device_busy_ns[0, 0, 0])
    return StepShares(
        update_fraction=max(0.0, 1 - no_update_ns / step_ns),
        copy_fraction=max(0.0, 1 - no_copies_ns / step_ns),
        idle_fraction=max(0.0, 1 - busy_ns / step_ns),
    )


def is_of_update(event: Event) -> bool:
    """Return whether an event belongs to the update: the optimizer, and the script's own part."""
    location = event.location
    return event.phase is Phase.OPTIMIZER or (
        location is not None and location.function == _UPDATE_FUNCTION
    )


def is_copy(event: Event) -> bool:
    """Return whether an event moves a tensor between host and device."""
    return isinstance(event, Copy) or (isinstance(event, Sync) and event.num_bytes > _VALUE_BYTES)


def _without_bytes(event: Event) -> tuple[Event, ...]:
    # The host still waits for a value to be computed, if not for its way.
    return (replace(event, num_bytes=0),) if isinstance(event, Sync) else ()


def _gpu_table(bench: Bench, traces: Mapping[str, StepTrace], gpu: str) -> SystemTable:
    predictions = _predictions(bench, traces, gpu)
    host_ns = predictions[_HOST].estimate.value_ns
    cells: list[tuple[Cell, ...]] = []
    for variant, prediction in predictions.items():
        trace = traces[variant]
        shares = step_shares(trace, prediction.device, bench.host_for_prediction(trace))
        step, speedup = prediction.estimate, host_ns / prediction.estimate.value_ns
        cells.append((_VARIANTS[variant], None, step, *astuple(shares), speedup))
    title = f"{gpu}, batch {WEIGHT_UPDATE_BATCH_SIZE}"
    if gpu == WEIGHT_UPDATE_GPU:
        ours = rows(RowSource.PREDICTED, cells)
        published = rows(RowSource.PUBLISHED, _published_cells())
        return table(title, _COLUMNS, (*published, *ours), note=_NOTE + _PUBLISHED_NOTE)
    # No run of that GPU was published.
    columns = {name: kind for name, kind in _COLUMNS.items() if name != "run"}
    return table(title, columns, rows(RowSource.PREDICTED, ((row[0], *row[2:]) for row in cells)))


def _predictions(
    bench: Bench, traces: Mapping[str, StepTrace], gpu: str
) -> dict[str, StepPrediction]:
    predictions = bench.predict(tuple(traces.values()), (gpu,))
    return dict(zip(traces, predictions, strict=True))


def _published_cells() -> Iterator[tuple[Cell, ...]]:
    for run in WEIGHT_UPDATE_RUNS:
        speedup = WEIGHT_UPDATE_RUNS[0].wall_s / run.wall_s
        times: tuple[Cell, ...] = (run.wall_s * NS_PER_S, None)
        yield (run.place, *times, run.update_fraction, None, run.idle_fraction, speedup)


def _speedup_claim(bench: Bench, traces: Mapping[str, StepTrace]) -> Claim:
    predictions = _predictions(bench, traces, WEIGHT_UPDATE_GPU)
    before, after = predictions[_HOST].estimate, predictions[_SUCCESSOR].estimate
    speedup = ratio_of(before, after)
    published = " against ".join(f"{run.wall_s} s" for run in WEIGHT_UPDATE_RUNS)
    return judged_claim(
        speedup,
        WEIGHT_UPDATE_BAND,
        claim=f"On a {WEIGHT_UPDATE_GPU} the update on the device makes training 1.5 to 3 times "
        "as fast as the update on the host",
        published=f"{format_digits(WEIGHT_UPDATE_SPEEDUP, 2)}× ({published})",
        ours=f"{speedup} on {WEIGHT_UPDATE_GPU} fed by {bench.host.name}",
        because=_because(before.value_ns, after.value_ns),
    )


def _because(before_ns: float, after_ns: float) -> str:
    """Return which part of the step decides the ratio, there and here."""
    saved = before_ns - after_ns
    return (
        f"The source saved as much as the rest of its step took; here {format_duration(saved)} "
        f"are saved and {format_duration(after_ns)} remain, torch's launches and data loading."
    )
