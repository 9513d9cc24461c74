"""BATCH and MEM: the batch size, and whether the step fits the device."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, rule
from breakeven.simulate import StepPrediction, largest_batch, predict_steps
from breakeven.trace import HostWork, StepTrace
from breakeven.units import format_bytes, format_duration

# Reports of too small batches concern sizes up to this one. Above it, a larger batch changes how
# well the network learns, and LAUNCH001 reports launch-bound steps.
_LARGEST_SMALL_BATCH = 16
# Factors on the batch size for the simulation: powers of two.
_FACTORS = (2, 4, 8, 16, 32, 64, 128)
# A step is flat in the batch if four times the samples take at most this many times as long.
_MAX_GROWTH = 1.6
# The batch size stops mattering once it reaches this fraction of the largest throughput.
_SUFFICIENT_FRACTION = 0.8


@rule("BATCH001", "BATCH_SMALL")
def small_batch(case: RuleInput) -> Matches:
    base = case.trace.batch_size
    if base is None or not 1 <= base <= _LARGEST_SMALL_BATCH or not case.prediction.fits:
        return
    if case.step_ns <= 0:
        return

    def predicted(*traces: StepTrace) -> Iterable[StepPrediction]:
        return predict_steps(traces, (case.device,), case.host, costs=case.program.costs)

    paced = _without_host_work(case.trace)
    (without,) = predicted(paced)
    pace_ns, scaled = without.estimate.value_ns, case.scaled
    if scaled is None:
        yield from _limited(case, base, pace_ns)
        return
    # Larger batches, limited by the number of samples and by memory.
    num_samples = max((loader.num_samples for loader in case.facts.loaders), default=0)
    sizes = [
        base * factor for factor in _FACTORS if base * factor <= num_samples or not num_samples
    ]
    steps = predicted(*(_without_host_work(scaled.at(size)) for size in sizes))
    times_ns = {
        size: step.estimate.value_ns for size, step in zip(sizes, steps, strict=True) if step.fits
    }
    if len(times_ns) < 2 or (four_ns := [*times_ns.values()][1]) > _MAX_GROWTH * pace_ns:
        return
    least_ns = min(time_ns / size for size, time_ns in times_ns.items())
    chosen = next(
        size
        for size, time_ns in times_ns.items()
        if least_ns >= _SUFFICIENT_FRACTION * time_ns / size
    )
    # The saving per sample; errors of both steps may be in the same direction or in opposite ones.
    (whole,) = predicted(scaled.at(chosen))
    after = whole.estimate
    fraction, low, high = (
        max(0.0, min(1.0, 1 - time_ns * base / chosen / case.step_ns))
        for time_ns in (after.value_ns, after.high_ns, after.low_ns)
    )
    largest = max(times_ns)
    yield Match(
        title=f"a step of {base} samples takes {format_duration(pace_ns)}, one of "
        f"{4 * base} takes {format_duration(four_ns)}"
        + (", loading left out" if len(paced.events) < len(case.trace.events) else ""),
        fix=f"a batch of {chosen} samples"
        + (" or more" if chosen == largest else "; larger batches gain little more"),
        evidence=f"the step simulated at {base} to {largest} samples",
        gain=KnownGain(fraction=fraction, low_fraction=low, high_fraction=high),
        share_fraction=max(0.0, 1 - case.prediction.device_busy_ns / case.step_ns),
    )


def _without_host_work(trace: StepTrace) -> StepTrace:
    """Return the step without the host's own work, which has separate rules and grows too."""
    kept = (event for event in trace.events if not isinstance(event, HostWork))
    return replace(trace, events=tuple(kept))


def _limited(case: RuleInput, base: int, pace_ns: float) -> Matches:
    """Yield the match of a step that was recorded at only one batch size.

    A larger batch takes at most the step time plus, for each further batch, the parts that grow
    with the samples: kernels, copies, and the host's own work.
    """
    step_ns, busy_ns = case.step_ns, case.prediction.device_busy_ns
    if pace_ns + 3 * busy_ns > _MAX_GROWTH * pace_ns:
        return
    growing_ns = busy_ns + sum(work.duration_ns for _, work in case.each(HostWork))
    factor = min(_FACTORS[-1], 2 ** math.floor(math.log2(pace_ns / max(busy_ns, 1.0))))
    longest_ns = min(factor * step_ns, step_ns + (factor - 1) * growing_ns)
    yield Match(
        title=f"a step of {base} samples takes {format_duration(step_ns)}; only "
        f"{format_duration(growing_ns)} of that depends on the batch size",
        fix=f"a batch of {factor * base} samples or more",
        evidence=f"{factor * base} samples would take {format_duration(longest_ns)} at most",
        gain=KnownGain(
            fraction=1 - longest_ns / factor / step_ns,
            low_fraction=0.0,
            high_fraction=1 - 1 / factor,
        ),
        share_fraction=max(0.0, 1 - busy_ns / step_ns),
    )


@rule("MEM001", "MEMORY_FULL")
def full_memory(case: RuleInput) -> Matches:
    if case.prediction.fits:
        return
    fix = "a smaller batch, mixed precision or torch.utils.checkpoint"
    if case.scaled is not None:
        fitting = largest_batch(case.scaled, case.device)
        if fitting:
            fix = f"a batch of {fitting} samples at most, gradients accumulated over several"
        else:
            fix = "not even one sample fits: mixed precision, torch.utils.checkpoint, or a device "
            fix += "with more memory"
    yield Match(
        title=f"the step needs {format_bytes(case.prediction.peak_memory_bytes)} of memory, "
        f"{case.device.name} has {format_bytes(case.device.memory_bytes)}",
        fix=fix,
        evidence="the largest sum of tensors that are alive at once, and CUDA's own memory",
        share_fraction=0.0,
        is_error=True,
    )
