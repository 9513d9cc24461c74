"""A script's work between its steps: samples of its stack, and the loops around the steps."""

from __future__ import annotations

import ast
import itertools
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import NamedTuple, Self

import numpy as np
import torch

from breakeven.capture.location import is_our_file, is_user_file, location_of, text_of
from breakeven.capture.messages import Gap, OtherWork
from breakeven.source import LOOP_STATEMENTS, nodes_in
from breakeven.timing import Estimate, Measurement, Source
from breakeven.trace import Location
from breakeven.units import NS_PER_S

_TORCH = Path(torch.__file__).resolve().parent
# Rare enough not to disturb steps of some 100 µs: a sample holds the interpreter for some 20 µs.
_EVERY_S = 0.02
# After this number of steps or this time, steps with no work between them count as steps alone.
_LEAST_STEPS = 500
_LEAST_NS = NS_PER_S // 2
# Share of the samples in longer steps that must differ from those in the other steps.
_LEAST_SEEN = 0.5
# Steps end at the same line each time, except with several optimizers.
_NOTED_UPDATES = 20
# Deeper stacks, which Python does not allow by default, would take too long.
_MAX_DEPTH = 1_000
# Work with a smaller share of the time between steps is not reported.
_LEAST_SHARE = 0.1
# Time between steps is recorded if it is more than this share of a step.
_LEAST_BETWEEN = 0.02
# The first pass of a loop counts from this number of samples on. It may differ from later passes by
# this factor. Judgement.
_LEAST_FIRST = 10
_FIRST_ERROR = 1.5
# Calls that wrap their first argument, or hand over its elements.
_WRAPPERS = frozenset({"enumerate", "list", "reversed", "tqdm", "tuple"})
# Calls and nodes that can be evaluated a second time: they change nothing, and take no time.
_HARMLESS_CALLS = frozenset({"chunk", "len", "range", "split"})
_HARMLESS = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)


class OtherTime(NamedTuple):
    """Time between some of the script's steps: fields of a `PlainRun`."""

    other: Estimate | None = None
    other_work: tuple[OtherWork, ...] = ()
    gap: Gap | None = None


class StepLoop(NamedTuple):
    """A loop around the first step.

    Args:
        depth: Depth of its function in the stack; the outermost is 0.
        lines: Its lines; for all but the innermost loop, without the first line, which fetches the
            next item.
        num_passes: Number of passes; None if unknown.
    """

    depth: int
    lines: range
    num_passes: int | None


class _Call(NamedTuple):
    """A running line, or one that calls the next."""

    file: str
    line: int
    function: str


_Stack = tuple[_Call, ...]


