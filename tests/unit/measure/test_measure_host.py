from __future__ import annotations

import platform
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
import torch

from breakeven.cost import launch_costs
from breakeven.device import HostCalibration, find_device
from breakeven.measure import measure_cpu_rates, measure_host
from breakeven.measure.host import TimedCall, calibration_of, launch_calls, time_rounds
from breakeven.processor import cpu_name
from factories.scripted_clock import ScriptedClock

TIMES_NS = {
    "op": 1_000.0,
    "recorded": 1_400.0,
    "view": 700.0,
    "module": 500.0,
    "foreach_one": 2_000.0,
    "foreach_many": 2_000.0 + 63 * 1_000,
    "backward_one": 12_000.0,
    "backward_many": 12_000.0 + 63 * 2_500,
    "linear": 1_500.0,
}


def calibrated(
    times_ns: Mapping[str, float] = TIMES_NS, device_name: str = "", spread: float = 1.0
) -> HostCalibration:
    """Return what ten rounds say that took these times, some more and some less."""
    factors = np.array([1 / spread] * 3 + [1.0] * 4 + [spread] * 3)
    return calibration_of(
        {code: time_ns * factors for code, time_ns in times_ns.items()},
        num_rounds=10,
        device_name=device_name,
    )


@pytest.mark.timing
def test_costs_of_this_host_are_in_a_plausible_order() -> None:
    host = measure_host(num_rounds=15).host
    assert 0 < host.view_ns < 1.2 * host.op_ns, "a view computes nothing"
    assert 0 <= host.autograd_ns < 20 * host.op_ns
    assert 0.05 * host.op_ns < host.backward_ns < 50 * host.op_ns
    assert 0 < host.foreach_ns < 50 * host.op_ns
    assert 0 <= host.foreach_tensor_ns < host.op_ns, "a tensor of a list costs less than an op"
    assert 0 < host.python_ns < 50 * host.op_ns
    assert host.id == "here"
    assert host.name == cpu_name()


def test_costs_follow_from_times() -> None:
    host = calibrated().host
    # A device's operator takes one dispatch of the CPU more than the CPU's own.
    assert host.op_ns == 2_000
    assert host.autograd_ns == pytest.approx(400)
    assert host.python_ns == 250
    assert host.view_python_ns == 1_250
    assert host.view_ns == 700
    assert host.foreach_ns == 3_000
    assert host.foreach_tensor_ns == pytest.approx(100)
    assert host.backward_ns == pytest.approx(3_500)
    assert host.backward_call_ns == pytest.approx(12_000 - 2_500)


LAUNCHES_NS = {"cuda_queued": 6_000.0, "cuda_waited": 15_000.0, "cuda_sync": 3_000.0}


def test_negative_differences_count_as_none() -> None:
    times_ns = {**TIMES_NS, "recorded": 900.0, "foreach_many": 1_900.0, "backward_one": 200_000.0}
    host = calibrated(times_ns).host
    assert host.autograd_ns == host.foreach_tensor_ns == 0
    assert host.backward_ns == 1_000, "the device's share alone is left"


def test_device_that_is_here_tells_its_share_itself() -> None:
    calibration = calibrated(TIMES_NS | LAUNCHES_NS, device_name="NVIDIA A100-SXM4-80GB")
    launch_ns = launch_costs(find_device("a100-sxm4-80gb")).launch_ns
    assert calibration.host.op_ns == 6_000 - launch_ns
    assert calibration.host.backward_ns == pytest.approx(2_500 + 6_000 - launch_ns - 1_000)
    assert "measured on NVIDIA A100-SXM4-80GB" in calibration.host.source
    assert calibration.figure("cuda_waited").median_ns == 15_000


def test_backward_pass_of_a_device_is_handed_to_another_thread() -> None:
    times_ns = {**TIMES_NS, **LAUNCHES_NS, "cuda_backward": 92_000.0}
    host = calibrated(times_ns, device_name="NVIDIA A100-SXM4-80GB").host
    # Of the 80 µs more, 5 µs each are for two kernels.
    assert host.seen_work.handoff_ns == pytest.approx(80_000 - 2 * (6_000 - 1_000))
    # A pass of the CPU alone is what it was.
    assert host.backward_call_ns == calibrated().host.backward_call_ns
    assert calibrated().host.device_work is msgspec.UNSET


