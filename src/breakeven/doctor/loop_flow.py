"""What the iterations of a loop hand on to each other, read and share, by memory block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from breakeven.doctor.memory import gradients_of, parameters_of
from breakeven.doctor.operators import base_name
from breakeven.doctor.repeated_loops import RepeatedLoop, is_view, ops_at
from breakeven.trace import Op, StepTrace, TensorSpec

# Operators by which a sum or a list of results grows. What only they read back hands on nothing
# that the next iteration needs for its own work.
_GATHERING = frozenset({
    "add", "add_", "sub", "sub_", "cat", "stack", "maximum", "minimum", "logaddexp",
    "_foreach_add", "_foreach_add_", "mul_", "div_",
})  # fmt: skip
# Operators that overwrite their first input without reading it.
_OVERWRITING = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"})

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
    made = [_made(trace, own) for own in run]
    state, recurrent = _chain(trace, run, made)
    inside = {storage for own in made for storage in own}
    outside = [_read(trace, own, inside) for own in run]
    sizes = _largest(trace)
    shared = {s for s in outside[-1] if all(s in own for own in outside)} - parameters
    parts = [
        tensor
        for storage in shared
        if (tensor := outside[-1][storage]).shape and sizes[storage] >= 2 * tensor.numel
    ]
    lonely = _lonely(outside, parameters)
    parts += [tensor for tensor in lonely if tensor.shape]
    return LoopFlow(
        state=state,
        recurrent=recurrent,
        reads_sequence=bool(parts),
        sequence_width=max((tensor.shape[-1] for tensor in parts), default=0),
        own_parameters=_has_own_parameters(trace, run, parameters),
        has_shared_input=any(sizes[storage] == outside[-1][storage].numel for storage in shared),
    )


def _made(trace: StepTrace, iteration: tuple[int, ...]) -> set[int]:
    """Return the memory blocks that an iteration writes."""
    written: set[int] = set()
    for op in ops_at(trace, iteration):
        if not is_view(op):
            written.update(tensor.storage for tensor in op.outputs)
    return written - {-1}


def _read(trace: StepTrace, iteration: tuple[int, ...], inside: set[int]) -> dict[int, TensorSpec]:
    """Return what an iteration reads from outside of the loop: the smallest part of each block."""
    read: dict[int, TensorSpec] = {}
    for op in ops_at(trace, iteration):
        if is_view(op):
            continue
        for tensor in op.inputs:
            known = read.get(tensor.storage)
            if known is None or tensor.numel < known.numel:
                read[tensor.storage] = tensor
    return {storage: tensor for storage, tensor in read.items() if storage not in {-1, *inside}}


def _largest(trace: StepTrace) -> Counter[int]:
    """Return the elements of the largest tensor seen in each memory block."""
    sizes: Counter[int] = Counter()
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            sizes[tensor.storage] = max(sizes[tensor.storage], tensor.numel)
    return sizes


def _chain(
    trace: StepTrace, run: _Iterations, made: list[set[int]]
) -> tuple[TensorSpec | None, frozenset[int]]:
    """Return the state that iterations hand on, and the operators that it goes through."""
    states: list[TensorSpec] = []
    recurrent: set[int] = set()
    num_links = 0
    for before, after, written in zip(run, run[1:], made, strict=False):
        carried = _carried(list(ops_at(trace, after)), written)
        if carried:
            num_links += 1
            states.append(max(carried, key=lambda tensor: (len(tensor.shape) > 1, tensor.numel)))
            recurrent |= _upstream(trace, before, {tensor.storage for tensor in carried})
    if 2 * num_links < len(run) - 1:
        return None, frozenset()
    # What an iteration in the middle of the run does, the last one does too, for nobody.
    lines = {trace.events[index].stack for index in recurrent}
    recurrent |= {index for index in run[-1] if trace.events[index].stack in lines}
    return states[-1], frozenset(recurrent)


def _carried(ops: list[Op], written: set[int]) -> list[TensorSpec]:
    """Return the tensors of the iteration before that these operators need for their own work."""
    carried: list[TensorSpec] = []
    for number, op in enumerate(ops):
        if is_view(op):
            continue
        name = base_name(op)
        inputs = op.inputs[1:] if name in _OVERWRITING else op.inputs
        reads = [tensor for tensor in inputs if tensor.storage in written]
        if reads and not (name in _GATHERING and not _is_used(op, ops[number + 1 :])):
            carried.extend(reads)
        # What this iteration overwrites is its own from here on.
        written = written - {tensor.storage for tensor in op.outputs} if reads else written
    return carried


def _is_used(op: Op, later: list[Op]) -> bool:
    """Return whether a result is read by more than the rest of a sum: `total + one + other`."""
    results = {tensor.storage for tensor in op.outputs}
    for number, other in enumerate(later):
        if is_view(other) or not any(tensor.storage in results for tensor in other.inputs):
            continue
        if base_name(other) not in _GATHERING or _is_used(other, later[number + 1 :]):
            return True
    return False


def _upstream(trace: StepTrace, iteration: tuple[int, ...], wanted: set[int]) -> set[int]:
    """Return the operators of an iteration that something wanted is computed by."""
    found: set[int] = set()
    wanted = set(wanted)
    for index in reversed(iteration):
        op = trace.events[index]
        if isinstance(op, Op) and any(tensor.storage in wanted for tensor in op.outputs):
            found.add(index)
            wanted.update(tensor.storage for tensor in op.inputs)
    return found


def _lonely(outside: list[dict[int, TensorSpec]], parameters: frozenset[int]) -> list[TensorSpec]:
    """Return the tensors that one iteration alone reads, if most have such ones of equal shape."""
    readers = Counter(storage for own in outside for storage in own)
    lonely = [
        next((t for s, t in own.items() if readers[s] == 1 and s not in parameters), None)
        for own in outside
    ]
    found = [tensor for tensor in lonely if tensor is not None]
    return found[-1:] if 2 * len(found) > len(outside) else []


def _has_own_parameters(trace: StepTrace, run: _Iterations, parameters: frozenset[int]) -> bool:
    """Return whether most iterations have a module, a parameter or a gradient of their own."""
    modules = [tuple(op.module for op in ops_at(trace, own) if op.module) for own in run]
    if all(modules) and 2 * len(set(modules)) > len(run):
        return True
    touched = [
        {tensor.storage for op in ops_at(trace, own) for tensor in op.inputs} & parameters
        for own in run
    ]
    users = Counter(storage for own in touched for storage in own)
    return 2 * sum(any(users[storage] == 1 for storage in own) for own in touched) > len(run)
