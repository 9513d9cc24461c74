"""From operators to kernels: the registry of rules, and operators that run no kernel."""

from __future__ import annotations

import msgspec

from breakeven.cost import (
    lower_attention,
    lower_convolution,
    lower_gather,
    lower_linalg,
    lower_matmul,
    lower_normalization,
    lower_optimizer,
    lower_pointwise,
    lower_pooling,
    lower_recurrent,
    lower_reduction,
    lower_sort,
)
from breakeven.cost.kernel import Kernel, Lowering
from breakeven.cost.lower_sparse import has_sparse, has_sparse_rule, lower_sparse
from breakeven.cost.rules import (
    Kernels,
    RuleTable,
    SettingsRule,
    base_name,
    has_out_argument,
    names_in,
)
from breakeven.cost.traffic import output_numel, streaming_kernel
from breakeven.errors import Caveat
from breakeven.trace import Op, Settings

# Results that share the memory of an argument: shape and strides are computed on the host.
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

# Memory is taken from the caching allocator, or metadata is read or changed; nothing runs.
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

# Markers that torch's own code sets for its profiler, and functions of the scripting language.
_NO_KERNEL_NAMESPACES = ("profiler.", "prim.")


_RULES = RuleTable()
for _module in (
    lower_attention, lower_convolution, lower_gather, lower_linalg, lower_matmul,
    lower_normalization, lower_optimizer, lower_pointwise, lower_pooling, lower_recurrent,
    lower_reduction, lower_sort,
):  # fmt: skip
    _RULES.join(_module.RULES)


@_RULES.add_with_settings(_VIEWS | _NO_KERNEL)
def _run_nothing(op: Op, settings: Settings) -> Kernels:
    return ()


@_RULES.add({f"{name}_copy" for name in _VIEWS} - _RULES.keys())
def _lower_view_copy(op: Op) -> Kernel:
    """Lower a view's functional twin, which copies: ``transpose_copy``."""
    return streaming_kernel(op, flop=0)


def rule_of(op_name: str) -> SettingsRule | None:
    """Return what lowers an operator without sparse tensors; None where that is not known.

    Args:
        op_name: Overload, such as ``aten.addmm.default``.
    """
    name = base_name(op_name)
    return _run_nothing if name.startswith(_NO_KERNEL_NAMESPACES) else _RULES.get(name)


def _is_empty(op: Op) -> bool:
    """Return whether there is nothing to compute: torch launches no kernel over no elements."""
    tensors = op.outputs or op.inputs
    return bool(tensors) and all(spec.numel == 0 for spec in tensors)


def _caveat_of(op: Op) -> Caveat | None:
    for spec in (*op.inputs, *op.outputs):
        if spec.dtype.startswith("float8"):
            message = f"{op.name} computes in {spec.dtype}; its cost is that of 16-bit arithmetic"
            return Caveat(code="float8-as-float16", message=message)
    return None


def lower(op: Op, settings: Settings) -> Lowering:
    """Return the kernels that a device runs for ``op``, in launch order.

    Args:
        op: Operator with the shapes of its tensors; ``outputs`` may be empty where it works in
            place on a list.
        settings: Switches of torch that permit TF32.

    Returns:
        No kernels for a view, an allocation or a read of metadata. An operator without a rule is
        costed by the bytes of its tensors and carries the caveat ``uncosted-op``.
    """
    if has_out_argument(op.name) and op.outputs and len(op.inputs) > len(op.outputs):
        # ``mm.out(a, b, out=c)``: the last arguments are written, not read.
        op = msgspec.structs.replace(op, inputs=op.inputs[: -len(op.outputs)])
    rule = rule_of(op.name)
    if rule is _run_nothing or _is_empty(op):
        return Lowering(kernels=())
    if has_sparse(op):
        caveat = _caveat_of(op) if has_sparse_rule(op.name) else _uncosted(op)
        return Lowering(kernels=(lower_sparse(op),), caveat=caveat)
    if rule is not None:
        kernels = rule(op, settings)
        kernels = kernels if isinstance(kernels, tuple) else (kernels,)
        return Lowering(kernels=kernels, caveat=_caveat_of(op))
    has_tensors = bool(op.inputs or op.outputs)
    kernels = (streaming_kernel(op, flop=output_numel(op)),) if has_tensors else ()
    return Lowering(kernels=kernels, caveat=_uncosted(op))


def _uncosted(op: Op) -> Caveat:
    message = f"{op.name} has no cost model; it counts as a copy of its tensors"
    return Caveat(code="uncosted-op", message=message)