def test_device_that_is_not_in_the_catalogue_tells_nothing() -> None:
    calibration = calibrated(TIMES_NS | LAUNCHES_NS, device_name="Made-up GPU 1")
    assert calibration.host.op_ns == 2_000
    assert calibration.host.source.endswith("since Made-up GPU 1 is not known")


def test_spread_of_rounds_makes_less_certain() -> None:
    steady, shaken = calibrated().host.log_sigma, calibrated(spread=1.5).host.log_sigma
    # Ninety and ten percent of the rounds lie 1.5² apart, 2.563 sigmas of a normal.
    assert steady == 0.25
    assert shaken == pytest.approx(np.hypot(0.25, 2 * np.log(1.5) / 2.563))


def test_figures_carry_their_spread_and_their_use() -> None:
    calibration = calibrated(spread=2.0)
    figure = calibration.figure("op")
    assert (figure.low_ns, figure.median_ns, figure.high_ns) == (500, 1_000, 2_000)
    assert figure.used_for
    assert not calibration.figure("linear").used_for
    with pytest.raises(KeyError):
        calibration.figure("cuda_queued")


def test_rounds_interleave_and_the_first_do_not_count() -> None:
    order: list[str] = []
    timed = [
        TimedCall(code="a", call=lambda: order.append("a"), calls=2),
        TimedCall(
            code="b", call=lambda: order.append("b"), calls=1, prepare=lambda: order.append("p")
        ),
    ]
    # Each reading of the clock seems to come 40 ns after the one before.
    times = time_rounds(timed, ScriptedClock(then_every_ns=40), num_rounds=2)
    assert order == ["a", "a", "p", "b"] * 5
    assert times["a"].tolist() == [20, 20]
    assert times["b"].tolist() == [40, 40]


def test_warmup_is_left_out() -> None:
    durations_ns = [9_000, 8_000, 7_000, 300, 100]
    times_ns, now_ns = [], 0
    for duration_ns in durations_ns:
        times_ns += [now_ns, now_ns + duration_ns]
        now_ns += duration_ns
    timed = [TimedCall(code="a", call=lambda: None, calls=1)]
    assert time_rounds(timed, ScriptedClock(times_ns), 2)["a"].tolist() == [300, 100]


def test_launches_are_queued_and_waited_for_in_turn() -> None:
    order: list[str] = []
    calls = launch_calls(lambda: order.append("issue"), lambda: order.append("wait"))
    for timed in calls:
        order.clear()
        timed.call()
        expected = {
            "cuda_queued": ["issue"],
            "cuda_waited": ["issue", "wait"],
            "cuda_sync": ["wait"],
        }
        assert order == expected[timed.code]
        assert timed.calls < 1_000, "more would fill the queue of launches"


def test_scripted_time_gives_times_per_call() -> None:
    host = measure_host(ScriptedClock(then_every_ns=4_000), num_rounds=2).host
    # 100 calls in 4,000 ns are 40 ns each; the device's share as much again.
    assert host.op_ns == 80
    assert host.view_ns == 40
    assert host.autograd_ns == 0


def test_source_names_machine_date_and_versions() -> None:
    source = calibrated().host.source
    assert source.startswith(f"measured on {cpu_name()}, 20")
    assert f"Python {platform.python_version()}" in source
    assert "torch 2." in source


def test_calibration_survives_the_way_through_json() -> None:
    calibration = calibrated(spread=1.3)
    encoded = msgspec.json.encode(calibration)
    assert msgspec.json.decode(encoded, type=HostCalibration) == calibration


@pytest.mark.timing
def test_rates_are_those_of_one_core_and_threads_stay_as_they_were() -> None:
    threads = torch.get_num_threads()
    rates = measure_cpu_rates()
    assert torch.get_num_threads() == threads
    assert rates.num_cores == 1
    # A core computes more than it moves, on any CPU that torch runs on.
    assert rates.flop_per_s > rates.bytes_per_s > 1e8
