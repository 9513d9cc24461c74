"""What a plain run learns beside the time of a step.

What the script does between its steps, by samples of its stack; the warnings it causes; and the
steps on other numbers of threads, after those as the script runs them.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from types import FrameType
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from breakeven.capture.answers import Gap, OtherWork, ThreadTrial
from breakeven.capture.location import is_our_file, is_user_file, location_of
from breakeven.capture.sessions.first_pass import StepLoop, loops_around
from breakeven.capture.sessions.session import PhaseWatch
from breakeven.configure import Patches
from breakeven.measure import StepTimer
from breakeven.processor import num_physical_cores
from breakeven.timing import Estimate, Measurement, Source
from breakeven.trace import Location
from breakeven.units import NS_PER_S

_TORCH = Path(torch.__file__).resolve().parent
# Seldom enough not to disturb steps of some 100 µs: a sample takes the interpreter for some 20 µs.
_EVERY_S = 0.02
# So many steps, or so much time of them, with nothing between count as steps alone.
_LEAST_STEPS = 500
_LEAST_NS = NS_PER_S // 2
# So much of what they are longer by must be seen to be something else.
_LEAST_SEEN = 0.5
# Where a step ends is the same each time, but for a few optimizers.
_NOTED_UPDATES = 20
# Deeper stacks than Python allows by default are not looked at: that would take too long.
_MAX_DEPTH = 1_000
# What takes less of the time between steps is not told.
_LEAST_SHARE = 0.1
# Of steps, so much must lie between them for it to be recorded.
_LEAST_BETWEEN = 0.02
# What the first pass of a loop does counts from so many samples on, and may differ from the later
# passes by so many times. Judgement.
_LEAST_FIRST = 10
_FIRST_ERROR = 1.5


class _Call(NamedTuple):
    """A line that runs, or calls the next one."""

    file: str
    line: int
    function: str


class StackSamples:
    """Looks now and then at what the thread that made it is doing.

    Args:
        num_calls: Returns the updates so far.
    """

    def __init__(self, num_calls: Callable[[], int]) -> None:
        self._num_calls = num_calls
        self._thread_id = threading.get_ident()
        self._is_over = threading.Event()
        self._samples: list[tuple[int, tuple[_Call, ...]]] = []
        self._updates: list[tuple[_Call, ...]] = []
        # Time up to the first update, and the loops around that.
        self._begun_ns = self._before_ns = 0
        self._loops: tuple[StepLoop, ...] = ()

    def __enter__(self) -> Self:
        self._begun_ns = perf_counter_ns()
        threading.Thread(target=self._look, name="breakeven-stack", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()

    def note_update(self) -> None:
        """Note where a step ends: of short steps among long work the samples may see none."""
        if not self._updates:
            self._before_ns = perf_counter_ns() - self._begun_ns
            self._loops = loops_around(_frames(sys._getframe(1)))
        if len(self._updates) < _NOTED_UPDATES:
            self._updates.append(_stack(sys._getframe(1)))

    def first_pass(self, num_steps: int = 0) -> OtherTime:
        """Return what the first pass of a loop around the steps did before them, per step.

        It comes again with each pass. What the innermost loop does is left out: it is that of the
        steps. There is no time where nobody knows how many steps a pass has.

        Args:
            num_steps: Steps in which nothing else was seen: more than a pass has, and what the
                first one did does not come again.
        """
        found: Counter[Location | None] = Counter()
        stacks, update = [s for number, s in list(self._samples) if not number], self._updates[0]
        of_update = {update[:depth] for depth in range(1, len(update) + 1)}
        num_samples = 0.0
        for stack in stacks:
            num_outer = sum(_is_within(stack, update, loop) for loop in self._loops)
            # Not a number where it is not known.
            num_in_pass = math.prod(loop.num_passes or math.nan for loop in self._loops[num_outer:])
            if 0 < num_outer < len(self._loops) and not num_in_pass < num_steps:
                found[_departure(of_update, stack)] += 1
                num_samples += 1 / num_in_pass
        if found.total() < _LEAST_FIRST:
            return OtherTime()
        work = _works_of(found, found.total())
        if math.isnan(num_samples):
            return OtherTime(None, work)
        value_ns = self._before_ns * num_samples / len(stacks)
        low_ns, high_ns = value_ns / _FIRST_ERROR, value_ns * _FIRST_ERROR
        return OtherTime(
            Estimate(value_ns=value_ns, low_ns=low_ns, high_ns=high_ns, source=Source.MEASURED),
            work,
        )

    def between(
        self, steps: Collection[int], longer: Collection[int], *, expected: float
    ) -> tuple[OtherWork, ...] | None:
        """Return what ran in the longer steps that did not run in the others.

        Args:
            steps: Updates made before each step that is nothing but a step.
            longer: Updates made before those that contain more.
            expected: Share of the longer steps' time by which they are longer than the others.

        Returns:
            The most time first; None where the longer steps do the same as the others, but take
            longer for it.
        """
        samples = list(self._samples)
        in_steps = [*self._updates, *(stack for call, stack in samples if call in steps)]
        of_steps = {stack[:depth] for stack in in_steps for depth in range(1, len(stack) + 1)}
        found = Counter(_departure(of_steps, stack) for call, stack in samples if call in longer)
        num_same = found.pop(None, 0)
        num_other = expected * (num_same + found.total())
        if found.total() < _LEAST_SEEN * num_other:
            return None
        if not of_steps:  # nothing can be told apart
            return ()
        return _works_of(found, max(num_other, found.total()))

    def _look(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None and (stack := _stack(frame)):
                self._samples.append((self._num_calls(), stack))
            del frame  # or what it holds would live until the next look


class OtherTime(NamedTuple):
    """What is done between some of the steps: fields of a `PlainRun`."""

    other: Estimate | None = None
    other_work: tuple[OtherWork, ...] = ()
    gap: Gap | None = None


def other_work_of(
    measurement: Measurement, ends: Sequence[int], stacks: StackSamples | None
) -> OtherTime:
    """Return the time per step of what is done between some of the steps, and what that is.

    Args:
        measurement: Of the steps.
        ends: Numbers of the updates, from 0, between which they lie.
        stacks: Where the script was meanwhile; None where nobody looked.

    Returns:
        None, too, where too few steps were seen to say that there is nothing.
    """
    other = measurement.other
    if stacks is None:
        return OtherTime()
    if other is None or not other.value_ns:
        # Where other work disturbs the steps, or some take longer, it may have come again.
        first = stacks.first_pass(len(measurement.samples_ns) if other else 0)
        if first.other_work or other is None:
            return first
        steady_ns = measurement.steady_ns
        is_long = len(steady_ns) >= _LEAST_STEPS or sum(steady_ns) >= _LEAST_NS
        return OtherTime(other if is_long else None)
    longer = set(measurement.longer)
    calls: dict[bool, set[int]] = {False: set(), True: set()}
    for number in range(measurement.num_warmup, len(measurement.samples_ns)):
        # While a step goes on, the update that ended the one before has been made.
        calls[number in longer].update(range(ends[number] + 1, ends[number + 1] + 1))
    longer_ns = sum(measurement.samples_ns[number] for number in longer)
    expected = 1 - len(longer) * measurement.median_ns / longer_ns
    found = stacks.between(calls[False], calls[True], expected=expected)
    is_enough = other.value_ns > _LEAST_BETWEEN * measurement.median_ns
    gap = _gap_of(measurement, ends, other) if is_enough else None
    return OtherTime(gap=gap) if found is None else OtherTime(other, found, gap)


def _gap_of(measurement: Measurement, ends: Sequence[int], other: Estimate) -> Gap:
    """Return the first of the gaps that take most of the time between steps."""
    more_ns = np.array([measurement.samples_ns[number] for number in measurement.longer])
    more_ns = more_ns - measurement.median_ns
    is_long = more_ns >= (more_ns**2).sum() / more_ns.sum() / 2
    first = measurement.longer[int(np.argmax(is_long))]
    return Gap(num_updates=ends[first] + 1, time_ns=float(np.median(more_ns[is_long])), other=other)


def _is_within(stack: tuple[_Call, ...], update: tuple[_Call, ...], loop: StepLoop) -> bool:
    if len(stack) <= loop.depth or stack[: loop.depth] != update[: loop.depth]:
        return False
    here, there = stack[loop.depth], update[loop.depth]
    return here.line in loop.lines and (here.file, here.function) == (there.file, there.function)


def _works_of(found: Counter[Location | None], num_samples: float) -> tuple[OtherWork, ...]:
    """Return what takes a share that is worth telling, the most time first."""
    return tuple(
        OtherWork(location=location, share=count / num_samples)
        for location, count in found.most_common()
        if location is not None and count >= _LEAST_SHARE * num_samples
    )


def _stack(frame: FrameType | None) -> tuple[_Call, ...]:
    """Return the calls of the script, outermost first, without ours and those within torch.

    Returns:
        None of them where the stack is too deep.
    """
    return tuple(
        _Call(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        for frame in _frames(frame)
    )


def _frames(frame: FrameType | None) -> tuple[FrameType, ...]:
    frames: list[FrameType] = []
    while frame is not None:
        if len(frames) == _MAX_DEPTH:
            return ()
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    files = [frame.f_code.co_filename for frame in frames]
    first = next((at for at, file in enumerate(files) if is_user_file(file)), len(frames))
    own = [frame for frame in frames[first:] if not is_our_file(frame.f_code.co_filename)]
    # What torch does for a line is the line's: of its many ways the samples see but a few.
    return tuple(itertools.takewhile(lambda each: not _is_of_torch(each.f_code.co_filename), own))


@cache
def _is_of_torch(file: str) -> bool:
    return Path(file).resolve().is_relative_to(_TORCH)


def _departure(
    of_steps: Collection[tuple[_Call, ...]], stack: tuple[_Call, ...]
) -> Location | None:
    """Return where a stack leaves those of the steps: the user's line, and what is called."""
    depth = next((d for d in range(1, len(stack) + 1) if stack[:d] not in of_steps), 0)
    line = next((call for call in reversed(stack[:depth]) if is_user_file(call.file)), None)
    if line is None:
        return None
    called = stack[depth].function if depth < len(stack) else ""
    # Names such as `<listcomp>` tell nobody anything.
    return location_of(line.file, line.line, "" if "<" in called else called)


