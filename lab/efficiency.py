"""Fit the efficiencies that ship, for each GPU with timed kernels, and their held-out errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from breakeven.calibrate.fit import (
    TABLE_WARM_FRACTION,
    FamilyKey,
    Floats,
    Quality,
    TimedKernel,
    fit_family,
    measured_ns,
    rounded,
    without_others,
)
from breakeven.cost import (
    TABLE_VERSION,
    DeviceEfficiency,
    EfficiencyTable,
    FamilyEfficiency,
    HeldOutError,
    arithmetic_of,
    calibrated_variant,
    kernel_times,
    sustained_fraction,
)
from breakeven.device import DeviceSpec, generations_between
from breakeven.errors import BreakevenError
from breakeven.units import format_percent
from lab.timed_tables import read_tables

# Fewer rows cannot determine four parameters, so only the leading one is fitted.
_MIN_ROWS = 28
_PROVENANCE = (
    "Fitted by `python -m lab.fit efficiency` to public measurements of single operators: "
    "neusight, https://github.com/sitar-lab/NeuSight (torch 2.1 and 2.4, fp32, one operator at a "
    "time on an idle GPU, the fastest rows taken off as dispatch); deepbench, "
    "https://github.com/baidu-research/DeepBench (library calls in C++ loops, 2016-2019); "
    "te42kyfo, https://github.com/te42kyfo/gpu-benches (streams, commit 1c36d50); mlx-benchmark, "
    "https://github.com/TristanBilot/mlx-benchmark (MPS of Apple's chips, each call waited for, "
    "commit 85c5376); and peak GEMM "
    "rates of mli, https://github.com/mli/transformers-benchmarks (commit 3370b2b), and stas00, "
    "https://github.com/stas00/ml-engineering (commit 744d01e). The source of each device names "
    "its tables by these words; CONTRIBUTING.md says what a table holds."
)


def fit_efficiencies(tables: Path) -> EfficiencyTable:
    """Fit the efficiencies of devices to the tables in a folder.

    Args:
        tables: Folder of CSV files; CONTRIBUTING.md lists them and their columns.

    Raises:
        BreakevenError: If a table is missing.
    """
    try:
        timed = read_tables(tables)
    except FileNotFoundError as error:
        raise BreakevenError(
            f"there is no table {error.filename}",
            hint="CONTRIBUTING.md lists the tables of a calibration",
        ) from None
    return fit_table(timed, _PROVENANCE)


def fit_table(timed: Sequence[TimedKernel], provenance: str) -> EfficiencyTable:
    """Fit the efficiencies of every device with rows, and the leave-one-chip-out errors."""
    alone = [row for row in timed if not row.others]
    shared = [row for row in timed if row.others]
    if shared:
        families = {kernel.family for row in shared for kernel in row.others}
        known = [row for row in alone if row.kernel.family in families]
        first = _fit_devices(known, provenance)
        timed = [*alone, *filter(None, (without_others(row, first) for row in shared))]
    table = _fit_devices(timed, provenance)
    return msgspec.structs.replace(table, held_out=held_out_errors(table, timed))


def held_out_errors(
    table: EfficiencyTable, timed: Sequence[TimedKernel]
) -> tuple[HeldOutError, ...]:
    """Return the errors on each device when predicted from the others, pooled by family.

    Devices with the same chip are left out together, since their efficiencies are nearly equal.
    """
    ratios: dict[tuple[FamilyKey, bool], list[Floats]] = defaultdict(list)
    for device, rows in _by_device(timed).items():
        spec = rows[0].device
        siblings = {row.device.id for row in timed if _has_same_chip(row.device, spec)}
        others = msgspec.structs.replace(
            table, devices=tuple(item for item in table.devices if item.device not in siblings)
        )
        assert device in siblings
        known: dict[FamilyKey, set[str]] = defaultdict(set)
        for item in others.devices:
            for entry in item.families:
                key = (entry.family, entry.variant, entry.arithmetic)
                known[key].add(item.launch_generation)
        for key, members in _by_family(rows).items():
            # A few rows depend on chance, and a family known only from relatives has no answer.
            if len(members) < _MIN_ROWS or key not in known:
                continue
            is_other_line = all(
                generations_between(spec.launch_generation, own) is None for own in known[key]
            )
            predicted = kernel_times(
                [row.kernel for row in members],
                [spec],
                efficiencies=others,
                warm_fraction=TABLE_WARM_FRACTION,
            ).time_ns[:, 0]
            ratios[key, is_other_line].append(np.log(predicted / measured_ns(members)))
    errors: list[HeldOutError] = []
    for ((family, variant, arithmetic), is_other_line), parts in ratios.items():
        pooled = np.concatenate(parts)
        quality = Quality.of(pooled)
        errors.append(
            HeldOutError(
                family=family,
                variant=variant,
                arithmetic=arithmetic,
                is_other_line=is_other_line,
                num_devices=len(parts),
                num_rows=len(pooled),
                median_error_fraction=rounded(quality.median_error_fraction),
                p90_error_fraction=rounded(quality.p90_error_fraction),
                log_sigma=rounded(quality.log_sigma),
            )
        )
    return tuple(sorted(errors, key=lambda error: (error.family, error.arithmetic, error.variant)))


def _fit_devices(timed: Sequence[TimedKernel], provenance: str) -> EfficiencyTable:
    fitted: dict[str, list[FamilyEfficiency]] = defaultdict(list)
    sparse: list[tuple[str, FamilyKey, list[TimedKernel]]] = []
    devices = _by_device(timed)
    for device, rows in devices.items():
        for key, members in _by_family(rows).items():
            if len(members) >= _MIN_ROWS:
                fitted[device].append(fit_family(key, members, None))
            else:
                sparse.append((device, key, members))

    def as_table() -> EfficiencyTable:
        return EfficiencyTable(
            version=TABLE_VERSION,
            provenance=provenance,
            devices=tuple(
                DeviceEfficiency(
                    device=device,
                    chip=rows[0].device.chip,
                    launch_generation=rows[0].device.launch_generation,
                    sustained_fraction=rounded(sustained_fraction(rows[0].device)),
                    families=tuple(fitted[device]),
                    source="; ".join(sorted({row.source for row in rows})),
                )
                for device, rows in devices.items()
                if fitted[device]
            ),
            held_out=(),
        )

    full = as_table()
    for device, key, members in sparse:
        fitted[device].append(fit_family(key, members, full))
    return as_table()


def _by_device(timed: Iterable[TimedKernel]) -> dict[str, list[TimedKernel]]:
    groups: dict[str, list[TimedKernel]] = defaultdict(list)
    for row in timed:
        groups[row.device.id].append(row)
    return groups


def _by_family(rows: Iterable[TimedKernel]) -> dict[FamilyKey, list[TimedKernel]]:
    groups: dict[FamilyKey, list[TimedKernel]] = defaultdict(list)
    for row in rows:
        kernel = row.kernel
        variant = calibrated_variant(kernel.family, kernel.variant)
        groups[kernel.family, variant, arithmetic_of(kernel, row.device)].append(row)
    return groups


def _has_same_chip(device: DeviceSpec, other: DeviceSpec) -> bool:
    return device.id == other.id or (bool(device.chip) and device.chip == other.chip)


def describe_efficiencies(table: EfficiencyTable) -> str:
    """Return the errors of a table as text, one line per family."""
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
