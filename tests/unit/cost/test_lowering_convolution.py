import msgspec
import pytest

from breakeven.cost import Family, Kernel, lower
from breakeven.device import Precision
from breakeven.trace import Op, Settings, TensorSpec

SETTINGS = Settings()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, device="cuda:0")


def convolution(source, weight, result, *, bias=False, **attributes) -> Op:
    inputs = [spec(*source), spec(*weight)]
    if bias:
        inputs.append(spec(result[1]))
    given = {"stride": [1, 1], "dilation": [1, 1], "transposed": False, "groups": 1, **attributes}
    return Op(
        name="aten.convolution.default",
        inputs=tuple(inputs),
        outputs=(spec(*result),),
        attributes=given,
    )


def test_first_layer_of_a_resnet():
    # 7 x 7, stride 2, 3 -> 64 channels, 224 -> 112 pixels, batch 2:
    # 2 * 2 * 112 * 112 positions * 64 * 147.
    op = convolution((2, 3, 224, 224), (64, 3, 7, 7), (2, 64, 112, 112), stride=[2, 2])
    (kernel,) = lower(op, SETTINGS).kernels
    assert kernel.family is Family.CONVOLUTION
    assert (kernel.m, kernel.n, kernel.k, kernel.batch) == (2 * 112 * 112, 64, 147, 1)
    assert kernel.flop == 2 * 25_088 * 64 * 147
    assert kernel.read_bytes == 4 * (2 * 3 * 224 * 224 + 64 * 147)
    assert kernel.write_bytes == 4 * 2 * 64 * 112 * 112
    assert kernel.variant == ""
    assert kernel.precision is Precision.TF32


def test_tf32_of_convolutions_has_a_switch_of_its_own():
    op = convolution((2, 3, 8, 8), (4, 3, 1, 1), (2, 4, 8, 8))
    off = Settings(allow_tf32_convolution=False, allow_tf32_matmul=True)
    assert lower(op, off).kernels[0].precision is Precision.FP32


def test_bias_is_a_kernel_of_its_own():
    op = convolution((2, 8, 6, 6), (16, 8, 3, 3), (2, 16, 4, 4), bias=True)
    kernel, bias = lower(op, SETTINGS).kernels
    assert kernel.variant == "winograd"
    assert bias.family is Family.ELEMENTWISE
    assert bias.read_bytes == 4 * (2 * 16 * 16 + 16)
    assert bias.write_bytes == 4 * 2 * 16 * 16


