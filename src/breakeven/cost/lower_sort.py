"""Sorting, selection, and counting."""

from __future__ import annotations

import math

from breakeven.cost.kernel import Family, Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    RuleTable,
    base_name,
    gather_kernel,
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

# Longest row that one block sorts in shared memory; beyond, a radix sort in passes of 8 bits,
# of a histogram and a scatter each.
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
    comparisons = source.numel * math.log2(max(2, row_length))
    if row_length <= _SMALL_ROW:
        return streaming_kernel(
            op,
            family=Family.SORT,
            flop=comparisons,
            read_bytes=tensor_bytes(source),
            write_bytes=float(source.numel * (source.element_bytes + _POSITION_BYTES)),
        )
    passes = source.element_bytes
    moved_bytes = float(passes * source.numel * (source.element_bytes + _POSITION_BYTES))
    return streaming_kernel(
        op,
        family=Family.SORT,
        flop=comparisons,
        read_bytes=moved_bytes,
        write_bytes=moved_bytes,
        launches=_LAUNCHES_PER_PASS * passes,
    )


@RULES.add("sort argsort msort")
def _lower_sort(op: Op) -> Kernel:
    source = op.inputs[0]
    return _sort_kernel(op, source, _row_length(op, source))


@RULES.add("topk kthvalue median nanmedian mode")
def _lower_select(op: Op) -> Kernels:
    """Lower ``topk``, ``kthvalue``, ``median``: radix selection, then a sort of what it found.

    The selection reads each row once per 8 bits of the key, from the cache where it fits; the
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
    """Lower ``unique``: sort, mark where neighbours differ, scan, compact."""
    source = op.inputs[0]
    compaction = scan_kernel(
        op, flop=2 * source.numel, read_bytes=2 * tensor_bytes(source), launches=6
    )
    if "consecutive" in op.name:
        return compaction
    return _sort_kernel(op, source, source.numel), compaction


@RULES.add("bincount histc")
def _lower_histogram(op: Op) -> tuple[Kernel, ...]:
    """Lower ``bincount`` and ``histc``: the range of the values, zeros, then counts."""
    source = op.inputs[0]
    bounds = reduction_kernel(
        op, flop=2 * source.numel, read_bytes=2 * tensor_bytes(source), write_bytes=0.0, launches=2
    )
    counts = scatter_kernel(op, flop=source.numel, launches=2)
    return bounds, counts


@RULES.add("searchsorted bucketize")
def _lower_search(op: Op) -> Kernel:
    """Lower ``searchsorted(sorted_sequence, values)`` and ``bucketize``: a bisection each."""
    lengths = [spec.shape[-1] for spec in op.inputs if spec.shape]
    steps = math.log2(max(2, *lengths, 2))
    return gather_kernel(op, flop=steps * output_numel(op))


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

    Source: aten/src/ATen/native/Distributions.cpp, multinomial_out: the way of one draw, or of
    draws without replacement. Its checks read three reductions back.
    """
    weights = op.inputs[0]
    weight_bytes = tensor_bytes(weights)
    checks = reduction_kernel(
        op, flop=3 * weights.numel, read_bytes=3 * weight_bytes, write_bytes=0.0, launches=6
    )
    noise = streaming_kernel(
        op,
        flop=(TRANSCENDENTAL_FLOP + 1) * weights.numel,
        read_bytes=2 * weight_bytes,
        write_bytes=2 * weight_bytes,
        launches=2,
    )
    choice = reduction_kernel(op, flop=weights.numel)
    return checks, noise, choice


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
