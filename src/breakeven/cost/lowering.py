"""The lowering of operators to kernels: all rules, operators without a kernel, sparse tensors."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from breakeven.cost import (
    lower_compiled,
    lower_convolution,
    lower_gather,
    lower_matmul,
    lower_optimizer,
    lower_pointwise,
    lower_reduction,
    lower_sequence,
)
from breakeven.cost.kernel import Kernel, Lowering
from breakeven.cost.lower_compiled import called_name, is_library_call, padded_product
from breakeven.cost.rules import (
    Kernels,
    RuleTable,
    SettingsRule,
    base_name,
    has_out_argument,
    is_in_place,
    multiply_add_flop,
    names_in,
    output_numel,
    reduction_kernel,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.errors import Caveat
from breakeven.trace import Op, Settings, TensorSpec

# The result shares the memory of an argument; the host computes its shape and strides.
_VIEWS = names_in(
    """
    _autocast_to_full_precision _autocast_to_reduced_precision _conj _fw_primal _indices _make_dual
    _neg_view _reshape_alias _unpack_dual _unsafe_view _values adjoint alias as_strided broadcast_to
    ccol_indices chunk col_indices conj crow_indices detach diagonal dsplit expand expand_as flatten
    hsplit imag indices lift lift_fresh linalg_diagonal mH mT matrix_H moveaxis movedim narrow
    numpy_T permute positive ravel real reshape reshape_as resolve_conj resolve_neg row_indices
    select slice slice_inverse split split_with_sizes squeeze swapaxes swapdims t tensor_split
    transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
    values view view_as view_as_complex view_as_real vsplit
    """
)

# These allocate from the caching allocator, or read or change metadata; no kernel runs.
_NO_KERNEL = names_in(
    """
    _assert_async _assert_scalar _assert_tensor_metadata _coalesced _cudnn_init_dropout_state
    _efficientzerotensor _functional_assert_async _functional_sym_constrain_range _fused_sdp_choice
    _has_compatible_shallow_copy_type _has_same_storage_numel _linalg_check_errors
    _local_scalar_dense _nested_get_jagged_dummy _nnz _pin_memory _resize_output
    _sparse_compressed_tensor_unsafe _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _use_cudnn_ctc_loss _version data dense_dim dim empty
    empty_like empty_permuted empty_strided is_coalesced is_contiguous is_non_overlapping_and_dense
    is_nonzero is_pinned is_same_size is_set_to is_strides_like_format item new_empty
    new_empty_strided numel pin_memory record_stream requires_grad resize resize_as resize_as_sparse
    retain_grad set set_data size sparse_dim storage_offset stride sym_constrain_range
    sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride
    """
)

# Markers of torch's own code for its profiler, and functions of the scripting language.
_NO_KERNEL_NAMESPACES = ("profiler.", "prim.")


_RULES = RuleTable()
for _module in (
    lower_compiled, lower_convolution, lower_gather, lower_matmul, lower_optimizer,
    lower_pointwise, lower_reduction, lower_sequence,
):  # fmt: skip
    _RULES.join(_module.RULES)


@_RULES.add_with_settings(_VIEWS | _NO_KERNEL)
def _run_nothing(op: Op, settings: Settings) -> Kernels:
    return ()


@_RULES.add({f"{name}_copy" for name in _VIEWS} - _RULES.keys())
def _lower_view_copy(op: Op) -> Kernel:
    """Lower the copying variant of a view: ``transpose_copy``."""
    return streaming_kernel(op, flop=0)


def rule_of(op_name: str) -> SettingsRule | None:
    """Return the rule of an operator without sparse tensors; None if it has none.

    Args:
        op_name: Overload, such as ``aten.addmm.default``.
    """
    name = base_name(op_name)
    return _run_nothing if name.startswith(_NO_KERNEL_NAMESPACES) else _RULES.get(name)


def lower(op: Op, settings: Settings) -> Lowering:
    """Return the kernels that a device runs for ``op``, in launch order.

    Args:
        op: Operator with the shapes of its tensors; ``outputs`` may be empty if it works in
            place on a list.
        settings: Switches of torch that permit TF32.

    Returns:
        No kernels for a view, an allocation or a read of metadata. An operator without a rule is
        costed by the bytes of its tensors and carries the caveat ``uncosted-op``.
    """
    if is_library_call(op.name):
        called = msgspec.structs.replace(op, name=called_name(op.name))
        lowering = lower(called, settings)
        kernels = [each for kernel in lowering.kernels for each in padded_product(called, kernel)]
        return msgspec.structs.replace(lowering, kernels=tuple(kernels))
    if has_out_argument(op.name) and op.outputs and len(op.inputs) > len(op.outputs):
        # ``mm.out(a, b, out=c)`` writes its last arguments and does not read them.
        op = msgspec.structs.replace(op, inputs=op.inputs[: -len(op.outputs)])
    rule = rule_of(op.name)
    tensors = op.outputs or op.inputs
    # torch launches no kernel for zero elements.
    is_empty = bool(tensors) and all(spec.numel == 0 for spec in tensors)
    if rule is _run_nothing or is_empty:
        return Lowering(kernels=())
    if any(spec.is_sparse for spec in (*op.inputs, *op.outputs)):
        return Lowering(kernels=(_lower_sparse(op),), caveat=_SPARSE)
    if rule is not None:
        kernels = rule(op, settings)
    else:
        kernels = (streaming_kernel(op, flop=output_numel(op)),) if tensors else ()
    caveat = None
    float8 = [s.dtype for s in (*op.inputs, *op.outputs) if s.dtype.startswith("float8")]
    if rule is None:
        message = f"{op.name} has no cost model; it counts as a copy of its tensors"
        caveat = Caveat(code="uncosted-op", message=message)
    elif float8:
        message = f"{op.name} computes in {float8[0]}; its cost is that of 16-bit arithmetic"
        caveat = Caveat(code="float8-as-float16", message=message)
    return Lowering(kernels=kernels if isinstance(kernels, tuple) else (kernels,), caveat=caveat)


# Operators with a sparse tensor cost as much as its stored values, by which the trace describes it
# (`TensorSpec`). Derived from the kernels of torch and cuSPARSE, without a measurement: no table
# has operators of sparse tensors.
_SPARSE = Caveat(
    code="sparse-op",
    message="operators of sparse tensors are costed by their stored values, without measurements",
)
_PRODUCTS = names_in("_sparse_addmm _sparse_mm addmm addmv bmm hspmm matmul mm mv spmm sspaddmm")
# Row and column of a stored value, int64 each.
_POSITION_BYTES = 16
# Positions are sorted and duplicates found before values are added up.
# Source: aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, _coalesce_sparse_cuda.
_COALESCE_LAUNCHES = 8


def _lower_sparse(op: Op) -> Kernel:
    stored = max(
        (spec for spec in (*op.inputs, *op.outputs) if spec.is_sparse), key=lambda spec: spec.numel
    )
    position_bytes = float(_POSITION_BYTES * (stored.shape[0] if stored.shape else 1))
    name = base_name(op.name)
    if name in _PRODUCTS:
        # Each stored value multiplies a row of the dense side; for a dense matrix times a sparse
        # one, a column.
        sizes = op.outputs[0].shape[-2:] if op.outputs else ()
        is_right = bool(op.inputs) and op.inputs[-1].is_sparse and not op.inputs[-2].is_sparse
        length = 1 if len(sizes) < 2 else sizes[0] if is_right else sizes[1]
        read_bytes = total_bytes(op.inputs[:-2]) + tensor_bytes(stored) + position_bytes
        return reduction_kernel(
            op,
            flop=multiply_add_flop(stored) * stored.numel * length,
            read_bytes=read_bytes + float(stored.numel * length * stored.element_bytes),
            variant="sparse",
        )
    has_sparse_result = any(spec.is_sparse for spec in op.outputs)
    if "to_sparse" in name or not (has_sparse_result or is_in_place(op.name)):
        read_bytes = total_bytes(op.inputs) + position_bytes
        return streaming_kernel(op, flop=output_numel(op), read_bytes=read_bytes)

    def touched_bytes(specs: Iterable[TensorSpec]) -> float:
        # A dense operand is read and written only at the stored values.
        return sum(min(tensor_bytes(one), float(stored.numel * one.element_bytes)) for one in specs)

    return streaming_kernel(
        op,
        flop=min(output_numel(op), stored.numel),
        read_bytes=touched_bytes(op.inputs) + position_bytes,
        write_bytes=touched_bytes(op.outputs),
        launches=_COALESCE_LAUNCHES if name in ("coalesce", "_coalesce") else 1,
    )