@pytest.mark.parametrize(
    ("attributes", "variant"),
    [({"stride": [2, 2]}, ""), ({"dilation": [2, 2]}, ""), ({"groups": 4}, "grouped")],
)
def test_winograd_needs_stride_one_and_no_groups(attributes, variant):
    groups = attributes.get("groups", 1)
    op = convolution((2, 8, 9, 9), (8, 8 // groups, 3, 3), (2, 8, 4, 4), **attributes)
    (kernel,) = lower(op, SETTINGS).kernels
    assert kernel.variant == variant
    assert kernel.algorithms == ()


def test_winograd_in_one_kernel_or_in_steps():
    # 9 x 9 results of 2 images: 5 x 5 squares of 2 pixels, 3 x 3 of 4.
    op = convolution((2, 8, 9, 9), (16, 8, 3, 3), (2, 16, 9, 9))
    fused, in_steps = lower(op, SETTINGS).kernels[0].algorithms
    assert (fused.m, fused.n, fused.k, fused.batch) == (4 * 2 * 25, 16, 4 * 8, 1)
    # 16 products for each square of 2 pixels, a fifth more for the transforms.
    assert fused.flop == pytest.approx(1.2 * 2 * 16 * 50 * 8 * 16)
    assert fused.workspace_bytes == 0
    assert (in_steps.m, in_steps.n, in_steps.k, in_steps.batch) == (2 * 9, 16, 8, 36)
    assert in_steps.flop == 2 * 36 * 18 * 8 * 16
    # 36 points of inputs, results and weights, written and read.
    assert in_steps.workspace_bytes == 2 * 4 * 36 * (18 * (8 + 16) + 8 * 16)


def test_groups_are_a_batch_of_gemms():
    op = convolution((2, 32, 8, 8), (64, 8, 3, 3), (2, 64, 8, 8), groups=4)
    (kernel,) = lower(op, SETTINGS).kernels
    assert (kernel.m, kernel.n, kernel.k, kernel.batch) == (128, 16, 72, 4)
    assert kernel.flop == 2 * 128 * 64 * 72


def test_depthwise():
    op = convolution((2, 32, 8, 8), (32, 1, 3, 3), (2, 32, 8, 8), groups=32, bias=True)
    (kernel,) = lower(op, SETTINGS).kernels
    assert kernel.variant == "depthwise"
    assert (kernel.m, kernel.n, kernel.k, kernel.batch) == (128, 1, 9, 32)
    assert kernel.flop == 2 * 128 * 32 * 9


@pytest.mark.parametrize(("side", "num_loads"), [(3, 0), (5, 0), (7, 2 * 49), (9, 2 * 81)])
def test_channels_alone_load_each_operand_where_torch_has_no_unrolled_window(side, num_loads):
    op = convolution((2, 32, 8, 8), (32, 1, side, side), (2, 32, 8, 8), groups=32)
    assert lower(op, SETTINGS).kernels[0].loads == 128 * 32 * num_loads


def test_channels_last_depthwise_convolutions_are_cudnns():
    op = convolution((2, 32, 8, 8), (32, 1, 7, 7), (2, 32, 8, 8), groups=32)
    data = [msgspec.structs.replace(x, layout="channels_last") for x in (op.inputs[0], *op.outputs)]
    op = msgspec.structs.replace(op, inputs=(data[0], op.inputs[1]), outputs=(data[1],))
    assert lower(op, SETTINGS).kernels[0].loads == 0


def test_other_convolutions_load_no_single_elements():
    op = convolution((2, 32, 8, 8), (64, 32, 7, 7), (2, 64, 8, 8))
    assert lower(op, SETTINGS).kernels[0].loads == 0


def test_one_and_three_dimensions():
    one = convolution((2, 4, 10), (8, 4, 3), (2, 8, 8))
    three = convolution((2, 4, 6, 6, 6), (8, 4, 3, 3, 3), (2, 8, 4, 4, 4))
    assert lower(one, SETTINGS).kernels[0].flop == 2 * 16 * 8 * 12
    assert lower(three, SETTINGS).kernels[0].flop == 2 * 128 * 8 * 108


def test_transposed_convolution_works_per_input_position():
    # (2, 16, 5, 5) -> (2, 8, 10, 10), 2 x 2, stride 2: each input element meets 8 * 4 weights.
    op = convolution((2, 16, 5, 5), (16, 8, 2, 2), (2, 8, 10, 10), stride=[2, 2], transposed=True)
    (kernel,) = lower(op, SETTINGS).kernels
    assert kernel.variant == "transposed"
    assert kernel.flop == 2 * (2 * 25) * 16 * 8 * 4
    assert (kernel.m, kernel.n, kernel.k) == (200, 8, 16)
    assert kernel.flop == 2 * kernel.m * kernel.n * kernel.k


def backward(mask, **attributes) -> Op:
    grad, source, weight = spec(2, 16, 4, 4), spec(2, 8, 8, 8), spec(16, 8, 3, 3)
    present = [s for s, wanted in zip((source, weight, spec(16)), mask, strict=True) if wanted]
    given = {"stride": [2, 2], "dilation": [1, 1], "transposed": False, "groups": 1, **attributes}
    return Op(
        name="aten.convolution_backward.default",
        inputs=(grad, source, weight),
        outputs=tuple(present),
        attributes=given,
    )


def test_backward_has_a_kernel_per_gradient():
    op = backward((True, True, True), output_mask=[True, True, True])
    to_input, to_weight, to_bias = lower(op, SETTINGS).kernels
    flop = 2 * (2 * 16) * 16 * 8 * 9
    assert to_input.flop == to_weight.flop == flop
    assert to_input.variant == "backward_input"
    # 128 input positions, of which each output position reaches a quarter.
    assert (to_input.m, to_input.n, to_input.k) == (128, 8, 36)
    assert to_weight.variant == "backward_weight"
    assert (to_weight.m, to_weight.n, to_weight.k) == (16, 72, 32)
    assert to_weight.write_bytes == 4 * 16 * 8 * 9
    assert to_bias.family is Family.REDUCTION
    assert to_bias.read_bytes == 4 * 2 * 16 * 16
    assert to_bias.write_bytes == 4 * 16


@pytest.mark.parametrize(
    "mask", [(True, True, False), (False, True, True), (False, True, False), (True, False, False)]
)
def test_absent_gradients_have_no_kernel_with_or_without_the_mask(mask):
    with_mask = lower(backward(mask, output_mask=list(mask)), SETTINGS)
    derived = lower(backward(mask), SETTINGS)
    assert len(with_mask.kernels) == sum(mask)
    assert derived == with_mask


def test_backward_of_a_transposed_convolution_runs_a_plain_one():
    op = Op(
        name="aten.convolution_backward.default",
        inputs=(spec(2, 8, 10, 10), spec(2, 16, 5, 5), spec(16, 8, 2, 2)),
        outputs=(spec(2, 16, 5, 5), spec(16, 8, 2, 2)),
        attributes={"stride": [2, 2], "dilation": [1, 1], "transposed": True, "groups": 1},
    )
    to_input, to_weight = lower(op, SETTINGS).kernels
    assert to_input.variant == ""
    assert (to_input.m, to_input.n, to_input.k) == (50, 16, 32)
    assert to_input.flop == to_weight.flop == 2 * 50 * 16 * 32


def _sized(window: int, layout: str) -> Kernel:
    def spec(*shape: int) -> TensorSpec:
        return TensorSpec(shape=shape, dtype="float16", device="cuda:0", layout=layout)

    op = Op(
        name="aten.convolution.default",
        inputs=(spec(2, 8, 4, 4), spec(16, 8, window, window)),
        outputs=(spec(2, 16, 4, 4),),
        attributes={"stride": [1, 1], "padding": [window // 2] * 2, "groups": 1},
    )
    return lower(op, Settings()).kernels[0]


def test_format_is_changed_before_and_after_a_convolution() -> None:
    # 256 + 1152 + 512 elements of 2 bytes, each read and written once.
    assert _sized(3, "contiguous").conversion_bytes == 2 * 2 * (256 + 1152 + 512)
    assert _sized(3, "channels_last").conversion_bytes == 0
    # Windows of one pixel need no other order.
    assert _sized(1, "contiguous").conversion_bytes == 0
    # What is moved for windows of one pixel in contiguous memory is within their efficiency.
    contiguous, last = _sized(1, "contiguous"), _sized(1, "channels_last")
    assert last.matrix_share < _sized(3, "channels_last").matrix_share < contiguous.matrix_share
