"""The user's loops that a step runs through several times, found by the lines of its events."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from breakeven.doctor.memory import is_view
from breakeven.source import Loop, Sources
from breakeven.trace import Event, HostWork, Location, Op, Phase, StepTrace

# Fewer repetitions than this are a handful that nobody would rewrite.
MIN_ITERATIONS = 4

# How often an iteration may issue the operator that it begins with, on the same line.
_MAX_PERIOD = 8

_Run = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedLoop:
    """A loop or comprehension of the user, and what the step does in it.

    Args:
        node: The loop.
        location: Its ``for`` or ``while``.
        runs: Each time that the step came to it: positions of the events by iteration. Only runs
            of `MIN_ITERATIONS` or more count.
        backward: Positions of the backward operators of what it computes.
        is_outer: Whether no other repeated loop is around it.
    """

    node: Loop
    location: Location
    runs: tuple[_Run, ...]
    backward: tuple[int, ...]
    is_outer: bool = True

    @property
    def num_iterations(self) -> int:
        """Return the iterations of the longest run."""
        return len(self.longest_run)

    @property
    def longest_run(self) -> _Run:
        """Return the iterations of the longest run."""
        return max(self.runs, key=len)

    @property
    def events(self) -> tuple[int, ...]:
        """Return the positions of all events, backward operators included."""
        forward = (index for run in self.runs for iteration in run for index in iteration)
        return tuple(sorted((*forward, *self.backward)))


def find_loops(trace: StepTrace, sources: Sources) -> tuple[RepeatedLoop, ...]:
    """Return the loops that repeat the same work within a step, outermost first.

    A loop around the optimizer is the one over steps. One whose body also runs the backward pass,
    or fetches batches, ends there: what it repeats is a part of a step.

    Args:
        trace: The step; without stacks or sources there are none.
        sources: The user's files.
    """
    finder = _Finder(trace, sources)
    found: list[RepeatedLoop] = []
    covered: set[int] = set()
    for node, members in finder.runs_outer_first():
        split = (finder.iterations(node, run) for run in members)
        runs = tuple(run for run in split if len(run) >= MIN_ITERATIONS and _is_even(run))
        if node in finder.training or not runs:
            continue
        first = runs[0][0][0]
        found.append(
            RepeatedLoop(
                node=node,
                location=_header(node, finder.files[node], trace.events[first]),
                runs=runs,
                backward=tuple(finder.backward.get(node, ())),
                is_outer=first not in covered,
            )
        )
        covered.update(index for run in runs for iteration in run for index in iteration)
    return tuple(found)


class _Finder:
    """Assigns the events of a step to the loops around their lines."""

    def __init__(self, trace: StepTrace, sources: Sources) -> None:
        self._events = trace.events
        self.files: dict[Loop, str] = {}
        self._around = [self._loops_around(stack, sources) for stack in trace.stacks]
        self.backward: dict[Loop, list[int]] = {}
        self.training: set[Loop] = set()

    def runs_outer_first(self) -> list[tuple[Loop, list[list[int]]]]:
        """Return the positions of each loop's events, by unbroken run, outer loops first."""
        runs: dict[Loop, list[list[int]]] = {}
        depth: dict[Loop, int] = {}
        is_open: set[Loop] = set()
        for index, event in enumerate(self._events):
            around = self._loops(event)
            for number, node in enumerate(around):
                depth[node] = min(number, depth.get(node, number))
                if event.phase is Phase.BACKWARD:
                    self.backward.setdefault(node, []).append(index)
            if event.phase is Phase.OPTIMIZER:
                self.training.update(around)
            if event.phase is not Phase.FORWARD:
                is_open.clear()
                continue
            if event.stack < 0:
                around = tuple(is_open)  # a wait of unknown origin does not end a loop
            is_open.intersection_update(around)
            for node in around:
                own = runs.setdefault(node, [])
                if node not in is_open:
                    own.append([])
                own[-1].append(index)
            is_open.update(around)
        return sorted(runs.items(), key=lambda item: depth[item[0]])

    def iterations(self, node: Loop, run: list[int]) -> _Run:
        """Return the events of a run by iteration.

        An iteration begins where the first event comes again that is in no loop further inside.
        """
        direct = (
            index
            for index in run
            if not isinstance(self._events[index], HostWork)
            and self._loops(self._events[index])[-1:] == (node,)
        )
        first = next(direct, None)
        if first is None:
            return ()
        marker = _key(self._events[first])
        split: list[list[int]] = [[]]
        for index in run:
            if _key(self._events[index]) == marker and index != first:
                split.append([])
            split[-1].append(index)
        period = self._period(split)
        return tuple(
            tuple(index for part in split[start : start + period] for index in part)
            for start in range(0, len(split), period)
        )

    def _period(self, split: list[list[int]]) -> int:
        """Return after how many parts the work repeats: ``x[i] - y[i]`` begins twice."""
        work = [tuple(_key(self._events[index]) for index in part) for part in split]
        for period in range(1, _MAX_PERIOD + 1):
            pairs = list(zip(work, work[period:], strict=False))
            if 2 * sum(one == other for one, other in pairs) > len(pairs):
                return period
        return 1

    def _loops(self, event: Event) -> tuple[Loop, ...]:
        """Return the loops around the lines of an event, outermost first."""
        return self._around[event.stack] if event.stack >= 0 else ()

    def _loops_around(self, stack: Sequence[Location], sources: Sources) -> tuple[Loop, ...]:
        # A comprehension is a function of its own, so its line is there twice.
        found: dict[Loop, str] = {}
        for location in stack:
            source = sources.find(location)
            for node in reversed(source.loops_around(location.line) if source else ()):
                found[node] = location.file
        self.files |= found
        return tuple(found)


def is_launch(event: Event) -> bool:
    """Return whether an event computes something on the device; views do not."""
    return isinstance(event, Op) and not event.is_on_host and not is_view(event)


def ops_at(trace: StepTrace, indices: Iterable[int]) -> Iterator[Op]:
    """Yield the operators of the device among some events."""
    for index in indices:
        event = trace.events[index]
        if isinstance(event, Op) and not event.is_on_host:
            yield event


def typical_iteration(trace: StepTrace, run: _Run) -> tuple[int, ...]:
    """Return an iteration that does what most of them do, by names and lines of its operators."""
    work = [tuple((op.name, op.stack) for op in ops_at(trace, iteration)) for iteration in run]
    ((most, _),) = Counter(work).most_common(1)
    return next(
        own for own, does in zip(reversed(run), reversed(work), strict=True) if does == most
    )


def _is_even(run: _Run) -> bool:
    """Return whether no iteration does most of the work: then what repeats is something else."""
    return 2 * max(map(len, run)) <= sum(map(len, run))


def _key(event: Event) -> tuple[object, ...]:
    what = event.name if isinstance(event, Op) else getattr(event, "kind", "copy")
    return (type(event).__name__, what, event.stack)


def _header(node: Loop, file: str, event: Event) -> Location:
    """Return the line of the word ``for``, which in a comprehension follows its element."""
    is_statement = isinstance(node, ast.For | ast.AsyncFor | ast.While)
    line = node.lineno if is_statement else node.generators[0].target.lineno
    function = event.location.function if event.location else ""
    return Location(file=file, line=line, function=function)
