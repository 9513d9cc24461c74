"""The host's time per operator, by phase and kind."""

from __future__ import annotations

import pytest

from breakeven.cost import (
    Family,
    Kernel,
    Lowering,
    host_op_ns,
    launch_costs,
    reference_host,
)
from breakeven.device import HostSpec, find_device
from breakeven.trace import Op, Phase, TensorSpec

HOST = HostSpec(
    id="test",
    name="test",
    op_ns=100.0,
    autograd_ns=30.0,
    backward_ns=70.0,
    foreach_ns=500.0,
    foreach_tensor_ns=7.0,
    view_ns=20.0,
    source="made up",
)


def lowering(*families: Family) -> Lowering:
    return Lowering(
        kernels=tuple(
            Kernel(family=family, flop=1.0, read_bytes=1.0, write_bytes=1.0) for family in families
        )
    )


def op(
    name: str, *, phase: Phase = Phase.FORWARD, num_inputs: int = 1, dtype: str = "float32"
) -> Op:
    tensor = TensorSpec(shape=(4,), dtype=dtype, device="cuda:0")
    return Op(name=name, inputs=(tensor,) * num_inputs, outputs=(tensor,), phase=phase)


@pytest.mark.parametrize(
    ("operator", "kernels", "expected_ns"),
    [
        (op("aten.view.default"), lowering(), 20),
        (op("aten.view.default", phase=Phase.BACKWARD), lowering(), 10),
        # The forward pass: Python, the operator, and what autograd records of it.
        (op("aten.relu.default"), lowering(Family.ELEMENTWISE), 200 + 100 + 30),
        (op("aten.eq.Tensor", dtype="bool"), lowering(Family.ELEMENTWISE), 200 + 100),
        (op("aten.relu.default", phase=Phase.DATA), lowering(Family.ELEMENTWISE), 100),
        (op("aten.mul.Tensor", phase=Phase.BACKWARD), lowering(Family.ELEMENTWISE), 70),
        (op("aten.add_.Tensor", phase=Phase.OPTIMIZER), lowering(Family.ELEMENTWISE), 100),
        # A library call costs further dispatches, each gradient of a convolution a call.
        (op("aten.mm.default", phase=Phase.BACKWARD), lowering(Family.GEMM), 70 + 3 * 100),
        (
            op("aten.convolution.default"),
            lowering(Family.CONVOLUTION, Family.ELEMENTWISE),
            200 + 8 * 100 + 30,
        ),
        (
            op("aten.convolution_backward.default", phase=Phase.BACKWARD),
            lowering(Family.CONVOLUTION, Family.CONVOLUTION),
            70 + 2 * 7 * 100,
        ),
        (
            op("aten._foreach_add_.Scalar", phase=Phase.OPTIMIZER, num_inputs=40),
            lowering(Family.ELEMENTWISE),
            500 + 40 * 7,
        ),
    ],
)
def test_host_time(operator: Op, kernels: Lowering, expected_ns: float) -> None:
    assert host_op_ns(operator, kernels, HOST) == pytest.approx(expected_ns)


def test_batch_norm_costs_the_host_the_same_in_evaluation() -> None:
    norm = op("aten.native_batch_norm.default")
    times = {
        host_op_ns(norm, lowering(family), HOST)
        for family in (Family.NORMALIZATION, Family.ELEMENTWISE)
    }
    assert times == {200 + 4 * 100 + 30}


def test_what_autograd_detaches_takes_no_time() -> None:
    """A trace sees these as operators; without one they are shallow copies."""
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert host_op_ns(op("aten.detach.default", phase=phase), lowering(), HOST) == 0.0


def test_reference_host_lies_in_the_published_range() -> None:
    host = reference_host()
    launch_ns = launch_costs(find_device("a100")).launch_ns
    # In a loop over one operator there is no Python of modules between.
    assert 4_000 <= host.op_ns + launch_ns <= 8_000
    assert 2_700 <= host.view_ns <= 4_700
    assert 1_000 <= host.autograd_ns <= 2_500


def test_reference_host_takes_as_long_as_a_pass_that_is_all_dispatch() -> None:
    """An efficientnet_b5 on an A100, batch 1: 17.8 ms for 583 operators (issue 82793)."""
    host = reference_host()
    launch_ns = launch_costs(find_device("a100")).launch_ns
    num_ops = {Family.CONVOLUTION: 195, Family.NORMALIZATION: 116, Family.ELEMENTWISE: 266}
    names = {Family.NORMALIZATION: "aten.native_batch_norm.default"}
    total_ns = 0.0
    for family, count in num_ops.items():
        operator = op(names.get(family, "aten.any.default"), dtype="bool")
        total_ns += count * (host_op_ns(operator, lowering(family), host) + launch_ns)
    assert total_ns / 1e6 == pytest.approx(17.8, rel=0.35)


def test_a_measured_host_is_more_certain_than_the_reference() -> None:
    assert HOST.log_sigma < reference_host().log_sigma
