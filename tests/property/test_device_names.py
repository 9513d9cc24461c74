"""The spelling of a device's name does not decide which device it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakeven.device import find_device, load_catalogue

NAMES = [
    (device, name)
    for device in load_catalogue()
    for name in (device.id, device.name, *device.aliases)
]


@given(data=st.data())
def test_case_spaces_and_hyphens_do_not_matter(data: st.DataObject) -> None:
    device, name = data.draw(st.sampled_from(NAMES))
    noisy = ""
    for character in name:
        noisy += data.draw(st.sampled_from(["", "", "", " ", "-", "_", "  "]))
        noisy += data.draw(st.sampled_from([character.upper(), character.lower()]))
    assert find_device(noisy) is device


@given(
    named=st.sampled_from([pair for pair in NAMES if pair[0].vendor == "nvidia"]),
    brand=st.sampled_from(["NVIDIA ", "nvidia-", "NVIDIA GeForce ", "Tesla ", "tesla_"]),
)
def test_brand_words_do_not_matter(named: tuple, brand: str) -> None:
    device, name = named
    assert find_device(brand + name) is device
