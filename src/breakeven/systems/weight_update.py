"""weight-update: a small perceptron with its weight update on the host or on the device."""

from __future__ import annotations

from collections.abc import Mapping

from breakeven.device import DeviceSpec, HostSpec
from breakeven.report import Cell, Claim, ColumnKind, RowSource, SystemReport, SystemTable
from breakeven.simulate import Edit, StepPrediction, build_program, simulate
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import FACTS, judged_claim, ratio_of, report, table
from breakeven.trace import Event, Phase, StepTrace
from breakeven.units import NS_PER_S, format_digits, format_duration

_FACTS = FACTS["weight-update"]
_GPU = _FACTS["gpus"][0]
_VARIANTS = {
    "host": "on the host",
    "single": "on device: single",
    "foreach": "on device: foreach",
    "fused": "on device: fused",
}
# Name of the script's method that updates on the host.
_UPDATE_FUNCTION = "step"
_COLUMNS = {
    "update": ColumnKind.TEXT,
    "run": ColumnKind.TIME_NS,
    "step": ColumnKind.TIME_NS,
    "in update": ColumnKind.FRACTION,
    "GPU idle": ColumnKind.FRACTION,
    "speed-up": ColumnKind.RATIO,
}


def run(bench: Bench) -> SystemReport:
    """Record the step with each kind of update, and predict it on each GPU."""
    options = ("--batch-size", str(_FACTS["batch_size"]), "--momentum", str(_FACTS["momentum"]))
    traces = {each: bench.step("mnist_mlp.py", *options, "--update", each) for each in _VARIANTS}
    predictions = {
        gpu: dict(zip(traces, bench.predict(tuple(traces.values()), (gpu,)), strict=True))
        for gpu in _FACTS["gpus"]
    }
    return report(
        "weight-update",
        bench.host_summary(),
        tables=[_gpu_table(bench, traces, gpu, of_gpu) for gpu, of_gpu in predictions.items()],
        claims=[_speedup_claim(bench.host.name, predictions[_GPU])],
    )


def step_shares(trace: StepTrace, device: DeviceSpec, host: HostSpec) -> tuple[float, float]:
    """Return the shares of a step that its update and an idle device take.

    The first is the saving without the update.
    """
    program = build_program(trace)
    edit = Edit(replaced={i: () for i, event in enumerate(trace.events) if is_of_update(event)})
    without_update = program.edited(edit)
    timelines = simulate((program, without_update), (device,), host.for_device(device))
    step_ns, no_update_ns = (float(time) for time in timelines.step_ns[:, 0, 0])
    busy_ns = float(timelines.device_busy_ns[0, 0, 0])
    return max(0.0, 1 - no_update_ns / step_ns), max(0.0, 1 - busy_ns / step_ns)


def is_of_update(event: Event) -> bool:
    """Return whether an event belongs to the update, by the optimizer or by the script."""
    location = event.location
    return event.phase is Phase.OPTIMIZER or (
        location is not None and location.function == _UPDATE_FUNCTION
    )


def _gpu_table(
    bench: Bench,
    traces: Mapping[str, StepTrace],
    gpu: str,
    predictions: Mapping[str, StepPrediction],
) -> SystemTable:
    host_ns = predictions["host"].estimate.value_ns
    cells: list[tuple[Cell, ...]] = []
    for variant, prediction in predictions.items():
        trace, step = traces[variant], prediction.estimate
        shares = step_shares(trace, prediction.device, bench.host_for_prediction(trace))
        cells.append((_VARIANTS[variant], None, step, *shares, host_ns / step.value_ns))
    title = f"{gpu}, batch {_FACTS['batch_size']}"
    if gpu != _GPU:
        columns = {name: kind for name, kind in _COLUMNS.items() if name != "run"}
        ours = [(name, *others) for name, _, *others in cells]
        return table(title, columns, (RowSource.PREDICTED, ours))
    slowest_s = _FACTS["runs"][0]["wall_s"]
    published = [
        (
            run["place"], run["wall_s"] * NS_PER_S, None, run.get("update_fraction"),
            run.get("idle_fraction"), slowest_s / run["wall_s"],
        )
        for run in _FACTS["runs"]
    ]  # fmt: skip
    rows = ((RowSource.PUBLISHED, published), (RowSource.PREDICTED, cells))
    return table(title, _COLUMNS, *rows, note=_FACTS["notes"]["shares"])


def _speedup_claim(host: str, predictions: Mapping[str, StepPrediction]) -> Claim:
    # In the source, a call of the device's BLAS for each tensor replaced the host's update.
    before, after = predictions["host"].estimate, predictions["single"].estimate
    speedup = ratio_of(before, after)
    host_s, device_s = (run["wall_s"] for run in _FACTS["runs"])
    return judged_claim(
        speedup,
        _FACTS["band"],
        claim=f"On a {_GPU} the update on the device makes training 1.5 to 3 times "
        "as fast as the update on the host",
        published=f"{format_digits(host_s / device_s, 2)}× ({host_s} s against {device_s} s)",
        ours=f"{speedup} on {_GPU} fed by {host}",
        because="The source saved as much as the rest of its step took; here "
        f"{format_duration(before.value_ns - after.value_ns)} are saved and "
        f"{format_duration(after.value_ns)} remain, torch's launches and data loading.",
    )
