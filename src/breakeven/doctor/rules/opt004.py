"""OPT004: the gradient of a huge embedding is dense.

What it does:
    Finds tables of embeddings of 4 MB or more whose gradient has ten times as many rows as
    the step looked up, or more, where they are half of all parameters at least. A table that the
    forward pass also reads as a whole, such as one tied to the output layer, is left out: its
    gradient is dense whatever the lookup gives.

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
from functools import partial

from msgspec.structs import replace

from breakeven.doctor.events import base_name, with_tensors
from breakeven.doctor.rule import Case, Found, Occurrence, changed
from breakeven.doctor.source_lines import layer_at
from breakeven.trace import Location, Op, Phase, TensorSpec
from breakeven.units import format_bytes, format_count

CAUSE = "EMBED_DENSE"

# A gradient with fewer rows than this per row that was looked up is not wasteful.
_MIN_ROWS_PER_INDEX = 10
# Part of all parameters that such tables must be.
_MIN_PARAMETER_FRACTION = 0.5
# Smaller tables are updated in microseconds.
_MIN_TABLE_BYTES = 4_000_000
_LOOKUPS = ("embedding", "embedding_renorm_", "_embedding_bag")
_LAYERS = ("Embedding", "EmbeddingBag")


def detect(case: Case) -> Found:
    tables: dict[tuple[Location | None, tuple[int, ...]], dict[int, Op]] = {}
    read_whole = _shapes_read_whole(case)
    for index, op in case.each_on_device():
        if _is_wasteful(op) and (shape := op.outputs[0].shape) not in read_whole:
            made = layer_at(case.sources, op.module, _LAYERS, shape)
            place = made[0].location(made[1]) if made else op.location
            tables.setdefault((place, shape), {})[index] = op
    numel = sum(math.prod(shape) for _, shape in tables)
    # In a language model the rest of the network is as large; nobody would split its optimizer.
    if numel < _MIN_PARAMETER_FRACTION * case.trace.num_parameters:
        return
    for (place, shape), lookups in tables.items():
        table = next(iter(lookups.values())).outputs[0]
        sparse = {
            index: replace(op, outputs=(replace(op.outputs[0], shape=(_num_used(op), *shape[1:])),))
            for index, op in lookups.items()
        }
        num_used = sum(map(_num_used, lookups.values()))
        as_rows = partial(_as_rows, table=shape, num_used=num_used)
        updates = {
            index: changed_op
            for index, op in case.each_on_device()
            if op.phase is Phase.OPTIMIZER
            and (changed_op := with_tensors(op, as_rows)).inputs != op.inputs
        }
        yield Occurrence(
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
    is_backward = base_name(op) in ("embedding_dense_backward", "_embedding_bag_dense_backward")
    if not is_backward or not op.outputs or len(op.inputs) < 2:
        return False
    table = op.outputs[0]
    is_large = table.num_bytes >= _MIN_TABLE_BYTES
    return is_large and table.shape[0] >= _MIN_ROWS_PER_INDEX * _num_used(op)


def _shapes_read_whole(case: Case) -> set[tuple[int, ...]]:
    """Return the shapes of tables that the forward pass reads otherwise than by their rows."""
    lookups: set[tuple[int, tuple[int, ...]]] = set()
    others: set[tuple[int, tuple[int, ...]]] = set()
    for _, op in case.each_on_device():
        if op.phase is Phase.FORWARD:
            kind = lookups if base_name(op) in _LOOKUPS else others
            kind.update((tensor.storage, tensor.shape) for tensor in op.inputs)
    return {shape for _, shape in lookups & others}


def _num_used(lookup: Op) -> int:
    return max(1, lookup.inputs[1].numel)


def _as_rows(tensor: TensorSpec, table: tuple[int, ...], num_used: int) -> TensorSpec:
    return replace(tensor, shape=(num_used, *table[1:])) if tensor.shape == table else tensor
