"""Normalization, softmax, losses, pooling, attention, and recurrent layers."""

import pytest

from breakeven.cost import Family, kernel_times, lower
from breakeven.device import Precision, find_device
from breakeven.trace import Op, Settings, TensorSpec

SETTINGS = Settings()


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, device="cuda:0")


def kernels_of(name: str, inputs, outputs, **attributes):
    op = Op(name=name, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)
    lowering = lower(op, SETTINGS)
    assert lowering.caveat is None
    return lowering.kernels


def test_softmax_streams_once():
    (kernel,) = kernels_of("aten._softmax.default", [spec(4, 8)], [spec(4, 8)])
    assert (kernel.family, kernel.num_bytes) == (Family.SOFTMAX, 256)
    assert kernel.flop == 14 * 32


@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "variant"),
    [
        ((4, 1024), "float32", -1, "persistent"),
        ((4, 1025), "float32", -1, ""),
        ((4, 1024), "float64", -1, ""),
        ((4, 1024), "float16", 1, "persistent"),
        ((4, 8, 2), "float32", 1, "spatial"),
        ((4, 8, 1), "float32", 1, "persistent"),
        ((), "float32", -1, "persistent"),
    ],
)
def test_softmax_keeps_short_rows_in_registers(shape, dtype, dim, variant):
    x = spec(*shape, dtype=dtype)
    (kernel,) = kernels_of("aten._softmax.default", [x], [x], dim=dim)
    assert kernel.variant == variant
    num_passes = 4 if variant == "spatial" else 2
    assert kernel.num_bytes == num_passes * x.num_bytes


def test_softmax_backward_multiplies_into_a_tensor_of_its_own():
    inputs, outputs = [spec(4, 8), spec(4, 8)], [spec(4, 8)]
    (plain,) = kernels_of("aten._softmax_backward_data.default", inputs, outputs)
    # Gradient times output is three passes of 128 bytes, the reduction of the product three more.
    assert (plain.read_bytes, plain.write_bytes, plain.launches) == (4 * 128, 2 * 128, 2)
    (logarithm,) = kernels_of("aten._log_softmax_backward_data.default", inputs, outputs)
    assert (logarithm.read_bytes, logarithm.write_bytes, logarithm.launches) == (256, 128, 1)
    assert plain.variant == logarithm.variant == "backward"
    assert (plain.flop, logarithm.flop) == (4 * 32, 14 * 32)


def test_logsumexp_is_composed_of_kernels():
    kernels = kernels_of("aten.logsumexp.default", [spec(4, 8)], [spec(4)])
    assert [kernel.launches for kernel in kernels] == [1, 2, 1, 5]


def test_sum_reads_all_and_writes_one():
    (kernel,) = kernels_of("aten.sum.default", [spec(64)], [spec()])
    assert kernel.family is Family.REDUCTION
    assert (kernel.flop, kernel.read_bytes, kernel.write_bytes) == (64, 256, 4)


@pytest.mark.parametrize(
    ("dim", "variant"), [([0], "outer"), ([0, 1], ""), ([1], ""), (-2, "outer"), (None, "")]
)
def test_sums_over_columns_are_told_apart(dim, variant):
    attributes = {} if dim is None else {"dim": dim}
    (kernel,) = kernels_of("aten.sum.dim_IntList", [spec(64, 8)], [spec(8)], **attributes)
    assert kernel.variant == variant


def test_cumulative_sum_is_a_scan():
    (kernel,) = kernels_of("aten.cumsum.default", [spec(64)], [spec(64)])
    assert (kernel.family, kernel.variant) == (Family.REDUCTION, "scan")


def test_mean_squared_error_is_two_kernels_unless_unreduced():
    inputs = [spec(16, 2), spec(16, 2)]
    differences, mean = kernels_of("aten.mse_loss.default", inputs, [spec()])
    assert (differences.read_bytes, differences.write_bytes) == (256, 128)
    assert (mean.family, mean.read_bytes, mean.write_bytes) == (Family.REDUCTION, 128, 4)
    assert len(kernels_of("aten.mse_loss.default", inputs, [spec(16, 2)])) == 1


