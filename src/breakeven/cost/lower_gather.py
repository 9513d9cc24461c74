"""Reads and writes at computed positions, and sorting, which finds them.

``variant`` is ``scatter`` if the positions are written. The number of elements that a boolean mask
selects depends on values; if the result's shape does not show it, all elements are counted.
"""

from __future__ import annotations

import math

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
    Streaming,
    base_name,
    fill_kernel,
    gather_kernel,
    is_in_place,
    output_numel,
    reduction_kernel,
    scan_kernel,
    scatter_kernel,
    streaming_kernel,
    tensor_bytes,
    total_bytes,
)
from breakeven.trace import Op, TensorSpec

RULES = RuleTable()

# Up to this count the gradient of an embedding is one kernel; above it, indices are sorted first.
# Source: aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda.
_UNSORTED_INDICES = 3072
# Columns of each of its blocks; a block processes all the indices one after another.
_COLUMNS_PER_BLOCK = 32

# Sorting of index and position in passes of 8 bits, then: find the segments, scan, add them up.
# Source: the launches of embedding_backward_cuda_kernel and of index_put_with_sort_kernel.
_SORTED_SCATTER_LAUNCHES = 12

_MASK_DTYPES = ("bool", "uint8")


def mask_positions_kernel(op: Op, mask: TensorSpec) -> Kernel:
    """Return the kernels that turn a mask into positions: count, scan, write.

    Source: aten/src/ATen/native/cuda/Nonzero.cu; cub's count and select take two launches each.
    """
    return scan_kernel(
        op,
        flop=2 * mask.numel,
        read_bytes=2 * tensor_bytes(mask),
        write_bytes=8.0 * len(mask.shape) * min(mask.numel, output_numel(op)),
        launches=5,
    )


def _copied_before(op: Op, target: TensorSpec) -> tuple[Kernel, ...]:
    """Return the copy of the target that the functional form of a scatter makes first."""
    if is_in_place(op.name):
        return ()
    target_bytes = tensor_bytes(target)
    return (streaming_kernel(op, flop=0, read_bytes=target_bytes, write_bytes=target_bytes),)


@RULES.add(
    """
    embedding index _unsafe_index _unsafe_masked_index index_select gather take take_along_dim
    _embedding_bag_per_sample_weights_backward
    """
)
def _lower_gather(op: Op) -> tuple[Kernel, ...]:
    """Lower reads of rows or elements: only the selected part of the source is read."""
    indices = op.inputs[1:]
    read_bytes = total_bytes(indices) + tensor_bytes(op.outputs[0])
    if base_name(op.name) == "_embedding_bag_per_sample_weights_backward":
        read_bytes = total_bytes(op.inputs)
    masks = [mask_positions_kernel(op, spec) for spec in indices if spec.dtype in _MASK_DTYPES]
    return *masks, gather_kernel(op, read_bytes=read_bytes)


@RULES.add("_embedding_bag _embedding_bag_forward_only")
def _lower_embedding_bag(op: Op) -> Kernel:
    """Lower ``_embedding_bag(weight (V, D), indices (N), offsets)``: rows summed per bag."""
    weight, indices = op.inputs[0], op.inputs[1]
    row_bytes = weight.shape[-1] * weight.element_bytes
    return gather_kernel(
        op,
        flop=indices.numel * weight.shape[-1],
        read_bytes=total_bytes(op.inputs[1:]) + indices.numel * row_bytes,
        # A fill, a scatter and a scan compute the bags from the offsets.
        launches=4,
    )


def _sorted_scatter(
    op: Op, *, num_indices: int, moved_bytes: float, flop: float
) -> tuple[Kernel, Kernel]:
    """Return an addition at sorted positions, so that equal ones are adjacent."""
    # Each of 8 passes streams 64-bit keys and positions in and out.
    sorting_bytes = 8 * 2 * 8.0 * num_indices
    sorted_indices = streaming_kernel(
        op,
        family=Family.SORT,
        flop=num_indices,
        read_bytes=sorting_bytes,
        write_bytes=sorting_bytes,
        launches=_SORTED_SCATTER_LAUNCHES - 1,
        variant="scatter",
    )
    added = scatter_kernel(
        op, flop=flop, read_bytes=8.0 * num_indices + moved_bytes, write_bytes=moved_bytes
    )
    return sorted_indices, added


@RULES.add(
    """
    embedding_dense_backward _embedding_bag_dense_backward embedding_backward
    _embedding_bag_backward
    """
)
def _lower_embedding_backward(op: Op) -> tuple[Kernel, ...]:
    """Lower ``embedding_dense_backward(grad (…, D), indices (…))``: zero all, add rows."""
    grad, indices = op.inputs[0], op.inputs[1]
    grad_bytes, zeroed = tensor_bytes(grad), fill_kernel(op)
    touched_bytes = min(grad_bytes, total_bytes(op.outputs))
    if indices.numel > _UNSORTED_INDICES:
        return zeroed, *_sorted_scatter(
            op, num_indices=indices.numel, moved_bytes=grad_bytes, flop=grad.numel
        )
    return zeroed, scatter_kernel(
        op,
        flop=grad.numel,
        read_bytes=grad_bytes + tensor_bytes(indices) + touched_bytes,
        write_bytes=touched_bytes,
        num_blocks=math.ceil(grad.shape[-1] / _COLUMNS_PER_BLOCK),
    )


