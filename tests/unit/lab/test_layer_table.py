"""A transformer's layers, timed operator by operator, read as kernels."""

from __future__ import annotations

import pytest

from breakeven.cost import Family, Kernel
from lab.table_ops import gemm_op, layer_op
from lab.timed_tables import _layer_kernels

Row = dict[str, str]


def row(op: str, shape: str, *, fw_ms: float, bw_ms: float = 0.0, inputs: str = "") -> Row:
    return {
        "device": "T4",
        "op": op,
        "input_shapes": inputs or f"[[{shape}]]",
        "output_shape": f"({shape})",
        "fw_ms": str(fw_ms),
        "bw_ms": str(bw_ms),
    }


IDLE = row("arange", "1024,", fw_ms=0.02, inputs="[[1], [1]]")


def kernel_of(timed: Row, *, is_backward: bool = False) -> Kernel:
    index = 1 if is_backward else 0
    return list(_layer_kernels([IDLE, timed]))[index].kernel


def test_the_call_of_the_shortest_operator_is_taken_off() -> None:
    slower = row("arange", "1024,", fw_ms=0.03, inputs="[[1], [1]]")
    (timed,) = _layer_kernels([IDLE, slower, row("softmax", "64, 2048, 2048", fw_ms=9.0)])
    assert timed.time_ns == pytest.approx(9e6 - 0.7 * 20_000)
    assert (timed.device.id, timed.kernel.family) == ("t4", Family.SOFTMAX)
    assert timed.kernel.num_bytes == 2 * 4 * 64 * 2048 * 2048


def test_rows_that_time_the_host_are_left_out() -> None:
    # Less than three calls; no kernel at all; operators that other tables teach.
    rows = [
        row("softmax", "4, 8", fw_ms=0.05, bw_ms=0.05),
        row("contiguous", "8, 32", fw_ms=0.01),
        row("add", "4096, 4096", fw_ms=1.0, bw_ms=1.0),
        row("dropout", "4096, 4096", fw_ms=0.05, bw_ms=1.0),
    ]
    assert list(_layer_kernels([IDLE, *rows])) == []


def test_both_passes_of_a_softmax() -> None:
    timed = row("softmax", "64, 1024, 1024", fw_ms=3.0, bw_ms=8.0)
    assert kernel_of(timed).variant == "persistent"
    backward = kernel_of(timed, is_backward=True)
    assert (backward.variant, backward.num_bytes) == ("backward", 6 * 4 * 64 * 1024 * 1024)


def test_the_kernels_of_a_layer_norms_gradient_are_one() -> None:
    timed = row("layer_norm", "4096, 2048", fw_ms=0.4, bw_ms=0.9)
    kernel = kernel_of(timed, is_backward=True)
    assert (kernel.variant, kernel.launches) == ("layer_backward", 2)
    full, weights, statistics = 4 * 4096 * 2048, 2 * 4 * 2048, 2 * 4 * 4096
    # The gradient of the input, then those of weight and bias, read gradient and input each.
    assert kernel.read_bytes == 4 * full + weights + statistics
    assert kernel.write_bytes == full + weights


def test_copies_and_lookups() -> None:
    copied = kernel_of(row("contiguous", "8, 32, 2048, 64", fw_ms=0.4))
    assert (copied.variant, copied.num_bytes) == ("strided", 2 * 4 * 8 * 32 * 2048 * 64)
    converted = kernel_of(row("bool", "8, 1, 2048, 2048", fw_ms=0.3))
    assert converted.num_bytes == 5 * 8 * 2048 * 2048
    looked_up = kernel_of(row("embedding", "8, 2048, 512", fw_ms=0.3, inputs="[[8, 2048]]"))
    assert looked_up.family is Family.GATHER
    assert looked_up.num_bytes == 8 * 8 * 2048 + 2 * 4 * 8 * 2048 * 512


def test_backward_passes_recorded_for_a_second_derivative_are_not_taken() -> None:
    assert layer_op(row("dropout", "64, 64", fw_ms=1.0, bw_ms=1.0), is_backward=True) is None


def test_products_in_half_precision_were_padded_for_matrix_units() -> None:
    sizes = {"M": "35", "N": "8457", "K": "1760", "transA": "N", "transB": "N"}
    assert gemm_op({**sizes, "dtype": "fp16-in/tensorcore-mixed"}).outputs[0].shape == (40, 8464)
    assert gemm_op({**sizes, "dtype": "fp32"}).outputs[0].shape == (35, 8457)
