"""Elementwise operators: arithmetic, activations, fills, random numbers, and copies.

``variant`` is empty where streams are read and written in order; else ``strided``, ``concat``,
``fill`` (writes alone) or ``random``.
"""

from __future__ import annotations

import math

from breakeven.cost.kernel import Kernel
from breakeven.cost.pointwise_names import (
    ARITHMETIC,
    EMBED_GRADIENT,
    FILL,
    JOIN,
    RANDOM,
    REARRANGE,
    TRANSCENDENTAL,
    UPSAMPLE_FLOP,
)
from breakeven.cost.rules import Kernels, Rule, RuleTable, is_in_place
from breakeven.cost.traffic import (
    TRANSCENDENTAL_FLOP,
    broadcast_bytes,
    copy_kernel,
    output_numel,
    streaming_kernel,
    total_bytes,
)
from breakeven.trace import Op

RULES = RuleTable()

# Tensors that one launch of the concatenation kernel can take.
# Source: aten/src/ATen/native/cuda/Shape.cu, CAT_ARRAY_BATCH_SIZE.
_CAT_TENSORS_PER_LAUNCH = 128


def _flop_per_element(flop: int) -> Rule:
    """Return a rule that reads all inputs, writes all outputs, at ``flop`` per output element."""

    def lower(op: Op) -> Kernel:
        return streaming_kernel(op, flop=flop * output_numel(op), read_bytes=broadcast_bytes(op))

    return lower


RULES.add(ARITHMETIC)(_flop_per_element(1))
RULES.add(TRANSCENDENTAL)(_flop_per_element(TRANSCENDENTAL_FLOP))
for _name, _flop in UPSAMPLE_FLOP.items():
    RULES.add((_name, f"{_name}_backward"))(_flop_per_element(_flop))


@RULES.add(REARRANGE)
def _lower_rearranged(op: Op) -> Kernel:
    """Lower ``clone``, ``_to_copy``, ``roll``, …: reads its inputs, writes its result."""
    if not (op.inputs and op.outputs):
        return streaming_kernel(op, flop=0)
    return copy_kernel(op, op.inputs[0], op.outputs[0])


@RULES.add("copy")
def _lower_copy(op: Op) -> Kernel:
    """Lower ``copy_(self, src)``, which does not read ``self``."""
    target, *sources = op.inputs
    if not sources:
        return streaming_kernel(op, flop=0, read_bytes=0.0)
    return copy_kernel(op, sources[0], target, read_bytes=total_bytes(sources))


@RULES.add("masked_fill")
def _lower_masked_fill(op: Op) -> Kernels:
    """Lower ``masked_fill(self, mask, value)``; out of place, ``self`` is copied first.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, masked_fill.
    """
    filled = streaming_kernel(op, flop=output_numel(op), read_bytes=broadcast_bytes(op))
    if is_in_place(op.name):
        return filled
    copied = streaming_kernel(op, flop=0, read_bytes=total_bytes(op.inputs[:1]))
    return copied, filled


@RULES.add(FILL)
def _lower_fill(op: Op) -> Kernel:
    """Lower an operator that only writes; a tensor of the value to fill in is negligible."""
    return streaming_kernel(op, flop=0, read_bytes=0.0, variant="fill")


@RULES.add(RANDOM)
def _lower_random(op: Op) -> Kernel:
    """Lower random numbers; the probabilities of ``bernoulli`` and the means of ``normal`` count.

    The in-place forms and ``_like`` overwrite their first argument or take only its shape.
    """
    is_unread = is_in_place(op.name) or "_like" in op.name
    parameters = op.inputs[1:] if is_unread else op.inputs
    flop = TRANSCENDENTAL_FLOP * output_numel(op)
    read_bytes = total_bytes(parameters)
    return streaming_kernel(op, flop=flop, read_bytes=read_bytes, variant="random")


@RULES.add("native_dropout _fused_dropout")
def _lower_dropout(op: Op) -> Kernel:
    """Lower ``native_dropout``: draw, compare, scale; writes the result and a boolean mask."""
    flop = (TRANSCENDENTAL_FLOP + 2) * output_numel(op)
    return streaming_kernel(op, flop=flop, variant="random")


@RULES.add(JOIN)
def _lower_join(op: Op) -> Kernel:
    launches = max(1, math.ceil(len(op.inputs) / _CAT_TENSORS_PER_LAUNCH))
    return streaming_kernel(op, flop=0, launches=launches, variant="concat")


@RULES.add(EMBED_GRADIENT)
def _lower_embedded_gradient(op: Op) -> tuple[Kernel, ...]:
    """Lower the gradient of a view: zero all, then copy the part that has a gradient."""
    part_bytes = total_bytes(op.inputs)
    return (
        streaming_kernel(op, flop=0, read_bytes=0.0, variant="fill"),
        streaming_kernel(
            op, flop=0, read_bytes=part_bytes, write_bytes=part_bytes, variant="strided"
        ),
    )


@RULES.add("rrelu_with_noise rrelu_with_noise_functional")
def _lower_random_rrelu(op: Op) -> Kernel:
    """Lower ``rrelu_with_noise(self, noise)``; the slopes drawn are written into ``noise``."""
    return streaming_kernel(
        op,
        flop=TRANSCENDENTAL_FLOP * output_numel(op),
        read_bytes=total_bytes(op.inputs[:1]),
        write_bytes=total_bytes((*op.outputs[:1], *op.inputs[1:2])),
        variant="random",
    )
