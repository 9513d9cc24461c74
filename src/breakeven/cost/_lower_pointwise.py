"""Elementwise operators: arithmetic, activations, fills, random numbers, and copies."""

from __future__ import annotations

import math

from breakeven.cost._kernel import Kernel
from breakeven.cost._op_name import is_in_place
from breakeven.cost._pointwise_names import (
    ARITHMETIC,
    EMBED_GRADIENT,
    FILL,
    JOIN,
    RANDOM,
    REARRANGE,
    TRANSCENDENTAL,
    UPSAMPLE_TAPS,
)
from breakeven.cost._traffic import (
    TRANSCENDENTAL_FLOP,
    Rule,
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
        return (streaming_kernel(op, flop=flop * output_numel(op)),)

    return lower


def _lower_copy(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``copy_(self, src)``, which does not read ``self``."""
    del settings
    return (streaming_kernel(op, flop=0, read_bytes=total_bytes(op.inputs[1:])),)


def _lower_fill(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower an operator that only writes; a tensor of the value to fill in is negligible."""
    del settings
    return (streaming_kernel(op, flop=0, read_bytes=0.0),)


def _lower_random(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower random numbers; the probabilities of ``bernoulli`` and the means of ``normal`` count.

    The in-place forms and ``_like`` overwrite their first argument or take only its shape.
    """
    del settings
    is_unread = is_in_place(op.name) or "_like" in op.name
    parameters = op.inputs[1:] if is_unread else op.inputs
    flop = TRANSCENDENTAL_FLOP * output_numel(op)
    return (streaming_kernel(op, flop=flop, read_bytes=total_bytes(parameters)),)


def _lower_dropout(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``native_dropout``: draw, compare, scale; writes the result and a boolean mask."""
    del settings
    return (streaming_kernel(op, flop=(TRANSCENDENTAL_FLOP + 2) * output_numel(op)),)


def _lower_join(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    del settings
    launches = max(1, math.ceil(len(op.inputs) / _CAT_TENSORS_PER_LAUNCH))
    return (streaming_kernel(op, flop=0, launches=launches),)


def _lower_embedded_gradient(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower the gradient of a view: zero all, then copy the part that has a gradient."""
    del settings
    part_bytes = total_bytes(op.inputs)
    return (
        streaming_kernel(op, flop=0, read_bytes=0.0),
        streaming_kernel(op, flop=0, read_bytes=part_bytes, write_bytes=part_bytes),
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
    **dict.fromkeys(REARRANGE, _flop_per_element(0)),
    **dict.fromkeys(FILL, _lower_fill),
    **dict.fromkeys(RANDOM, _lower_random),
    **dict.fromkeys(JOIN, _lower_join),
    **dict.fromkeys(EMBED_GRADIENT, _lower_embedded_gradient),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), _lower_dropout),
    **dict.fromkeys(("rrelu_with_noise", "rrelu_with_noise_functional"), _lower_random_rrelu),
    **_resampling_rules(),
    "copy": _lower_copy,
}
