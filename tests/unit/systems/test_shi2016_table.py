"""The published table of the benchmark: what it holds, and what is read off it."""

from __future__ import annotations

import pytest

from breakeven.systems.published import (
    CORES,
    GPUS,
    cells,
    fastest_ns,
    frameworks,
    networks,
    published_times,
    thread_curves,
)
from breakeven.systems.shi2016_claims import gains


def test_networks_stand_in_the_order_of_the_table_with_their_batch_sizes() -> None:
    assert networks() == {
        "FCN-S": 64,
        "AlexNet-S": 16,
        "ResNet-50": 16,
        "FCN-R": 1024,
        "AlexNet-R": 1024,
        "ResNet-56": 128,
        "LSTM": 128,
    }


def test_devices_are_two_cpus_and_three_gpus() -> None:
    assert {time.device for time in published_times()} == {*CORES, *GPUS}
    assert all((time.num_threads is None) == (time.device in GPUS) for time in published_times())


def test_a_cell_is_in_nanoseconds() -> None:
    # 0.030 s in the table.
    assert cells("FCN-S", "Caffe", "GTX 1080") == {None: pytest.approx(30e6)}
    assert cells("LSTM", "CNTK", "desktop CPU")[4] == pytest.approx(90e6)


def test_an_empty_cell_has_no_time() -> None:
    assert cells("FCN-S", "MXNet", "GTX 980") == {}
    assert 8 not in cells("FCN-S", "Torch", "desktop CPU")
    assert "Caffe" not in frameworks("LSTM")


def test_the_fastest_is_over_frameworks_threads_and_devices() -> None:
    assert fastest_ns("AlexNet-S", ("GTX 1080",)) == pytest.approx(14e6)  # MXNet
    # TensorFlow on 16 threads of the server against Caffe on 4 of the desktop.
    assert fastest_ns("AlexNet-S", CORES) == pytest.approx(701e6)


def test_curves_end_at_the_physical_cores() -> None:
    curves = thread_curves("FCN-R")
    assert len(curves) == 10  # five frameworks on two CPUs
    assert {len(curve) for curve in curves} == {3, 5}  # 1, 2, 4 and 1, 2, 4, 8, 16 threads
    assert curves[0] == pytest.approx((2.476e9, 1.499e9, 1.149e9))


def test_a_curve_with_a_hole_is_none() -> None:
    # TensorFlow has no CPU figures of ResNet-56, CNTK neither.
    assert len(thread_curves("ResNet-56")) == 6


@pytest.mark.parametrize("network", networks())
def test_all_desktop_curves_fall_up_to_the_cores(network: str) -> None:
    desktop = [curve for curve in thread_curves(network) if len(curve) == 3]
    assert desktop
    assert all(gain > 1 for curve in desktop for gain in gains(curve))