def test_cross_entropy_reads_one_score_per_target():
    inputs = [spec(16, 1000), spec(16, dtype="int64")]
    (kernel,) = kernels_of("aten.nll_loss_forward.default", inputs, [spec(), spec()])
    assert kernel.read_bytes == 16 * 8 + 16 * 4
    zero, scatter = kernels_of(
        "aten.nll_loss_backward.default", [spec(), *inputs, spec()], [spec(16, 1000)]
    )
    assert (zero.write_bytes, scatter.write_bytes) == (64_000, 64)


def test_layer_norm_forward_and_backward():
    x, statistic, weight = spec(6, 8), spec(6, 1), spec(8)
    (forward,) = kernels_of(
        "aten.native_layer_norm.default", [x, weight, weight], [x, statistic, statistic]
    )
    assert (forward.family, forward.variant) == (Family.NORMALIZATION, "layer")
    assert forward.read_bytes == 4 * (48 + 16)
    assert forward.write_bytes == 4 * (48 + 12)
    to_input, to_weight = kernels_of(
        "aten.native_layer_norm_backward.default",
        [x, x, statistic, statistic, weight, weight],
        [x, weight, weight],
    )
    assert to_input.write_bytes == 4 * 48
    assert (to_weight.read_bytes, to_weight.write_bytes) == (2 * 4 * 48, 4 * 16)
    assert to_input.variant == to_weight.variant == "layer_backward"


@pytest.mark.parametrize(
    "name",
    ["aten.native_batch_norm.default", "aten.cudnn_batch_norm.default",
     "aten._native_batch_norm_legit.default"],
)  # fmt: skip
def test_batch_norm_reads_its_input_twice_in_training(name):
    x, channel = spec(2, 3, 4, 4), spec(3)
    inputs, outputs = [x, *[channel] * 4], [x, channel, channel]
    (kernel,) = kernels_of(name, inputs, outputs, training=True)
    assert (kernel.family, kernel.variant) == (Family.NORMALIZATION, "batch")
    assert kernel.read_bytes == 4 * (2 * 96 + 12)
    (evaluation,) = kernels_of(name, inputs, [x, spec(0), spec(0)], training=False)
    assert evaluation.family is Family.ELEMENTWISE
    assert evaluation.read_bytes == 4 * (96 + 12)


def test_batch_norm_backward_reads_gradient_and_input_twice():
    x, channel = spec(2, 3, 4, 4), spec(3)
    (kernel,) = kernels_of(
        "aten.native_batch_norm_backward.default", [x, x, *[channel] * 5], [x, channel, channel]
    )
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * (4 * 96 + 15), 4 * (96 + 6))
    assert (kernel.variant, kernel.num_blocks) == ("batch_backward", 3)


def test_few_channels_leave_most_of_a_device_idle():
    x, channel = spec(12, 64, 224, 224), spec(64)
    (kernel,) = kernels_of(
        "aten.native_batch_norm.default", [x, channel], [x, channel, channel], training=True
    )
    # Three passes by 64 blocks of 8 GB/s each, a third of the bandwidth.
    time_ns = kernel_times([kernel], [find_device("a100-sxm4-40gb")]).time_ns[0, 0]
    assert time_ns == pytest.approx(3 * x.num_bytes / (64 * 8), rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "variant", "element_bytes"),
    [
        ("float16", "float32", "batch", 2),
        ("float16", "float16", "batch_native", 4),
        ("bfloat16", "float32", "batch_native", 4),
        ("float64", "float64", "batch", 8),
    ],
)
def test_batch_norm_of_halves_without_cudnn_takes_as_long_as_of_floats(
    dtype, weight_dtype, variant, element_bytes
):
    x, channel = spec(2, 1024, 4, 4, dtype=dtype), spec(1024, dtype=weight_dtype)
    (forward,) = kernels_of(
        "aten.native_batch_norm.default", [x, channel], [x, channel, channel], training=True
    )
    assert forward.variant == variant
    scale = element_bytes / x.element_bytes
    assert forward.read_bytes == scale * (2 * x.num_bytes + channel.num_bytes)
    (backward,) = kernels_of(
        "aten.native_batch_norm_backward.default", [x, x, channel], [x, channel, channel]
    )
    assert backward.variant == f"{variant}_backward"
    assert backward.read_bytes == scale * (4 * x.num_bytes + channel.num_bytes)


def test_evaluation_is_told_by_empty_statistics_where_no_flag_is():
    x, channel = spec(2, 3, 4, 4), spec(3)
    inputs = [x, *[channel] * 4]
    (kernel,) = kernels_of("aten.native_batch_norm.default", inputs, [x, spec(0), spec(0)])
    assert kernel.family is Family.ELEMENTWISE


