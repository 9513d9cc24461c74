"""SkyPilot's own optimizer with the times of real runs, without a network or an account."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(
        find_spec("sky") is None, reason="needs SkyPilot: pip install 'breakeven[sky]'"
    ),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
# SkyPilot reads its catalog from a folder of the user's; it fetches what is missing there.
OPTIMIZE = """
import sys
from pathlib import Path

import breakeven
from breakeven.money import shipped_prices
from sky.catalog import common

run, steps = sys.argv[1], int(sys.argv[2])
catalog = Path(common.get_catalog_path("aws/vms.csv"))
catalog.parent.mkdir(parents=True)
lines = [
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
    "Region,AvailabilityZone,Arch"
]
for machine in shipped_prices().machines:
    gpu = f"{machine.gpu},{machine.num_gpus}" if machine.gpu else ","
    if machine.cloud == "aws":
        lines.append(
            f"{machine.name},{gpu},{machine.num_vcpus},{machine.memory_bytes >> 30},,"
            f"{machine.usd_per_hour},,us-east-1,us-east-1a,x86_64"
        )
catalog.write_text("\\n".join(lines))

import sky

sky.check.get_cached_enabled_clouds_or_refresh = lambda *args, **kwargs: [sky.AWS()]
with sky.Dag() as dag:
    task = sky.Task(run="python train.py")
    task.set_resources(breakeven.sky_candidates(run, steps, clouds=("aws",)))
    task.set_time_estimator(breakeven.sky_estimator(run, steps))
sky.Optimizer.optimize(dag, quiet=True)
task.set_resources(task.best_resources)
print("chosen:", task.best_resources.instance_type, task.best_resources.accelerators)
"""


def chosen(folder: Path, script: str, steps: int, *arguments: str) -> str:
    """Return the machine and its GPUs that SkyPilot chooses."""
    run = folder / "run.json"
    home = {"HOME": str(folder), "SKY_RUNTIME_DIR": str(folder)}
    environment = os.environ | home | {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    check = [sys.executable, "-m", "breakeven", "check", str(EXAMPLES / script), "-q"]
    options = ["--no-fast-step", "--time-limit", "900", "-o", str(run), "--", *arguments]
    subprocess.run([*check, *options], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [sys.executable, "-c", OPTIMIZE, str(run), str(steps)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return next(line for line in done.stdout.splitlines() if line.startswith("chosen: "))


def test_a_cpu_machine_trains_a_small_perceptron(tmp_path: Path) -> None:
    assert chosen(tmp_path, "disc_mlp.py", 1_000_000).endswith("large None")


def test_a_gpu_trains_resnet_50(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert "{" in chosen(tmp_path, "priced/resnet50.py", 450_000, "4")
