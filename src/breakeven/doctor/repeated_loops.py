"""The user's loops that a step repeats, and what their iterations hand on to each other."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from breakeven.doctor.events import (
    base_name,
    gradients_of,
    is_view,
    parameters_of,
    read_by,
    written_by,
)
from breakeven.doctor.rule import Case
from breakeven.source import Loop, Sources
from breakeven.trace import Event, HostWork, Location, Op, Phase, StepTrace, TensorSpec

# Fewer repetitions than this are a handful that nobody would rewrite.
MIN_ITERATIONS = 4

# How often an iteration may issue the operator that it begins with, on the same line.
_MAX_PERIOD = 8

_Run = tuple[tuple[int, ...], ...]
# Operators by which a sum or a list of results grows. What only they read back hands on nothing
# that the next iteration needs for its own work.
_GATHERING = frozenset({
    "add", "add_", "sub", "sub_", "cat", "stack", "maximum", "minimum", "logaddexp",
    "_foreach_add", "_foreach_add_", "mul_", "div_",
})  # fmt: skip
# Operators that overwrite their first input without reading it.
_OVERWRITING = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"})
# An LSTM has three sigmoids and two hyperbolic tangents, a GRU two and one.
_MIN_GATE_SIGMOIDS = 2


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


def find_loops(case: Case) -> tuple[RepeatedLoop, ...]:
    """Return the loops that repeat the same work within a step, outermost first.

    A loop around the optimizer is the one over steps. One whose body also runs the backward pass,
    or fetches batches, ends there: what it repeats is a part of a step.

    Args:
        case: The step; without stacks or sources there are none.
    """
    trace = case.trace
    finder = _Finder(trace, case.sources)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFlow:
    """How data flows through one run of a loop.

    Args:
        state: What iterations hand on, the largest tensor of it; None where they are independent.
        recurrent: Positions of the operators of all iterations that the next one waits for.
        reads_sequence: Whether each iteration reads a part of its own of something larger, or a
            tensor of its own from outside of the loop.
        sequence_width: Last dimension of that part; 0 where there is none.
        own_parameters: Whether each iteration has parameters of its own, as layers do.
        has_shared_input: Whether all iterations read the same whole tensor besides parameters.
    """

    state: TensorSpec | None
    recurrent: frozenset[int]
    reads_sequence: bool
    sequence_width: int
    own_parameters: bool
    has_shared_input: bool

    @property
    def is_chained(self) -> bool:
        """Return whether an iteration needs results of the one before."""
        return self.state is not None


def flow_of(trace: StepTrace, loop: RepeatedLoop) -> LoopFlow:
    """Return how data flows through the longest run of a loop."""
    run = loop.longest_run
    parameters = parameters_of(trace) | gradients_of(trace)
    issued = [list(ops_at(trace, iteration)) for iteration in run]
    working = [[op for op in ops if not is_view(op)] for ops in issued]
    state, recurrent = _chain(trace, run, working)
    inside = frozenset[int]().union(*map(written_by, working))
    outside = [_smallest_read(ops, inside) for ops in working]
    sizes: Counter[int] = Counter()
    for tensor in (tensor for op in trace.ops for tensor in (*op.inputs, *op.outputs)):
        sizes[tensor.storage] = max(sizes[tensor.storage], tensor.numel)
    shared = {s for s in outside[-1] if all(s in own for own in outside)} - parameters
    parts = [
        tensor
        for storage in shared
        if (tensor := outside[-1][storage]).shape and sizes[storage] >= 2 * tensor.numel
    ]
    unshared = _last_unshared(outside, parameters)
    parts += [unshared] if unshared is not None and unshared.shape else []
    return LoopFlow(
        state=state,
        recurrent=recurrent,
        reads_sequence=bool(parts),
        sequence_width=max((tensor.shape[-1] for tensor in parts), default=0),
        own_parameters=_has_own_parameters(issued, parameters),
        has_shared_input=any(sizes[storage] == outside[-1][storage].numel for storage in shared),
    )


def is_over_time(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether a loop is a recurrence over a sequence rather than a solver or layers."""
    if not flow.is_chained or flow.own_parameters:
        return False
    typical = typical_iteration(trace, loop.longest_run)
    names = [base_name(op) for op in ops_at(trace, typical)]
    is_gated = names.count("sigmoid") >= _MIN_GATE_SIGMOIDS and "tanh" in names
    return flow.reads_sequence or is_gated


