"""Jobs for HF Jobs and SkyPilot."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.errors import BreakevenError, UsageError
from breakeven.money import shipped_prices
from breakeven.report import CostReport, job_text
from breakeven.report.cost import faster_choices
from breakeven.report.job import hf_flavor
from breakeven.studies import CostRequest, TrainingLength, cost_run
from breakeven.units import NS_PER_S
from unit.studies.test_cost import request, stored


def hf_report(folder: Path, *, step_s: float = 1.0) -> CostReport:
    length = TrainingLength(num_steps=10_000)
    cost = cost_run(stored(folder, step_s=step_s), CostRequest(length=length, clouds=("hf",)))
    return replace(cost, target="train.py")


@pytest.mark.parametrize(
    ("machine", "flavor"),
    [
        ("CPU Basic", "cpu-basic"),
        ("1x L4", "l4x1"),
        ("8x L40S", "l40sx8"),
        ("A10G large", "a10g-large"),
        ("2x A10G large", "a10g-largex2"),
        ("A100 large", "a100-large"),
        ("4x A100 large", "a100x4"),
        ("2x RTX PRO 6000", "rtx-pro-6000x2"),
    ],
)
def test_flavor_of_a_machine(machine: str, flavor: str) -> None:
    assert hf_flavor(machine) == flavor


def test_every_machine_of_hf_has_a_flavor_of_huggingface_hub() -> None:
    hub = pytest.importorskip("huggingface_hub", minversion="2.4")
    flavors = {one.value for one in hub.JobHardware}
    machines = [one.name for one in shipped_prices().machines if one.cloud == "hf"]
    assert machines
    assert {name for name in machines if hf_flavor(name) not in flavors} == set()


def test_the_command_is_for_the_cheapest_clearly_faster_machine(tmp_path: Path) -> None:
    cost = hf_report(tmp_path)
    best = faster_choices(cost.rows)[0]
    command = job_text(cost, "hf", ("--name", "a b"))

    minutes = int(command.partition("--timeout ")[2].partition("m")[0])
    assert minutes * 60 >= best.time_ns.high / NS_PER_S > (minutes - 1) * 60
    assert command == (
        f"hf jobs run --flavor {hf_flavor(best.machine)} --timeout {minutes}m IMAGE "
        "python train.py --name 'a b'\n"
    )


def test_if_no_machine_is_faster_there_is_no_job(tmp_path: Path) -> None:
    cost = hf_report(tmp_path, step_s=1e-5)
    assert faster_choices(cost.rows) == []
    with pytest.raises(BreakevenError, match="is clearly faster than this one"):
        job_text(cost, "hf")


def test_a_module_runs_as_one(tmp_path: Path) -> None:
    cost = replace(hf_report(tmp_path), target="package.train")
    assert job_text(cost, "hf").endswith(" IMAGE python -m package.train\n")


def test_the_sky_file_is_read_as_a_task(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    cost = replace(cost_run(stored(tmp_path), request()), target="train.py")
    task = yaml.safe_load(job_text(cost, "sky", ("--lr", "0.1")))
    best = next(row for row in faster_choices(cost.rows) if row.provider != "hf")

    assert task == {
        "resources": {"infra": best.provider, "instance_type": best.machine},
        "workdir": ".",
        "run": "python train.py --lr 0.1\n",
    }


def test_a_machine_that_needs_another_script_gets_no_job(tmp_path: Path) -> None:
    cost = hf_report(tmp_path)
    best = faster_choices(cost.rows)[0]
    for change in ({"num_parts": 2}, {"num_gpus": 2}, {"meets_limits": False}):
        others = tuple(replace(row, **change) if row == best else row for row in cost.rows)
        assert f"--flavor {hf_flavor(best.machine)} " in job_text(cost, "hf")
        assert f"--flavor {hf_flavor(best.machine)} " not in job_text(
            replace(cost, rows=others), "hf"
        )


def test_what_no_machine_can_do_is_refused(tmp_path: Path) -> None:
    cost = cost_run(stored(tmp_path), request(clouds=("aws",)))
    with pytest.raises(BreakevenError, match="no chosen machine of hf surely fits") as raised:
        job_text(cost, "hf")
    assert raised.value.exit_code == 3
    function = replace(cost, target="train.py:step")
    with pytest.raises(UsageError, match="not the function train"):
        job_text(function, "sky")
