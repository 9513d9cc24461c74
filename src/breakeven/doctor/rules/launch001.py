"""LAUNCH001: kernels are shorter than the time it takes to launch them.

What it does:
    Reports when launching bounds the step: the device idles between kernels because the host
    needs longer to issue them than the device to run them. Also where the host has more work of
    another kind, such as a trainer's own Python, and launching is a fifth of the step or more. The
    share is the part of the step in which the device idles, or else what launching takes of it.

Why it costs time:
    Each operator costs the host several microseconds of Python, dispatch and launch, whatever
    its size and whatever the GPU. A faster GPU does not change that.

Evidence:
    The most frequent reason of all in public reports: on small models the CPU was up to 100
    times faster than the GPU. Fewer launches cure it: 32,000 launches took 1,355 ms one by one
    and 245 ms from a CUDA graph.

Fix:
    A larger batch costs nothing as long as launching bounds the step.
    ``torch.compile(mode="reduce-overhead")`` fuses operators of the model and replays the rest as
    CUDA graphs; the gain shown is that of the step which it would make, with the loss and the
    update as they are. Or train on the CPU.

    ```python
    model = Net().to(device)
    ```

    ```python
    model = torch.compile(Net().to(device), mode="reduce-overhead")
    ```

Known limits:
    A graph needs fixed shapes and no sync within the model; other findings say where those are.
    Waits stay in the simulated gain. Compiling takes time of its own: ``check --compile`` says
    after how many steps it is paid for. Of a step that replays graphs already, what they replay
    is not counted among what is launched, and the gain is that of one graph of all of it. Where
    the script compiles its model in such a mode already, nothing is reported.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import (
    CAPTURED,
    TYPICAL,
    Bound,
    CompileMode,
    Edit,
    StepPrediction,
    compile_mode_of,
    compiled_step,
)
from breakeven.trace import Op
from breakeven.units import format_duration, format_percent

CAUSE = "LAUNCH_FLOOR"

# A device that idles less than this has nothing to gain that is worth a change of the script.
_MIN_IDLE_FRACTION = 0.1
# Launching that is not what bounds a step most is told where without it so much would be saved.
_MIN_LAUNCH_FRACTION = 0.2


def detect(case: Case) -> Found:
    prediction = case.prediction
    step_ns = prediction.estimate.value_ns
    if step_ns <= 0:
        return
    idle_fraction = 1 - prediction.device_busy_ns / step_ns
    launch_fraction = _launch_fraction(prediction)
    is_most = prediction.bound is Bound.LAUNCH
    if not is_most and prediction.bound not in (Bound.HOST_DATA, Bound.HOST_OPTIMIZER):
        return
    if idle_fraction < _MIN_IDLE_FRACTION:
        return
    if not is_most and launch_fraction < _MIN_LAUNCH_FRACTION:
        return
    mode = compile_mode_of(case.trace)
    if mode is not None and mode.has_graphs:
        return
    has_graph = case.trace.launches_graph
    what = f"{prediction.num_kernels - _num_replayed(case)} kernels"
    yield Occurrence(
        title=f"launching {what}{' and the CUDA graphs' * has_graph} takes "
        f"{format_duration(prediction.launch_ns)}, running them "
        f"{format_duration(prediction.device_busy_ns)}",
        # Whether the CPU is the better choice is the verdict's to say.
        fix="a larger batch, or more of the step in the graph"
        if has_graph
        else 'a larger batch, or torch.compile(mode="reduce-overhead")',
        evidence=f"the device idles for {format_percent(idle_fraction)} of the simulated step, "
        + (
            "and with launches free of charge it is shortest"
            if is_most
            else f"which launches free of charge shorten by {format_percent(launch_fraction)}"
        ),
        scenario=CAPTURED if has_graph else TYPICAL,
        edit=None if has_graph else case.once(_compiled),
        share_fraction=idle_fraction if is_most else launch_fraction,
    )


def _compiled(case: Case) -> Edit:
    return compiled_step(case.program, CompileMode.REDUCE_OVERHEAD).edit


def _launch_fraction(prediction: StepPrediction) -> float:
    """Return the part of the step that launches free of charge save at most."""
    rest_ns = max(
        prediction.host_ns - prediction.launch_ns, prediction.device_busy_ns, prediction.loader_ns
    )
    step_ns = prediction.estimate.value_ns
    return min(prediction.launch_ns, step_ns - rest_ns) / step_ns


def _num_replayed(case: Case) -> int:
    """Return how many kernels graphs of the script replay."""
    return sum(
        kernel.launches
        for index, op in case.each(Op)
        if op.is_replayed
        for kernel in case.kernels_of(index)
    )