@RULES.add("index_put _index_put_impl _unsafe_index_put _unsafe_masked_index_put_accumulate")
def _lower_index_put(op: Op) -> tuple[Kernel, ...]:
    """Lower ``index_put(self, indices…, values, accumulate)``."""
    target, *indices, values = op.inputs
    masks = [spec for spec in indices if spec.dtype in _MASK_DTYPES]
    num_indices = max((spec.numel for spec in indices), default=1)
    num_indexed = sum(len(spec.shape) for spec in masks) + len(indices) - len(masks)
    row_numel = math.prod(target.shape[num_indexed:])
    num_written = max(values.numel, min(num_indices * row_numel, target.numel))
    if masks and values.numel > 1:
        num_written = values.numel
    written_bytes = float(num_written * target.element_bytes)
    kernels = [*_copied_before(op, target), *(mask_positions_kernel(op, spec) for spec in masks)]
    if op.attributes.get("accumulate", False):
        return *kernels, *_sorted_scatter(
            op, num_indices=num_indices, moved_bytes=written_bytes, flop=num_written
        )
    scatter = scatter_kernel(
        op, read_bytes=total_bytes(indices) + tensor_bytes(values), write_bytes=written_bytes
    )
    return *kernels, scatter


@RULES.add(
    """
    scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce put
    embedding_renorm
    """
)
def _lower_scatter(op: Op) -> tuple[Kernel, ...]:
    """Lower ``scatter(self, index, src?)``, ``index_add`` and similar operators.

    An operator that adds to its target also reads it.
    """
    target, *others = op.inputs
    name = base_name(op.name)
    is_read_back = "add" in name or "reduce" in name
    if name.startswith("index_") and len(others) < 2:
        # ``index_fill(self, index, value)`` selects rows along the dimension of an attribute.
        dimension = int(op.attributes.get("dim", 0))
        rows = others[0].numel if others else 0
        num_written = target.numel // max(1, target.shape[dimension]) * rows
    else:
        num_written = others[-1].numel if others else target.numel
    written_bytes = float(num_written * target.element_bytes)
    scatter = scatter_kernel(
        op,
        flop=num_written if is_read_back else 0,
        read_bytes=total_bytes(others) + (written_bytes if is_read_back else 0.0),
        write_bytes=written_bytes,
    )
    return *_copied_before(op, target), scatter


# Few training steps have these. By their launches, and one pass over all tensors.
for _names, _launches in (
    ("masked_scatter", 5), ("repeat_interleave", 3), ("bincount histc", 4),
):  # fmt: skip
    RULES.add(_names)(Streaming(family=Family.GATHER, launches=_launches, variant="scatter"))
# A bisection for each value.
RULES.add("searchsorted bucketize")(Streaming(family=Family.GATHER))


@RULES.add("nonzero nonzero_static argwhere")
def _lower_nonzero(op: Op) -> Kernel:
    return mask_positions_kernel(op, op.inputs[0])


@RULES.add("masked_select masked_scatter_backward")
def _lower_masked_select(op: Op) -> tuple[Kernel, ...]:
    """Lower ``masked_select(self, mask)``: positions of the mask, then a gather."""
    gathered_bytes = total_bytes(op.outputs)
    gather = gather_kernel(op, read_bytes=gathered_bytes + 8.0 * output_numel(op))
    return mask_positions_kernel(op, op.inputs[1]), gather


@RULES.add(
    """
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
    cudnn_grid_sampler cudnn_grid_sampler_backward _grid_sampler_2d_cpu_fallback
    _grid_sampler_2d_cpu_fallback_backward torchvision.roi_align torchvision._roi_align_backward
    torchvision.roi_pool torchvision._roi_pool_backward torchvision.ps_roi_align
    torchvision._ps_roi_align_backward torchvision.ps_roi_pool torchvision._ps_roi_pool_backward
    """
)
def _lower_sampling(op: Op) -> Kernels:
    """Lower interpolation at positions from an input: grid sampling, regions of interest.

    Four corners, with weights, per output element in two dimensions. A backward pass zeroes its
    result, then adds to it.
    """
    sampled = gather_kernel(op, flop=8 * output_numel(op))
    return (fill_kernel(op), sampled) if "backward" in op.name else sampled


# Longest row that one block sorts in shared memory. A longer row needs a radix sort in passes of
# 8 bits, each a histogram and a scatter.
# Source: aten/src/ATen/native/cuda/Sort.cu and SortStable.cu.
_SMALL_ROW = 4096
_LAUNCHES_PER_PASS = 2
_POSITION_BYTES = 8