def test_group_norm_takes_three_launches():
    x = spec(2, 4, 4, 4)
    inputs, outputs = [x, spec(4), spec(4)], [x, spec(2, 2), spec(2, 2)]
    (kernel,) = kernels_of("aten.native_group_norm.default", inputs, outputs)
    assert (kernel.launches, kernel.variant) == (3, "group")


def test_pooling_counts_its_window():
    source, result = spec(2, 3, 8, 8), spec(2, 3, 4, 4)
    indices = spec(2, 3, 4, 4, dtype="int64")
    (maximum,) = kernels_of(
        "aten.max_pool2d_with_indices.default", [source], [result, indices], kernel_size=[3, 3]
    )
    assert maximum.flop == 96 * 9
    assert maximum.write_bytes == 96 * (4 + 8)
    (single,) = kernels_of("aten.avg_pool2d.default", [source], [result], kernel_size=[2])
    (adaptive,) = kernels_of("aten._adaptive_avg_pool2d.default", [source], [result])
    assert single.flop == adaptive.flop == 96 * 4
    (backward,) = kernels_of(
        "aten.max_pool2d_with_indices_backward.default", [result, source, indices], [source]
    )
    assert backward.read_bytes == 96 * (4 + 8)
    assert backward.write_bytes == 4 * 384


def test_flash_attention_forward_and_backward():
    # 2 x 4 heads, 128 queries and keys, width 64: two products of 128 x 128 x 64 each.
    q = spec(2, 4, 128, 64, dtype="float16")
    name = "aten._scaled_dot_product_flash_attention"
    (forward,) = kernels_of(f"{name}.default", [q, q, q], [q], is_causal=False)
    assert forward.flop == 8 * 4 * 128 * 128 * 64
    assert (forward.m, forward.n, forward.k, forward.batch) == (128, 64, 128, 8)
    assert (forward.precision, forward.variant) == (Precision.FP16, "flash")
    assert forward.num_bytes == 4 * 2 * 8 * 128 * 64
    before, backward, after = kernels_of(
        f"{name}_backward.default", [q] * 5, [q, q, q], is_causal=False
    )
    assert backward.flop == 2.5 * forward.flop
    assert backward.variant == "flash_backward"
    # The gradient of the query is summed up in fp32.
    assert before.write_bytes == after.read_bytes == 4 * 8 * 128 * 64


def test_causal_attention_computes_the_blocks_up_to_the_diagonal():
    q = spec(1, 1, 512, 8, dtype="float16")
    name = "aten._scaled_dot_product_flash_attention.default"
    (kernel,) = kernels_of(name, [q, q, q], [q], is_causal=True)
    # 1 + 2 + 3 + 4 of 16 blocks of 128 x 128.
    assert kernel.flop == 4 * 8 * 10 * 128 * 128


def test_a_recorded_call_names_what_torch_may_run():
    q = spec(1, 2, 4, 8, dtype="float16")
    name = "aten._scaled_dot_product_flash_attention.default"
    (kernel,) = kernels_of(name, [q, q, q], [q], implementations="cudnn|flash|efficient")
    assert kernel.variant == "cudnn|flash|efficient"


def test_the_cpus_flash_attention_in_fp32_stands_for_the_efficient_kernel():
    q = spec(1, 2, 4, 8)
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    (kernel,) = kernels_of(name, [q, q, q], [q])
    assert (kernel.variant, kernel.precision) == ("efficient", Precision.FP32)


def test_plain_attention_stores_its_scores():
    q = spec(1, 2, 16, 8)
    name = "aten._scaled_dot_product_attention_math.default"
    _, scores, softmax, result = kernels_of(name, [q, q, q], [q])
    assert scores.write_bytes == softmax.read_bytes == 4 * 2 * 256
    assert scores.flop == result.flop == 2 * 2 * 16 * 16 * 8


LSTM = {"mode": 2, "hidden_size": 32, "num_layers": 2, "batch_first": False, "bidirectional": True}


def lstm_weights():
    directions = [[spec(128, width), spec(128, 32), spec(128), spec(128)] for width in (16, 64)]
    return [weight for layer in directions for weight in (*layer, *layer)]


