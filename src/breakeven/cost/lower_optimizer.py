"""Operators on lists of tensors, which optimizers use.

One launch takes as many tensors as fit its arguments, and as many chunks as it has blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from breakeven.cost.kernel import Kernel
from breakeven.cost.lower_pointwise import ARITHMETIC, TRANSCENDENTAL
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    RuleTable,
    base_name,
    is_in_place,
    overload_name,
    reduction_kernel,
    streaming_kernel,
    total_bytes,
)
from breakeven.trace import Op, TensorSpec

RULES = RuleTable()

_FOREACH_REDUCTIONS = ("norm", "max", "powsum")

# A block processes a chunk of this many elements of one tensor. A launch takes at most 320 chunks.
# All addresses travel in 4 KiB of launch arguments, so it takes fewer tensors the more lists there
# are. Source: aten/src/ATen/native/cuda/MultiTensorApply.cuh, kChunkSize, depth_to_max_blocks,
# depth_to_max_tensors; builds for CUDA 13 and later take several times more.
_CHUNK_NUMEL = 65_536
_MAX_CHUNKS = 320
_MAX_TENSORS = (110, 64, 48, 36, 30)

# Tensors that one kernel takes to finish the norms of a list.
# Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu, MAX_TENSORS_PER_KERNEL.
_MAX_TENSORS_OF_CLEANUP = 600

# FLOP per parameter: decay 2, first moment 3, second moment 4, two bias corrections 2,
# square root, epsilon, quotient, update 2.
_ADAM_FLOP = 25
_SGD_FLOP = 6
_ADAGRAD_FLOP = 18

_VARIANT = "multi_tensor"


def multi_tensor_launches(numels: Iterable[int], num_lists: int) -> int:
    """Return the number of launches of the multi-tensor kernel.

    Args:
        numels: Elements of each tensor of one list.
        num_lists: Lists that the kernel processes, results included.
    """
    max_tensors = _MAX_TENSORS[min(num_lists, len(_MAX_TENSORS)) - 1]
    launches = num_tensors = num_chunks = 0
    for numel in numels:
        num_tensors += 1
        num_chunks += math.ceil(numel / _CHUNK_NUMEL)
        full, num_chunks = divmod(num_chunks, _MAX_CHUNKS)
        launches += full
        if full:
            # The rest of the tensor that filled the launch opens the next one.
            num_tensors = 1 if num_chunks else 0
        if num_tensors == max_tensors and num_chunks:
            launches += 1
            num_tensors = num_chunks = 0
    return launches + (1 if num_chunks else 0)


def num_list_tensors(op: Op) -> int:
    """Return the number of tensors that a ``_foreach`` operator processes."""
    return len(lists_of(op).given[0])


def _takes_fast_route(lists: Sequence[Sequence[TensorSpec]]) -> bool:
    """Return whether one kernel can process all tensors.

    torch processes tensors one by one if their dtypes are mixed, or if the lists differ in shape:
    a weight and its count of steps.
    """
    shapes = zip(*([spec.shape for spec in tensors] for tensors in lists), strict=False)
    is_alike = all(len(set(each)) == 1 for each in shapes)
    return is_alike and len({spec.dtype for tensors in lists for spec in tensors}) <= 1


class Lists(NamedTuple):
    """The tensor lists of an elementwise ``_foreach_*``.

    Args:
        given: Its argument lists.
        read: The lists that it reads.
        written: The list that it writes; in place, its first list.
    """

    given: list[Sequence[TensorSpec]]
    read: list[Sequence[TensorSpec]]
    written: Sequence[TensorSpec]


def lists_of(op: Op) -> Lists:
    """Return the lists of an elementwise ``_foreach_*``, which the trace joins into one."""
    name, overload = base_name(op.name).removeprefix("_foreach_"), overload_name(op.name)
    in_place, inputs = is_in_place(op.name), op.inputs
    num_lists = 1
    if name in ("addcdiv", "addcmul") or (name == "lerp" and overload == "List"):
        num_lists = 3
    elif name in ("lerp", "copy") or overload == "List":
        num_lists = 2
    # A trailing tensor outside the lists holds scalars: ``_foreach_mul_.Tensor``.
    length = (len(inputs) - (1 if overload == "Tensor" else 0)) // num_lists
    lists: list[Sequence[TensorSpec]] = [
        inputs[i * length : (i + 1) * length] for i in range(num_lists)
    ]
    overwrites = in_place and name in ("copy", "zero")
    return Lists(lists, lists[1:] if overwrites else lists, lists[0] if in_place else op.outputs)


_ELEMENTWISE = frozenset(
    f"_foreach_{name}" for name in (*ARITHMETIC, *TRANSCENDENTAL, "copy", "zero", "clone")
)


def is_foreach_loop(op: Op) -> bool:
    """Return whether an operator is an elementwise ``_foreach_*``."""
    return base_name(op.name) in _ELEMENTWISE


@RULES.add(sorted(_ELEMENTWISE))
def _lower_foreach(op: Op) -> Kernel:
    """Lower an elementwise ``_foreach_*``."""
    name, lists = base_name(op.name).removeprefix("_foreach_"), lists_of(op)
    numels = [spec.numel for spec in lists.given[0]]
    launches = len(numels)
    if _takes_fast_route(lists.given) or name == "copy":
        num_lists = len(lists.given) + (0 if is_in_place(op.name) else 1)
        launches = multi_tensor_launches(numels, num_lists)
    flop = 3 if name in ("addcdiv", "addcmul", "lerp") else 1
    if name in ("copy", "zero", "clone"):
        flop = 0
    elif name in TRANSCENDENTAL:
        flop = TRANSCENDENTAL_FLOP
    return streaming_kernel(
        op,
        flop=flop * sum(numels),
        read_bytes=sum(map(total_bytes, lists.read), 0.0),
        write_bytes=total_bytes(lists.written),
        launches=launches,
        variant=_VARIANT,
    )


@RULES.add(f"_foreach_{name}" for name in _FOREACH_REDUCTIONS)
def _lower_foreach_reduction(op: Op) -> Kernel:
    """Lower ``_foreach_norm`` and ``_foreach_max``: a value per chunk, then one per tensor."""
    numels = [spec.numel for spec in op.inputs]
    if _takes_fast_route([op.inputs]):
        first = multi_tensor_launches(numels, 1)
        # One launch before: zeros for the values of the chunks.
        launches = 1 + first + math.ceil(len(numels) / _MAX_TENSORS_OF_CLEANUP)
    else:
        launches = len(numels)
    return reduction_kernel(op, flop=2 * sum(numels), launches=launches, variant=_VARIANT)


def _fused_kernel(
    op: Op, *, num_lists: int, flop: int, written: Sequence[int], num_steps: int = 0
) -> Kernel:
    """Return the kernel of a fused optimizer.

    Args:
        op: The operator.
        num_lists: Lists whose addresses the kernel gets.
        flop: Arithmetic per parameter.
        written: Indices of the lists that it updates.
        num_steps: Lists of step counts after those; a separate elementwise kernel increments
            them, so they take no room among the addresses.
    """
    length = len(op.inputs) // (num_lists + num_steps)
    lists = [op.inputs[i * length : (i + 1) * length] for i in range(num_lists)]
    numels = [spec.numel for spec in lists[0]]
    tensors = op.inputs[: num_lists * length] if num_steps else op.inputs
    op = msgspec.structs.replace(op, inputs=tensors)
    return streaming_kernel(
        op,
        flop=flop * sum(numels),
        write_bytes=sum((total_bytes(lists[i]) for i in written), 0.0),
        launches=multi_tensor_launches(numels, num_lists),
        variant=_VARIANT,
    )


@RULES.add("_fused_adam _fused_adamw")
def _lower_fused_adam(op: Op) -> Kernel:
    """Lower ``_fused_adamw_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, …)``."""
    has_maximum = bool(op.attributes.get("amsgrad", False))
    written = (0, 2, 3, 4) if has_maximum else (0, 2, 3)
    num_lists = 5 if has_maximum else 4
    return _fused_kernel(op, num_lists=num_lists, flop=_ADAM_FLOP, written=written, num_steps=1)


@RULES.add("_fused_sgd")
def _lower_fused_sgd(op: Op) -> Kernel:
    """Lower ``_fused_sgd_(self, grads, momentum_buffers)``; without momentum it has two lists."""
    has_momentum = bool(op.attributes.get("momentum", 0.0))
    written = (0, 2) if has_momentum else (0,)
    return _fused_kernel(op, num_lists=2 + has_momentum, flop=_SGD_FLOP, written=written)


@RULES.add("_fused_adagrad")
def _lower_fused_adagrad(op: Op) -> Kernel:
    """Lower ``_fused_adagrad_(self, grads, state_sums, state_steps)``."""
    return _fused_kernel(op, num_lists=3, flop=_ADAGRAD_FLOP, written=(0, 2), num_steps=1)


@RULES.add("_amp_foreach_non_finite_check_and_unscale")
def _lower_unscale(op: Op) -> Kernel:
    """Lower GradScaler's ``_amp_foreach_non_finite_check_and_unscale_(self, found, scale)``."""
    gradients = op.inputs[:-2]
    return streaming_kernel(
        op,
        flop=2 * sum(spec.numel for spec in gradients),
        read_bytes=total_bytes(gradients),
        write_bytes=total_bytes(gradients),
        launches=max(1, multi_tensor_launches((spec.numel for spec in gradients), 1)),
        variant=_VARIANT,
    )


@RULES.add("_amp_update_scale")
def _lower_update_scale(op: Op) -> Kernel:
    """Lower GradScaler's ``_amp_update_scale_``: one thread on three scalars."""
    return streaming_kernel(op, flop=3)
