"""BATCH001: the batch is so small that a larger one would take hardly longer.

What it does:
    Simulates the step at 2 to 128 times its batch, as far as memory and data set allow, and
    reports batches of 16 samples or fewer whose step hardly grows when there are four times
    as many. Loading and the script's own Python are left out of that, since they have rules of
    their own. It names the batch from which throughput no longer matters: 80 % of the largest.
    Where the batch cannot be set from outside, a limit decides: more samples take at most
    their share of the kernels, copies and loading longer.

Why it costs time:
    Launches, and kernels too small for the device, take the same time for one sample as for
    many.

Evidence:
    Training 1.5 to 2.3 times faster in public reports; 73 instead of 33 minutes at batch 64
    instead of 512; a validation at batch 1 that took 20 times as long as a training epoch.

Fix:
    Raise the batch, and the learning rate with it. Accumulating gradients over more small
    batches does not help: it is the number of samples per launch that counts.

    ```python
    loader = DataLoader(data, batch_size=4, shuffle=True)
    ```

    ```python
    loader = DataLoader(data, batch_size=64, shuffle=True)
    ```

Known limits:
    The gain shown is per sample, not per step: a step with more samples does not get shorter.
    It is that of the whole step, so it is small while loading takes most of it.
    Whether the network learns as well is not known here.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from breakeven.doctor.rule import Case, Found, KnownGain, Occurrence
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.trace import HostWork, StepTrace
from breakeven.units import format_duration

CAUSE = "BATCH_SMALL"

# Reports of batches that were too small are about these; above, a larger batch changes how well
# the network learns, and a step that launches still bound is LAUNCH001's to report.
_LARGEST_SMALL_BATCH = 16
# Sizes that are simulated: the batch times powers of two.
_FACTORS = (2, 4, 8, 16, 32, 64, 128)
# A step is flat in the batch if four times the samples take at most this many times as long.
_MAX_GROWTH = 1.6
# A batch ceases to matter where this part of the largest throughput is reached.
_SUFFICIENT_FRACTION = 0.8


def detect(case: Case) -> Found:
    base = case.trace.batch_size
    if base is None or not 1 <= base <= _LARGEST_SMALL_BATCH or not case.prediction.fits:
        return
    if case.step_ns <= 0:
        return
    paced = _paced_by_device(case.trace)
    (without,) = _predicted(case, paced)
    pace_ns = without.estimate.value_ns
    if case.scaled is None:
        yield from _limited(case, base, pace_ns)
        return
    larger = _at_larger_batches(case, base)
    if len(larger) < 2 or larger[1].estimate.value_ns > _MAX_GROWTH * pace_ns:
        return
    per_sample = [prediction.estimate.value_ns / _size(prediction) for prediction in larger]
    limit_ns = min(per_sample)
    chosen = next(
        prediction
        for prediction, time_ns in zip(larger, per_sample, strict=True)
        if limit_ns >= _SUFFICIENT_FRACTION * time_ns
    )
    yield Occurrence(
        title=f"a step of {base} samples takes {format_duration(pace_ns)}, one of "
        f"{4 * base} takes {format_duration(larger[1].estimate.value_ns)}"
        + (", loading left out" if len(paced.events) < len(case.trace.events) else ""),
        fix=f"a batch of {_size(chosen)} samples"
        + (" or more" if chosen is larger[-1] else ", from which on it hardly matters"),
        evidence=f"the step simulated at {base} to {_size(larger[-1])} samples",
        gain=_gain_per_sample(case, case.scaled.at(_size(chosen)), _size(chosen) / base),
        share_fraction=_idle_fraction(case),
    )


def _limited(case: Case, base: int, pace_ns: float) -> Found:
    """Yield the occurrence of a step that was recorded at one batch size only.

    Whatever a larger batch does, it takes no longer than the step and, for each further batch,
    what grows with the samples: kernels, copies, and the host's own work.
    """
    step_ns, busy_ns = case.step_ns, case.prediction.device_busy_ns
    if pace_ns + 3 * busy_ns > _MAX_GROWTH * pace_ns:
        return
    growing_ns = busy_ns + sum(work.duration_ns for _, work in case.each(HostWork))
    factor = min(_FACTORS[-1], 2 ** math.floor(math.log2(pace_ns / max(busy_ns, 1.0))))
    longest_ns = min(factor * step_ns, step_ns + (factor - 1) * growing_ns)
    yield Occurrence(
        title=f"a step of {base} samples takes {format_duration(step_ns)}, of which only "
        f"{format_duration(growing_ns)} grow with the samples",
        fix=f"a batch of {factor * base} samples or more",
        evidence=f"{factor * base} samples would take {format_duration(longest_ns)} at most",
        gain=KnownGain(
            fraction=1 - longest_ns / factor / step_ns,
            low_fraction=0.0,
            high_fraction=1 - 1 / factor,
        ),
        share_fraction=_idle_fraction(case),
    )


def _predicted(case: Case, *traces: StepTrace) -> tuple[StepPrediction, ...]:
    return tuple(predict_steps(traces, (case.device,), case.host, costs=case.program.costs))


def _paced_by_device(trace: StepTrace) -> StepTrace:
    """Return the step without the host's own work: that has rules of its own, and grows."""
    kept = (event for event in trace.events if not isinstance(event, HostWork))
    return replace(trace, events=tuple(kept))


def _idle_fraction(case: Case) -> float:
    return max(0.0, 1 - case.prediction.device_busy_ns / case.step_ns)


def _size(prediction: StepPrediction) -> int:
    assert prediction.batch_size is not None
    return prediction.batch_size


def _at_larger_batches(case: Case, base: int) -> list[StepPrediction]:
    """Return the step at larger batches, as far as there are samples and memory for them."""
    assert case.scaled is not None
    num_samples = max((loader.num_samples for loader in case.facts.loaders), default=0)
    sizes = (base * factor for factor in _FACTORS)
    wanted = [size for size in sizes if not num_samples or size <= num_samples]
    predictions = _predicted(case, *(_paced_by_device(case.scaled.at(size)) for size in wanted))
    return [prediction for prediction in predictions if prediction.fits]


def _gain_per_sample(case: Case, larger: StepTrace, growth: float) -> KnownGain:
    """Return what a sample takes less of; both steps are off in the same direction or apart."""
    (chosen,) = _predicted(case, larger)
    after = chosen.estimate
    fraction, low, high = (
        1 - time_ns / growth / case.step_ns
        for time_ns in (after.value_ns, after.high_ns, after.low_ns)
    )
    return KnownGain(
        fraction=max(0.0, fraction),
        low_fraction=max(0.0, min(1.0, low)),
        high_fraction=max(0.0, min(1.0, high)),
    )
