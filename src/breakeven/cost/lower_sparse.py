"""Operators with a sparse tensor, which cost what its stored values cost.

The trace describes a sparse tensor by its values (`TensorSpec`). Argued from the kernels of torch
and cuSPARSE, held against no measurement: operators of sparse tensors are in no table.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import base_name, is_in_place, names_in
from breakeven.cost.traffic import (
    multiply_add_flop,
    output_numel,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.trace import Op, TensorSpec

_PRODUCTS = names_in("_sparse_addmm _sparse_mm addmm addmv bmm hspmm matmul mm mv spmm sspaddmm")
_CONVERSIONS = names_in(
    """
    _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr to_dense
    to_sparse to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr
    """
)
_OTHERS = names_in(
    """
    _coalesce _copy _log_softmax_backward_data _sparse_log_softmax _sparse_softmax _sparse_sum
    _to_copy abs add addcdiv addcmul clone coalesce copy div fill mul neg norm pow sparse_mask sqrt
    sub sum zero
    """
)
# Row and column of a stored value, int64 each.
_POSITION_BYTES = 16
# Positions are sorted and repeated ones found before values are added up.
# Source: aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, _coalesce_sparse_cuda.
_COALESCE_LAUNCHES = 8


def has_sparse(op: Op) -> bool:
    """Return whether the operator reads or writes a sparse tensor."""
    return any(spec.is_sparse for spec in (*op.inputs, *op.outputs))


def has_sparse_rule(op_name: str) -> bool:
    """Return whether it is known what the operator does with a sparse tensor."""
    return base_name(op_name) in _PRODUCTS | _CONVERSIONS | _OTHERS


def lower_sparse(op: Op) -> Kernel:
    """Return what a device runs for an operator with a sparse tensor."""
    stored = max(
        (spec for spec in (*op.inputs, *op.outputs) if spec.is_sparse), key=lambda spec: spec.numel
    )
    position_bytes = float(_POSITION_BYTES * (stored.shape[0] if stored.shape else 1))
    name = base_name(op.name)
    if name in _PRODUCTS:
        return _product(op, stored, position_bytes)
    has_sparse_result = any(spec.is_sparse for spec in op.outputs)
    if name in _CONVERSIONS or not (has_sparse_result or is_in_place(op.name)):
        read_bytes = total_bytes(op.inputs) + position_bytes
        return streaming_kernel(op, flop=output_numel(op), read_bytes=read_bytes)
    # A dense operand is read and written only where there are stored values.
    return streaming_kernel(
        op,
        flop=min(output_numel(op), stored.numel),
        read_bytes=_touched_bytes(op.inputs, stored) + position_bytes,
        write_bytes=_touched_bytes(op.outputs, stored),
        launches=_COALESCE_LAUNCHES if name in ("coalesce", "_coalesce") else 1,
    )


def _product(op: Op, stored: TensorSpec, position_bytes: float) -> Kernel:
    """Return a product in which each stored value multiplies a row of the dense side.

    Of a dense matrix by a sparse one, a column of it.
    """
    sizes = op.outputs[0].shape[-2:] if op.outputs else ()
    is_right = bool(op.inputs) and op.inputs[-1].is_sparse and not op.inputs[-2].is_sparse
    length = 1 if len(sizes) < 2 else sizes[0] if is_right else sizes[1]
    added_bytes = total_bytes(op.inputs[:-2])
    dense_bytes = float(stored.numel * length * stored.element_bytes)
    return streaming_kernel(
        op,
        family=Family.REDUCTION,
        flop=multiply_add_flop(stored) * stored.numel * length,
        read_bytes=added_bytes + tensor_bytes(stored) + position_bytes + dense_bytes,
    )


def _touched_bytes(specs: Iterable[TensorSpec], stored: TensorSpec) -> float:
    return sum(min(tensor_bytes(spec), float(stored.numel * spec.element_bytes)) for spec in specs)
