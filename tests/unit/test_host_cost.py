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
        (op("aten.relu.default"), lowering(Family.ELEMENTWISE), 100 + 30),
        (op("aten.eq.Tensor", dtype="bool"), lowering(Family.ELEMENTWISE), 100),
        (op("aten.relu.default", phase=Phase.DATA), lowering(Family.ELEMENTWISE), 100),
        (op("aten.mul.Tensor", phase=Phase.BACKWARD), lowering(Family.ELEMENTWISE), 70),
        (op("aten.add_.Tensor", phase=Phase.OPTIMIZER), lowering(Family.ELEMENTWISE), 100),
        (op("aten.mm.default", phase=Phase.BACKWARD), lowering(Family.GEMM), 2.5 * 70),
        (
            op("aten.convolution.default"),
            lowering(Family.CONVOLUTION, Family.ELEMENTWISE),
            5 * 100 + 30,
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


def test_reference_host_lies_in_the_published_range() -> None:
    host = reference_host()
    launch_ns = launch_costs(find_device("a100")).launch_ns
    elementwise_ns = (
        host_op_ns(op("aten.add.Tensor"), lowering(Family.ELEMENTWISE), host) + launch_ns
    )
    matmul_ns = host_op_ns(op("aten.mm.default"), lowering(Family.GEMM), host) + launch_ns
    assert 4_000 <= elementwise_ns <= 8_000
    assert 10_000 <= matmul_ns <= 17_000
