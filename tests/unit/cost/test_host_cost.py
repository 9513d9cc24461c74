"""The host's time per operator, by phase and kind."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.cost import (
    Family,
    HostPart,
    Kernel,
    Lowering,
    host_op_parts,
    launch_costs,
    reference_host,
)
from breakeven.device import DeviceWork, HostSpec, find_device
from breakeven.trace import Op, Phase, TensorSpec

HOST = HostSpec(
    id="test",
    name="test",
    op_ns=100.0,
    python_ns=200.0,
    view_python_ns=6.0,
    autograd_ns=30.0,
    backward_ns=70.0,
    backward_call_ns=900.0,
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


def host_op_ns(operator: Op, kernels: Lowering, host: HostSpec) -> float:
    return sum(time_ns for _, time_ns in host_op_parts(operator, kernels, host))


@pytest.mark.parametrize(
    ("operator", "kernels", "expected_ns"),
    [
        (op("aten.view.default"), lowering(), 6 + 20),
        (op("aten.view.default", phase=Phase.DATA), lowering(), 20),
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


P = HostPart


@pytest.mark.parametrize(
    ("operator", "kernels", "expected"),
    [
        (op("aten.view.default"), lowering(), {P.VIEW_PYTHON: 6, P.VIEW: 20}),
        (op("aten.view.default", phase=Phase.OPTIMIZER), lowering(), {P.VIEW: 20}),
        (op("aten.view.default", phase=Phase.BACKWARD), lowering(), {P.BACKWARD_VIEW: 10}),
        (
            op("aten.relu.default"),
            lowering(Family.ELEMENTWISE),
            {P.PYTHON: 200, P.DISPATCH_POINTWISE: 100, P.AUTOGRAD: 30},
        ),
        (
            op("aten.addmm.default"),
            lowering(Family.GEMM, Family.REDUCTION),
            {P.PYTHON: 200, P.DISPATCH_GEMM: 400, P.AUTOGRAD: 30},
        ),
        (
            op("aten.native_layer_norm.default"),
            lowering(Family.NORMALIZATION),
            {P.PYTHON: 200, P.DISPATCH_OTHER_NORM: 300, P.AUTOGRAD: 30},
        ),
        (
            op("aten._scaled_dot_product_flash_attention.default"),
            lowering(Family.ATTENTION),
            {P.PYTHON: 200, P.DISPATCH_LIBRARY: 400, P.AUTOGRAD: 30},
        ),
        (
            op("aten.native_batch_norm_backward.default", phase=Phase.BACKWARD),
            lowering(Family.NORMALIZATION),
            {P.BACKWARD_BATCH_NORM: 70 + 300},
        ),
        (
            op("aten.mm.default", phase=Phase.BACKWARD),
            lowering(Family.GEMM),
            {P.BACKWARD_GEMM: 70 + 300},
        ),
        # Gradients that are there already are added to in place; others just add up.
        (
            op("aten.add_.Tensor", phase=Phase.BACKWARD),
            lowering(Family.ELEMENTWISE),
            {P.ACCUMULATE_GRAD: 70},
        ),
        (
            op("aten.add.Tensor", phase=Phase.BACKWARD),
            lowering(Family.ELEMENTWISE),
            {P.BACKWARD_POINTWISE: 70},
        ),
        (
            op("aten.zero_.default", phase=Phase.OPTIMIZER),
            lowering(Family.ELEMENTWISE),
            {P.IN_PLACE_ZERO: 100},
        ),
        (
            op("aten.zeros_like.default", phase=Phase.BACKWARD),
            lowering(Family.ELEMENTWISE),
            {P.BACKWARD_POINTWISE: 70},
        ),
        (
            op("aten._foreach_add_.Scalar", phase=Phase.OPTIMIZER, num_inputs=40),
            lowering(Family.ELEMENTWISE),
            {P.FOREACH: 500, P.FOREACH_TENSORS: 280},
        ),
    ],
)
def test_parts_say_what_kind_of_work_it_is(
    operator: Op, kernels: Lowering, expected: dict[HostPart, float]
) -> None:
    assert dict(host_op_parts(operator, kernels, HOST)) == pytest.approx(expected)


def test_gradient_of_the_loss_by_itself_starts_a_backward_pass() -> None:
    """``backward()`` makes it, and nothing else in a step makes a single one like another."""
    loss = TensorSpec(shape=(), dtype="float32", device="cuda:0")
    labels = TensorSpec(shape=(8,), dtype="float32", device="cuda:0")
    kernels = lowering(Family.ELEMENTWISE)
    start = Op(name="aten.ones_like.default", inputs=(loss,), outputs=(loss,))
    other = Op(name="aten.ones_like.default", inputs=(labels,), outputs=(labels,))
    assert host_op_parts(start, kernels, HOST) == ((HostPart.BACKWARD_CALL, 900),)
    assert HostPart.BACKWARD_CALL not in dict(host_op_parts(other, kernels, HOST))


def test_what_was_seen_of_a_device_scales_the_work_that_it_was_seen_of() -> None:
    seen = DeviceWork(handoff_ns=300.0, convolution_factor=0.5)
    host = msgspec.structs.replace(HOST, device_work=seen)
    loss = TensorSpec(shape=(), dtype="float32", device="cuda:0")
    start = Op(name="aten.ones_like.default", inputs=(loss,), outputs=(loss,))
    assert host_op_ns(start, lowering(Family.ELEMENTWISE), host) == 900 + 300
    convolution, norm = op("aten.convolution.default"), op("aten.native_batch_norm.default")
    # Not the Python around them, nor what autograd records.
    assert host_op_ns(convolution, lowering(Family.CONVOLUTION), host) == 200 + 30 + 800 / 2
    assert host_op_ns(norm, lowering(Family.NORMALIZATION), host) == 200 + 30 + 400 / 2
    compiled = op("compiled.convolution.default")
    assert host_op_ns(compiled, lowering(Family.CONVOLUTION), host) == 800 / 2
    other = op("aten.mm.default")
    for kernels in (lowering(Family.GEMM), lowering(Family.ELEMENTWISE)):
        assert host_op_ns(other, kernels, host) == host_op_ns(other, kernels, HOST)


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
    assert 800 <= host.autograd_ns <= 2_500


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
