"""Convolutions, as implicit GEMMs.

Shapes: input (N, C_in, *space_in), weight (C_out, C_in / groups, *window); transposed:
weight (C_in, C_out / groups, *window). Each kernel's GEMM is that of its result:

- result of a convolution: m = N × positions out, n = C_out / groups, k = C_in / groups × window
- gradient of the input, and a transposed convolution: m = N × positions in,
  n = C_in / groups, k = C_out / groups × window, shortened by the stride so that m n k is the work
- gradient of the weight: m = C_out / groups, n = C_in / groups × window, k = N × positions out

``variant`` is up to two words: ``winograd`` (3 × 3, stride 1, ungrouped: the cases for which cuDNN
has Winograd kernels), ``grouped`` or ``depthwise``, then the direction: ``transposed``,
``backward_input``, ``backward_weight``. The FLOP are those of the direct convolution; Winograd's
are in ``algorithms``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from breakeven.cost.kernel import Algorithm, Family, Kernel
from breakeven.cost.rules import (
    Kernels,
    RuleTable,
    base_name,
    multiply_add_flop,
    output_numel,
    reduction_kernel,
    streaming_kernel,
    tensor_bytes,
    tensor_core_precision,
    total_bytes,
)
from breakeven.trace import Op, Settings, TensorSpec

RULES = RuleTable()

# Arithmetic of the fused Winograd kernel over that of its products: the transforms of a tile's
# 16 points, of its weights and of its result run on the same units. With 32 filters per block
# they add an eighth; the rest is judgement.
_FUSED_LOSS = 1.2
_WIDEST_WINOGRAD_BYTES = 4

# Time of matrix units in channels-last memory, over the model's for contiguous memory without the
# changes of format that it counts. The model is fitted to contiguous steps, so its efficiency
# includes the data that cuDNN moves for windows of one pixel. Source: 22 networks of timm trained
# under amp-fp16 on an RTX 3090 in both formats (torch 1.11), the ratio of both formats; its median
# error is 4 % there, and 5 % for 27 networks of other families.
_PRODUCT_SHARE, _WINDOW_SHARE = 0.5, 0.85


# Windows for which torch has compiled depthwise kernels.
_UNROLLED_WINDOWS = ((1, 1), (3, 3), (5, 5))


def _is_one(values: Iterable[int] | int | None) -> bool:
    """Return whether a stride or a dilation is 1, which is the default."""
    return all(one == 1 for one in values) if isinstance(values, Iterable) else values in (None, 1)


class _Convolution:
    """Sizes of the convolution between ``small`` (its result) and ``large`` (its input).

    A transposed convolution swaps the roles: its input is the result of the convolution
    that it transposes, so one description serves forward and backward of both.
    """

    def __init__(self, op: Op, source: TensorSpec, weight: TensorSpec, result: TensorSpec) -> None:
        self.is_transposed = bool(op.attributes.get("transposed", False)) or (
            base_name(op.name).endswith("_transpose")
        )
        # conv2d and its variants may omit groups of 1, and cuDNN's have no ``transposed``.
        self.groups = int(op.attributes.get("groups", 1) or 1)
        small, large = (source, result) if self.is_transposed else (result, source)
        self.num_images, self.space = small.shape[0], small.shape[2:]
        self.m_small = small.numel // small.shape[1] if small.shape[1] else 0
        self.m_large = large.numel // large.shape[1] if large.shape[1] else 0
        self.channels_small = small.shape[1] // self.groups
        self.channels_large = large.shape[1] // self.groups
        self.window = math.prod(weight.shape[2:])
        self._weight_shape = weight.shape
        flop = multiply_add_flop(weight) * self.m_small * self.channels_small * self.channels_large
        self.flop = float(flop * self.window * self.groups)
        has_stride = not _is_one(op.attributes.get("stride"))
        is_dense = not has_stride and _is_one(op.attributes.get("dilation"))
        # Windows of one pixel: a product per image, of matrices in either order.
        self.is_product = self.window == 1 and not has_stride
        self.is_depthwise = self.groups > 1 and self.channels_large == 1
        self.shape_variant = (
            "depthwise" if self.is_depthwise
            else "grouped" if self.groups > 1
            else "winograd" if weight.shape[2:] == (3, 3) and is_dense
            else ""
        )  # fmt: skip

    def kernel(
        self,
        op: Op,
        settings: Settings,
        *,
        direction: str,
        reads: tuple[TensorSpec, ...],
        writes: TensorSpec,
    ) -> Kernel:
        """Return the kernel that computes the convolution's result, or a gradient of it."""
        if direction == "backward_weight":
            m, n, k = self.channels_small, self.channels_large * self.window, self.m_small
        elif direction in ("backward_input", "transposed"):
            # A stride leaves gaps: only one in stride^d products of each position exists.
            density = self.m_small / self.m_large if self.m_large else 0.0
            k = max(1, round(self.channels_small * self.window * density))
            m, n = self.m_large, self.channels_large
        else:
            m, n, k = self.m_small, self.channels_small, self.channels_large * self.window
        tensors, loads, matrix_share = (*reads, writes), 0.0, 1.0
        # A weight of one pixel has the same layout in both formats.
        data = [spec for spec in tensors if spec.shape != self._weight_shape]
        if all(spec.layout == "channels_last" for spec in data):
            matrix_share = _PRODUCT_SHARE if self.is_product else _WINDOW_SHARE
        elif self.is_depthwise and self._weight_shape[2:] not in _UNROLLED_WINDOWS:
            # torch's loop for windows of any size, channel by channel: each thread loads a value
            # and a weight for each multiplication. Windows of 1, 3 and 5 pixels have their own
            # kernels, and cuDNN has one for channels-last memory.
            # Source: aten/src/ATen/native/cuda/DepthwiseConv2d.cu.
            loads = self.flop
        # Cost of converting tensors to channels-last order and back. cuDNN's kernels for tensor
        # cores accept that order alone. For other orders it launches ``nchwToNhwcKernel`` and its
        # reverse, each of which reads and writes a tensor once.
        converted = (spec for spec in tensors if spec.layout != "channels_last")
        return Kernel(
            family=Family.CONVOLUTION,
            flop=self.flop,
            read_bytes=total_bytes(reads),
            write_bytes=tensor_bytes(writes),
            precision=tensor_core_precision(writes, allow_tf32=settings.allow_tf32_convolution),
            m=m,
            n=n,
            k=k,
            batch=self.groups,
            conversion_bytes=0.0 if self.is_product else 2.0 * total_bytes(converted),
            matrix_share=matrix_share,
            loads=loads,
            algorithms=self._winograd(direction, writes.element_bytes),
            variant="_".join(word for word in (self.shape_variant, direction) if word),
        )

    def _winograd(self, direction: str, element_bytes: int) -> tuple[Algorithm, ...]:
        """Return cuDNN's Winograd algorithms: one fused kernel, and one in steps.

        cuDNN has none for fp64. Source: cuDNN's documentation of ``cudnnConvolutionForward``.
        """
        if self.shape_variant != "winograd" or element_bytes > _WIDEST_WINOGRAD_BYTES:
            return ()
        c_in, c_out = self.channels_large, self.channels_small
        if direction in ("backward_input", "transposed"):
            c_in, c_out = c_out, c_in
        # Number of squares of 4 and of 2 pixels that cover the result.
        spots, fused_spots = (
            self.num_images * math.prod(math.ceil(pixels / side) for pixels in self.space)
            for side in (4, 2)
        )
        # In steps: transform, a product for each of 36 points, transform back.
        # Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
        transformed = spots * (c_in + c_out) + c_in * c_out
        is_weight = direction == "backward_weight"
        m, n, k = (c_out, c_in, spots) if is_weight else (spots, c_out, c_in)
        in_steps = Algorithm(
            flop=2.0 * 36 * spots * c_in * c_out,
            m=m,
            n=n,
            k=k,
            batch=36,
            workspace_bytes=2.0 * 36 * transformed * element_bytes,
        )
        if is_weight:
            return (in_steps,)
        flop = 2.0 * 16 * fused_spots * c_in * c_out * _FUSED_LOSS
        fused = Algorithm(flop=flop, m=4 * fused_spots, n=c_out, k=4 * c_in, tiles="128x32")
        return fused, in_steps


