"""Which rows of timm's tables the calibration learns from."""

from __future__ import annotations

import csv
from pathlib import Path

from factories.loaded_scripts import load_script

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
COLUMNS = ("workload", "family", "device", "framework", "memory_format", "compile", "value_ms")
ROWS = (
    ("timm:a_small", "a", "RTX 3090", "torch 1.11 cu113", "contiguous", "none", "1"),
    ("timm:a_small", "a", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "none", "2"),
    # A network that fewer versions were tried with.
    ("timm:a_large", "a", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "none", "3"),
    ("timm:b", "b", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "", "4"),
    ("timm:b", "b", "RTX 3090", "torch 2.4.0 cu124", "contiguous", "default", "5"),
    ("timm:b", "b", "RTX 3090", "torch 2.4.0 cu124", "channels_last", "none", "6"),
    ("timm:b", "b", "RTX 4090", "torch 2.4.0 cu124", "contiguous", "none", "7"),
    ("timm:b", "b", "RTX 3090", "torch 1.12 cu113", "contiguous", "none", "8"),
)


def write(path: Path, rows: tuple[tuple[str, ...], ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def test_one_eager_network_of_each_family_by_the_versions_asked_for(tmp_path: Path) -> None:
    script = load_script(BENCHMARKS / "calibration_rows.py")
    chosen = tmp_path / "rows.csv"
    assert script.main([str(write(tmp_path / "all.csv", ROWS)), "-o", str(chosen)]) == 0
    with chosen.open(newline="") as file:
        assert [row["value_ms"] for row in csv.DictReader(file)] == ["1", "2", "4"]


def test_a_table_without_such_a_row_is_told(tmp_path: Path) -> None:
    script = load_script(BENCHMARKS / "calibration_rows.py")
    table = write(tmp_path / "all.csv", ROWS[-2:])
    assert script.main([str(table), "-o", str(tmp_path / "rows.csv")]) == 1
    assert not (tmp_path / "rows.csv").exists()
