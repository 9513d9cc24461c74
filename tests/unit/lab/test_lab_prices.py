"""The shipped price file: as built from the lists, if these are here; and small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from breakeven.money import PriceFile, shipped_prices
from lab.prices import OUTPUT, build_prices, encode_prices

HEAD = (
    "cloud,instance_type,vcpus,memory_gib,accelerator,accelerator_count,gpu_memory_gib,"
    "on_demand_usd_per_hour,region,spot_usd_per_hour\n"
)
CLOUDS = """\
aws,g6f.large,2,8.0,L4,,2.8,0.202,us-east-1,
azure,Standard_NV6ads_A10_v5,6,55,A10,0.17,24,0.454,eastus,
aws,g5g.xlarge,4,8.0,T4G,1,16.0,0.42,us-east-1,
aws,c7g.large,2,4.0,,,,0.07,us-east-1,
aws,c7a.large,2,4.0,,,,0.1,us-east-1,
gcp,n1-standard-2,2,7.5,,,,0.09,us-central1,0.02
"""
JOBS = """\
machine,vcpus,memory_gb,device,num_devices,gpu_memory_gb,usd_per_hour
CPU Basic,2,16,,0,,0.01
8x A100 large,96,1136,A100 80GB,8,640,20.00
"""
LISTS = Path(__file__).parents[4] / "shared" / "data" / "prices"


def test_rows_become_machines(tmp_path: Path) -> None:
    (tmp_path / "cloud_machines.csv").write_text(HEAD + CLOUDS, "utf-8")
    (tmp_path / "hf_jobs.csv").write_text(JOBS, "utf-8")
    machines = build_prices(tmp_path).machines
    facts = [(one.name, one.gpu, one.num_gpus, one.gpu_fraction, one.cpu) for one in machines]
    # Left out: a GPU that the catalogue lacks, an Arm CPU, a CPU without rates.
    assert facts == [
        ("g6f.large", "l4", 1, 1 / 8, ""),
        ("Standard_NV6ads_A10_v5", "a10", 1, 1 / 6, ""),
        ("c7a.large", "", 0, 1.0, "EPYC 9R14"),
        ("CPU Basic", "", 0, 1.0, ""),
        ("8x A100 large", "a100-sxm4-80gb", 8, 1.0, ""),
    ]
    assert machines[2].threads_per_core == 1


def test_shipped_file_is_small_and_read_back() -> None:
    assert OUTPUT.stat().st_size <= 150_000
    shipped = shipped_prices()
    assert msgspec.json.decode(encode_prices(shipped), type=PriceFile) == shipped


@pytest.mark.skipif(not LISTS.is_dir(), reason="needs the price lists, which are not shipped")
def test_shipped_file_is_built_from_the_lists() -> None:
    assert OUTPUT.read_bytes() == encode_prices(build_prices(LISTS))