class StackSamples:
    """Samples the stack of the thread that creates it.

    Args:
        num_calls: Returns the number of updates so far.
    """

    def __init__(self, num_calls: Callable[[], int]) -> None:
        self._num_calls = num_calls
        self._thread_id = threading.get_ident()
        self._is_over = threading.Event()
        self._samples: list[tuple[int, _Stack]] = []
        self._updates: list[_Stack] = []
        # Time before the first update, and the loops around it.
        self._begun_ns = self._before_ns = 0
        self._loops: tuple[StepLoop, ...] = ()

    def __enter__(self) -> Self:
        self._begun_ns = perf_counter_ns()
        threading.Thread(target=self._look, name="breakeven-stack", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sampling."""
        self._is_over.set()

    def note_update(self) -> None:
        """Note the line that ends a step: the samples may miss short steps among long work."""
        if not self._updates:
            self._before_ns = perf_counter_ns() - self._begun_ns
            self._loops = loops_around(_frames(sys._getframe(1)))
        if len(self._updates) < _NOTED_UPDATES:
            self._updates.append(_stack(sys._getframe(1)))

    def first_pass(self, num_steps: int = 0) -> OtherTime:
        """Return the work per step in the first pass of a loop around the steps, before them.

        The work recurs with each pass. The innermost loop's work belongs to the steps. The time is
        missing if the number of steps in a pass is unknown.

        Args:
            num_steps: Steps without other work. If a pass has fewer steps, the first pass's work
                does not recur.
        """
        found: Counter[Location | None] = Counter()
        stacks, update = [s for number, s in list(self._samples) if not number], self._updates[0]
        of_update = {update[:depth] for depth in range(1, len(update) + 1)}
        num_samples = 0.0
        for stack in stacks:
            num_outer = 0
            for depth, lines, _ in self._loops:
                if len(stack) > depth and stack[:depth] == update[:depth]:
                    is_same = stack[depth]._replace(line=0) == update[depth]._replace(line=0)
                    num_outer += is_same and stack[depth].line in lines
            # NaN if unknown.
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
        """Return the work that ran in the longer steps but not in the others.

        Args:
            steps: Numbers of updates before each plain step.
            longer: Numbers of updates before each step with other work.
            expected: Share of the longer steps' time that exceeds the other steps.

        Returns:
            The work, longest first; None if the longer steps do the same as the others, only
            slower.
        """
        samples = list(self._samples)
        in_steps = [*self._updates, *(stack for call, stack in samples if call in steps)]
        of_steps = {stack[:depth] for stack in in_steps for depth in range(1, len(stack) + 1)}
        found = Counter(_departure(of_steps, stack) for call, stack in samples if call in longer)
        num_same = found.pop(None, 0)
        num_other = expected * (num_same + found.total())
        if found.total() < _LEAST_SEEN * num_other:
            return None
        if not of_steps:  # without samples of steps, other work cannot be separated
            return ()
        return _works_of(found, max(num_other, found.total()))

    def _look(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None and (stack := _stack(frame)):
                self._samples.append((self._num_calls(), stack))
            del frame  # or its objects would live until the next sample


def other_work_of(
    measurement: Measurement, ends: Sequence[int], stacks: StackSamples | None
) -> OtherTime:
    """Return the time per step between some of the steps, and the work in it.

    Args:
        measurement: Measurement of the steps.
        ends: Numbers, from 0, of the updates that bound the samples.
        stacks: Samples of the script's stack; None without samples.

    Returns:
        No time if too few steps were seen to exclude other work.
    """
    other = measurement.other
    if stacks is None:
        return OtherTime()
    if other is None or not other.value_ns:
        # If other load disturbs the steps, or some take longer, the work may have recurred.
        first = stacks.first_pass(len(measurement.samples_ns) if other else 0)
        if first.other_work or other is None:
            return first
        steady_ns = measurement.steady_ns
        is_long = len(steady_ns) >= _LEAST_STEPS or sum(steady_ns) >= _LEAST_NS
        return OtherTime(other if is_long else None)
    longer = measurement.longer
    longer_ns = np.array([measurement.samples_ns[number] for number in longer])
    more_ns = longer_ns - measurement.median_ns
    calls: dict[bool, set[int]] = {False: set(), True: set()}
    for number in range(measurement.num_warmup, len(measurement.samples_ns)):
        # During a step, the update that ended the previous step is already counted.
        calls[number in longer].update(range(ends[number] + 1, ends[number + 1] + 1))
    expected = float(more_ns.sum() / longer_ns.sum())
    found = stacks.between(calls[False], calls[True], expected=expected)
    gap = None
    if other.value_ns > _LEAST_BETWEEN * measurement.median_ns:
        # Choose the first of the gaps that hold most of the time between steps.
        is_long = more_ns >= (more_ns**2).sum() / more_ns.sum() / 2
        first = longer[int(np.argmax(is_long))]
        time_ns = float(np.median(more_ns[is_long]))
        gap = Gap(num_updates=ends[first] + 1, time_ns=time_ns, other=other)
    return OtherTime(gap=gap) if found is None else OtherTime(other, found, gap)


def loops_around(frames: Sequence[FrameType]) -> tuple[StepLoop, ...]:
    """Return the running loops, outermost first.

    Args:
        frames: Frames of the running functions, outermost first.
    """
    found: list[tuple[int, FrameType, ast.For | ast.AsyncFor | ast.While]] = []
    for depth, frame in enumerate(frames):
        try:
            tree = ast.parse(text_of(frame.f_code.co_filename))
        except (SyntaxError, ValueError):
            continue
        found += [
            (depth, frame, loop)
            for loop in nodes_in(tree, *LOOP_STATEMENTS)
            if frame.f_code.co_firstlineno <= loop.lineno <= frame.f_lineno
            and frame.f_lineno <= (loop.end_lineno or 0)
        ]
    loops: list[StepLoop] = []
    for number, (depth, frame, loop) in enumerate(found, start=1):
        first = loop if number == len(found) else loop.body[0]
        lines = range(first.lineno, (loop.end_lineno or 0) + 1)
        loops.append(StepLoop(depth, lines, _num_passes(loop, frame)))
    return tuple(loops)


def _num_passes(loop: ast.For | ast.AsyncFor | ast.While, frame: FrameType) -> int | None:
    """Return the length of a loop's iterable if evaluating it changes nothing, else None."""

    def name_of(call: ast.Call) -> str:
        return ast.unparse(call.func).rpartition(".")[2]

    if isinstance(loop, ast.While):
        return None
    held = loop.iter
    while isinstance(held, ast.Call) and name_of(held) in _WRAPPERS and held.args:
        held = held.args[0]
    if not _HARMLESS_CALLS.issuperset(map(name_of, nodes_in(held, ast.Call))) or not all(
        isinstance(node, (*_HARMLESS, ast.Call)) for node in ast.walk(held)
    ):
        return None
    code = compile(ast.Expression(held), "<loop>", "eval")
    try:
        with torch.no_grad():
            return len(eval(code, frame.f_globals, frame.f_locals))
    except Exception:  # an iterator has no length, and the script's object may raise anything
        return None


def _works_of(found: Counter[Location | None], num_samples: float) -> tuple[OtherWork, ...]:
    """Return the work with a share worth reporting, longest first."""
    return tuple(
        OtherWork(location=location, share=count / num_samples)
        for location, count in found.most_common()
        if location is not None and count >= _LEAST_SHARE * num_samples
    )


def _stack(frame: FrameType | None) -> _Stack:
    return tuple(
        _Call(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        for frame in _frames(frame)
    )


def _frames(frame: FrameType | None) -> tuple[FrameType, ...]:
    """Return the script's frames, outermost first, without ours and those within torch.

    Returns:
        No frames if the stack is too deep.
    """
    frames: list[FrameType] = []
    while frame is not None:
        if len(frames) == _MAX_DEPTH:
            return ()
        frames.append(frame)
        frame = frame.f_back
    of_script = itertools.dropwhile(
        lambda each: not is_user_file(each.f_code.co_filename), reversed(frames)
    )
    own = (each for each in of_script if not is_our_file(each.f_code.co_filename))
    # Count torch's work as the calling line's: samples see only a few of torch's many paths.
    return tuple(itertools.takewhile(lambda each: not _is_of_torch(each.f_code.co_filename), own))


@cache
def _is_of_torch(file: str) -> bool:
    return Path(file).resolve().is_relative_to(_TORCH)


def _departure(of_steps: Collection[_Stack], stack: _Stack) -> Location | None:
    """Return the user's line at which a stack leaves those of the steps, and the called function.

    The result is None if it leaves at no line of the user.
    """
    depth = next((d for d in range(1, len(stack) + 1) if stack[:d] not in of_steps), 0)
    line = next((call for call in reversed(stack[:depth]) if is_user_file(call.file)), None)
    if line is None:
        return None
    called = stack[depth].function if depth < len(stack) else ""
    # Names such as `<listcomp>` do not help the user.
    return location_of(line.file, line.line, "" if "<" in called else called)
