"""TIME001: the script reads a clock while the GPU is still at work.

What it does:
    Finds the difference of two clock readings with work of the GPU between them and nothing
    that waits for it: no ``synchronize()``, no value read, no tensor printed.

Why it costs time:
    It costs none, but the figure is wrong: the calls between the readings only put work into
    a queue, so the clock shows how long that took. What decides by the figure decides wrongly.

Evidence:
    Figures were 2 to 45 times too small in public reports; a published benchmark showed 0.03
    instead of 1.36 ms for a matrix product.

Fix:
    Wait before both readings, or time with events of the device.

    ```python
    start = time.perf_counter()
    output = model(x)
    elapsed = time.perf_counter() - start
    ```

    ```python
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = model(x)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    ```

Known limits:
    A wait anywhere after the first work counts as one, since work that is still under way at
    the end then is at most a step's. Times of whole trainings, over several epochs or twenty
    thousand launches, are not judged: the queue is a small part of them. Both readings must be
    in one function, each as a plain assignment or in the difference: stopwatches, context
    managers, callbacks and ``timeit`` are not followed.
"""

from __future__ import annotations

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.timed_work import TimedWork, steps_within, timed_work

CAUSE = "TIME_NO_SYNC"

# The host runs ahead of the device by so many launches at most (as the simulator assumes); over
# twenty times as many the end of a measurement is a few percent off, and no more.
_LAUNCHES_AHEAD, _ENOUGH_QUEUES = 1024, 20


def detect(case: Case) -> Found:
    for timed in case.once(timed_work):
        if timed.is_awaited or _is_long(case, timed):
            continue
        first, last = timed.work[0], timed.work[-1]
        work = f"work of line {first}" if first == last else f"work of lines {first} to {last}"
        yield Occurrence(
            title="the clock is read while the GPU is still at work",
            fix="call torch.cuda.synchronize() before both readings of the clock",
            evidence=f"{work} is timed from line {timed.start}, and nothing waits for it",
            location=timed.location,
            is_error=True,
        )


def _is_long(case: Case, timed: TimedWork) -> bool:
    """Return whether so much is timed that the queue at its end is a small part of it."""
    depth, num_steps = steps_within(case, timed)
    launches = num_steps * case.prediction.num_kernels
    return depth > 1 or (depth == 1 and launches > _ENOUGH_QUEUES * _LAUNCHES_AHEAD)
