"""Steps after a plain run, on other numbers of threads or without worker processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from breakeven.capture.messages import ThreadTrial
from breakeven.capture.sessions.between_steps import StackSamples, other_work_of
from breakeven.capture.sessions.session import PhaseWatch
from breakeven.configure import Patches
from breakeven.measure import EnergyMeter, StepTimer
from breakeven.processor import num_physical_cores
from breakeven.timing import Measurement

# Do not try longer steps: on fewer threads they may take many times as long.
LONGEST_NS = 200_000_000
# A trial ends early if each of its first samples exceeds the step time by this factor.
_HOPELESS = 2.0
_FEW_CALLS = 6


@dataclass(frozen=True, slots=True)
class _Trial:
    """Steps on a number of threads.

    Args:
        num_threads: The number of threads.
        timer: Timer of the steps.
        first_call: Number of their first update.
        meter: Meter of their energy.
        waits_ns: Time that each step waits for batches.
    """

    num_threads: int
    timer: StepTimer
    first_call: int
    meter: EnergyMeter
    waits_ns: list[float] = field(default_factory=list[float])


class ThreadTrials(Patches):
    """Trials that time more steps, after the steps of the unmodified script.

    If a script itself sets the number of torch's threads, no trial runs.

    Args:
        make_timer: Creates the timer of a trial. Its argument tells whether to wait for work
            between some of the steps.
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

    def _apply(self) -> None:

        @functools.wraps(torch.set_num_threads)
        def by_script(num_threads: int) -> None:
            self._is_set_by_script = True
            self._trials.clear()  # they ran on other numbers of threads than recorded
            self._set_num_threads(num_threads)

        self.replace(torch, "set_num_threads", by_script)
        self.callback(self._set_num_threads, torch.get_num_threads())

    @property
    def num_calls(self) -> int:
        """Return the number of updates in all trials so far."""
        return sum(trial.timer.num_calls for trial in self._trials)

    def counts_to_try(self, as_set: Measurement) -> list[int]:
        """Return the counts of one thread and one per core that are below the present count.

        Args:
            as_set: Steps on the script's own number of threads.
        """
        if self._is_set_by_script or as_set.estimate.low_ns > LONGEST_NS:
            return []
        used = torch.get_num_threads()
        return sorted(n for n in {1, min(used, num_physical_cores())} if n < used)

    def begin(
        self, counts: list[int], as_set_ns: float, num_calls: int, *, is_patient: bool
    ) -> bool:
        """Begin the trials; return False if there are none.

        Args:
            counts: Number of threads of each trial; the last one runs first.
            as_set_ns: Time of a step on the script's own number of threads.
            num_calls: Number of updates so far.
            is_patient: Whether to wait for work between some of the steps.
        """
        self._counts, self._as_set_ns, self._is_patient = counts, as_set_ns, is_patient
        return self._next(num_calls)

    def mark(self, optimizer: int, wait_ns: float | None) -> bool:
        """Note an update; return whether the samples of all trials suffice.

        Args:
            optimizer: Number of the optimizer.
            wait_ns: Time that the step waited for batches; None if it took none.
        """
        if not self._trials:
            return True
        trial = self._trials[-1]
        is_enough = trial.timer.mark(optimizer)
        if wait_ns is not None:
            trial.waits_ns.append(wait_ns)
        if not is_enough and trial.timer.num_calls <= _FEW_CALLS:
            samples_ns = trial.timer.samples_ns()
            is_enough = bool(samples_ns) and min(samples_ns) > _HOPELESS * self._as_set_ns
        if is_enough:
            trial.meter.stop()
        return is_enough and not self._next(trial.first_call + trial.timer.num_calls)

    def results(
        self, phases: PhaseWatch | None, stacks: StackSamples | None
    ) -> Sequence[ThreadTrial]:
        """Return the results of the trials.

        Args:
            phases: Phases of all updates; None if they were not timed.
            stacks: Samples between all updates; None without samples.
        """
        found: list[ThreadTrial] = []
        for trial in self._trials:
            measurement = trial.timer.measurement()
            if measurement is None:
                continue
            ends = [trial.first_call + end for end in trial.timer.end_calls()]
            found.append(
                ThreadTrial(
                    num_threads=trial.num_threads,
                    measurement=measurement,
                    phases=phases.phases(ends[measurement.num_warmup :]) if phases else None,
                    loader_wait_ns=median(trial.waits_ns) if trial.waits_ns else None,
                    power=trial.meter.power,
                    **other_work_of(measurement, ends, stacks)._asdict(),
                )
            )
        return found

    def _next(self, num_calls: int) -> bool:
        if not self._counts:
            return False
        count = self._counts.pop()
        self._set_num_threads(count)
        timer = self._make_timer(self._is_patient)
        self._trials.append(_Trial(count, timer, num_calls, EnergyMeter()))
        return True
