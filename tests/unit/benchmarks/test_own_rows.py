"""Which rows teach what is peculiar to their GPUs."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from types import ModuleType

import pytest

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

# Workload, family, device, framework, memory format, mode of torch.compile.
ROWS = (
    ("timm:deep?img=224", "deep", "RTX 3090", "torch 1.12 cu113", "contiguous", "none"),
    ("timm:deep?img=224", "deep", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "none"),
    ("timm:deep?img=224", "deep", "RTX 3090", "torch 2.4.0 cu124", "channels_last", "none"),
    ("timm:deep?img=224", "deep", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "default"),
    ("timm:deep?img=224", "deep", "CPU Core i9-10940X", "torch 2.4.0", "contiguous", "none"),
    ("timm:deeper", "deep", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "none"),
    ("timm:wide", "wide", "RTX 4090", "torch 2.4.0 cu124", "contiguous", ""),
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_script(BENCHMARKS / "own_rows.py")


def test_one_network_of_each_family_that_was_timed_most_often(
    tmp_path: Path, script: ModuleType
) -> None:
    columns = ("workload", "family", "device", "framework", "memory_format", "compile", "value_ms")
    table = tmp_path / "timm.csv.gz"
    with gzip.open(table, "wt", newline="") as file:
        csv.writer(file).writerows([columns, *((*row, "1.5") for row in ROWS)])
    chosen = tmp_path / "rows.csv"
    assert script.main([str(table), "-o", str(chosen)]) == 0
    with chosen.open(newline="") as file:
        rows = [(row["workload"], row["device"]) for row in csv.DictReader(file)]
    # From torch 1.13 on with the norms of timm's own results.
    assert rows == [
        ("timm:deep?img=224", "RTX 3090"),
        ("timm:deep?img=224&fast_norm=1", "RTX 3090"),
        ("timm:wide?fast_norm=1", "RTX 4090"),
    ]


def test_tables_without_such_rows_are_told(tmp_path: Path, script: ModuleType) -> None:
    table, chosen = tmp_path / "timm.csv", tmp_path / "rows.csv"
    table.write_text("workload,family,device,framework,memory_format,compile,value_ms\n")
    assert script.main([str(table), "-o", str(chosen)]) == 1
    assert not chosen.exists()
