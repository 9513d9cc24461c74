"""Build the price file of the package from generated price lists.

    python -m lab.prices ../shared/data/prices

The lists are those of Karpenter's providers for AWS, Azure and Google Cloud (Apache-2.0), and the
page of Hugging Face Jobs. Machines whose accelerator or CPU lacks figures in the catalogue, and Arm
CPUs, are left out: no step of them can be predicted.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from breakeven.device import find_device
from breakeven.money.machines import PRICES_VERSION, Machine, PriceFile, PriceSource

OUTPUT = Path(__file__).parents[1] / "src" / "breakeven" / "money" / "prices.json"
_KARPENTER = "https://github.com/{} ({}), Apache-2.0"
SOURCES = {
    "aws": PriceSource(
        id="aws",
        name="AWS",
        date="2026-07-20",
        source=_KARPENTER.format(
            "aws/karpenter-provider-aws", "pkg/providers/pricing/zz_generated.pricing_aws.go"
        ),
        billing_s=1,
        least_billed_s=60,
    ),
    "gcp": PriceSource(
        id="gcp",
        name="Google Cloud",
        date="2026-08-03",
        source=_KARPENTER.format(
            "cloudpilot-ai/karpenter-provider-gcp", "pkg/providers/pricing/initial-prices.json"
        ),
        billing_s=1,
        least_billed_s=60,
    ),
    "azure": PriceSource(
        id="azure",
        name="Azure",
        date="2026-06-18",
        source=_KARPENTER.format(
            "Azure/karpenter-provider-azure", "pkg/providers/pricing/zz_generated.pricing.go"
        ),
        billing_s=1,
        least_billed_s=1,
    ),
    "hf": PriceSource(
        id="hf",
        name="HF Jobs",
        date="",
        source="https://huggingface.co/docs/hub/jobs-pricing",
        billing_s=60,
        least_billed_s=60,
    ),
}
# Catalogue ids by the start of the machine's name, then by the lists' name of the GPU and its
# memory in GiB, then by name alone. Forms of GPUs are from the providers' own pages, recalled.
_GPU_FORMS = {
    r"Standard_ND\d+amsr_A100": "a100-sxm4-80gb",
    r"Standard_NC\d+ads_A100": "a100-pcie-80gb",
    r"Standard_NC\d+r?s_v3": "v100-pcie-16gb",
}
_GPU_SIZES = {
    ("A100", 80): "a100-sxm4-80gb",
    ("V100", 32): "v100-sxm2-32gb",
    ("V100-32GB", 32): "v100-sxm2-32gb",
}
_GPU_NAMES = {
    "A10": "a10",
    "A100": "a100-sxm4-40gb",
    "A10G": "a10g",
    "B200": "b200",
    "H100": "h100-sxm5-80gb",
    "H100-NVL": "h100-nvl",
    "H200": "h200-sxm-141gb",
    "K80": "k80",
    "L4": "l4",
    "L40S": "l40s",
    "M60": "m60",
    "MI300X": "mi300x",
    "RTX Pro 6000": "rtx-pro-6000",
    "RTX PRO 6000": "rtx-pro-6000",
    "T4": "t4",
    "V100": "v100-sxm2-16gb",
}
# Processors of families of machines, from the providers' own pages, recalled; by the start of the
# machine's name. A family that runs on several is named by the slower one. Left out are Arm and
# families whose CPU, or slower CPU, has no rates in the table of hosts: n1, n2, c3, Das_v4, Das_v6.
_CPUS = {
    "aws": {
        r"c5\.": "Xeon Platinum 8124M",
        r"m5\.": "Xeon Platinum 8175M",
        r"c5a\.": "EPYC 7R32",
        r"(c6i|m6i|r6i)\.": "Xeon Platinum 8375C",
        r"(c6a|m6a)\.": "EPYC 7R13",
        r"(c7i|m7i|r7i)\.": "Xeon Platinum 8488C",
        r"(c7a|m7a)\.": "EPYC 9R14",
    },
    "gcp": {
        r"n2d-": "EPYC 7B12",
        r"(c2d|t2d)-": "EPYC 7B13",
    },
    "azure": {
        r"Standard_D\d+s?_v5": "Xeon Platinum 8370C",
        r"Standard_D\d+ad?s_v5": "EPYC 7763",
    },
}
# Families without hyper-threading: a virtual processor is a core.
_WHOLE_CORES = re.compile(r"(c7a|m7a)\.|t2d-")


def cloud_machines(path: Path) -> Iterator[Machine]:
    """Yield the machines of a table of AWS, Google Cloud and Azure."""
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            count = float(row["accelerator_count"] or 0)
            memory = float(row["gpu_memory_gib"] or 0) * (count if 0 < count < 1 else 1)
            gpu, share = _gpu(row["instance_type"], row["accelerator"], memory)
            cpu = _cpu(row["cloud"], row["instance_type"])
            if (row["accelerator"] and not gpu) or not (gpu or cpu):
                continue
            yield Machine(
                provider=row["cloud"],
                name=row["instance_type"],
                num_vcpus=int(row["vcpus"]),
                memory_bytes=int(float(row["memory_gib"]) * 2**30),
                gpu=gpu,
                num_gpus=max(math.ceil(count), 1 if gpu else 0),
                gpu_fraction=share,
                cpu=cpu,
                usd_per_hour=float(row["on_demand_usd_per_hour"]),
                spot_usd_per_hour=float(row["spot_usd_per_hour"] or 0),
                region=row["region"],
                threads_per_core=1 if _WHOLE_CORES.match(row["instance_type"]) else 2,
            )


def hf_machines(path: Path) -> Iterator[Machine]:
    """Yield the machines of Hugging Face Jobs; their CPUs are not published."""
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            name, count = row["device"].removesuffix(" 80GB"), int(row["num_devices"])
            memory = float(row["gpu_memory_gb"]) / count if count else 0.0
            gpu, share = _gpu(row["machine"], name, memory)
            yield Machine(
                provider="hf",
                name=row["machine"],
                num_vcpus=int(row["vcpus"]),
                memory_bytes=int(float(row["memory_gb"]) * 1e9),
                gpu=gpu,
                num_gpus=count,
                gpu_fraction=share,
                cpu="",
                usd_per_hour=float(row["usd_per_hour"]),
            )


def _gpu(machine: str, name: str, memory_gib: float) -> tuple[str, float]:
    """Return the id of a GPU, or an empty string, and which part of it the machine has."""
    by_name = _GPU_SIZES.get((name, round(memory_gib)), _GPU_NAMES.get(name, ""))
    gpu = next((gpu for start, gpu in _GPU_FORMS.items() if re.match(start, machine)), by_name)
    if not gpu:
        return "", 1.0
    parts = find_device(gpu).memory_bytes / 2**30 / memory_gib
    return gpu, 1 / min((1, 2, 3, 4, 6, 8), key=lambda whole: abs(math.log(parts / whole)))


def _cpu(cloud: str, name: str) -> str:
    families = _CPUS.get(cloud, {})
    return next((cpu for start, cpu in families.items() if re.match(start, name)), "")


def encode_prices(prices: PriceFile) -> bytes:
    """Return a price file's text, one machine to a line."""
    lines = b",\n".join(msgspec.json.encode(machine) for machine in prices.machines)
    sources = b",\n".join(msgspec.json.encode(source) for source in prices.sources)
    return b'{"schema_version":%d,"sources":[\n%s\n],"machines":[\n%s\n]}\n' % (
        prices.schema_version,
        sources,
        lines,
    )


def build_prices(folder: Path) -> PriceFile:
    """Return the machines of both tables, with their lists."""
    clouds = cloud_machines(folder / "cloud_machines.csv")
    jobs = hf_machines(folder / "hf_jobs.csv")
    return PriceFile(
        schema_version=PRICES_VERSION,
        sources=tuple(SOURCES.values()),
        machines=(*clouds, *jobs),
    )


def main() -> None:
    """Write the price file."""
    parser = argparse.ArgumentParser(description="Build the price file of the package.")
    parser.add_argument("folder", type=Path, help="with cloud_machines.csv and hf_jobs.csv")
    prices = build_prices(parser.parse_args().folder)
    OUTPUT.write_bytes(encode_prices(prices))
    size = OUTPUT.stat().st_size / 1e3
    print(f"{OUTPUT}: {len(prices.machines)} machines, {size:.0f} kB")


if __name__ == "__main__":
    main()
