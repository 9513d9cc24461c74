"""Elementwise operators: arithmetic, activations, fills, random numbers, and copies.

``variant`` is empty where streams are read and written in order; else ``strided``, ``concat``,
``fill`` (writes alone) or ``random``.
"""

from __future__ import annotations

import math

from breakeven.cost.kernel import Kernel
from breakeven.cost.op_name import is_in_place
from breakeven.cost.pointwise_names import (
    ARITHMETIC,
    EMBED_GRADIENT,
    FILL,
    JOIN,
    RANDOM,
    REARRANGE,
    TRANSCENDENTAL,
    UPSAMPLE_TAPS,
)
from breakeven.cost.traffic import (
    TRANSCENDENTAL_FLOP,
    Rule,
    broadcast_bytes,
    copy_kernel,
    output_numel,
    streaming_kernel,
    total_bytes,
)
from breakeven.trace import Op, Settings

# Tensors that one launch of the concatenation kernel can take.
# Source: aten/src/ATen/native/cuda/Shape.cu, CAT_ARRAY_BATCH_SIZE.
_CAT_TENSORS_PER_LAUNCH = 128


def _flop_per_element(flop: int) -> Rule:
    """Return a rule that reads all inputs, writes all outputs, at ``flop`` per output element."""

    def lower(op: Op, settings: Settings) -> tuple[Kernel, ...]:
        del settings
        read_bytes = broadcast_bytes(op)
        return (streaming_kernel(op, flop=flop * output_numel(op), read_bytes=read_bytes),)

    return lower


def _lower_rearranged(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``clone``, ``_to_copy``, ``roll``, …: reads its inputs, writes its result."""
    del settings
    if not (op.inputs and op.outputs):
        return (streaming_kernel(op, flop=0),)
    return (copy_kernel(op, op.inputs[0], op.outputs[0]),)


def _lower_copy(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``copy_(self, src)``, which does not read ``self``."""
    del settings
    target, *sources = op.inputs
    if not sources:
        return (streaming_kernel(op, flop=0, read_bytes=0.0),)
    return (copy_kernel(op, sources[0], target, read_bytes=total_bytes(sources)),)


def _lower_masked_fill(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``masked_fill(self, mask, value)``; out of place, ``self`` is copied first.

    Source: aten/src/ATen/native/TensorAdvancedIndexing.cpp, masked_fill.
    """
    del settings
    filled = streaming_kernel(op, flop=output_numel(op), read_bytes=broadcast_bytes(op))
    if is_in_place(op.name):
        return (filled,)
    copied = streaming_kernel(op, flop=0, read_bytes=total_bytes(op.inputs[:1]))
    return copied, filled


def _lower_fill(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower an operator that only writes; a tensor of the value to fill in is negligible."""
    del settings
    return (streaming_kernel(op, flop=0, read_bytes=0.0, variant="fill"),)


def _lower_random(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower random numbers; the probabilities of ``bernoulli`` and the means of ``normal`` count.

    The in-place forms and ``_like`` overwrite their first argument or take only its shape.
    """
    del settings
    is_unread = is_in_place(op.name) or "_like" in op.name
    parameters = op.inputs[1:] if is_unread else op.inputs
    flop = TRANSCENDENTAL_FLOP * output_numel(op)
    read_bytes = total_bytes(parameters)
    return (streaming_kernel(op, flop=flop, read_bytes=read_bytes, variant="random"),)


def _lower_dropout(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``native_dropout``: draw, compare, scale; writes the result and a boolean mask."""
    del settings
    flop = (TRANSCENDENTAL_FLOP + 2) * output_numel(op)
    return (streaming_kernel(op, flop=flop, variant="random"),)


def _lower_join(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    del settings
    launches = max(1, math.ceil(len(op.inputs) / _CAT_TENSORS_PER_LAUNCH))
    return (streaming_kernel(op, flop=0, launches=launches, variant="concat"),)


def _lower_embedded_gradient(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower the gradient of a view: zero all, then copy the part that has a gradient."""
    del settings
    part_bytes = total_bytes(op.inputs)
    return (
        streaming_kernel(op, flop=0, read_bytes=0.0, variant="fill"),
        streaming_kernel(
            op, flop=0, read_bytes=part_bytes, write_bytes=part_bytes, variant="strided"
        ),
    )


def _lower_random_rrelu(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``rrelu_with_noise(self, noise)``; the slopes drawn are written into ``noise``."""
    del settings
    return (
        streaming_kernel(
            op,
            flop=TRANSCENDENTAL_FLOP * output_numel(op),
            read_bytes=total_bytes(op.inputs[:1]),
            write_bytes=total_bytes((*op.outputs[:1], *op.inputs[1:2])),
            variant="random",
        ),
    )


def _resampling_rules() -> dict[str, Rule]:
    """Return the rules of upsampling: a weighted sum of ``taps`` per dimension and element."""
    rules: dict[str, Rule] = {}
    for name, taps in UPSAMPLE_TAPS.items():
        num_dimensions = (2,) if name.endswith("_aa") else (1, 2, 3)
        for dimensions in num_dimensions:
            flop = 2 * taps**dimensions if taps > 1 else 0
            full_name = name if name.endswith("_aa") else f"{name}{dimensions}d"
            rules[full_name] = _flop_per_element(flop)
            rules[f"{full_name}_backward"] = _flop_per_element(flop)
    return rules


RULES: dict[str, Rule] = {
    **dict.fromkeys(ARITHMETIC, _flop_per_element(1)),
    **dict.fromkeys(TRANSCENDENTAL, _flop_per_element(TRANSCENDENTAL_FLOP)),
    **dict.fromkeys(REARRANGE, _lower_rearranged),
    **dict.fromkeys(FILL, _lower_fill),
    **dict.fromkeys(RANDOM, _lower_random),
    **dict.fromkeys(JOIN, _lower_join),
    **dict.fromkeys(EMBED_GRADIENT, _lower_embedded_gradient),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), _lower_dropout),
    **dict.fromkeys(("rrelu_with_noise", "rrelu_with_noise_functional"), _lower_random_rrelu),
    **_resampling_rules(),
    "copy": _lower_copy,
    "masked_fill": _lower_masked_fill,
}
