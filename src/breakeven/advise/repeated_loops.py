"""The user's loops that a step repeats, their data flow, and the step without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from breakeven.advise.events import (
    bare_name,
    gradients_of,
    is_view,
    parameters_of,
    read_by,
    written_by,
)
from breakeven.advise.rule import RuleInput, once
from breakeven.source import LOOP_STATEMENTS, Loop
from breakeven.trace import Event, HostWork, Location, Op, Phase, StepTrace, TensorSpec

# Fewer repetitions are not worth rewriting.
MIN_ITERATIONS = 4
# Operators that grow a sum or a list of results. If only they read a value back, the next iteration
# does not need it for its own work.
_GATHERING = frozenset({
    "add", "sub", "cat", "stack", "maximum", "minimum", "logaddexp", "_foreach_add",
})  # fmt: skip
# Operators that overwrite their first input without reading it.
_OVERWRITING = frozenset({"copy", "fill", "zero", "normal", "uniform", "bernoulli"})

_Run = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedLoop:
    """A loop or comprehension of the user, and its events in the step.

    Args:
        node: The loop.
        location: Its ``for`` or ``while``.
        runs: Runs of the loop in the step: positions of the events by iteration. Only runs of at
            least `MIN_ITERATIONS` count.
        backward: Positions of the backward operators of its results.
    """

    node: Loop
    location: Location
    runs: list[_Run]
    backward: list[int]

    @property
    def longest_run(self) -> _Run:
        """Return the iterations of the longest run."""
        return max(self.runs, key=len)

    @property
    def num_iterations(self) -> int:
        """Return the number of iterations of the longest run."""
        return len(self.longest_run)

    @property
    def events(self) -> tuple[int, ...]:
        """Return the positions of all events, including backward operators."""
        forward = (index for run in self.runs for iteration in run for index in iteration)
        return tuple(sorted((*forward, *self.backward)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFlow:
    """The data flow through one run of a loop.

    Args:
        state: The largest tensor that iterations pass on; None if they are independent.
        recurrent: Stacks of the operators on which the next iteration depends.
        sequence_width: Last dimension of the input that only one iteration reads, a slice or a
            separate tensor; 0 if there is none.
        own_parameters: Whether each iteration has its own parameters, like layers.
        has_shared_input: Whether all iterations read the same whole tensor besides parameters.
    """

    state: TensorSpec | None
    recurrent: frozenset[int]
    sequence_width: int
    own_parameters: bool
    has_shared_input: bool


@once
def find_loops(case: RuleInput) -> list[RepeatedLoop]:
    """Return the loops that repeat the same work within a step, outermost first.

    A loop around the optimizer is the loop over steps. The backward pass and the fetch of batches
    end a run: a loop repeats only a part of a step.
    """
    events, files, around = case.trace.events, dict[Loop, str](), list[tuple[Loop, ...]]()
    for stack in case.trace.stacks:
        # A comprehension is a separate function, so its line is in the stack twice.
        loops: dict[Loop, str] = {}
        for location in stack:
            source = case.sources.find(location)
            for node in reversed(source.loops_around(location.line) if source else ()):
                loops[node] = location.file
        files |= loops
        around.append(tuple(loops))
    runs, backward = dict[Loop, list[list[int]]](), dict[Loop, list[int]]()
    depth, is_open, training = dict[Loop, int](), set[Loop](), set[Loop]()
    for index, event in enumerate(events):
        nodes = around[event.stack] if event.stack >= 0 else ()
        for number, node in enumerate(nodes):
            depth[node] = min(number, depth.get(node, number))
            if event.phase is Phase.BACKWARD:
                backward.setdefault(node, []).append(index)
        if event.phase is Phase.OPTIMIZER:
            training.update(nodes)
        if event.phase is not Phase.FORWARD:
            is_open.clear()
            continue
        if event.stack < 0:
            nodes = tuple(is_open)  # a wait of unknown origin does not end a loop
        is_open.intersection_update(nodes)
        for node in nodes:
            if node not in is_open:
                runs.setdefault(node, []).append([])
            runs[node][-1].append(index)
        is_open.update(nodes)
    found: list[RepeatedLoop] = []
    for node in sorted(runs.keys() - training, key=lambda one: (depth[one], runs[one][0][0])):
        split = [_iterations(events, run, around, node) for run in runs[node]]
        if long := [run for run in split if len(run) >= MIN_ITERATIONS]:
            # In a comprehension the word ``for`` follows the element.
            header = node if isinstance(node, LOOP_STATEMENTS) else node.generators[0].target
            location = Location(file=files[node], line=header.lineno)
            found.append(RepeatedLoop(
                node=node, location=location, runs=long, backward=backward.get(node, [])
            ))  # fmt: skip
    return found


def _iterations(
    events: tuple[Event, ...], run: list[int], around: list[tuple[Loop, ...]], node: Loop
) -> _Run:
    """Return the events of a run by iteration; none if one iteration does most of the work.

    The marker of an iteration is the first event outside inner loops that recurs often enough. It
    may recur several times per iteration, as in ``x[i] - y[i]``.
    """

    def key(index: int) -> tuple[object, ...]:
        event = events[index]
        return type(event), getattr(event, "name", getattr(event, "kind", "")), event.stack

    own = (i for i in run if events[i].stack >= 0 and around[events[i].stack][-1:] == (node,))
    counts = Counter(key(index) for index in own if not isinstance(events[index], HostWork))
    most = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    usual = min((n for n in counts.values() if n >= MIN_ITERATIONS and most % n == 0), default=0)
    if not usual:
        return []
    marker = next(one for one, count in counts.items() if count >= usual)
    starts = [number for number, index in enumerate(run) if key(index) == marker]
    cuts = [0, *starts[:: round(counts[marker] / usual)][1:], len(run)]
    split = [run[start:end] for start, end in pairwise(cuts)]
    return split if 2 * max(map(len, split)) <= len(run) else []


def is_launch(event: Event) -> bool:
    """Return whether an event computes on the device; views do not."""
    return isinstance(event, Op) and not event.is_on_host and not is_view(event)


def ops_at(trace: StepTrace, indices: Iterable[int]) -> Iterator[Op]:
    """Yield the device operators among some events."""
    for index in indices:
        event = trace.events[index]
        if isinstance(event, Op) and not event.is_on_host:
            yield event


def typical_iteration(trace: StepTrace, run: _Run) -> list[int]:
    """Return the last iteration with the most common sequence of operators."""
    work = [tuple((op.name, op.stack) for op in ops_at(trace, iteration)) for iteration in run]
    ((most, _),) = Counter(work).most_common(1)
    return next(run[i] for i in reversed(range(len(run))) if work[i] == most)


def flow_of(trace: StepTrace, loop: RepeatedLoop) -> LoopFlow:
    """Return the data flow through the longest run of a loop."""
    run, parameters = loop.longest_run, parameters_of(trace) | gradients_of(trace)
    issued = [list(ops_at(trace, iteration)) for iteration in run]
    working = [[op for op in ops if not is_view(op)] for ops in issued]
    inside = frozenset[int]().union(*map(written_by, working)) | {-1}
    sizes: Counter[int] = Counter()
    for tensor in (tensor for op in trace.ops for tensor in (*op.inputs, *op.outputs)):
        sizes[tensor.storage] = max(sizes[tensor.storage], tensor.numel)
    # Inputs of each iteration from outside the loop: the smallest part of each block.
    outside: list[dict[int, TensorSpec]] = []
    for ops in working:
        tensors = sorted((tensor for op in ops for tensor in op.inputs), key=lambda one: -one.numel)
        outside.append({one.storage: one for one in tensors if one.storage not in inside})
    readers = Counter(storage for own in outside for storage in own)
    parts = [
        [one.shape[-1] for storage, one in own.items() if one.shape and storage not in parameters
         and (readers[storage] == 1 or sizes[storage] >= 2 * one.numel)]
        for own in outside
    ]  # fmt: skip
    having = [widths for widths in parts if widths]
    shared = {storage for storage, count in readers.items() if count == len(run)} - parameters
    state, recurrent = _chain(trace, run, working)
    return LoopFlow(
        state=state,
        recurrent=recurrent,
        sequence_width=max(having[-1]) if 2 * len(having) > len(run) else 0,
        own_parameters=_has_own_parameters(issued, parameters),
        has_shared_input=any(sizes[one] == outside[-1][one].numel for one in shared),
    )


def _has_own_parameters(issued: list[list[Op]], parameters: frozenset[int]) -> bool:
    """Return whether most iterations have their own module, parameter or gradient."""
    modules = [tuple(op.module for op in ops if op.module) for ops in issued]
    if all(modules) and 2 * len(set(modules)) > len(issued):
        return True
    touched = [read_by(ops) & parameters for ops in issued]
    users = Counter(storage for own in touched for storage in own)
    return 2 * sum(any(users[storage] == 1 for storage in own) for own in touched) > len(issued)


def _chain(
    trace: StepTrace, run: _Run, working: list[list[Op]]
) -> tuple[TensorSpec | None, frozenset[int]]:
    """Return the state that most iterations pass on, and the stacks that compute it."""
    states: list[TensorSpec] = []
    recurrent: set[int] = set()
    for before, (made_by, ops) in zip(run, pairwise(working), strict=False):
        if carried := _carried(ops, written_by(made_by)):
            states.append(max(carried, key=lambda tensor: (len(tensor.shape) > 1, tensor.numel)))
            wanted = {tensor.storage for tensor in carried}
            for op in reversed(list(ops_at(trace, before))):
                if not wanted.isdisjoint(written_by([op])):
                    recurrent.add(op.stack)
                    wanted |= read_by([op])
    is_chain = states and 2 * len(states) >= len(run) - 1
    return (states[-1], frozenset(recurrent)) if is_chain else (None, frozenset())


def _carried(ops: list[Op], written: frozenset[int]) -> list[TensorSpec]:
    """Return the tensors of the previous iteration that these operators need for their work."""
    carried: list[TensorSpec] = []
    for number, op in enumerate(ops):
        name = bare_name(op)
        inputs = op.inputs[1:] if name in _OVERWRITING else op.inputs
        reads = [tensor for tensor in inputs if tensor.storage in written]
        if reads and not (name in _GATHERING and not _is_used(op, ops[number + 1 :])):
            carried.extend(reads)
        # From here on, memory that this iteration overwrites is its own.
        written = written - written_by([op]) if reads else written
    return carried


def _is_used(op: Op, later: list[Op]) -> bool:
    """Return whether a result is used beyond the rest of a sum: `total + one + other`."""
    results = written_by([op])
    readers = [n for n, other in enumerate(later) if not results.isdisjoint(read_by([other]))]
    return any(
        bare_name(later[n]) not in _GATHERING or _is_used(later[n], later[n + 1 :]) for n in readers
    )


def is_over_time(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether a loop is a recurrence over a sequence rather than a solver or layers."""
    names = [bare_name(op) for op in ops_at(trace, typical_iteration(trace, loop.longest_run))]
    # An LSTM has three sigmoids and two hyperbolic tangents, a GRU two and one.
    is_gated = names.count("sigmoid") > 1 and "tanh" in names
    has_sequence = flow.sequence_width > 0 or is_gated
    return flow.state is not None and not flow.own_parameters and has_sequence
