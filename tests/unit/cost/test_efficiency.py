"""Which family stands in for which."""

from __future__ import annotations

from breakeven.cost import PROXIES, Family, load_efficiencies
from breakeven.cost.efficiency import stand_ins
from breakeven.device import find_device

TIMED = {entry.family for device in load_efficiencies().devices for entry in device.families}


def test_every_family_is_measured_or_like_one_that_is() -> None:
    assert set(Family) == {*TIMED, *(family for family, _ in PROXIES)}
    for family in Family:
        assert any(proxy.family in TIMED for proxy in stand_ins(family, ""))


def test_what_was_measured_names_devices_of_the_catalogue() -> None:
    devices = [device.device for device in load_efficiencies().devices]
    assert [find_device(device).id for device in devices] == devices


def test_nobody_measured_depthwise_convolutions() -> None:
    nearest = next(stand_ins(Family.CONVOLUTION, "depthwise_backward_weight"))
    assert (nearest.family, nearest.variant, nearest.factor) == (Family.ELEMENTWISE, "", 0.5)


def test_factors_and_their_uncertainty_add_up_on_the_way() -> None:
    *_, last = stand_ins(Family.ATTENTION, "flash")
    assert last.family is Family.GEMM
    assert last.factor == 0.7 * 0.9
    assert last.log_sigma == (0.40**2 + 0.20**2) ** 0.5


def test_norms_other_than_of_layers_are_like_a_stream() -> None:
    measured = {
        entry.variant
        for device in load_efficiencies().devices
        for entry in device.families
        if entry.family is Family.NORMALIZATION
    }
    assert measured.isdisjoint({"", "batch", "group", "rms"})
