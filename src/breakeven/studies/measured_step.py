"""The step from its runs: recorded, and timed on the best number of threads.

A report shows it as measured. Predictions use the recorded step with the timed durations.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from breakeven.capture import Gap, LoaderUse, PlainRun, TracedRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import Caveat, has_caveat
from breakeven.simulate import Program, build_program
from breakeven.studies.host_work import (
    RecordedGap,
    as_timed,
    is_other_path,
    on_threads,
    recorded_gap,
    without_warning,
)
from breakeven.studies.runner import Runner
from breakeven.timing import BUSY_BESIDE, BUSY_FRACTION, BUSY_MACHINE, EMULATED_ON_CPU, Source
from breakeven.trace import HostWork
from breakeven.units import format_percent, format_ratio
from breakeven.verdict import (
    DeviceKind,
    DeviceResult,
    HostSummary,
    ProgramFacts,
    ProgramPart,
    cpu_on_threads,
    host_summary,
    threads_text,
)

# If recorded operators took this many times as long as the whole step, then other work held them
# up, or they belong to an untypical step. Normally they take nine tenths of it.
_UNTYPICAL = 1.5
# Two runs of the same step differ by less than this ratio.
_CLEARLY_FASTER = 1.1
# Upper limit on a recorder's overhead per operator, which is subtracted.
_RECORDED_CALL_NS = 5_000
# A step measured with other work is rejected if it takes this many times as long as its operators
# and the Python between them.
_UNBELIEVABLE = 5.0
# A share of the measured step above which waiting is reported.
_MUCH_WAITING = 0.1
_BUSY_CODES = frozenset({BUSY_MACHINE, BUSY_BESIDE})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that was recorded and timed on this machine.

    Args:
        traced: The recorded step.
        plain: The same step, timed on this CPU at its best.
        as_set: The same step on the script's number of threads.
        results: Results of this machine's devices, the CPU first.
        program: The recorded step with the timed durations, and its kernels.
        gap: The work between two steps; None if it is short.
        recorded_gap: Its recording; None if there is none.
    """

    traced: TracedRun
    plain: PlainRun
    as_set: PlainRun
    results: tuple[DeviceResult, ...]
    program: Program
    gap: Gap | None = None
    recorded_gap: RecordedGap | None = None


def measure_target(
    runner: Runner, *, has_gpu: bool = False, tries_generated: bool = False
) -> MeasuredStep:
    """Record the step of a script, and time it with the script's threads and with others.

    Further runs use the best number of threads. An untypical step is recorded again: with fewer
    threads in case other work held it up, and over more steps in case the script evaluates or draws
    in its first few.

    Args:
        runner: Runs the script.
        has_gpu: Also time the step on this machine's GPU.
        tries_generated: Also time generated code for the step, if it is short.

    Raises:
        BreakevenError: If the script gives no step.
    """
    traced = runner.record()
    as_set = upper_bound_if_disturbed(runner.time(tries_generated=tries_generated), traced)
    step_ns = min(run.measurement.median_ns for run in (as_set, *as_set.trials))
    ops_ns = sum(max(0, op.host_ns - _RECORDED_CALL_NS) for op in traced.trace.ops)
    is_untypical = ops_ns > _UNTYPICAL * step_ns
    best = at_best_thread_count(as_set, prefers_fewer=is_untypical)
    if not best.measurement.is_disturbed:
        # The report shows a disturbed time, but no figure depends on it.
        as_set = without_warning(as_set)
    if best.num_threads != as_set.num_threads:
        # Recordings that are combined must all have the same number of threads.
        runner.timing_threads = best.num_threads
        runner.recording_threads = best.num_threads if is_untypical else 0
    if is_untypical:
        runner.records_longer = True
        traced = runner.record()
    results = _shown_results(as_set, best)
    if has_gpu and (on_gpu := runner.time_on_gpu()) is not None:
        results = (*results, measured_result(on_gpu, DeviceKind.GPU))
    # Prefer a run that identifies the gap's work: other processes cause gaps too.
    gap = max((as_set, best), key=lambda run: (run.gap is not None, run.other is not None)).gap
    traced_gap = runner.record_gap(gap.num_updates) if gap else None
    return measured_step(traced, best, as_set, results, gap, traced_gap)


def measured_step(
    traced: TracedRun,
    plain: PlainRun,
    as_set: PlainRun,
    results: tuple[DeviceResult, ...],
    gap: Gap | None = None,
    traced_gap: TracedRun | None = None,
) -> MeasuredStep:
    """Combine the runs of a step; see `MeasuredStep`."""
    recorded = None
    if gap is not None and traced_gap is not None:
        recorded = recorded_gap(gap, traced_gap, traced.trace, plain)
    return MeasuredStep(
        traced=traced,
        plain=plain,
        as_set=as_set,
        results=results,
        program=build_program(as_timed(traced.trace, traced, plain)),
        gap=gap,
        recorded_gap=recorded,
    )


