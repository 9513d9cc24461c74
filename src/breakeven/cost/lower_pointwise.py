"""Elementwise operators: arithmetic, activations, fills, random numbers, and copies.

``variant`` is empty for streams in order; otherwise ``strided``, ``concat``, ``fill`` (only writes)
or ``random``.
"""

from __future__ import annotations

import math

from breakeven.cost.kernel import Kernel
from breakeven.cost.rules import (
    TRANSCENDENTAL_FLOP,
    Kernels,
    Rule,
    RuleTable,
    Streaming,
    broadcast_bytes,
    copy_kernel,
    fill_kernel,
    is_in_place,
    names_in,
    output_numel,
    streaming_kernel,
    total_bytes,
)
from breakeven.trace import Op

# A handful of instructions per element.
ARITHMETIC = names_in(
    """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__
    __xor__ _add_relu _conj_physical _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    _masked_scale _prelu_kernel _prelu_kernel_backward abs add addcdiv addcmul addr bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp
    clamp_max clamp_min clip complex conj_physical copysign deg2rad div divide eq
    fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask fix
    floor floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal gt hardshrink
    hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
    hardtanh_backward heaviside isfinite isinf isnan isneginf isposinf lcm le leaky_relu
    leaky_relu_backward lerp less less_equal logical_and logical_not logical_or logical_xor lt
    maximum minimum mul multiply nan_to_num native_dropout_backward ne neg negative
    nextafter not_equal prelu prelu_backward rad2deg reciprocal relu relu6 remainder round
    rrelu rrelu_with_noise_backward rsqrt rsub sgn sigmoid_backward sign signbit softshrink
    softshrink_backward sqrt square sub subtract tanh_backward threshold threshold_backward
    true_divide trunc where
    """
)

# Dominated by a transcendental function.
TRANSCENDENTAL = names_in(
    """
    _dirichlet_grad _standard_gamma_grad acos acosh angle arccos arccosh arcsin arcsinh arctan
    arctan2 arctanh asin asinh atan atan2 atanh celu celu_backward cos cosh digamma elu
    elu_backward erf erfc erfinv exp exp2 expm1 float_power gelu gelu_backward glu glu_backward
    glu_backward_jvp glu_jvp hypot i0 igamma igammac ldexp lgamma log log10 log1p log2
    log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit logit_backward mish
    mish_backward mvlgamma polar polygamma pow selu sigmoid silu silu_backward sin sinc sinh
    softplus softplus_backward special_airy_ai special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t
    special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w
    special_entr special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he
    special_i0e special_i1 special_i1e special_laguerre_polynomial_l
    special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0
    special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
    special_spherical_bessel_j0 special_xlog1py special_zeta tan tanh xlogy
    """
)

# Write random numbers without reading the tensor that they overwrite.
RANDOM = names_in(
    """
    _sample_dirichlet _standard_gamma bernoulli binomial cauchy exponential geometric log_normal
    normal normal_functional poisson rand rand_like randint randint_like randn randn_like random
    uniform
    """
)

# Write their result from nothing, or from scalars.
FILL = names_in(
    """
    affine_grid_generator arange bartlett_window blackman_window eye fft_fftfreq fft_rfftfreq
    fill full full_like hamming_window hann_window kaiser_window linspace logspace new_full
    new_ones new_zeros ones ones_like range scalar_tensor tril_indices triu_indices zero zeros
    zeros_like
    """
)

# Move elements without computing.
REARRANGE = names_in(
    """
    _copy_from _copy_from_and_resize _lazy_clone _reshape_copy _to_copy as_strided_scatter
    channel_shuffle clone col2im constant_pad_nd diagonal_scatter fill_diagonal flip im2col
    lift_fresh_copy pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward
    reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward repeat
    replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
    replication_pad3d replication_pad3d_backward roll rot90 select_scatter slice_scatter tril
    triu unfold_backward view_as_complex_copy view_as_real_copy
    """
)

# Join lists of tensors, several per launch.
JOIN = names_in(
    """
    _chunk_cat _stack block_diag cat concat concatenate hstack stack vstack
    """
)

# Zero the whole result, then copy the gradient of a part into place.
EMBED_GRADIENT = names_in(
    """
    as_strided_backward diag_embed diagonal_backward select_backward slice_backward
    """
)

# Taps per output element and dimension of the weighted sum that resamples an image.
_UPSAMPLE_TAPS = {
    "upsample_nearest": 1, "_upsample_nearest_exact": 1, "upsample_linear": 2,
    "upsample_bilinear": 2, "upsample_trilinear": 2, "upsample_bicubic": 4,
}  # fmt: skip
UPSAMPLE_FLOP = {
    **{
        f"{name}{dimensions}d": 2 * taps**dimensions if taps > 1 else 0
        for name, taps in _UPSAMPLE_TAPS.items()
        for dimensions in (1, 2, 3)
    },
    "_upsample_bilinear2d_aa": 2 * 2**2,
    "_upsample_bicubic2d_aa": 2 * 4**2,
    "_upsample_lanczos2d_aa": 2 * 6**2,
}


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


# A tensor of the fill value is negligible.
RULES.add(FILL)(fill_kernel)


@RULES.add(RANDOM)
def _lower_random(op: Op) -> Kernel:
    """Lower random numbers; they read the probabilities of ``bernoulli``, the means of ``normal``.

    The in-place forms and ``_like`` overwrite their first argument or take only its shape.
    """
    is_unread = is_in_place(op.name) or "_like" in op.name
    parameters = op.inputs[1:] if is_unread else op.inputs
    flop = TRANSCENDENTAL_FLOP * output_numel(op)
    read_bytes = total_bytes(parameters)
    return streaming_kernel(op, flop=flop, read_bytes=read_bytes, variant="random")


# Draw, compare, scale; writes the result and a boolean mask.
RULES.add("native_dropout _fused_dropout")(
    Streaming(flop_per_output=TRANSCENDENTAL_FLOP + 2, variant="random")
)


@RULES.add(JOIN)
def _lower_join(op: Op) -> Kernel:
    launches = max(1, math.ceil(len(op.inputs) / _CAT_TENSORS_PER_LAUNCH))
    return streaming_kernel(op, flop=0, launches=launches, variant="concat")


@RULES.add(EMBED_GRADIENT)
def _lower_embedded_gradient(op: Op) -> tuple[Kernel, ...]:
    """Lower the gradient of a view: zero the whole result, then copy the part with a gradient."""
    part_bytes = total_bytes(op.inputs)
    return (
        fill_kernel(op),
        streaming_kernel(
            op, flop=0, read_bytes=part_bytes, write_bytes=part_bytes, variant="strided"
        ),
    )


@RULES.add("rrelu_with_noise rrelu_with_noise_functional")
def _lower_random_rrelu(op: Op) -> Kernel:
    """Lower ``rrelu_with_noise(self, noise)``, which writes the drawn slopes into ``noise``."""
    return streaming_kernel(
        op,
        flop=TRANSCENDENTAL_FLOP * output_numel(op),
        read_bytes=total_bytes(op.inputs[:1]),
        write_bytes=total_bytes((*op.outputs[:1], *op.inputs[1:2])),
        variant="random",
    )
