"""The networks of GPU-Insights are those of its table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "parameters", "image"),
    [("vit_b16", 85.8, 224), ("unet_31m", 31.0, 256), ("ddpm_62m", 62.3, 64)],
)
def test_networks_have_the_parameters_that_the_table_states(
    name: str, parameters: float, image: int
) -> None:
    networks = load_script(BENCHMARKS / "insights_networks.py", "insights_networks")
    with torch.device("meta"):
        model, images, loss = getattr(networks, name)(2)
        assert loss(model(images)).shape == ()
    assert images.shape == (2, 3, image, image)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert round(count / 1e6, 1) == parameters


def test_the_table_gets_specs(tmp_path: Path) -> None:
    networks = load_script(BENCHMARKS / "insights_networks.py", "insights_networks")
    table, steps = tmp_path / "table.csv", tmp_path / "steps.csv"
    table.write_text("workload,compile,memory_format,optimizer\nvit_b16,not recorded,any,sgd\n")
    assert networks.main([str(table), "-o", str(steps)]) == 0
    (row,) = csv.DictReader(steps.read_text().splitlines())
    assert row["workload"].endswith("insights_networks.py:vit_b16")
    assert (row["compile"], row["memory_format"], row["optimizer"]) == (
        "none", "contiguous", "sgd (fused)",
    )  # fmt: skip
