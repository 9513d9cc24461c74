"""The step on this CPU at its best: on the number of threads that suits it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.check._comparison import measured_result, threads_text
from breakeven.check._runs import Runs
from breakeven.verdict import DeviceKind, DeviceResult

# So many times as fast as the script runs, and another number of threads is shown.
_CLEARLY_FASTER = 1.1


class AtBest(NamedTuple):
    """The step as it was recorded, timed as the script runs it, and timed at its best."""

    traced: TracedRun
    as_set: PlainRun
    best: PlainRun
    results: tuple[DeviceResult, ...]


def measure_at_best(runs: Runs, traced: TracedRun) -> AtBest:
    """Time the step; further runs have the number of threads that suits it.

    Where other work disturbed the run with more threads, it did so with the recording, which is
    made again.

    Args:
        runs: Runs the target.
        traced: The step as it was recorded.
    """
    as_set = runs.measure()
    best, results = _on_cpu(as_set)
    runs.use_threads(best.num_threads)
    if as_set.measurement.is_disturbed and not best.measurement.is_disturbed:
        traced = runs.trace()
    return AtBest(traced, as_set, best, results)


def _on_cpu(plain: PlainRun) -> tuple[PlainRun, tuple[DeviceResult, ...]]:
    """Return the run on the best number of threads, and the results that a report shows.

    Fewer threads than the script has are shown where they are clearly better, or where other work
    disturbs more of them.
    """
    as_set = measured_result(plain, DeviceKind.CPU)
    best = plain
    for trial in plain.trials:
        is_calmer = best.measurement.is_disturbed and not trial.measurement.is_disturbed
        is_as_calm = best.measurement.is_disturbed == trial.measurement.is_disturbed
        gain = best.measurement.median_ns / trial.measurement.median_ns
        if is_calmer or (is_as_calm and gain > _CLEARLY_FASTER):
            best = replace(
                plain,
                measurement=trial.measurement,
                phases=trial.phases,
                num_threads=trial.num_threads,
            )
    if best is plain:
        return plain, (as_set,)
    results = (measured_result(best, DeviceKind.CPU), as_set)
    return best, tuple(
        replace(result, setting=threads_text(run.num_threads))
        for result, run in zip(results, (best, plain), strict=True)
    )