_MAX_WARNINGS = 5
_MAX_CHARACTERS = 300


class WarningWatch(Patches):
    """Notes the first few different warnings; what the script has silenced is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the warnings so far, each as its category and the first line of its message."""
        return tuple(self._texts)

    def _apply(self) -> None:
        original = warnings.showwarning

        def show(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if len(self._texts) < _MAX_WARNINGS:
                line = next(iter(str(message).splitlines()), "")
                self._texts[f"{category.__name__}: {line}"[:_MAX_CHARACTERS]] = None
            original(message, category, *args, **kwargs)

        self.replace(warnings, "showwarning", show)


# Steps that take longer are not tried: on fewer threads they may take many times as long.
LONGEST_NS = 200_000_000
# First samples that all take so many times as long as the steps did settle the matter.
_HOPELESS = 2.0
_FEW_CALLS = 6
# Steps so long that there is but one after the first have an interval as wide as that says.
_LEAST_SAMPLES = 1


@dataclass(frozen=True, slots=True)
class _Trial:
    """Steps on a number of threads.

    ``first_call`` is the number of their first update; ``waits_ns`` is their time for batches.
    """

    num_threads: int
    timer: StepTimer
    first_call: int
    waits_ns: list[float] = field(default_factory=list[float])


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

    def _apply(self) -> None:

        @functools.wraps(torch.set_num_threads)
        def by_script(num_threads: int) -> None:
            self._is_set_by_script = True
            self._trials.clear()  # not of the threads that they say
            self._set_num_threads(num_threads)

        self.replace(torch, "set_num_threads", by_script)
        self.callback(self._set_num_threads, torch.get_num_threads())

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
        if self._is_set_by_script or as_set.estimate.low_ns > LONGEST_NS:
            return False
        self._as_set_ns = as_set.median_ns
        self._is_patient = is_patient
        used = torch.get_num_threads()
        self._counts = [n for n in {1, min(used, num_physical_cores())} if n < used]
        return self._next(num_calls)

    def begin_apart(self, as_set: Measurement, num_calls: int) -> bool:
        """Begin steps as the script runs them, for which its worker processes rest.

        Args:
            as_set: The steps beside them.
            num_calls: Its updates so far.
        """
        self._as_set_ns, self._counts = as_set.median_ns, [torch.get_num_threads()]
        return self._next(num_calls)

    @property
    def waits_ns(self) -> list[float]:
        """Return the time for batches of each step of the trial that runs, to be added to."""
        return self._trials[-1].waits_ns

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
            found.append(
                ThreadTrial(
                    num_threads=trial.num_threads,
                    measurement=measurement,
                    phases=phases.phases(ends[measurement.num_warmup :]) if phases else None,
                    loader_wait_ns=median(trial.waits_ns) if trial.waits_ns else None,
                    **other_work_of(measurement, ends, stacks)._asdict(),
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