@pytest.mark.parametrize("are_states_first", [False, True])
def test_lstm_has_input_gemms_and_a_chain_of_steps(are_states_first):
    # 10 steps, 4 sequences, 16 inputs, 32 units, 2 layers, both directions.
    source, result, state = spec(10, 4, 16), spec(10, 4, 64), spec(4, 4, 32)
    states = [state, state]
    tail = [*states, *lstm_weights()] if are_states_first else [*lstm_weights(), *states]
    *gemms, steps = kernels_of(
        "aten._cudnn_rnn.default", [source, *tail], [result, state, state], **LSTM
    )
    assert [(k.m, k.n, k.k) for k in gemms] == [
        (40, 128, 16), (40, 128, 16), (40, 128, 64), (40, 128, 64),
    ]  # fmt: skip
    assert steps.family is Family.RECURRENT
    assert (steps.m, steps.n, steps.k) == (4, 128, 32)
    assert (steps.launches, steps.num_steps) == (4, 10)
    products = 2 * 4 * 128 * 32 * 40
    gates = 13 * 4 * 128 * 40
    assert steps.flop == products + gates
    assert steps.precision is Precision.TF32


def test_batch_first_swaps_steps_and_sequences():
    source, result, state = spec(4, 10, 16), spec(4, 10, 64), spec(4, 4, 32)
    attributes = {**LSTM, "batch_first": True}
    *_, steps = kernels_of(
        "aten._cudnn_rnn.default", [source, state, state, *lstm_weights()], [result], **attributes
    )
    assert (steps.m, steps.launches, steps.num_steps) == (4, 4, 10)


def test_packed_sequences_take_their_number_from_the_states():
    source, state = spec(40, 16), spec(4, 4, 32)
    *_, steps = kernels_of(
        "aten._cudnn_rnn.default", [source, state, state, *lstm_weights()], [spec(40, 64)], **LSTM
    )
    assert (steps.m, steps.launches) == (4, 40)


def test_lstm_backward_runs_the_chain_and_three_gemms_per_sweep():
    source, result, state = spec(10, 4, 16), spec(10, 4, 64), spec(4, 4, 32)
    steps, *gemms = kernels_of(
        "aten._cudnn_rnn_backward.default",
        [result, state, state, source, state, state, *lstm_weights()],
        [source],
        **LSTM,
    )
    assert steps.variant == "small_lstm_backward"
    assert (steps.m, steps.n, steps.k) == (4, 32, 128)
    assert (steps.launches, steps.num_steps) == (4, 10)
    assert len(gemms) == 12
    assert [(k.m, k.n, k.k) for k in gemms[:3]] == [(40, 16, 128), (128, 16, 40), (128, 32, 40)]


def test_backward_pass_of_a_loss_of_the_last_state_runs_all_steps():
    """The gradient of the output is not there then: the first tensor is that of the state."""
    source, state = spec(10, 4, 16), spec(4, 4, 32)
    steps, *gemms = kernels_of(
        "aten._cudnn_rnn_backward.default",
        [state, source, state, state, *lstm_weights()],
        [source],
        **LSTM,
    )
    assert (steps.m, steps.launches, steps.num_steps) == (4, 4, 10)
    assert (gemms[0].m, gemms[0].n, gemms[0].k) == (40, 16, 128)


@pytest.mark.parametrize(("mode", "num_gates", "variant"), [(0, 1, "rnn"), (3, 3, "gru")])
def test_other_cells_have_other_gates(mode, num_gates, variant):
    weights = [spec(num_gates * 8, 8), spec(num_gates * 8, 8)]
    *_, steps = kernels_of(
        "aten._cudnn_rnn.default",
        [spec(5, 2, 8), *weights, spec(1, 2, 8)],
        [spec(5, 2, 8)],
        mode=mode, hidden_size=8, num_layers=1,
    )  # fmt: skip
    assert (steps.n, steps.variant) == (num_gates * 8, f"small_{variant}")
    assert (steps.launches, steps.num_steps) == (1, 5)


def test_a_fused_cell_is_one_kernel():
    gates, state = spec(4, 32), spec(4, 8)
    (kernel,) = kernels_of(
        "aten._thnn_fused_lstm_cell.default", [gates, gates, state], [state, state, gates]
    )
    assert kernel.launches == 1
    assert kernel.read_bytes == 4 * (128 + 128 + 32)
