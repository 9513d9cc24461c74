"""OPT: how the optimizer updates the parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from breakeven.advise.events import (
    ZEROING,
    base_name,
    gradients_of,
    is_in_place,
    line_of,
    on_device,
    op_at,
    parameters_of,
    read_by,
    with_tensors,
    written_by,
)
from breakeven.advise.rule import Match, Matches, RuleInput, by_line, changed, rule, without
from breakeven.advise.source_lines import layer_at
from breakeven.simulate import Edit, phase_times
from breakeven.trace import Copy, Location, Op, Phase, TensorSpec
from breakeven.units import format_bytes, format_count

# With fewer parameters, a loop is as fast as one call for all of them.
_MIN_TENSORS = 4

# Operators of a penalty on each parameter. A network has a few small parameters of its own, so
# require more tensors at one line.
_MIN_PENALISED = 8
_PENALTIES = frozenset({"pow", "square", "abs", "norm", "linalg_vector_norm", "mul", "sum", "sub"})

_BATCHED = ("aten._foreach_", "aten._fused_", "aten._amp_foreach_")

# Reductions that are one operator on lists.
_LIST_NAMES = {"linalg_vector_norm": "norm", "sum": "norm", "square": "pow"}


@rule("OPT001", "OPT_LOOP")
def updates_one_by_one(case: RuleInput) -> Matches:
    parameters, optimizers = parameters_of(case.trace), case.facts.optimizers
    trained = parameters | gradients_of(case.trace)
    loops: dict[tuple[Phase, object], dict[str, dict[int, Op]]] = {}
    for index, op in case.each_on_device():
        if _may_be_looped(op, parameters):
            # The shared place of a loop's operators: the loop in the source, or the line.
            source, at = case.sources.find(op.location), op.location
            around = source.loops_around(at.line) if source and at else ()
            loop = loops.setdefault((op.phase, around[0] if around else line_of(at)), {})
            loop.setdefault(op.name, {})[index] = op
    for (phase, _), by_name in loops.items():
        # Each repetition must use a different tensor.
        repeated = [
            ops
            for ops in by_name.values()
            if len({op.inputs[0].storage for op in ops.values() if op.inputs} - {-1})
            >= _MIN_TENSORS
        ]
        ops = dict(sorted((index, op) for own in repeated for index, op in own.items()))
        num_tensors = max(map(len, repeated), default=0)
        is_penalty = num_tensors >= _MIN_PENALISED and phase is Phase.FORWARD
        if len(read_by(ops.values()) & trained) < _MIN_TENSORS:
            continue
        if not is_penalty and not any(map(is_in_place, ops.values())):
            continue
        # The line that writes to the parameters, or else the line of most operators.
        writing = [
            op for op in ops.values() if is_in_place(op) and op.inputs[0].storage in parameters
        ]
        places = Counter(op.location for op in writing or ops.values())
        made = None
        if phase is Phase.OPTIMIZER:
            first = next(iter(ops.values())).location
            is_torchs = any(own.is_from_torch for own in optimizers)
            knows_no_other = is_torchs and all(own.foreach is None for own in optimizers)
            if knows_no_other and case.sources.call_at(first, "step") is not None:
                continue
            # The line that makes the optimizer, if a library's optimizer was set to loop.
            looping = (own.location for own in optimizers if own.foreach is False and not own.fused)
            if first is not None and {op.location for op in ops.values()} == {first}:
                made = next((location for location in looping if location is not None), None)
        yield Match(
            title=f"{len(ops)} operators update some {num_tensors} tensors one by one",
            fix="leave foreach at its default or pass fused=True; use torch._foreach_* in a custom "
            "optimizer",
            evidence=f"the same {len(repeated)} operators are issued for each of some "
            f"{num_tensors} tensors" + (f", made so at {made.words}" if made else ""),
            location=made or places.most_common(1)[0][0],
            events=tuple(ops),
            edit=changed({next(iter(own)): _foreach([*own.values()]) for own in repeated}, ops),
        )


def _may_be_looped(op: Op, parameters: frozenset[int]) -> bool:
    name = base_name(op)
    # `zero_` clears kept gradients, which is OPT003.
    if op.phase is Phase.BACKWARD or op.name.startswith(_BATCHED) or name == "zero_":
        return False
    if op.phase is Phase.OPTIMIZER:
        return True
    # A model's own in-place operators (ReLU, the batch counters of batch norms) update no weights.
    if op.module or not op.inputs:
        return False
    is_penalty = name in _PENALTIES and op.inputs[0].storage in parameters
    return name.endswith("_") or is_penalty


def _foreach(ops: Sequence[Op]) -> Op:
    """Return the single operator that does the work of all."""
    base = base_name(ops[0])
    return replace(
        ops[0],
        name=f"aten._foreach_{_LIST_NAMES.get(base, base)}.List",
        inputs=tuple(tensor for op in ops for tensor in op.inputs),
        outputs=tuple(tensor for op in ops for tensor in op.outputs),
    )


# An optimizer that takes a smaller fraction of the step is not worth reporting.
_MIN_OPTIMIZER_FRACTION = 0.05
# Fused kernels: their names in torch, tensors per parameter, and whether they have a step counter.
_FUSED = {
    "Adam": ("aten._fused_adam_.default", 4, True),
    "AdamW": ("aten._fused_adamw_.default", 4, True),
    "SGD": ("aten._fused_sgd_.default", 3, False),
}


@rule("OPT002", "OPT_UNFUSED")
def unfused_optimizer(case: RuleInput) -> Matches:
    optimizers = case.facts.optimizers
    updates = {
        index: op
        for index, op in case.each_on_device()
        if op.phase is Phase.OPTIMIZER
        and op.name.startswith("aten._foreach_")
        and base_name(op) not in {*ZEROING, "_foreach_norm"}
    }
    can_be_fused = all(
        own.is_from_torch and own.name in _FUSED and not own.fused and own.foreach is not False
        for own in optimizers
    )
    if not optimizers or not can_be_fused or not updates:
        return
    (times,) = phase_times(case.program, [case.device], case.host)
    optimizer_ns = max(times.other_host_ns, times.other_device_ns)
    if not case.step_ns or optimizer_ns / case.step_ns < _MIN_OPTIMIZER_FRACTION:
        return
    name = optimizers[0].name
    plural = "" if len(updates) == 1 else "s"
    yield Match(
        title=f"{name} updates the parameters by {len(updates)} operator{plural} on lists; fused "
        "it is one kernel",
        fix=f"{name}(..., fused=True)",
        evidence=f"{name} was made without fused=True",
        location=optimizers[0].location,
        events=tuple(updates),
        edit=_fused(case, updates, name),
    )


def _fused(case: RuleInput, updates: Mapping[int, Op], name: str) -> Edit | None:
    """Return the step with the update as one operator over all parameters and their state."""
    owned = parameters_of(case.trace)
    parameters = {
        tensor.storage: tensor
        for op in updates.values()
        for tensor in op.inputs
        if tensor.storage in owned
    }
    if not parameters:
        return None
    op_name, num_lists, has_steps = _FUSED[name]
    tensors = tuple(parameters.values())
    steps = tuple(replace(tensor, shape=(), dtype="float32") for tensor in tensors)
    first, op = next(iter(updates.items()))
    fused = replace(
        op,
        name=op_name,
        inputs=tensors * num_lists + (steps if has_steps else ()),
        outputs=(),
        attributes={"momentum": 0.9} if name == "SGD" else {},
    )
    return changed({first: fused}, gone=updates)


# Clearing fewer gradients costs nothing.
_MIN_GRADIENTS = 4


@rule("OPT003", "ZERO_GRAD")
def zeroed_gradients(case: RuleInput) -> Matches:
    gradients = gradients_of(case.trace)
    zeroing = [
        index
        for index, op in case.each_on_device()
        if base_name(op) in ZEROING and {tensor.storage for tensor in op.inputs} & gradients
    ]
    for location, events in by_line(case.trace, zeroing):
        kept = {tensor.storage for index in events for tensor in op_at(case.trace, index).inputs}
        if len(kept) < _MIN_GRADIENTS:
            continue
        # Autograd adds to an existing gradient, and stores its own if there is none.
        added = tuple(
            index
            for index, op in case.each(Op)
            if op.phase is Phase.BACKWARD
            and base_name(op) == "add_"
            and op.inputs[0].storage in kept
        )
        yield Match(
            title=f"{len(kept)} gradients are set to zero, and added to, instead of dropped",
            fix="optimizer.zero_grad(), which drops them: set_to_none=True is the default",
            evidence=f"{len(events)} operators write zeros to gradients, {len(added)} add to them",
            location=location,
            events=events + added,
            edit=without(events + added),
        )


# A gradient with fewer rows per looked-up row is not wasteful.
_MIN_ROWS_PER_INDEX = 10
# Minimum share of such tables in all parameters.
_MIN_PARAMETER_FRACTION = 0.5
# Smaller tables are updated within microseconds.
_MIN_TABLE_BYTES = 4_000_000
_GRADIENTS = ("embedding_dense_backward", "_embedding_bag_dense_backward")
_LOOKUPS = ("embedding", "embedding_renorm_", "_embedding_bag")
_LAYERS = ("Embedding", "EmbeddingBag")


@rule("OPT004", "EMBED_DENSE")
def dense_embeddings(case: RuleInput) -> Matches:
    tables: dict[tuple[Location | None, tuple[int, ...]], dict[int, Op]] = {}
    read_whole = _shapes_read_whole(case)
    for index, op in case.each_on_device():
        if _is_wasteful(op) and (shape := op.outputs[0].shape) not in read_whole:
            made = layer_at(case.sources, op.module, _LAYERS, shape)
            place = made[0].location(made[1]) if made else op.location
            tables.setdefault((place, shape), {})[index] = op
    numel = sum(math.prod(shape) for _, shape in tables)
    # In a language model the rest of the network is as large: splitting its optimizer is
    # impractical.
    if numel < _MIN_PARAMETER_FRACTION * case.trace.num_parameters:
        return
    for (place, shape), lookups in tables.items():
        table = next(iter(lookups.values())).outputs[0]
        sparse = {
            index: replace(op, outputs=(replace(op.outputs[0], shape=(_num_used(op), *shape[1:])),))
            for index, op in lookups.items()
        }
        num_used = sum(map(_num_used, lookups.values()))

        def as_rows(
            tensor: TensorSpec, table: tuple[int, ...] = shape, num_used: int = num_used
        ) -> TensorSpec:
            is_table = tensor.shape == table
            return replace(tensor, shape=(num_used, *table[1:])) if is_table else tensor

        updates = {
            index: changed_op
            for index, op in case.each_on_device()
            if op.phase is Phase.OPTIMIZER
            and (changed_op := with_tensors(op, as_rows)).inputs != op.inputs
        }
        yield Match(
            title=f"the gradient of {format_count(shape[0])} embeddings "
            f"({format_bytes(table.num_bytes)}) is dense; the step looks {num_used} of them up",
            fix="nn.Embedding(..., sparse=True) with SparseAdam or Adagrad for the table",
            evidence=f"embedding_dense_backward writes {shape[0]} rows for {num_used} indices, and "
            f"{len(updates)} operators of the optimizer go through all of them",
            location=place,
            events=(*lookups, *updates),
            edit=changed(sparse | updates),
        )


def _is_wasteful(op: Op) -> bool:
    if base_name(op) not in _GRADIENTS or not op.outputs or len(op.inputs) < 2:
        return False
    table = op.outputs[0]
    is_large = table.num_bytes >= _MIN_TABLE_BYTES
    return is_large and table.shape[0] >= _MIN_ROWS_PER_INDEX * _num_used(op)


def _shapes_read_whole(case: RuleInput) -> set[tuple[int, ...]]:
    """Return the shapes of tables that the forward pass reads other than by row lookups."""
    lookups: set[tuple[int, tuple[int, ...]]] = set()
    others: set[tuple[int, tuple[int, ...]]] = set()
    for _, op in case.each_on_device():
        if op.phase is Phase.FORWARD:
            kind = lookups if base_name(op) in _LOOKUPS else others
            kind.update((tensor.storage, tensor.shape) for tensor in op.inputs)
    return {shape for _, shape in lookups & others}


def _num_used(lookup: Op) -> int:
    return max(1, lookup.inputs[1].numel)


# Minimum share of the parameters that the host updates.
_MIN_HOST_PARAMETERS = 0.1


@rule("OPT005", "PART_ON_CPU")
def optimizer_on_host(case: RuleInput) -> Matches:
    on_host = {index: op for index, op in case.each(Op) if op.is_on_host}
    updates = {
        index: op
        for index, op in on_host.items()
        if op.phase is Phase.OPTIMIZER and op.inputs and op.inputs[0].numel > 1
    }
    # A layer that runs on the host is also updated there: then the layer is the cause.
    used = read_by(op for op in on_host.values() if op.phase is Phase.FORWARD)
    updated = {
        tensor.storage: tensor.numel
        for op in updates.values()
        for tensor in op.inputs
        if tensor.storage not in used
    }
    is_on_device = any(op.phase is Phase.BACKWARD for _, op in case.each_on_device())
    least = _MIN_HOST_PARAMETERS * max(1, case.trace.num_parameters)
    if not is_on_device or sum(updated.values()) < least:
        return
    # After the fix, neither gradients nor parameters are copied.
    touched = read_by(updates.values()) | written_by(updates.values())
    copies = (
        index
        for index, copy in case.each(Copy)
        if copy.phase is Phase.OPTIMIZER or copy.storage in touched
    )
    yield Match(
        title="the CPU updates the parameters of a model that is on the GPU",
        fix="make the optimizer from the parameters on the GPU, and keep its state there",
        evidence=f"{len(updates)} operators of the update work on tensors of the host",
        location=Counter(op.location for op in updates.values()).most_common(1)[0][0],
        events=tuple(updates),
        edit=changed({index: on_device(op) for index, op in updates.items()}, gone=copies),
    )
