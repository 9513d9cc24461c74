"""Time the steps on other numbers of threads, after those as the script runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from breakeven.capture.answers import ThreadTrial
from breakeven.capture.sessions.backward_calls import PhaseWatch
from breakeven.capture.sessions.stack_samples import StackSamples, other_work_of
from breakeven.configure import Patches
from breakeven.measure import StepTimer
from breakeven.processor import num_physical_cores
from breakeven.timing import Measurement

# Steps that take longer are not tried: on fewer threads they may take many times as long.
_LONGEST_NS = 200_000_000
# First samples that all take so many times as long as the steps did settle the matter.
_HOPELESS = 2.0
_FEW_CALLS = 6
# Steps so long that there is but one after the first have an interval as wide as that says.
_LEAST_SAMPLES = 1


@dataclass(frozen=True, slots=True)
class _Trial:
    """Steps on a number of threads; ``first_call`` is the number of their first update."""

    num_threads: int
    timer: StepTimer
    first_call: int


class ThreadTrials(Patches):
    """The steps on one thread, and on as many as there are cores.

    A script that sets the number of torch's threads itself is left alone.

    Args:
        make_timer: Makes a timer of the steps of one trial. It gets whether the trial is to wait
            for what is done between some of the steps.
    """

    def __init__(self, make_timer: Callable[[bool], StepTimer]) -> None:
        super().__init__()
        self._make_timer = make_timer
        self._is_set_by_script = False
        self._set_num_threads = torch.set_num_threads
        self._counts: list[int] = []
        self._trials: list[_Trial] = []
        self._as_set_ns = 0.0
        self._is_patient = False

    def __enter__(self) -> ThreadTrials:
        super().__enter__()

        @functools.wraps(torch.set_num_threads)
        def by_script(num_threads: int) -> None:
            self._is_set_by_script = True
            self._trials.clear()  # not of the threads that they say
            self._set_num_threads(num_threads)

        self.replace(torch, "set_num_threads", by_script)
        self.callback(self._set_num_threads, torch.get_num_threads())
        return self

    @property
    def is_running(self) -> bool:
        """Return whether steps belong to a trial."""
        return bool(self._trials)

    @property
    def num_calls(self) -> int:
        """Return the updates of all trials so far."""
        return sum(trial.timer.num_calls for trial in self._trials)

    def begin(self, as_set: Measurement, num_calls: int, *, is_patient: bool) -> bool:
        """Begin the trials, where there are any.

        Args:
            as_set: The steps as the script runs them.
            num_calls: Its updates so far.
            is_patient: Wait for what is done between some of the steps, of which they say nothing.

        Returns:
            Whether steps are to go on.
        """
        if self._is_set_by_script or as_set.estimate.low_ns > _LONGEST_NS:
            return False
        self._as_set_ns = as_set.median_ns
        self._is_patient = is_patient
        used = torch.get_num_threads()
        self._counts = [n for n in {1, min(used, num_physical_cores())} if n < used]
        return self._next(num_calls)

    def mark(self, optimizer: int) -> bool:
        """Note an update; return whether there are samples enough of all trials."""
        trial = self._trials[-1]
        is_enough = trial.timer.mark(optimizer)
        if not is_enough and trial.timer.num_calls <= _FEW_CALLS:
            samples_ns = trial.timer.samples_ns()
            is_enough = bool(samples_ns) and min(samples_ns) > _HOPELESS * self._as_set_ns
        return is_enough and not self._next(trial.first_call + trial.timer.num_calls)

    def results(
        self, phases: PhaseWatch | None, stacks: StackSamples | None
    ) -> tuple[ThreadTrial, ...]:
        """Return what was measured.

        Args:
            phases: Of all updates; None where the parts of a step were not timed.
            stacks: Between all updates; None where they were not looked at.
        """
        found: list[ThreadTrial] = []
        for trial in self._trials:
            measurement = trial.timer.measurement()
            if measurement is None or len(measurement.steady_ns) < _LEAST_SAMPLES:
                continue
            ends = [trial.first_call + end for end in trial.timer.end_calls()]
            other, other_work = other_work_of(measurement, ends, stacks)
            found.append(
                ThreadTrial(
                    num_threads=trial.num_threads,
                    measurement=measurement,
                    phases=phases.phases(ends[measurement.num_warmup :]) if phases else None,
                    other=other,
                    other_work=other_work,
                )
            )
        return tuple(found)

    def _next(self, num_calls: int) -> bool:
        if not self._counts:
            return False
        count = self._counts.pop()
        self._set_num_threads(count)
        self._trials.append(_Trial(count, self._make_timer(self._is_patient), num_calls))
        return True