def _shown_results(as_set: PlainRun, best: PlainRun) -> tuple[DeviceResult, ...]:
    """Return the CPU's results on the relevant numbers of threads.

    These are the number that predictions use, the fastest, the fastest without disturbance and,
    last, the script's own.
    """
    tried = [as_set, *(on_threads(as_set, trial) for trial in as_set.trials)]
    fastest = min(tried, key=_step_ns)
    calmest = min(tried, key=lambda run: (run.measurement.is_disturbed, _step_ns(run)))
    shown = {run.num_threads: run for run in (best, fastest, calmest)}
    shown.pop(as_set.num_threads, None)
    shown[as_set.num_threads] = as_set
    calm = calmest.measurement
    results: list[DeviceResult] = []
    for threads, run in shown.items():
        result = measured_result(run, DeviceKind.CPU)
        share = calmest.num_threads / threads
        if result.is_disturbed and not calm.is_disturbed and share < 1:
            # N threads are at most N times as fast as one.
            low_ns = max(result.low_ns, share * calm.estimate.low_ns)
            result = replace(result, low_ns=min(low_ns, result.step_ns))
        setting = threads_text(threads) if len(shown) > 1 else ""
        results.append(replace(result, setting=setting))
    return tuple(results)


def upper_bound_if_disturbed(run: PlainRun, traced: TracedRun) -> PlainRun:
    """Mark a run's step time as an upper bound if other work inflates it.

    It then took many times as long as the recorded operators and the Python between them. The
    script's share of it and of its phases is unknown, and such trials are dropped.

    Args:
        run: The timed steps.
        traced: The recorded step.
    """
    if run.load_fraction <= BUSY_FRACTION or has_caveat(run.caveats, EMULATED_ON_CPU):
        return run
    works = [event for event in traced.trace.events if isinstance(event, HostWork)]
    parts_ns = sum(op.host_ns for op in traced.trace.ops) + sum(work.duration_ns for work in works)
    longest_ns = _UNBELIEVABLE * parts_ns
    trials = tuple(each for each in run.trials if each.measurement.median_ns < longest_ns)
    run = replace(run, trials=trials)
    if run.measurement.median_ns < longest_ns:
        return run
    factor = _UNBELIEVABLE * run.measurement.median_ns / max(longest_ns, 1)
    message = (
        f"other processes used {format_percent(run.load_fraction)} of this machine while the step "
        f"was measured; it took {format_ratio(factor)} the time of its operators and Python code "
        "alone, so its time is only an upper bound"
    )
    others = (caveat for caveat in run.caveats if caveat.code not in _BUSY_CODES)
    return replace(
        run,
        measurement=replace(run.measurement, waited_ns=(), is_bound=True),
        phases=None,
        other=None,
        other_work=(),
        gap=None,
        caveats=(*others, Caveat(code=BUSY_MACHINE, message=message)),
    )


def at_best_thread_count(as_set: PlainRun, *, prefers_fewer: bool = False) -> PlainRun:
    """Return the run on the fastest number of threads; a disturbed time counts as a bound.

    Among runs about as fast, prefer an undisturbed one, then the script's own number of threads.

    Args:
        as_set: The script's own run, with trials of other numbers.
        prefers_fewer: Among runs about as fast, prefer the fewest threads.
    """
    tried = [as_set, *(on_threads(as_set, trial) for trial in as_set.trials)]
    longest_ns = _CLEARLY_FASTER * min(map(_step_ns, tried))
    return min(
        (run for run in tried if _step_ns(run) <= longest_ns),
        key=lambda run: (
            run.measurement.is_disturbed,
            run.num_threads if prefers_fewer else run is not as_set,
            _step_ns(run),
        ),
    )


def _step_ns(run: PlainRun) -> float:
    return run.measurement.estimate.value_ns


def measured_result(plain: PlainRun, kind: DeviceKind) -> DeviceResult:
    """Return a report's result for a device of this machine."""
    estimate, loader = plain.measurement.estimate, plain.loader
    is_cpu = kind is DeviceKind.CPU
    caveats = list(plain.caveats)
    if loader is not None and loader.num_workers:
        step_ns = plain.measurement.median_ns
        if loader.wait_ns > _MUCH_WAITING * step_ns:
            share = format_percent(loader.wait_ns / step_ns)
            message = (
                f"{share} of the measured step waits for the worker processes of the DataLoader"
            )
            caveats.append(Caveat(code="waits-for-loader", message=message))
        if not loader.alone_ns:
            message = (
                "the worker processes of the DataLoader were not timed alone; the GPU's step "
                "includes their time during recording"
            )
            caveats.append(Caveat(code="loader-not-timed", message=message))
    return DeviceResult(
        device=cpu_on_threads(plain.processor, plain.num_threads) if is_cpu else plain.processor,
        kind=kind,
        source=Source.MEASURED,
        precision=plain.precision,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        bound=None,
        peak_memory_bytes=plain.peak_memory_bytes,
        fits=True,
        caveats=tuple(caveats),
        num_samples=len(plain.measurement.steady_ns),
        is_disturbed=plain.measurement.is_disturbed,
        num_threads=plain.num_threads if is_cpu else None,
        power=plain.power,
    )


