"""OPT004: the gradient of a huge embedding is dense.

What it does:
    Finds tables of embeddings of 4 MB or more whose gradient has ten times as many rows as
    the step looked up, or more, where they are half of all parameters at least.

Why it costs time:
    The gradient of all rows is written with zeros, and the optimizer goes through all of them
    and their states, in each step, for the few that were used.

Evidence:
    768 MB of traffic per step in a public report; 140 against 10 ms on a CPU.

Fix:
    ``nn.Embedding(..., sparse=True)`` with ``torch.optim.SparseAdam`` or ``Adagrad`` for the
    table, and another optimizer for the rest.

    ```python
    self.items = nn.Embedding(1_000_000, 64)
    ```

    ```python
    self.items = nn.Embedding(1_000_000, 64, sparse=True)
    ```

Known limits:
    Sparse optimizers update the states of a row only when it is used, which trains slightly
    differently, and know no weight decay. The gain shown leaves the sorting of the indices out.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from breakeven.doctor.operators import base_name
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import layer_at
from breakeven.simulate import Edit
from breakeven.trace import Event, Location, Op, Phase, TensorSpec
from breakeven.units import format_bytes, format_count

CAUSE = "EMBED_DENSE"

# A gradient with fewer rows than this per row that was looked up is not wasteful.
_MIN_ROWS_PER_INDEX = 10
# Part of all parameters that such tables must be.
_MIN_PARAMETER_FRACTION = 0.5
# Smaller tables are updated in microseconds.
_MIN_TABLE_BYTES = 4_000_000
_LAYERS = ("Embedding", "EmbeddingBag")


def detect(case: Case) -> Found:
    tables: dict[tuple[Location | None, tuple[int, ...]], list[int]] = {}
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op) and _is_wasteful(event):
            made = layer_at(case.sources, event.module, _LAYERS, event.outputs[0].shape)
            place = made[0].location(made[1]) if made else event.location
            tables.setdefault((place, event.outputs[0].shape), []).append(index)
    numel = sum(math.prod(shape) for _, shape in tables)
    # In a language model the rest of the network is as large; nobody would split its optimizer.
    if numel < _MIN_PARAMETER_FRACTION * case.trace.num_parameters:
        return ()
    return tuple(_occurrence(case, place, shape, own) for (place, shape), own in tables.items())


def _is_wasteful(op: Op) -> bool:
    is_backward = base_name(op) in ("embedding_dense_backward", "_embedding_bag_dense_backward")
    if not is_backward or op.is_on_host or not op.outputs or len(op.inputs) < 2:
        return False
    table, indices = op.outputs[0], op.inputs[1]
    is_large = table.num_bytes >= _MIN_TABLE_BYTES
    return is_large and table.shape[0] >= _MIN_ROWS_PER_INDEX * max(1, indices.numel)


def _occurrence(
    case: Case, place: Location | None, shape: tuple[int, ...], lookups: list[int]
) -> Occurrence:
    events = list(lookups)
    replaced: dict[int, tuple[Event, ...]] = {}
    num_used = num_bytes = 0
    for index in lookups:
        op = case.trace.events[index]
        assert isinstance(op, Op)
        used = max(1, op.inputs[1].numel)
        num_used, num_bytes = num_used + used, op.outputs[0].num_bytes
        rows = replace(op.outputs[0], shape=(used, *shape[1:]))
        replaced[index] = (replace(op, outputs=(rows,)),)
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op) and event.phase is Phase.OPTIMIZER and not event.is_on_host:
            inputs, outputs = (
                tuple(_rows(tensor, shape, num_used) for tensor in tensors)
                for tensors in (event.inputs, event.outputs)
            )
            if inputs != event.inputs:
                events.append(index)
                replaced[index] = (replace(event, inputs=inputs, outputs=outputs),)
    return Occurrence(
        title=f"the gradient of {format_count(shape[0])} embeddings ({format_bytes(num_bytes)}) is "
        f"dense; the step looks {num_used} of them up",
        fix="nn.Embedding(..., sparse=True) with SparseAdam or Adagrad for the table",
        evidence=f"embedding_dense_backward writes {shape[0]} rows for {num_used} indices, and "
        f"{len(events) - len(lookups)} operators of the optimizer go through all of them",
        location=place,
        events=tuple(events),
        edit=Edit(replaced=replaced),
    )


def _rows(tensor: TensorSpec, table: tuple[int, ...], num_used: int) -> TensorSpec:
    is_table = tensor.shape == table
    return replace(tensor, shape=(num_used, *table[1:])) if is_table else tensor
