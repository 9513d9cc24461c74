"""weight-update: a small perceptron whose weights are updated on the host, or on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate import Edit, StepPrediction, build_program, simulate
from breakeven.systems.bands import WEIGHT_UPDATE_BAND
from breakeven.systems.bench import Bench
from breakeven.systems.claims import judge, ratio_of
from breakeven.systems.published import (
    WEIGHT_UPDATE_BATCH_SIZE,
    WEIGHT_UPDATE_GPU,
    WEIGHT_UPDATE_MOMENTUM,
    WEIGHT_UPDATE_RUNS,
    WEIGHT_UPDATE_SOURCE,
    WEIGHT_UPDATE_SPEEDUP,
)
from breakeven.trace import Copy, Event, Phase, StepTrace, Sync
from breakeven.units import NS_PER_S, format_digits, format_duration
from breakeven.verdict import (
    Cell,
    Claim,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemTable,
    TableColumn,
    TableRow,
)

_SCRIPT = "mnist_mlp.py"
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

_COLUMNS = (
    TableColumn(name="update", kind=ColumnKind.TEXT),
    TableColumn(name="run", kind=ColumnKind.TIME_NS),
    TableColumn(name="step", kind=ColumnKind.TIME_NS),
    TableColumn(name="in update", kind=ColumnKind.FRACTION),
    TableColumn(name="in copies", kind=ColumnKind.FRACTION),
    TableColumn(name="GPU idle", kind=ColumnKind.FRACTION),
    TableColumn(name="speed-up", kind=ColumnKind.RATIO),
)
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


class WeightUpdate:
    """A perceptron for digits, batch 20, whose SGD update moves from the host to the device."""

    name = "weight-update"
    title = "the weights of an MNIST perceptron, updated on the host or on the device"
    published_in = WEIGHT_UPDATE_SOURCE

    def run(self, bench: Bench) -> SystemReport:
        """Record the step with each kind of update, and predict it on each GPU."""
        traces = {variant: bench.step(_SCRIPT, *_options(variant)) for variant in _VARIANTS}
        return SystemReport(
            name=self.name,
            title=self.title,
            published_in=self.published_in,
            script=_SCRIPT,
            host=bench.host_summary(),
            tables=tuple(_gpu_table(bench, traces, gpu) for gpu in _GPUS),
            claims=(_speedup_claim(bench, traces),),
        )


def _options(variant: str) -> tuple[str, ...]:
    return (
        "--batch-size",
        str(WEIGHT_UPDATE_BATCH_SIZE),
        "--momentum",
        str(WEIGHT_UPDATE_MOMENTUM),
        "--update",
        variant,
    )


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
        host,
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
    rows: list[TableRow] = []
    is_published = gpu == WEIGHT_UPDATE_GPU
    if is_published:
        rows += _published_rows()
    for variant, prediction in predictions.items():
        trace = traces[variant]
        shares = step_shares(trace, prediction.device, bench.feeding(trace))
        cells: tuple[Cell, ...] = (
            _VARIANTS[variant],
            None,
            prediction.estimate,
            shares.update_fraction,
            shares.copy_fraction,
            shares.idle_fraction,
            host_ns / prediction.estimate.value_ns,
        )
        rows.append(TableRow(source=RowSource.PREDICTED, cells=cells))
    columns, shown = _COLUMNS, tuple(rows)
    if not is_published:  # no run of that GPU was published
        columns = (_COLUMNS[0], *_COLUMNS[2:])
        shown = tuple(replace(row, cells=(row.cells[0], *row.cells[2:])) for row in rows)
    return SystemTable(
        title=f"{gpu}, batch {WEIGHT_UPDATE_BATCH_SIZE}",
        columns=columns,
        rows=shown,
        note=_NOTE + _PUBLISHED_NOTE if is_published else "",
    )


def _predictions(
    bench: Bench, traces: Mapping[str, StepTrace], gpu: str
) -> dict[str, StepPrediction]:
    predictions = bench.predict(tuple(traces.values()), (gpu,))
    return dict(zip(traces, predictions, strict=True))


def _published_rows() -> list[TableRow]:
    return [
        TableRow(
            source=RowSource.PUBLISHED,
            cells=(
                run.place,
                run.wall_s * NS_PER_S,
                None,
                run.update_fraction,
                None,
                run.idle_fraction,
                WEIGHT_UPDATE_RUNS[0].wall_s / run.wall_s,
            ),
        )
        for run in WEIGHT_UPDATE_RUNS
    ]


def _speedup_claim(bench: Bench, traces: Mapping[str, StepTrace]) -> Claim:
    predictions = _predictions(bench, traces, WEIGHT_UPDATE_GPU)
    before, after = predictions[_HOST].estimate, predictions[_SUCCESSOR].estimate
    speedup = ratio_of(before, after)
    judged = judge(speedup.value, speedup.low, speedup.high, WEIGHT_UPDATE_BAND)
    published = " against ".join(f"{run.wall_s} s" for run in WEIGHT_UPDATE_RUNS)
    return Claim(
        claim=f"On a {WEIGHT_UPDATE_GPU} the update on the device makes training 1.5 to 3 times "
        "as fast as the update on the host",
        published=f"{format_digits(WEIGHT_UPDATE_SPEEDUP, 2)}× ({published})",
        ours=f"{speedup} on {WEIGHT_UPDATE_GPU} fed by {bench.host.name}",
        outcome=judged.outcome,
        because=judged.remark + _because(before.value_ns, after.value_ns),
    )


def _because(before_ns: float, after_ns: float) -> str:
    """Return which part of the step decides the ratio, there and here."""
    saved = before_ns - after_ns
    return (
        f"The source saved as much as the rest of its step took; here {format_duration(saved)} "
        f"are saved and {format_duration(after_ns)} remain, torch's launches and data loading."
    )
