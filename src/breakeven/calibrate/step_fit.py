"""Fit step effects to measured steps.

All effects together are Gaussian random effects on logarithms of times. Each kind has a prior
standard deviation around "no effect", and the data move an effect only as far as they agree on it.
The time of a step is a smooth maximum of host and device time, anchored to the simulation. Each
iteration linearises it again (Gauss-Newton), and weights large residuals down, so that no outlier
decides.

Source of the method: Gelman, Hill, "Data Analysis Using Regression and Multilevel/Hierarchical
Models", Cambridge, 2007, chapter 13; solved in the space of rows, of which there are fewer.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from breakeven.cost import (
    STEP_EFFECTS_VERSION,
    TYPICAL_OVERLAP_LOSS,
    EffectKey,
    Spread,
    StepEffect,
    StepEffects,
)

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """Time of a step that the same effects scale.

    Args:
        time_ns: Time before any effect.
        keys: The effects.
    """

    time_ns: float
    keys: tuple[EffectKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """A measured step in parts.

    Args:
        measured_ns: Time of one step.
        simulated_ns: Simulated time before any effect.
        waiting_ns: The part of it in which the host waits for copies; no effect scales it.
        device_parts: Times of kernels.
        host_parts: Times of the host, including launches.
        overlap_keys: Effects on the lost share of overlapping work.
    """

    measured_ns: float
    simulated_ns: float
    waiting_ns: float
    device_parts: tuple[StepPart, ...]
    host_parts: tuple[StepPart, ...]
    overlap_keys: tuple[EffectKey, ...]


# Prior standard deviations of the logarithms, by kind of effect. Chosen by coordinate search on
# the errors of leaving out GPUs and model families; within a factor of 2 they hardly matter.
PRIOR_SIGMA = {
    "class": 0.15,
    "class+generation": 0.10,
    "units": 0.20,
    "units+generation": 0.10,
    "units+era": 0.08,
    "chip": 0.03,
    "chip+units": 0.04,
    "device": 0.04,
    "machine": 0.08,
    "machine+units": 0.05,
    "floor": 0.5,
    "floor+family": 0.2,
    "floor+generation": 0.2,
    "host": 0.4,
    # Only convolutional networks were timed in the range that launches decide. A wider prior trades
    # their kinds of operators off against each other, which no other network would confirm.
    "host class": 0.25,
    "host era": 0.2,
    "host machine": 0.6,
    "host machine+phase": 0.3,
    "overlap": 0.5,
    "overlap machine": 0.5,
    # For one GPU whose kernels and host were measured, from its own steps. Set by judgement.
    "gpu": 0.2,
    "gpu+units": 0.15,
    "own host": 0.3,
    "own host class": 0.3,
    "own backward call": 1.0,
    "own overlap": 0.5,
}
# Repeats of one step differ by the first value; residuals beyond the second are weighted down.
_NOISE_SIGMA = 0.06
_ROBUST_SIGMA = 0.07
# Exponent of the smooth maximum that replaces the simulation between its anchors.
_OVERLAP_POWER = 6.0
_NUM_ITERATIONS = 6
_LARGEST_CHANGE = 0.6
# Smaller effects change no visible figure.
_LEAST_EFFECT = 0.005


def fit_step_effects(
    samples: Sequence[StepSample],
    *,
    provenance: str,
    spread: Spread,
    known: StepEffects | None = None,
    free_kinds: Container[str] = PRIOR_SIGMA,
) -> StepEffects:
    """Fit the effects that explain the measured steps.

    Args:
        samples: Measured steps; a prediction of one of them with the result is not unseen.
        provenance: Their description, and how to repeat the fit.
        spread: Residual uncertainty, from rows left out of the fit.
        known: Effects; those whose kinds are not in ``free_kinds`` keep their value.
        free_kinds: Kinds of effects to fit; all by default.
    """
    kept: dict[EffectKey, float] = {
        (effect.kind, *effect.of): effect.log_factor
        for effect in (known.effects if known else ())
        if effect.kind not in free_kinds
    }
    problem = _Problem(samples)
    mean = np.array([kept.get(key, 0.0) for key in problem.keys])
    # An effect without variance keeps its value.
    is_free = np.array([key[0] in free_kinds for key in problem.keys])
    log_factors = problem.solve(mean, problem.prior_variance * is_free)
    fitted = kept | dict(zip(problem.keys, log_factors.tolist(), strict=True))
    return StepEffects(
        version=STEP_EFFECTS_VERSION,
        provenance=provenance,
        spread=spread,
        effects=tuple(
            StepEffect(kind=key[0], of=key[1:], log_factor=round(value, 4))
            for key, value in sorted(fitted.items())
            if abs(value) >= _LEAST_EFFECT or key[0] in ("device", "host machine")
        ),
    )


def _indices(keys_of: Sequence[tuple[EffectKey, ...]], index: dict[EffectKey, int]) -> Indices:
    """Return the indices of effects per row, padded with -1; a new effect gets a new index."""
    numbers = np.full((len(keys_of), max(1, *map(len, keys_of))), -1, dtype=np.intp)
    for row, keys in enumerate(keys_of):
        numbers[row, : len(keys)] = [index.setdefault(key, len(index)) for key in keys]
    return numbers


class _Parts:
    """The parts of all samples: their samples, times and effects."""

    def __init__(
        self, parts_of: Sequence[tuple[StepPart, ...]], index: dict[EffectKey, int]
    ) -> None:
        parts = [part for some in parts_of for part in some]
        self.rows = np.repeat(np.arange(len(parts_of)), [len(some) for some in parts_of])
        self.time_ns = np.array([part.time_ns for part in parts])
        self.effects = _indices([part.keys for part in parts], index)

    def scaled(self, log_factors: Floats) -> Floats:
        """Return the times with their effects; the last factor is for the padding and is 0."""
        return self.time_ns * np.exp(log_factors[self.effects].sum(axis=1))


class _Problem:
    def __init__(self, samples: Sequence[StepSample]) -> None:
        index: dict[EffectKey, int] = {}
        self.device = _Parts([sample.device_parts for sample in samples], index)
        self.host = _Parts([sample.host_parts for sample in samples], index)
        self.overlap = _indices([sample.overlap_keys for sample in samples], index)
        self.keys = tuple(index)
        self.log_measured = np.log([sample.measured_ns for sample in samples])
        self.simulated_ns = np.array([sample.simulated_ns for sample in samples])
        self.waiting_ns = np.array([sample.waiting_ns for sample in samples])

    @property
    def prior_variance(self) -> Floats:
        """Return the prior variance of each effect, by its kind."""
        return np.array([PRIOR_SIGMA[key[0]] for key in self.keys]) ** 2

    def solve(self, mean: Floats, variance: Floats) -> Floats:
        """Return the logarithm of each effect, given the prior ``mean`` and ``variance``."""
        found = mean
        for _ in range(_NUM_ITERATIONS):
            log_time, slope = self._linearized(found)
            residual = self.log_measured - log_time
            noise = _NOISE_SIGMA**2 * (1.0 + np.abs(residual) / _ROBUST_SIGMA)
            scaled = slope * variance
            unexplained = residual + slope @ (found - mean)
            explained = np.linalg.solve(scaled @ slope.T + np.diag(noise), unexplained)
            change = mean + scaled.T @ explained - found
            found = found + np.clip(change, -_LARGEST_CHANGE, _LARGEST_CHANGE)
        return found

    def _linearized(self, found: Floats) -> tuple[Floats, Floats]:
        """Return the logarithm of each step's time, and its derivatives by the effects."""
        padded = np.append(found, 0.0)
        num_rows = len(self.log_measured)
        device, host = self.device.scaled(padded), self.host.scaled(padded)
        device_ns = _row_sums(self.device, device, num_rows)
        host_ns = _row_sums(self.host, host, num_rows)
        before = _overlapped(
            _row_sums(self.device, self.device.time_ns, num_rows),
            _row_sums(self.host, self.host.time_ns, num_rows),
        )
        after = _overlapped(device_ns, host_ns)
        anchor = np.maximum(self.simulated_ns - self.waiting_ns, 0.2 * self.simulated_ns) / before
        loss = TYPICAL_OVERLAP_LOSS * np.exp(padded[self.overlap].sum(axis=1))
        is_free = loss < 1.0
        loss = np.minimum(loss, 1.0)
        both_ns = np.maximum(host_ns + device_ns - after, 0.0)
        step_ns = self.waiting_ns + anchor * after + loss * both_ns
        host_share = (host_ns / after) ** _OVERLAP_POWER
        slope = np.zeros(num_rows * len(padded))
        for parts, times, total, share in (
            (self.device, device, device_ns, 1.0 - host_share),
            (self.host, host, host_ns, host_share),
        ):
            moved = ((anchor - loss) * after * share + loss * total) / step_ns
            weight = (moved / np.maximum(total, 1.0))[parts.rows] * times
            # Negative indices are padding: they count in the last column of the row.
            cells = parts.rows[:, None] * len(padded) + parts.effects % len(padded)
            weights = np.broadcast_to(weight[:, None], cells.shape)
            slope += np.bincount(cells.ravel(), weights.ravel(), len(slope))
        slope = slope.reshape(num_rows, len(padded))
        lost = np.where(is_free, loss * both_ns / step_ns, 0.0)
        slope[np.arange(num_rows)[:, None], self.overlap] += lost[:, None]
        return np.log(step_ns), slope[:, :-1]


def _overlapped(device_ns: Floats, host_ns: Floats) -> Floats:
    return (device_ns**_OVERLAP_POWER + host_ns**_OVERLAP_POWER) ** (1.0 / _OVERLAP_POWER)


def _row_sums(parts: _Parts, time_ns: Floats, num_rows: int) -> Floats:
    return np.bincount(parts.rows, time_ns, num_rows).astype(np.float64)
