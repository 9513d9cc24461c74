"""The efficiency table: made from tables of timed operators, and described."""

from __future__ import annotations

from pathlib import Path

import msgspec

from breakeven.calibrate.fit import fit_table
from breakeven.calibrate.tables import read_tables
from breakeven.cost import EfficiencyTable
from breakeven.errors import BreakevenError
from breakeven.units import format_percent

_PROVENANCE = (
    "Fitted by `breakeven calibrate --from-tables` to public measurements of single operators: "
    "neusight, https://github.com/sitar-lab/NeuSight (torch 2.1 and 2.4, fp32, one operator at a "
    "time on an idle GPU, the fastest rows taken off as dispatch); deepbench, "
    "https://github.com/baidu-research/DeepBench (library calls in C++ loops, 2016-2019); "
    "te42kyfo, https://github.com/te42kyfo/gpu-benches (streams, commit 1c36d50); and peak GEMM "
    "rates of mli, https://github.com/mli/transformers-benchmarks (commit 3370b2b), and stas00, "
    "https://github.com/stas00/ml-engineering (commit 744d01e). The source of each device names "
    "its tables by these words; CONTRIBUTING.md says what a table holds."
)


def fit_efficiencies(tables: Path) -> EfficiencyTable:
    """Return the efficiencies of devices, fitted to the tables in a folder.

    Args:
        tables: Folder of CSV files; CONTRIBUTING.md says which, and their columns.

    Raises:
        BreakevenError: A table is missing.
    """
    try:
        timed = read_tables(tables)
    except FileNotFoundError as error:
        raise BreakevenError(
            f"there is no table {error.filename}",
            hint="CONTRIBUTING.md lists the tables of a calibration",
        ) from None
    return fit_table(timed, _PROVENANCE)


def efficiencies_document(table: EfficiencyTable) -> bytes:
    """Return a table as it is kept in ``cost/efficiency.json``."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"


def describe_efficiencies(table: EfficiencyTable) -> str:
    """Return the errors of a table as text, a line for each family."""
    lines = ["left out      family, variant, arithmetic        median    P90  sigma  rows"]
    for error in table.held_out:
        name = f"{error.family} {error.variant or '-'} {error.arithmetic}"
        kind = "other vendor" if error.is_other_line else f"{error.num_devices} devices"
        lines.append(
            f"{kind:13} {name:36} {format_percent(error.median_error_fraction):>6} "
            f"{format_percent(error.p90_error_fraction):>6} {error.log_sigma:6.2f} "
            f"{error.num_rows:5}"
        )
    lines.append("own rows")
    for device in table.devices:
        for entry in device.families:
            name = f"{entry.family} {entry.variant or '-'} {entry.arithmetic}"
            lines.append(
                f"{device.device:18} {name:36} {format_percent(entry.median_error_fraction):>6} "
                f"sigma {entry.log_sigma:.2f} rows {entry.num_rows:4} "
                f"compute {entry.compute_fraction:.2f} tile {entry.tile_loss:.1f} "
                f"k {entry.prologue_k:.0f} tiles {entry.tiles} "
                f"memory {entry.memory_fraction:.2f}"
            )
    return "\n".join(lines) + "\n"
