"""How each family of kernels is known."""

from __future__ import annotations

from breakeven.cost import Family, known_families, load_efficiencies
from breakeven.cost.relatives import RELATIVES
from breakeven.device import find_device

KNOWN = known_families(load_efficiencies())


def test_every_family_is_measured_or_like_one_that_is() -> None:
    assert {one.family for one in KNOWN} == set(Family)
    measured = {one.family for one in KNOWN if one.relative is None}
    relatives = {one.relative.family for one in KNOWN if one.relative is not None}
    assert relatives <= measured
    for one in KNOWN:
        assert bool(one.devices) == bool(one.num_rows) == (one.relative is None), one


def test_what_was_measured_names_devices_of_the_catalogue_and_errors_on_others() -> None:
    (products,) = (
        one for one in KNOWN if (one.family, one.variant, one.arithmetic) == ("gemm", "", "vector")
    )
    assert {find_device(device).id for device in products.devices} == set(products.devices)
    assert products.num_rows > 1000
    assert products.unseen_median is not None
    assert products.unseen_p90 is not None
    assert 0 < products.unseen_median < products.unseen_p90


def test_nobody_measured_depthwise_convolutions() -> None:
    (depthwise,) = (one for one in KNOWN if one.variant == "depthwise")
    assert depthwise.relative is not None
    assert depthwise.relative.family is Family.ELEMENTWISE


def test_norms_other_than_of_layers_are_like_a_stream() -> None:
    measured = {
        entry.variant
        for device in load_efficiencies().devices
        for entry in device.families
        if entry.family is Family.NORMALIZATION
    }
    (others,) = (one for one in KNOWN if one.variant == "batch, group, rms")
    assert measured.isdisjoint({"", *others.variant.split(", ")})
    assert others.relative == RELATIVES[Family.NORMALIZATION]
