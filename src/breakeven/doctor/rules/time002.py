"""TIME002: the first steps are part of a mean.

What it does:
    Finds times that are divided by a number of steps, or that give a throughput, or whose mean
    is taken, where the clock starts before any step has run.

Why it costs time:
    It costs none, but the figure is wrong: the first steps set up the context of the device,
    load kernels, choose algorithms, allocate memory and, with ``torch.compile``, compile.

Evidence:
    The first call took 3.1 s and the others 0.023 s in a public report, 1800 and 10 ms in
    another.

Fix:
    Leave three to ten steps out.

    ```python
    start = time.perf_counter()
    for step in range(100):
        train_step()
    torch.cuda.synchronize()
    print((time.perf_counter() - start) / 100)
    ```

    ```python
    for step in range(110):
        if step == 10:
            torch.cuda.synchronize()
            start = time.perf_counter()
        train_step()
    torch.cuda.synchronize()
    print((time.perf_counter() - start) / 100)
    ```

Known limits:
    Judged by the source of one function; anything named after warming up counts as a warm-up.
    Means over a thousand steps and more are not judged.
"""

from __future__ import annotations

import ast

from breakeven.doctor.measurements import is_mean, iterations, steps_within, wrong_measurements
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.timing_walk import TimedWork
from breakeven.source import dotted_name, nodes_in, parameters_of

CAUSE = "TIME_WARMUP"

# In a mean over so many steps the first does not show.
_MANY_STEPS = 1000


def detect(case: Case) -> Found:
    for timed in wrong_measurements(case, lambda one: not _is_warm(one) and _is_few(case, one)):
        yield Occurrence(
            title="the mean of these times includes the first steps",
            fix="run three to ten steps before the clock starts, or leave them out",
            evidence=f"the clock starts at line {timed.start.location.line}, before the GPU has "
            "done anything",
            location=timed.end.location,
            is_error=True,
        )


def _is_few(case: Case, timed: TimedWork) -> bool:
    """Return whether a mean is of one epoch's steps; over several the first hardly show."""
    return is_mean(timed) and steps_within(case, timed)[0] <= 1


def _is_warm(timed: TimedWork) -> bool:
    """Return whether steps were run before the clock starts, or so many after it that few show."""
    names = [dotted_name(node) for node in nodes_in(timed.scope, ast.Name, ast.Attribute)]
    names += [node.name for node in nodes_in(timed.scope, ast.FunctionDef)]
    if any("warm" in name.lower() for name in (*names, *parameters_of(timed.scope))):
        return True
    if isinstance(timed.scope, ast.FunctionDef):
        calls = list(timed.source.calls(timed.scope.name))
        if len(calls) > 1 or any("warm" in ast.unparse(call).lower() for call in calls):
            return True
    num_steps = (iterations(timed.source, loop) or 0 for loop in timed.loops)
    return timed.has_work_before or any(num >= _MANY_STEPS for num in num_steps)
