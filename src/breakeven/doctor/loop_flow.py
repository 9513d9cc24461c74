"""What the iterations of a loop hand on to each other, read and share, by memory block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from breakeven.doctor.events import base_name
from breakeven.doctor.memory import gradients_of, is_view, parameters_of, read_by, written_by
from breakeven.doctor.repeated_loops import RepeatedLoop, ops_at, typical_iteration
from breakeven.trace import Op, StepTrace, TensorSpec

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

_Iterations = tuple[tuple[int, ...], ...]


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
        if tensor.storage not in inside | {-1}:
            known = read.get(tensor.storage, tensor)
            read[tensor.storage] = min(known, tensor, key=lambda one: one.numel)
    return read


def _chain(
    trace: StepTrace, run: _Iterations, working: list[list[Op]]
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