def _smallest_read(ops: list[Op], inside: frozenset[int]) -> dict[int, TensorSpec]:
    """Return what an iteration reads from outside of the loop: the smallest part of each block."""
    read: dict[int, TensorSpec] = {}
    for tensor in (tensor for op in ops for tensor in op.inputs):
        if tensor.storage not in inside and tensor.storage != -1:
            known = read.get(tensor.storage, tensor)
            read[tensor.storage] = min(known, tensor, key=lambda one: one.numel)
    return read


def _chain(
    trace: StepTrace, run: _Run, working: list[list[Op]]
) -> tuple[TensorSpec | None, frozenset[int]]:
    """Return the state that iterations hand on, and the operators that it goes through."""
    states: list[TensorSpec] = []
    recurrent: set[int] = set()
    for before, (made_by, ops) in zip(run, pairwise(working), strict=False):
        if carried := _carried(ops, written_by(made_by)):
            states.append(max(carried, key=lambda tensor: (len(tensor.shape) > 1, tensor.numel)))
            recurrent |= _upstream(trace, before, {tensor.storage for tensor in carried})
    if not states or 2 * len(states) < len(run) - 1:
        return None, frozenset()
    # What an iteration in the middle of the run does, the last one does too, for nobody.
    lines = {trace.events[index].stack for index in recurrent}
    recurrent |= {index for index in run[-1] if trace.events[index].stack in lines}
    return states[-1], frozenset(recurrent)


def _carried(ops: list[Op], written: frozenset[int]) -> list[TensorSpec]:
    """Return the tensors of the iteration before that these operators need for their own work."""
    carried: list[TensorSpec] = []
    for number, op in enumerate(ops):
        name = base_name(op)
        inputs = op.inputs[1:] if name in _OVERWRITING else op.inputs
        reads = [tensor for tensor in inputs if tensor.storage in written]
        if reads and not (name in _GATHERING and not _is_used(op, ops[number + 1 :])):
            carried.extend(reads)
        # What this iteration overwrites is its own from here on.
        written = written - written_by([op]) if reads else written
    return carried


def _is_used(op: Op, later: list[Op]) -> bool:
    """Return whether a result is read by more than the rest of a sum: `total + one + other`."""
    results = {tensor.storage for tensor in op.outputs}
    for number, other in enumerate(later):
        if not any(tensor.storage in results for tensor in other.inputs):
            continue
        if base_name(other) not in _GATHERING or _is_used(other, later[number + 1 :]):
            return True
    return False


def _upstream(trace: StepTrace, iteration: tuple[int, ...], wanted: set[int]) -> set[int]:
    """Return the operators of an iteration that something wanted is computed by."""
    found: set[int] = set()
    for index in reversed(iteration):
        op = trace.events[index]
        if isinstance(op, Op) and any(tensor.storage in wanted for tensor in op.outputs):
            found.add(index)
            wanted |= {tensor.storage for tensor in op.inputs}
    return found


def _last_unshared(
    outside: list[dict[int, TensorSpec]], parameters: frozenset[int]
) -> TensorSpec | None:
    """Return the last tensor that one iteration alone reads, if most iterations have such one."""
    readers = Counter(storage for own in outside for storage in own)
    alone = {storage for storage, count in readers.items() if count == 1} - parameters
    found = [[tensor for storage, tensor in own.items() if storage in alone] for own in outside]
    having = [tensors for tensors in found if tensors]
    return having[-1][0] if 2 * len(having) > len(outside) else None


def _has_own_parameters(issued: list[list[Op]], parameters: frozenset[int]) -> bool:
    """Return whether most iterations have a module, a parameter or a gradient of their own."""
    modules = [tuple(op.module for op in ops if op.module) for ops in issued]
    if all(modules) and 2 * len(set(modules)) > len(issued):
        return True
    touched = [read_by(ops) & parameters for ops in issued]
    users = Counter(storage for own in touched for storage in own)
    return 2 * sum(any(users[storage] == 1 for storage in own) for own in touched) > len(issued)
