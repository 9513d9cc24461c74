"""Compare losses and gradients under a configuration with those of the unchanged script."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import msgspec
from msgspec.structs import replace

from breakeven.capture import Launcher, RunFailure, RunRequest
from breakeven.trace import Configuration
from breakeven.tune.runs import failure_outcome
from breakeven.verdict import (
    DifferenceKind,
    Numerics,
    RecordedNumbers,
    compare_numbers,
    weight_noise_roundoffs,
)
from faststep.tolerance import MOST_PERTURBED

# The first step checks forward and backward, the second the update. The others check accumulated
# effects: momentum, schedules, a second batch.
_NUM_STEPS = 5
# Limit of a check; each candidate takes one.
_BUDGET_S = 5.0

# Differences that may be rounding, amplified by the training.
_OF_ROUNDING = (DifferenceKind.LOSS, DifferenceKind.GRADIENT)


class EquivalenceCheck(ExitStack):
    """Checks that a configuration changes the numbers no more than its class allows.

    The first check runs the unchanged script twice, to see whether its numbers repeat. If a check
    fails, the script runs up to three times for that class of numerics with slightly perturbed
    weights, to see how fast rounding grows.

    Use as a context manager: leaving it removes its files.

    Args:
        launcher: Starts the processes.
        request: A plain run of the unchanged script.
        num_steps: Number of steps to compare.
        budget_s: Time for these steps in seconds; if it runs out, fewer are compared, but at least
            two.
        has_time: Whether another run of a given duration in seconds fits. It is called before the
            second and third perturbed run; a check always needs the first.
    """

    def __init__(
        self,
        launcher: Launcher,
        request: RunRequest,
        *,
        num_steps: int = _NUM_STEPS,
        budget_s: float = _BUDGET_S,
        has_time: Callable[[float], bool] = lambda _: True,
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"{num_steps} steps cannot be compared")
        super().__init__()
        self._launcher = launcher
        self._request = replace(
            request,
            is_traced=False,
            configuration=Configuration(),
            num_recorded_steps=num_steps,
            budget_s=budget_s,
        )
        self._has_time = has_time
        folder = tempfile.TemporaryDirectory(prefix="numbers-", dir=launcher.folder)
        self._file = Path(self.enter_context(folder)) / "numbers"
        self._longest_s = 0.0
        # Numbers of the unchanged script, by the size of the perturbation and the seed or attempt.
        self._own: dict[tuple[float, int], RecordedNumbers | RunFailure] = {}

    def check(
        self, configuration: Configuration, numerics: Numerics, *, is_exact_only: bool = False
    ) -> str | None:
        """Return why a configuration must not be used; None if its numbers are right.

        Args:
            configuration: The configuration to check.
            numerics: Its possible effect on the numbers.
            is_exact_only: Require identical bits, whatever its class.
        """
        if is_exact_only:
            numerics = Numerics.EXACT
        own: list[RecordedNumbers] = []
        for attempt in range(2):
            numbers = self._own_numbers(0.0, attempt)
            if isinstance(numbers, RunFailure):
                return f"cannot be checked: {failure_outcome(numbers)[1]}"
            own.append(numbers)
        baseline, repeat = own
        candidate = self._record(configuration)
        if isinstance(candidate, RunFailure):
            return f"while its numbers were recorded: {failure_outcome(candidate)[1]}"
        found = compare_numbers(baseline, candidate, numerics=numerics, repeat=repeat)
        perturbed: list[RecordedNumbers] = []
        for seed in range(MOST_PERTURBED if numerics is not Numerics.EXACT else 0):
            if found is None or found.kind not in _OF_ROUNDING:
                break
            noise = (weight_noise_roundoffs(numerics), seed)
            if perturbed and noise not in self._own and not self._has_time(self._longest_s):
                break
            moved = self._own_numbers(*noise)
            if isinstance(moved, RunFailure):
                break
            perturbed.append(moved)
            found = compare_numbers(
                baseline, candidate, numerics=numerics, repeat=repeat, perturbed=perturbed
            )
        return found.sentence if found else None

    def _own_numbers(self, roundoffs: float, seed: int) -> RecordedNumbers | RunFailure:
        """Return the numbers of the unchanged script, with perturbed weights on request."""
        if (roundoffs, seed) not in self._own:
            is_first = not self._own
            recorded = self._record(Configuration(), roundoffs, seed)
            self._own[roundoffs, seed] = recorded
            if is_first and isinstance(recorded, RecordedNumbers):
                # Make later runs record as many steps, however long they take.
                self._request = replace(
                    self._request,
                    num_recorded_steps=len(recorded.steps),
                    budget_s=self._request.time_limit_s,
                )
        return self._own[roundoffs, seed]

    def _record(
        self, configuration: Configuration, roundoffs: float = 0.0, seed: int = 0
    ) -> RecordedNumbers | RunFailure:
        self._file.unlink(missing_ok=True)
        begun_s = monotonic()
        answer = self._launcher.record_numbers(
            replace(
                self._request,
                configuration=configuration,
                raw_numbers_path=os.fsencode(self._file),
                weight_noise_roundoffs=roundoffs,
                weight_noise_seed=seed,
            )
        )
        self._longest_s = max(self._longest_s, monotonic() - begun_s)
        if isinstance(answer, RunFailure):
            return answer
        return msgspec.msgpack.decode(self._file.read_bytes(), type=RecordedNumbers)
