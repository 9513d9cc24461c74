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

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.rules.time.measurements import steps_within, wrong_measurements
from breakeven.doctor.rules.time.use import is_mean, iterations
from breakeven.doctor.rules.time.walk import Timed
from breakeven.source import Source, dotted_name

CAUSE = "TIME_WARMUP"

# In a mean over so many steps the first does not show.
_MANY_STEPS = 1000


def detect(case: Case) -> Found:
    def is_wrong(source: Source, timed: Timed) -> bool:
        # Over several epochs the first steps hardly show.
        has_epochs = steps_within(case, source, timed)[0] > 1
        return not has_epochs and not _is_warm(source, timed) and is_mean(source, timed)

    for timed in wrong_measurements(case, is_wrong):
        yield Occurrence(
            title="the mean of these times includes the first steps",
            fix="run three to ten steps before the clock starts, or leave them out",
            evidence=f"the clock starts at line {timed.start.location.line}, before the GPU has "
            "done anything",
            location=timed.end.location,
            is_error=True,
        )


def _is_warm(source: Source, timed: Timed) -> bool:
    """Return whether steps were run before the clock starts, or so many after it that few show."""
    if timed.has_work_before:
        return True
    nodes = list(ast.walk(timed.scope))
    names = [dotted_name(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))]
    names += [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    if any("warm" in name.lower() for name in names):
        return True
    if isinstance(timed.scope, ast.FunctionDef):
        calls = list(source.calls(timed.scope.name))
        if len(calls) > 1 or any("warm" in ast.unparse(call).lower() for call in calls):
            return True
    return any((iterations(source, loop) or 0) >= _MANY_STEPS for loop in timed.loops)
