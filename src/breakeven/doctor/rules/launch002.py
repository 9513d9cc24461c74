"""LAUNCH002: a solver issues hundreds of small operators, each waiting for the one before.

What it does:
    Finds loops of the script, and calls of solvers such as ``odeint`` or ``LBFGS.step``, that
    evaluate the same function again and again within a step: more than 500 launches with
    little arithmetic each, in a step that launches bound.

Why it costs time:
    Each evaluation needs the one before, so nothing runs side by side, and each of its
    kernels is shorter than its launch. A faster GPU changes nothing.

Evidence:
    GPUs were 3 to 1,340 times slower than CPUs in public reports of neural ODEs, physics-
    informed networks and scans; 0.32 s on a CPU and 1.72 s on a GPU for one.

Fix:
    Solve many trajectories at once, evaluate less often (a larger tolerance, fewer steps, a
    method with fewer stages), or capture the evaluation in a CUDA graph; the gain shown is
    that of a graph of the whole step. Or train on the CPU.

    ```python
    for y0 in initial_values:
        loss = loss + (odeint(f, y0, t) - target).pow(2).mean()
    ```

    ```python
    loss = (odeint(f, torch.stack(initial_values), t) - target).pow(2).mean()
    ```

Known limits:
    A graph needs a fixed number of evaluations, so no adaptive steps. Solvers of libraries are
    known by what they are called: odeint, solve, integrate, minimize, scan, step.
"""

from __future__ import annotations

import re
from collections import Counter

from breakeven.doctor.repeated_loops import (
    MIN_ITERATIONS,
    find_loops,
    flow_of,
    is_launch,
    is_over_time,
)
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import CAPTURED, Bound
from breakeven.source import dotted_name
from breakeven.trace import Location, Op, Phase

CAUSE = "LAUNCH via SOLVER"

# Fewer launches than this are a network of ordinary depth.
_MIN_LAUNCHES = 500
# Part of the step's launches that the solver must issue to be what the step consists of.
_MIN_PART = 0.5
# FLOP per launch above which a kernel takes longer than its launch on any GPU of the last ten
# years: 5 µs at 4 TFLOP/s.
_MAX_FLOP_PER_LAUNCH = 2e7
# Functions of libraries that evaluate a function of the caller's many times.
_SOLVER = re.compile(
    r"(odeint|sdeint|cdeint|solve|integrate|minimi[sz]e|scan|fixed_point|anderson|broyden|"
    r"root_?find|newton|^step$)",
    re.IGNORECASE,
)


def detect(case: Case) -> Found:
    prediction = case.prediction
    num_kernels = prediction.num_kernels
    if prediction.bound is not Bound.LAUNCH or num_kernels < _MIN_LAUNCHES:
        return
    if sum(kernel.flop for kernel in case.program.kernels) > num_kernels * _MAX_FLOP_PER_LAUNCH:
        return
    found = _loop(case) or _library_call(case)
    if found is None:
        return
    location, events, num_evaluations = found
    launches = sum(is_launch(case.trace.events[index]) for index in events)
    if launches < max(_MIN_LAUNCHES, _MIN_PART * sum(map(is_launch, case.trace.events))):
        return
    yield Occurrence(
        title=f"a solver issues {launches} small operators one after the other in every step",
        fix="more trajectories at once, fewer evaluations, or a CUDA graph",
        evidence=f"the same operators are issued {num_evaluations} times from here, each "
        "time with results of the time before",
        location=location,
        events=events,
        scenario=CAPTURED,
    )


def _loop(case: Case) -> tuple[Location, tuple[int, ...], int] | None:
    """Return the outermost loop of the script that is a solver's."""
    for loop in case.once(find_loops):
        flow = flow_of(case.trace, loop)
        is_solver = flow.state is not None and not flow.own_parameters
        if is_solver and not is_over_time(case.trace, loop, flow):
            return loop.location, loop.events, loop.num_iterations
    return None


def _library_call(case: Case) -> tuple[Location, tuple[int, ...], int] | None:
    """Return the user's line that gives a function to a solver of a library."""
    trace = case.trace
    inside = {
        index
        for loop in case.once(find_loops)
        for run in loop.runs
        for iteration in run
        for index in iteration
    }
    counts = Counter(
        (event.stack, event.name)
        for index, event in enumerate(trace.events)
        if isinstance(event, Op)
        and event.phase is Phase.FORWARD
        and event.stack >= 0
        and index not in inside
    )
    repeated = {stack for (stack, _), count in counts.items() if count >= MIN_ITERATIONS}
    sites: Counter[tuple[Location, ...]] = Counter()
    for (stack, _), count in counts.items():
        site = _solver_site(case, trace.stacks[stack]) if stack in repeated else ()
        if site:
            sites[site] += count
    if not sites:
        return None
    (site, _), *_ = sites.most_common(1)
    below = {number for number, stack in enumerate(trace.stacks) if stack[: len(site)] == site}
    events = tuple(index for index, event in enumerate(trace.events) if event.stack in below)
    per_line = Counter(
        {key: count for key, count in counts.items() if key[0] in below and key[0] in repeated}
    )
    return site[-1], events, max(per_line.values())


def _solver_site(case: Case, stack: tuple[Location, ...]) -> tuple[Location, ...]:
    """Return the lines down to the innermost that calls a solver; none where no line does."""
    for depth in range(len(stack) - 1, 0, -1):
        location = stack[depth - 1]
        source = case.sources.find(location)
        if source is None:
            continue
        calls = (dotted_name(call.func) for call in source.calls_on(location.line))
        names = {name.rpartition(".")[2] for name in calls}
        # A function of the script's own that is called so is judged by its loops.
        if any(map(_SOLVER.search, names - {stack[depth].function})):
            return stack[:depth]
    return ()
