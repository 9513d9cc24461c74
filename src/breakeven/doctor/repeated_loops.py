"""The user's loops that a step runs through several times, found by the lines of its events."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from breakeven.doctor.operators import is_in_place
from breakeven.source import Loop, Sources
from breakeven.trace import Event, HostWork, Location, Op, Phase, StepTrace

# Fewer repetitions than this are a handful that nobody would rewrite.
MIN_ITERATIONS = 4

# How often an iteration may issue the operator that it begins with, on the same line.
_MAX_PERIOD = 8

# A loop is recognised by its file, line and column.
_Place = tuple[str, int, int]


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
    runs: tuple[tuple[tuple[int, ...], ...], ...]
    backward: tuple[int, ...]
    is_outer: bool = True

    @property
    def num_iterations(self) -> int:
        """Return the iterations of the longest run."""
        return max(map(len, self.runs))

    @property
    def longest_run(self) -> tuple[tuple[int, ...], ...]:
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
    runs = finder.runs()
    repeated: list[tuple[Loop, str, list[tuple[tuple[int, ...], ...]]]] = []
    for place, members in runs.items():
        if place in finder.training:
            continue
        split = [finder.iterations(place, run) for run in members]
        kept = [run for run in split if len(run) >= MIN_ITERATIONS and _is_even(run)]
        if kept:
            repeated.append((finder.nodes[place], place[0], kept))
    found: list[RepeatedLoop] = []
    covered: set[int] = set()
    for node, file, kept in repeated:
        first = kept[0][0][0]
        found.append(
            RepeatedLoop(
                node=node,
                location=_header(node, file, trace.events[first]),
                runs=tuple(kept),
                backward=finder.backward.get(_place(file, node), ()),
                is_outer=first not in covered,
            )
        )
        covered.update(index for run in kept for iteration in run for index in iteration)
    return tuple(found)


class _Finder:
    """Assigns the events of a step to the loops around their lines."""

    def __init__(self, trace: StepTrace, sources: Sources) -> None:
        self._events = trace.events
        self._stacks = trace.stacks
        self._sources = sources
        self._around: dict[int, tuple[_Place, ...]] = {}
        self._by_line: dict[tuple[str, int], tuple[_Place, ...]] = {}
        self.nodes: dict[_Place, Loop] = {}
        self.backward: dict[_Place, tuple[int, ...]] = {}
        self.training: set[_Place] = set()

    def runs(self) -> dict[_Place, list[list[int]]]:
        """Return the positions of each loop's events, by unbroken run, outer loops first."""
        runs: dict[_Place, list[list[int]]] = {}
        backward: dict[_Place, list[int]] = {}
        is_open: set[_Place] = set()
        for index, event in enumerate(self._events):
            around = self._loops(event.stack)
            if event.phase is Phase.BACKWARD:
                for place in around:
                    backward.setdefault(place, []).append(index)
            if event.phase is Phase.OPTIMIZER:
                self.training.update(around)
            if event.phase is not Phase.FORWARD:
                is_open.clear()
                continue
            if event.stack < 0:
                around = tuple(is_open)  # a wait of unknown origin does not end a loop
            is_open.intersection_update(around)
            for place in around:
                own = runs.setdefault(place, [])
                if place not in is_open:
                    own.append([])
                own[-1].append(index)
            is_open.update(around)
        self.backward = {place: tuple(own) for place, own in backward.items()}
        depth = {place: len(around) for around in self._around.values() for place in around}
        for around in self._around.values():
            for number, place in enumerate(around):
                depth[place] = min(depth[place], number)
        return dict(sorted(runs.items(), key=lambda item: depth[item[0]]))

    def iterations(self, place: _Place, run: list[int]) -> tuple[tuple[int, ...], ...]:
        """Return the events of a run by iteration.

        An iteration begins where the first event comes again that is in no loop further inside.
        """
        direct = (
            index
            for index in run
            if self._events[index].stack >= 0
            and not isinstance(self._events[index], HostWork)
            and self._loops(self._events[index].stack)[-1] == place
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

    def _loops(self, stack: int) -> tuple[_Place, ...]:
        """Return the loops around the lines of a stack, outermost first."""
        if stack < 0:
            return ()
        if stack not in self._around:
            found = (place for line in self._stacks[stack] for place in self._loops_at(line))
            # A comprehension is a function of its own, so its line is there twice.
            self._around[stack] = tuple(dict.fromkeys(found))
        return self._around[stack]

    def _loops_at(self, location: Location) -> tuple[_Place, ...]:
        key = (location.file, location.line)
        if key not in self._by_line:
            source = self._sources.find(location)
            loops = source.loops_around(location.line) if source else ()
            places = [(_place(location.file, node), node) for node in reversed(loops)]
            self.nodes.update(places)
            self._by_line[key] = tuple(place for place, _ in places)
        return self._by_line[key]


def is_launch(event: Event) -> bool:
    """Return whether an event computes something on the device; views do not."""
    return isinstance(event, Op) and not event.is_on_host and not is_view(event)


def is_view(op: Op) -> bool:
    """Return whether an operator's result shares the memory of its first input, unchanged."""
    if not op.inputs or not op.outputs or op.inputs[0].storage < 0:
        return False
    is_same = all(tensor.storage == op.inputs[0].storage for tensor in op.outputs)
    return is_same and not is_in_place(op)


def ops_at(trace: StepTrace, indices: Iterable[int]) -> Iterator[Op]:
    """Yield the operators of the device among some events."""
    for index in indices:
        event = trace.events[index]
        if isinstance(event, Op) and not event.is_on_host:
            yield event


def _sequence_of(trace: StepTrace, iteration: tuple[int, ...]) -> tuple[object, ...]:
    """Return what an iteration does: the names and lines of its operators."""
    return tuple((op.name, op.stack) for op in ops_at(trace, iteration))


def typical_iteration(trace: StepTrace, run: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return an iteration that does what most of them do."""
    counts = Counter(_sequence_of(trace, iteration) for iteration in run)
    (most, _), *_ = counts.most_common(1)
    return next(own for own in reversed(run) if _sequence_of(trace, own) == most)


def _is_even(run: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether no iteration does most of the work: then what repeats is something else."""
    return 2 * max(map(len, run)) <= sum(map(len, run))


def _key(event: Event) -> tuple[object, ...]:
    what = event.name if isinstance(event, Op) else getattr(event, "kind", "copy")
    return (type(event).__name__, what, event.stack)


def _place(file: str, node: Loop) -> _Place:
    return (file, node.lineno, node.col_offset)


def _header(node: Loop, file: str, event: Event) -> Location:
    """Return the line of the word ``for``, which in a comprehension follows its element."""
    is_statement = isinstance(node, ast.For | ast.AsyncFor | ast.While)
    line = node.lineno if is_statement else node.generators[0].target.lineno
    function = event.location.function if event.location else ""
    return Location(file=file, line=line, function=function)