def shown_host(host: HostSpec, plain: PlainRun, torch_version: str) -> HostSummary:
    """Return the host of the devices for a report."""
    return host_summary(
        host,
        num_threads=plain.num_threads,
        torch_version=torch_version,
        python_version=platform.python_version(),
    )


class TrainingLength(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a training as the user states it; unknown by default.

    Args:
        num_steps: Steps.
        num_epochs: Passes over the data set, if steps are not given.
    """

    num_steps: int | None = None
    num_epochs: int | None = None

    def steps(self, per_epoch: float | None) -> int | None:
        """Return the number of steps; None if unknown.

        Args:
            per_epoch: Steps in a pass over the data, from `steps_per_epoch`.
        """
        if self.num_epochs is None or per_epoch is None:
            return self.num_steps
        return round(self.num_epochs * per_epoch)

    def caveats(self, per_epoch: float | None) -> tuple[Caveat, ...]:
        """Return a caveat if epochs cannot be converted into steps.

        Args:
            per_epoch: Steps in a pass over the data, from `steps_per_epoch`.
        """
        if self.num_epochs is None or self.steps(per_epoch) is not None:
            return ()
        message = (
            "no DataLoader of known length feeds the steps, so the length of an epoch is unknown: "
            "pass --steps"
        )
        return (Caveat(code="epochs-unknown", message=message),)


UNKNOWN_LENGTH = TrainingLength()


def steps_per_epoch(loader: LoaderUse | None) -> float | None:
    """Return the steps in a pass over the data of a DataLoader; None if its length is unknown."""
    if loader is None or not loader.batches_per_epoch:
        return None
    return loader.batches_per_epoch / (loader.batches_per_step * loader.fetching_fraction)


def program_facts(
    step: MeasuredStep, devices: Sequence[DeviceSpec], host: HostSpec, here: HostSpec
) -> ProgramFacts:
    """Return the script's time outside of its steps, on this CPU and on GPUs.

    Args:
        step: The step.
        devices: GPUs.
        host: The host that issues their work.
        here: This machine, with its costs.
    """
    best, as_set = step.plain, step.as_set
    # The run on the best number of threads is short and misses rare work.
    is_measured = as_set.other is not None and (as_set.gap is not None or best.gap is None)
    run, gap = as_set if is_measured else best, step.recorded_gap
    if run.other is None and gap is not None and gap.is_seen(here):
        # The longer steps run the same lines as the others; the recording shows their extra work.
        run = as_set = replace(best, other=gap.gap.other, other_work=gap.work)
    step_ns, other = run.measurement.estimate.value_ns, run.other
    facts = ProgramFacts(
        startup_ns=as_set.startup_ns,
        data_ns=min(as_set.loader.wait_ns, step_ns) if as_set.loader else 0.0,
        unevenness=max(1.0, run.measurement.mean_ns / step_ns),
        steps_per_epoch=steps_per_epoch(as_set.loader),
    )
    if other is None:
        return facts
    parts = tuple(
        ProgramPart(
            file=work.location.file,
            line=work.location.line,
            function=work.location.function,
            time_ns=work.share * other.value_ns,
        )
        for work in run.other_work
    )
    return replace(
        facts,
        other_ns=other.value_ns,
        other_low_ns=other.low_ns,
        other_high_ns=other.high_ns,
        parts=parts,
        between=tuple(gap.times(other.value_ns, devices, host, here)) if gap else (),
    )


def step_caveats(
    step: MeasuredStep,
    facts: ProgramFacts,
    host: HostSpec,
    here: HostSpec,
    told: Sequence[Caveat] = (),
    more: Sequence[Caveat] = (),
) -> tuple[Caveat, ...]:
    """Return the caveats on all figures of a step, without repeats.

    Args:
        step: The step.
        facts: The script's time outside of its steps.
        host: The host of GPUs, adjusted to the work that the step shows.
        here: This machine, with its costs.
        told: Caveats on speeds measured elsewhere.
        more: Further caveats, which come last.
    """
    caveats = [*step.program.trace.caveats, *step.plain.caveats, *told]
    if facts.other_ns is None and step.as_set.other_work:
        work = step.as_set.other_work[0].location
        message = (
            f"{work.text} ({work.function}) runs in each pass of a "
            "loop around the steps; the steps per pass are unknown, so its time is not counted"
        )
        caveats.append(Caveat(code="between-not-counted", message=message))
    if step.gap is not None and not facts.between:
        message = (
            "breakeven could not record the script's work between some of its steps; if counted, "
            "that work is assumed to stay on the CPU"
        )
        caveats.append(Caveat(code="between-not-recorded", message=message))
    if host.load_fraction > BUSY_FRACTION:
        message = (
            f"other processes used {format_percent(host.load_fraction)} of this machine while its "
            "costs per operator were measured; predicted steps of GPUs are less certain"
        )
        caveats.append(Caveat(code="busy-host", message=message))
    if is_other_path(step.program, step.plain, here):
        message = (
            "the script does far more work on its GPU path than on its CPU path; the host time of "
            "GPU steps is less certain"
        )
        caveats.append(Caveat(code="other-path", message=message))
    return tuple({caveat.message: caveat for caveat in (*caveats, *more)}.values())
