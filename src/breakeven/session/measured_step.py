"""The step as it was measured here: as a report shows it, and on the threads that suit it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from breakeven.capture import PlainRun, TracedRun
from breakeven.errors import Caveat
from breakeven.session.runs import Runs, is_all_disturbed
from breakeven.timing import BUSY_BESIDE, BUSY_FRACTION, BUSY_MACHINE, Source
from breakeven.trace import HostWork
from breakeven.units import format_percent, format_ratio
from breakeven.verdict import DeviceKind, DeviceResult, cpu_on_threads, threads_text

# So many times as fast as the script runs, and another number of threads is shown.
_CLEARLY_FASTER = 1.1
# Operators that took so many times as long while they were recorded as the whole step does were
# held up by other work. As a rule they take nine tenths of it.
_HELD_UP = 1.5
# And a step that takes so many times as long as they and the Python between did beside other
# work is not believed.
_UNBELIEVABLE = 5.0
# A share of the measured step that is said.
_MUCH_WAITING = 0.1
_BUSY_CODES = frozenset({BUSY_MACHINE, BUSY_BESIDE})


class AtBest(NamedTuple):
    """The step as it was recorded, timed as the script runs it, and timed at its best."""

    traced: TracedRun
    as_set: PlainRun
    best: PlainRun
    results: tuple[DeviceResult, ...]


def measure_at_best(runs: Runs, traced: TracedRun) -> AtBest:
    """Time the step; further runs have the number of threads that suits it.

    Where other work held up the recording, fewer threads suit it, and it is made again.

    Args:
        runs: Runs the target.
        traced: The step as it was recorded.
    """
    as_set = believed(runs.measure(), traced)
    if not is_all_disturbed(as_set):
        # What was held up is shown, but nothing rests on it.
        as_set = _without_warning(as_set)
    step_ns = min(run.measurement.median_ns for run in (as_set, *as_set.trials))
    is_held_up = sum(op.host_ns for op in traced.trace.ops) > _HELD_UP * step_ns
    best = at_its_best(as_set, least_gain=1 / _CLEARLY_FASTER if is_held_up else _CLEARLY_FASTER)
    runs.use_threads(best.num_threads, for_traces=is_held_up)
    if is_held_up:
        traced = runs.trace()
    results = [measured_result(run, DeviceKind.CPU) for run in (best, as_set)]
    if best.num_threads == as_set.num_threads:
        return AtBest(traced, as_set, best, (results[1],))
    for number, run in enumerate((best, as_set)):
        results[number] = replace(results[number], setting=threads_text(run.num_threads))
    if as_set.measurement.is_disturbed and not best.measurement.is_disturbed:
        # So many threads are at most so many times as fast as one.
        least_ns = results[0].low_ns * best.num_threads / as_set.num_threads
        low_ns = min(max(results[1].low_ns, least_ns), results[1].step_ns)
        results[1] = replace(results[1], low_ns=low_ns)
    return AtBest(traced, as_set, best, tuple(results))


def believed(run: PlainRun, traced: TracedRun) -> PlainRun:
    """Return a run whose steps count as a bound where they cannot be what the script takes.

    Beside other work they took many times as long as the operators and the Python between them
    did while they were recorded. How much of it is the script's is not known then, nor of its
    phases; and trials like that say nothing.

    Args:
        run: The steps, timed.
        traced: The step as it was recorded.
    """
    events = traced.trace.events
    ops_ns = sum(op.host_ns for op in traced.trace.ops)
    works_ns = sum(event.duration_ns for event in events if isinstance(event, HostWork))
    longest_ns = _UNBELIEVABLE * (ops_ns + works_ns)
    if run.load_fraction <= BUSY_FRACTION:
        return run
    run = replace(
        run,
        trials=tuple(each for each in run.trials if each.measurement.median_ns < longest_ns),
    )
    if run.measurement.median_ns < longest_ns:
        return run
    factor = _UNBELIEVABLE * run.measurement.median_ns / max(longest_ns, 1)
    message = (
        f"other processes used {format_percent(run.load_fraction)} of this machine while the step "
        f"was measured; it took {format_ratio(factor)} what its operators and the Python "
        "between them took by themselves, so that its time is a bound"
    )
    return replace(
        run,
        measurement=replace(run.measurement, waited_ns=(), is_bound=True),
        phases=None,
        other=None,
        other_work=(),
        caveats=(
            *(caveat for caveat in run.caveats if caveat.code not in _BUSY_CODES),
            Caveat(code=BUSY_MACHINE, message=message),
        ),
    )


def at_its_best(as_set: PlainRun, *, least_gain: float = _CLEARLY_FASTER) -> PlainRun:
    """Return the run on the number of threads that other work disturbs less, or the fastest.

    Args:
        as_set: As the script runs, with trials of other numbers.
        least_gain: How many times as fast another number must be.
    """
    best = as_set
    for trial in as_set.trials:
        is_calmer = best.measurement.is_disturbed and not trial.measurement.is_disturbed
        is_as_calm = best.measurement.is_disturbed == trial.measurement.is_disturbed
        is_faster = best is as_set or trial.measurement.median_ns < best.measurement.median_ns
        gain = as_set.measurement.median_ns / trial.measurement.median_ns
        if is_calmer or (is_as_calm and is_faster and gain > least_gain):
            best = replace(
                _without_warning(as_set) if is_calmer else as_set,
                measurement=trial.measurement,
                phases=trial.phases,
                num_threads=trial.num_threads,
                other=trial.other,
                other_work=trial.other_work,
            )
    return best


def _without_warning(run: PlainRun) -> PlainRun:
    return replace(run, caveats=tuple(c for c in run.caveats if c.code != BUSY_MACHINE))


def measured_result(plain: PlainRun, kind: DeviceKind) -> DeviceResult:
    """Return the result that a report shows for a device of this machine."""
    estimate = plain.measurement.estimate
    device, num_threads = plain.processor, None
    if kind is DeviceKind.CPU:
        num_threads = plain.num_threads
        device = cpu_on_threads(device, num_threads)
    return DeviceResult(
        device=device,
        kind=kind,
        source=Source.MEASURED,
        precision=plain.precision,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        bound=None,
        peak_memory_bytes=plain.peak_memory_bytes,
        fits=True,
        caveats=(*plain.caveats, *_waiting(plain)),
        num_samples=len(plain.measurement.steady_ns),
        is_disturbed=plain.measurement.is_disturbed,
        num_threads=num_threads,
    )


def _waiting(plain: PlainRun) -> tuple[Caveat, ...]:
    """Say how much of a measured step waits for worker processes, and if their pace is unknown."""
    loader, step_ns = plain.loader, plain.measurement.median_ns
    if loader is None or not loader.num_workers:
        return ()
    caveats: list[Caveat] = []
    if loader.wait_ns > _MUCH_WAITING * step_ns:
        share = format_percent(loader.wait_ns / step_ns)
        caveats.append(
            Caveat(
                code="waits-for-loader",
                message=f"{share} of the measured step waits for the worker processes of the "
                "DataLoader",
            )
        )
    if not loader.alone_ns:
        caveats.append(
            Caveat(
                code="loader-not-timed",
                message="the worker processes of the DataLoader were not timed by themselves; the "
                "GPU's step counts what their work took while it was recorded",
            )
        )
    return tuple(caveats)
