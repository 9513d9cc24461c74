"""Operators with a sparse tensor, which cost what its stored values cost.

The trace describes a sparse tensor by its values (`TensorSpec`). Argued from the kernels of torch
and cuSPARSE, held against no measurement: operators of sparse tensors are in no table.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.cost._kernel import Family, Kernel
from breakeven.cost._op_name import base_name
from breakeven.cost._traffic import (
    multiply_add_flop,
    output_numel,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.trace import Op, TensorSpec

_PRODUCTS = ("mm", "addmm", "_sparse_addmm", "_sparse_mm", "matmul", "mv", "addmv")
# They go through every value of the dense side as well.
_CONVERSIONS = ("to_dense", "_to_dense", "to_sparse", "_to_sparse")
# Row and column of a stored value, int64 each.
_POSITION_BYTES = 16
# Positions are sorted and repeated ones found before values are added up.
# Source: aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, _coalesce_sparse_cuda.
_COALESCE_LAUNCHES = 8


def has_sparse(op: Op) -> bool:
    """Return whether the operator reads or writes a sparse tensor."""
    return any(spec.layout == "sparse" for spec in (*op.inputs, *op.outputs))


def lower_sparse(op: Op) -> Kernel:
    """Return what a device runs for an operator with a sparse tensor."""
    stored = [spec for spec in (*op.inputs, *op.outputs) if spec.layout == "sparse"]
    most = max(stored, key=lambda spec: spec.numel)
    position_bytes = float(_POSITION_BYTES * (most.shape[0] if most.shape else 1))
    name = base_name(op.name)
    if name in _PRODUCTS:
        return _product(op, most, position_bytes)
    if name in _CONVERSIONS:
        read_bytes = total_bytes(op.inputs) + position_bytes
        return streaming_kernel(op, flop=0, read_bytes=read_bytes)
    # A dense operand is read and written only where there are stored values.
    return streaming_kernel(
        op,
        flop=min(output_numel(op), most.numel),
        read_bytes=_touched_bytes(op.inputs, most) + position_bytes,
        write_bytes=_touched_bytes(op.outputs, most),
        launches=_COALESCE_LAUNCHES if name in ("coalesce", "_coalesce") else 1,
    )


def _product(op: Op, stored: TensorSpec, position_bytes: float) -> Kernel:
    """Return a product in which each stored value multiplies a row of the dense side."""
    num_columns = op.outputs[0].shape[-1] if op.outputs and len(op.outputs[0].shape) > 1 else 1
    rows_bytes = float(stored.numel * num_columns * stored.element_bytes)
    added_bytes = total_bytes(op.inputs[:-2])
    return streaming_kernel(
        op,
        family=Family.REDUCTION,
        flop=multiply_add_flop(stored) * stored.numel * num_columns,
        read_bytes=added_bytes + tensor_bytes(stored) + position_bytes + rows_bytes,
    )


def _touched_bytes(specs: Iterable[TensorSpec], stored: TensorSpec) -> float:
    return sum(min(tensor_bytes(spec), float(stored.numel * spec.element_bytes)) for spec in specs)