def _row_length(op: Op, source: TensorSpec) -> int:
    if not source.shape:
        return 1
    return source.shape[int(op.attributes.get("dim", -1))]


def _sort_kernel(op: Op, source: TensorSpec, row_length: int) -> Kernel:
    """Return a sort of ``source`` in rows, with the position of each element."""
    is_small = row_length <= _SMALL_ROW
    passes = 1 if is_small else source.element_bytes
    moved_bytes = float(passes * source.numel * (source.element_bytes + _POSITION_BYTES))
    return streaming_kernel(
        op,
        family=Family.SORT,
        flop=source.numel * math.log2(max(2, row_length)),
        read_bytes=tensor_bytes(source) if is_small else moved_bytes,
        write_bytes=moved_bytes,
        launches=1 if is_small else _LAUNCHES_PER_PASS * passes,
    )


@RULES.add("sort argsort msort")
def _lower_sort(op: Op) -> Kernel:
    source = op.inputs[0]
    return _sort_kernel(op, source, _row_length(op, source))


@RULES.add("topk kthvalue median nanmedian mode")
def _lower_select(op: Op) -> Kernels:
    """Lower ``topk``, ``kthvalue``, ``median``: radix selection, then a sort of the selection.

    The selection reads each row once per 8 bits of the key, from the cache if it fits; only the
    compulsory read is counted.
    """
    source = op.inputs[0]
    selection = streaming_kernel(
        op,
        family=Family.SORT,
        flop=source.numel * source.element_bytes,
        read_bytes=tensor_bytes(source),
        variant="select",
    )
    if base_name(op.name) != "topk" or not op.attributes.get("sorted", True):
        return selection
    return selection, _sort_kernel(op, op.outputs[0], _row_length(op, op.outputs[0]))


@RULES.add("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive")
def _lower_unique(op: Op) -> Kernels:
    """Lower ``unique``: sort, mark differences between neighbours, scan, compact."""
    source = op.inputs[0]
    read_bytes = 2 * tensor_bytes(source)
    compaction = scan_kernel(op, flop=2 * source.numel, read_bytes=read_bytes, launches=6)
    is_sorted = "consecutive" in op.name
    return compaction if is_sorted else (_sort_kernel(op, source, source.numel), compaction)


@RULES.add("isin")
def _lower_membership(op: Op) -> tuple[Kernel, ...]:
    """Lower ``isin(elements, test_elements)``: sort both together, compare neighbours."""
    numel = sum(spec.numel for spec in op.inputs)
    largest = max(op.inputs, key=lambda spec: spec.numel)
    compared = streaming_kernel(op, flop=2 * numel, launches=4)
    return _sort_kernel(op, largest, numel), compared


@RULES.add("randperm")
def _lower_permutation(op: Op) -> tuple[Kernel, ...]:
    """Lower ``randperm``: random keys, then a sort of positions by them."""
    result = op.outputs[0]
    keys = streaming_kernel(op, flop=TRANSCENDENTAL_FLOP * result.numel, read_bytes=0.0, launches=2)
    return keys, _sort_kernel(op, result, result.numel)


@RULES.add("multinomial")
def _lower_multinomial(op: Op) -> tuple[Kernel, ...]:
    """Lower ``multinomial(weights)``: exponential noise, a division, and the largest.

    Source: aten/src/ATen/native/Distributions.cpp, multinomial_out: the path of one draw, or of
    draws without replacement. Its checks read back three reductions.
    """
    numel, weight_bytes = op.inputs[0].numel, tensor_bytes(op.inputs[0])
    checks = reduction_kernel(
        op, flop=3 * numel, read_bytes=3 * weight_bytes, write_bytes=0.0, launches=6
    )
    both = 2 * weight_bytes
    flop = (TRANSCENDENTAL_FLOP + 1) * numel
    noise = streaming_kernel(op, flop=flop, read_bytes=both, write_bytes=both, launches=2)
    return checks, noise, reduction_kernel(op, flop=numel)


@RULES.add("torchvision.nms")
def _lower_suppression(op: Op) -> tuple[Kernel, ...]:
    """Lower ``nms(boxes (N, 4), scores (N))``: a sort, then the overlap of each pair of boxes."""
    boxes, scores = op.inputs[0], op.inputs[1]
    num_boxes = boxes.shape[0]
    overlaps = streaming_kernel(
        op,
        family=Family.SORT,
        flop=12 * num_boxes * num_boxes,
        # One bit per pair is written, and read back by the selection.
        read_bytes=total_bytes(op.inputs) + num_boxes * num_boxes / 8,
        write_bytes=num_boxes * num_boxes / 8 + total_bytes(op.outputs),
        launches=3,
        variant="select",
    )
    return _sort_kernel(op, scores, num_boxes), overlaps