@RULES.add_with_settings(
    """
    convolution _convolution convolution_overrideable cudnn_convolution
    cudnn_convolution_transpose mkldnn_convolution miopen_convolution
    miopen_convolution_transpose miopen_depthwise_convolution _conv_depthwise2d conv_depthwise3d
    _slow_conv2d_forward slow_conv3d_forward
    """
)
def _lower_convolution(op: Op, settings: Settings) -> Kernels:
    """Lower ``convolution(input, weight, bias?)``."""
    source, weight, result = op.inputs[0], op.inputs[1], op.outputs[0]
    sizes = _Convolution(op, source, weight, result)
    direction = "transposed" if sizes.is_transposed else ""
    kernel = sizes.kernel(op, settings, direction=direction, reads=(source, weight), writes=result)
    # cuDNN's convolution is followed by an in-place addition of the bias; the depthwise kernel
    # adds it itself. Source: aten/src/ATen/native/Convolution.cpp, _convolution.
    if len(op.inputs) < 3 or sizes.is_depthwise:
        return kernel
    result_bytes = tensor_bytes(result)
    read_bytes = result_bytes + tensor_bytes(op.inputs[2])
    return kernel, streaming_kernel(
        op, flop=output_numel(op), read_bytes=read_bytes, write_bytes=result_bytes
    )


@RULES.add_with_settings("convolution_backward convolution_backward_overrideable")
def _lower_convolution_backward(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``convolution_backward(grad_output, input, weight)``: a kernel per gradient."""
    grad, source, weight = op.inputs[0], op.inputs[1], op.inputs[2]
    sizes = _Convolution(op, source, weight, grad)
    shapes = [spec.shape for spec in op.outputs]
    wants_input, wants_weight, wants_bias = op.attributes.get("output_mask") or (
        source.shape in shapes,
        weight.shape in shapes,
        any(len(shape) == 1 for shape in shapes),
    )
    of_input = "" if sizes.is_transposed else "backward_input"
    kernels: list[Kernel] = []
    for wants, direction, reads, writes in (
        (wants_input, of_input, (grad, weight), source),
        (wants_weight, "backward_weight", (grad, source), weight),
    ):
        if wants:
            kernels.append(
                sizes.kernel(op, settings, direction=direction, reads=reads, writes=writes)
            )
    if wants_bias:
        bias_bytes, grad_bytes = float(grad.shape[1] * grad.element_bytes), tensor_bytes(grad)
        kernels.append(
            reduction_kernel(op, flop=grad.numel, read_bytes=grad_bytes, write_bytes=bias_bytes)
        )
    return tuple(kernels)
