"""LAUNCH: work that the host issues more slowly than the device runs it."""

from __future__ import annotations

from breakeven.advise.events import base_name, common_start, parameters_of, read_by
from breakeven.advise.repeated_loops import (
    find_loops,
    flow_of,
    is_launch,
    is_over_time,
)
from breakeven.advise.rule import Match, Matches, RuleInput, rule, without
from breakeven.simulate import CAPTURED, TYPICAL, Bound, CompileMode, compile_mode_of, compiled_step
from breakeven.trace import Op, Phase
from breakeven.units import format_duration, format_percent

# A smaller idle fraction of the device offers no gain worth a change of the script.
_MIN_IDLE_FRACTION = 0.1
# If launching is not the main bottleneck, report it only if it would save at least this fraction.
_MIN_LAUNCH_FRACTION = 0.2


@rule("LAUNCH001", "LAUNCH_FLOOR")
def launch_bound(case: RuleInput) -> Matches:
    prediction = case.prediction
    step_ns = prediction.estimate.value_ns
    if step_ns <= 0:
        return
    idle_fraction = 1 - prediction.device_busy_ns / step_ns
    # Free launches save at most this fraction of the step.
    issuing_ns = prediction.host_ns - prediction.launch_ns
    rest_ns = max(issuing_ns, prediction.device_busy_ns, prediction.loader_ns)
    launch_fraction = min(prediction.launch_ns, step_ns - rest_ns) / step_ns
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
    # The script's own graphs replay the other kernels.
    replayed = (index for index, op in case.each(Op) if op.is_replayed)
    num_replayed = sum(kernel.launches for index in replayed for kernel in case.kernels_of(index))
    what = f"{prediction.num_kernels - num_replayed} kernels"
    yield Match(
        title=f"launching {what}{' and the CUDA graphs' * has_graph} takes "
        f"{format_duration(prediction.launch_ns)}, running them "
        f"{format_duration(prediction.device_busy_ns)}",
        # The verdict, not this rule, says whether the CPU is the better choice.
        fix="a larger batch, or more of the step in the graph"
        if has_graph
        else 'a larger batch, or torch.compile(mode="reduce-overhead")',
        evidence=f"the device idles for {format_percent(idle_fraction)} of the simulated step; "
        + (
            "launches that cost nothing would shorten it most"
            if is_most
            else f"launches that cost nothing would shorten it by {format_percent(launch_fraction)}"
        ),
        scenario=CAPTURED if has_graph else TYPICAL,
        edit=None if has_graph else compiled_step(case.program, CompileMode.REDUCE_OVERHEAD).edit,
        share_fraction=idle_fraction if is_most else launch_fraction,
    )


# A network of ordinary depth has fewer launches than this.
_MIN_LAUNCHES = 500
# Minimum fraction of the step's launches from the solver.
_MIN_PART = 0.5
# FLOP per launch above which a kernel takes longer than its launch on any GPU of the last ten
# years: 5 µs at 4 TFLOP/s.
_MAX_FLOP_PER_LAUNCH = 2e7


@rule("LAUNCH002", "LAUNCH via SOLVER")
def solvers(case: RuleInput) -> Matches:
    prediction = case.prediction
    num_kernels = prediction.num_kernels
    if prediction.bound is not Bound.LAUNCH or num_kernels < _MIN_LAUNCHES:
        return
    if sum(kernel.flop for kernel in case.program.kernels) > num_kernels * _MAX_FLOP_PER_LAUNCH:
        return
    # The outermost loop that belongs to a solver.
    for loop in find_loops(case):
        flow = flow_of(case.trace, loop)
        is_solver = flow.state is not None and not flow.own_parameters
        if is_solver and not is_over_time(case.trace, loop, flow):
            break
    else:
        return
    launches = sum(is_launch(case.trace.events[index]) for index in loop.events)
    if launches < max(_MIN_LAUNCHES, _MIN_PART * sum(map(is_launch, case.trace.events))):
        return
    yield Match(
        title=f"a solver issues {launches} small operators one after the other in every step",
        fix="more trajectories at once, fewer evaluations, or a CUDA graph",
        evidence=f"the same operators are issued {loop.num_iterations} times from here, each "
        "time with results of the time before",
        location=loop.location,
        events=loop.events,
        scenario=CAPTURED,
    )


# Minimum frozen fraction of the forward pass's arithmetic that makes storing its results
# worthwhile.
_MIN_FLOP_FRACTION = 0.5

_PRODUCTS = ("mm", "addmm", "bmm", "convolution")


@rule("LAUNCH003", "RECOMPUTE_FROZEN")
def frozen_parts(case: RuleInput) -> Matches:
    trace = case.trace
    trained = {op.module for op in trace.ops if op.phase is Phase.BACKWARD}
    if not trained:
        return
    owned = parameters_of(trace)
    flop: dict[str, float] = {}
    forward = {index: op for index, op in case.each(Op) if op.phase is Phase.FORWARD}
    for index, op in forward.items():
        if case.program.lowerings[index] is not None:
            own = sum(kernel.flop for kernel in case.kernels_of(index))
            flop[op.module] = flop.get(op.module, 0.0) + own
            if read_by([op]) & owned:
                trained.add(op.module)
    frozen = {module for module in flop if module and module not in trained}
    part = sum(flop[module] for module in frozen) / max(1.0, sum(flop.values()))
    if part < _MIN_FLOP_FRACTION:
        return
    events = [index for index, op in forward.items() if op.module in frozen]
    if not any(base_name(forward[index]) in _PRODUCTS for index in events):
        return
    # The innermost line that leads to all of these events.
    stacks = filter(None, (trace.stack_of(trace.events[index]) for index in events))
    location = (common_start(stacks) or (trace.events[events[0]].location,))[-1]
    yield Match(
        title=f"{format_percent(part)} of the forward pass's arithmetic is in frozen modules",
        fix="run the frozen part once over the data set, and train the rest on its results",
        evidence=f"no backward pass goes through {len(frozen)} of {len(flop)} modules, and "
        "no optimizer updates them",
        location=location,
        events=tuple(events),
        edit=without(events),
    )
