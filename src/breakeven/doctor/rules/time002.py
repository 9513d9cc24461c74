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
    Both readings must be in one function, as for TIME001; a function that mentions warming up
    has a warm-up.
    Means over a thousand steps and more are not judged.
"""

from __future__ import annotations

import ast

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.timed_work import TimedWork, is_division, steps_within, timed_work
from breakeven.source import LOOP_STATEMENTS, dotted_name, last_name

CAUSE = "TIME_WARMUP"

# In a mean over so many steps the first does not show.
_MANY_STEPS = 1000


def detect(case: Case) -> Found:
    for timed in case.once(timed_work):
        depth, num_steps = steps_within(case, timed)
        # In a mean over several epochs the first steps hardly show.
        if depth > 1 or num_steps >= _MANY_STEPS or not _is_mean(timed) or _is_warm(timed):
            continue
        yield Occurrence(
            title="the mean of these times includes the first steps",
            fix="run three to ten steps before the clock starts, or leave them out",
            evidence=f"the clock starts at line {timed.start}, before the GPU has done anything",
            location=timed.location,
            is_error=True,
        )


def _is_mean(timed: TimedWork) -> bool:
    """Return whether a time of many steps is divided, or times of single steps are averaged."""
    source = timed.source
    if timed.loops or not source.loops_around(timed.start):
        is_divided = any(isinstance(use, ast.BinOp) for use in timed.uses)
        return bool(timed.loops) and not source.loops_around(timed.start) and is_divided
    for use in timed.uses:
        around = [one for one in source.parents(use) if isinstance(one, (ast.If, *LOOP_STATEMENTS))]
        keeper = use.target if isinstance(use, ast.AugAssign) else getattr(use, "func", use)
        # A condition within the loop leaves the first steps out, and so does a slice of the list.
        is_guarded = isinstance(around[0], ast.If) if around else True
        for read in source.reads_of(dotted_name(keeper).removesuffix(".append")):
            inner, above = read, source.parent(read)
            if isinstance(above, ast.Call):
                inner, above = above, source.parent(above)
            is_mean = last_name(inner) in ("mean", "fmean") or (above and is_division(above, inner))
            if is_mean and not is_guarded:
                return True
    return False


def _is_warm(timed: TimedWork) -> bool:
    """Return whether steps were run before the clock starts."""
    scope = timed.scope
    is_repeated = isinstance(scope, ast.FunctionDef) and len([*timed.source.calls(scope.name)]) > 1
    return timed.has_work_before or is_repeated or "warm" in ast.unparse(scope).lower()
