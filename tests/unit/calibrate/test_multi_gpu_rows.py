"""Timings of several devices are set beside those of one of the same machine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from breakeven.calibrate import lone_steps_ns, multi_gpu_row
from breakeven.simulate import ModelSize, PhaseTimes, Strategy
from breakeven.trace import StepCase, TimedPhase
from factories.steps import GPU, HOST, MadeUpCosts

CASE = StepCase(workload="torchvision:wide_resnet50_2", phase=TimedPhase.TRAIN)


@dataclass(frozen=True, kw_only=True)
class Timing:
    num_devices: int
    value_ns: float
    case: StepCase = CASE
    batch_size: int = 32
    source: str = "made up"
    device: str = "RTX A4000"
    host: str = "one"
    framework: str = "torch 2.3"
    note: str = "DDP"


def test_partner_is_the_step_of_one_device() -> None:
    timings = [Timing(num_devices=1, value_ns=100), Timing(num_devices=4, value_ns=110)]
    assert lone_steps_ns(timings) == {1: 100}


def test_partner_of_the_same_host_is_preferred() -> None:
    timings = [
        Timing(num_devices=1, value_ns=100, host="one"),
        Timing(num_devices=1, value_ns=900, host="two"),
        Timing(num_devices=2, value_ns=950, host="two"),
    ]
    assert lone_steps_ns(timings) == {2: 900}


def test_partner_of_nearly_the_same_batch_is_scaled() -> None:
    timings = [
        Timing(num_devices=1, value_ns=100, batch_size=30),
        Timing(num_devices=1, value_ns=700, batch_size=64),
        Timing(num_devices=2, value_ns=110, batch_size=33),
    ]
    assert lone_steps_ns(timings) == {2: pytest.approx(110)}


@pytest.mark.parametrize(
    "alone",
    [
        Timing(num_devices=1, value_ns=100, framework="torch 1.4"),
        Timing(num_devices=1, value_ns=100, device="RTX A5000"),
        Timing(num_devices=1, value_ns=100, batch_size=16),
    ],
)
def test_step_without_a_partner_teaches_nothing(alone: Timing) -> None:
    assert lone_steps_ns([alone, Timing(num_devices=2, value_ns=110)]) == {}


def test_a_row_of_the_fit_holds_the_lone_step_as_its_costs_predict_it() -> None:
    times = PhaseTimes(
        forward_host_ns=100,
        backward_host_ns=150,
        other_host_ns=50,
        forward_device_ns=300,
        backward_device_ns=400,
        other_device_ns=100,
        copy_ns=20,
    )
    size = ModelSize(parameter_bytes=40, num_parameter_tensors=2, gradient_bytes=40)
    row = multi_gpu_row(
        Timing(num_devices=4, value_ns=1_100),
        times,
        size,
        measured_single_ns=1_000,
        device=GPU,
        host=HOST,
        costs=MadeUpCosts(overlap_loss_fraction=0.5),
    )
    assert row.family == "resnet"
    assert (row.setup.strategy, row.setup.num_devices) == (Strategy.DDP, 4)
    assert (row.measured_single_ns, row.measured_ns) == (1_000, 1_100)
    # The copy, the kernels, and half of the 300 ns in which the host works beside them.
    assert row.single_ns == pytest.approx(20 + 800 + 0.5 * 300)
    assert row.dispatch_ns == HOST.op_ns
