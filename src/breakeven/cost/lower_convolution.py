"""Convolutions, as implicit GEMMs.

Shapes: input (N, C_in, *space_in), weight (C_out, C_in / groups, *window); transposed:
weight (C_in, C_out / groups, *window). Each kernel's GEMM is that of its result:

- result of a convolution: m = N × positions out, n = C_out / groups, k = C_in / groups × window
- gradient of the input, and a transposed convolution: m = N × positions in,
  n = C_in / groups, k = C_out / groups × window, shortened by the stride so that m n k is the work
- gradient of the weight: m = C_out / groups, n = C_in / groups × window, k = N × positions out

``variant`` is up to two words: ``winograd`` (3 × 3, stride 1, ungrouped: the cases for which cuDNN
has Winograd kernels), ``grouped`` or ``depthwise``, then the direction: ``transposed``,
``backward_input``, ``backward_weight``. The FLOP are those of the direct convolution; what
Winograd needs instead is in ``algorithms``.
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

# Arithmetic of the fused Winograd kernel against that of its products: the transforms of a tile's
# 16 points, of its weights and of its result run on the same units. With 32 filters to a block
# they add an eighth; the rest is judgement.
_FUSED_LOSS = 1.2
_WIDEST_WINOGRAD_BYTES = 4

# What matrix units take in channels-last memory, of what the model says of contiguous memory beside
# the changes of format that it counts: the steps that it is fitted to are contiguous, so that what
# cuDNN moves for windows of one pixel too is within their efficiency. Source: 22 networks of timm
# trained under amp-fp16 on an RTX 3090 in both formats (torch 1.11), the ratio of both formats; it
# is off by 4 % in the median there, and by 5 % for 27 networks of other families.
_PRODUCT_SHARE, _WINDOW_SHARE = 0.5, 0.85


# Windows that torch's kernels for single channels are compiled for.
_UNROLLED_WINDOWS = ((1, 1), (3, 3), (5, 5))


def _is_all(values: Iterable[int] | int | None, value: int) -> bool:
    if values is None:
        return True
    return all(item == value for item in (values if isinstance(values, Iterable) else (values,)))


class _Convolution:
    """Sizes of the convolution between ``small`` (its result) and ``large`` (its input).

    A transposed convolution swaps the roles: its input is the result of the convolution
    that it transposes, so one description serves forward and backward of both.
    """

    def __init__(self, op: Op, source: TensorSpec, weight: TensorSpec, result: TensorSpec) -> None:
        self.is_transposed = bool(op.attributes.get("transposed", False)) or (
            base_name(op.name).endswith("_transpose")
        )
        # conv2d and friends may leave groups out when it is 1, and cuDNN's have no ``transposed``.
        self.groups = int(op.attributes.get("groups", 1) or 1)
        small, large = (source, result) if self.is_transposed else (result, source)
        window = math.prod(weight.shape[2:])
        self.num_images, self.space = small.shape[0], small.shape[2:]
        self.m_small = small.numel // small.shape[1] if small.shape[1] else 0
        self.m_large = large.numel // large.shape[1] if large.shape[1] else 0
        self.channels_small = small.shape[1] // self.groups
        self.channels_large = large.shape[1] // self.groups
        self.window = window
        self._weight_shape = weight.shape
        self.flop = float(
            multiply_add_flop(weight)
            * self.m_small
            * self.channels_small
            * self.channels_large
            * window
            * self.groups
        )
        is_depthwise = self.groups > 1 and self.channels_large == 1
        is_winograd = (
            self.groups == 1
            and len(weight.shape) == 4
            and weight.shape[2:] == (3, 3)
            and _is_all(op.attributes.get("stride"), 1)
            and _is_all(op.attributes.get("dilation"), 1)
        )
        # Windows of one pixel: a product per image, of matrices in either order.
        self.is_product = window == 1 and _is_all(op.attributes.get("stride"), 1)
        is_grouped = self.groups > 1
        self.shape_variant = (
            "depthwise" if is_depthwise
            else "grouped" if is_grouped
            else "winograd" if is_winograd
            else ""
        )  # fmt: skip

    @property
    def is_depthwise(self) -> bool:
        """Return whether each channel is convolved alone."""
        return self.shape_variant == "depthwise"

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
            conversion_bytes=0.0 if self.is_product else _conversion_bytes((*reads, writes)),
            matrix_share=self._matrix_share((*reads, writes)),
            loads=self._loads((*reads, writes)),
            algorithms=self._winograd(direction, writes.element_bytes),
            variant="_".join(word for word in (self.shape_variant, direction) if word),
        )

    def _matrix_share(self, tensors: Iterable[TensorSpec]) -> float:
        if not self._is_channels_last(tensors):
            return 1.0
        return _PRODUCT_SHARE if self.is_product else _WINDOW_SHARE

    def _is_channels_last(self, tensors: Iterable[TensorSpec]) -> bool:
        # A weight of one pixel lies the same in both formats.
        data = (spec for spec in tensors if spec.shape != self._weight_shape)
        return all(spec.layout == "channels_last" for spec in data)

    def _loads(self, tensors: Iterable[TensorSpec]) -> float:
        """Return the single loads of torch's loop for windows of any size, channel by channel.

        Each thread loads a value and a weight for each multiplication. Windows of 1, 3 and 5 pixels
        have kernels of their own, and so has cuDNN for channels-last memory.
        Source: aten/src/ATen/native/cuda/DepthwiseConv2d.cu.
        """
        has_own_kernel = self._weight_shape[2:] in _UNROLLED_WINDOWS
        if not self.is_depthwise or has_own_kernel or self._is_channels_last(tensors):
            return 0.0
        return self.flop

    def _winograd(self, direction: str, element_bytes: int) -> tuple[Algorithm, ...]:
        """Return the algorithms of Winograd that cuDNN has: one fused kernel, and one in steps.

        It has none for fp64. Source: cuDNN's documentation of ``cudnnConvolutionForward``.
        """
        if self.shape_variant != "winograd" or element_bytes > _WIDEST_WINOGRAD_BYTES:
            return ()
        c_in, c_out = self.channels_large, self.channels_small
        if direction in ("backward_input", "transposed"):
            c_in, c_out = c_out, c_in
        spots = self._num_tiles(4)
        # In steps: transform, a product for each of 36 points, transform back.
        # Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
        transformed = spots * (c_in + c_out) + c_in * c_out
        m, n, k = (c_out, c_in, spots) if direction == "backward_weight" else (spots, c_out, c_in)
        in_steps = Algorithm(
            flop=2.0 * 36 * spots * c_in * c_out,
            m=m,
            n=n,
            k=k,
            batch=36,
            workspace_bytes=2.0 * 36 * transformed * element_bytes,
        )
        if direction == "backward_weight":
            return (in_steps,)
        spots = self._num_tiles(2)
        fused = Algorithm(
            flop=2.0 * 16 * spots * c_in * c_out * _FUSED_LOSS,
            m=4 * spots,
            n=c_out,
            k=4 * c_in,
            tiles="128x32",
        )
        return fused, in_steps

    def _num_tiles(self, side: int) -> int:
        """Return how many squares of ``side`` pixels cover the result."""
        return self.num_images * math.prod(math.ceil(pixels / side) for pixels in self.space)


def _conversion_bytes(tensors: Iterable[TensorSpec]) -> float:
    """Return what it takes to bring ``tensors`` into channels-last order, or back from it.

    cuDNN's kernels for tensor cores take that order alone; it launches ``nchwToNhwcKernel`` and its
    reverse where the tensors are in another, each of which reads and writes a tensor once.
    """
    converted = (spec for spec in tensors if spec.layout != "channels_last")
    return 2.0 * total_bytes(converted)


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
    source, weight = op.inputs[0], op.inputs[1]
    result = op.outputs[0]
    sizes = _Convolution(op, source, weight, result)
    kernel = sizes.kernel(
        op,
        settings,
        direction="transposed" if sizes.is_transposed else "",
        reads=(source, weight),
        writes=result,
    )
    # cuDNN's convolution is followed by an in-place addition of the bias; the depthwise kernel
    # adds it itself. Source: aten/src/ATen/native/Convolution.cpp, _convolution.
    if len(op.inputs) < 3 or sizes.is_depthwise:
        return kernel
    bias_added = streaming_kernel(
        op,
        flop=output_numel(op),
        read_bytes=tensor_bytes(result) + tensor_bytes(op.inputs[2]),
        write_bytes=tensor_bytes(result),
    )
    return kernel, bias_added


def _present_gradients(op: Op, source: TensorSpec, weight: TensorSpec) -> tuple[bool, bool, bool]:
    """Return which of the gradients of input, weight and bias are computed."""
    mask = op.attributes.get("output_mask")
    if mask is not None:
        wants_input, wants_weight, wants_bias = (bool(wanted) for wanted in mask)
        return wants_input, wants_weight, wants_bias
    shapes = [spec.shape for spec in op.outputs]
    return source.shape in shapes, weight.shape in shapes, any(len(shape) == 1 for shape in shapes)


@RULES.add_with_settings("convolution_backward convolution_backward_overrideable")
def _lower_convolution_backward(op: Op, settings: Settings) -> tuple[Kernel, ...]:
    """Lower ``convolution_backward(grad_output, input, weight)``: a kernel per gradient."""
    grad, source, weight = op.inputs[0], op.inputs[1], op.inputs[2]
    sizes = _Convolution(op, source, weight, grad)
    wants_input, wants_weight, wants_bias = _present_gradients(op, source, weight)
    kernels: list[Kernel] = []
    if wants_input:
        direction = "" if sizes.is_transposed else "backward_input"
        kernels.append(
            sizes.kernel(op, settings, direction=direction, reads=(grad, weight), writes=source)
        )
    if wants_weight:
        kernels.append(
            sizes.kernel(
                op, settings, direction="backward_weight", reads=(grad, source), writes=weight
            )
        )
    if wants_bias:
        kernels.append(
            reduction_kernel(
                op,
                flop=grad.numel,
                read_bytes=tensor_bytes(grad),
                write_bytes=float(grad.shape[1] * grad.element_bytes),
            )
        )
    return tuple(kernels)
