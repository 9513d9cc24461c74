"""A new GPU, and a new generation, are entries of one file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from breakeven.cost import load_efficiencies, peer_link, reference_host, sustained_fraction
from breakeven.device import catalogue, find_device, generations_between
from breakeven.simulate import predict_steps
from breakeven.trace import Op, StepTrace, TensorSpec

GENERATION = """
[[generation]]
id = "rubin"
vendor = "nvidia"
launch_ns = 1_000
latency_ns = 2_000
gap_ns = 100
sync_ns = 2_000
floor_ns = 500
log_sigma = 0.4
watts_per_flop_per_s = 2e-12
fabric_boards = ["r100"]
sources = ["made up"]
"""
DEVICE = """
[[device]]
id = "r100"
name = "R100"
vendor = "nvidia"
market = "datacenter"
architecture = "Rubin"
launch_generation = "rubin"
release_year = 2026
num_sms = 300
clock_hz = 2e9
peak_flop_per_s = { fp32 = 100e12, tf32 = 1e15, fp16 = 2e15, bf16 = 2e15 }
memory_bytes = 300e9
memory_bytes_per_s = 16e12
l2_bytes = 200e6
link_bytes_per_s = 63e9
peer_bytes_per_s = 3.6e12
tdp_watts = 100
sources = ["made up"]
"""


CACHED = ("read_catalogue", "_datasheets", "load_catalogue", "load_generations", "devices_by_key")
WriteCatalogue = Callable[[str], None]


@pytest.fixture
def write_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteCatalogue:
    """Return what puts a copy of the catalogue with further entries in its place."""

    def write(entries: str) -> None:
        path = tmp_path / "catalogue.toml"
        path.write_text(catalogue.CATALOGUE.read_text("utf-8") + entries, "utf-8")
        monkeypatch.setattr(catalogue, "CATALOGUE", path)
        for name in CACHED:
            fresh = functools.cache(getattr(catalogue, name).__wrapped__)
            monkeypatch.setattr(catalogue, name, fresh)

    return write


def product(size: int) -> StepTrace:
    matrix = TensorSpec(shape=(size, size), dtype="float32", device="cuda:0")
    return StepTrace(
        events=(Op(name="aten.mm.default", inputs=(matrix, matrix), outputs=(matrix,)),)
    )


def test_a_device_of_a_new_generation_is_predicted(write_catalogue: WriteCatalogue) -> None:
    host, step = reference_host(), product(16_384)
    (before,) = predict_steps(step, [find_device("b200")], host)
    write_catalogue(GENERATION + DEVICE)
    device = find_device("r100")
    (prediction,) = predict_steps(step, [device], host)

    assert device in catalogue.load_catalogue()
    # Its power lets half of its clock be kept.
    assert sustained_fraction(device) == pytest.approx(0.5)
    assert peer_link(device, 8).path == "fabric"
    assert 0 < prediction.device_busy_ns < 2 * before.device_busy_ns
    assert prediction.estimate.low_ns < prediction.estimate.value_ns
    # The nearest reference devices are those of its vendor, and it comes after their last.
    nearest = [
        generations_between("rubin", known.launch_generation)
        for known in load_efficiencies().devices
    ]
    assert None in nearest
    assert min(distance for distance in nearest if distance is not None) >= 2
    assert generations_between("rubin", "blackwell") == 1
    assert generations_between("rubin", "xe") is None


@pytest.mark.parametrize(
    "entries",
    [GENERATION + "fabrics = []", DEVICE + "num_cores = 3", GENERATION.replace("500", "0")],
)
def test_misspelled_and_impossible_entries_are_refused(
    write_catalogue: WriteCatalogue, entries: str
) -> None:
    write_catalogue(entries)
    with pytest.raises(msgspec.ValidationError):
        catalogue.load_catalogue()
