"""Timings of several devices are paired with those of one of the same machine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from breakeven.trace import StepCase, TimedPhase
from lab.multi_gpu import lone_steps_ns

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
