"""The efficiency table: every device with timed kernels, and how well others tell of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from breakeven.calibrate.family_fit import (
    TABLE_WARM_FRACTION,
    FamilyKey,
    Floats,
    Quality,
    fit_family,
    measured_ns,
    rounded,
)
from breakeven.calibrate.tables import TimedKernel
from breakeven.cost import (
    TABLE_VERSION,
    DeviceEfficiency,
    EfficiencyTable,
    FamilyEfficiency,
    HeldOutError,
    arithmetic_of,
    calibrated_variant,
    is_from_other_vendors,
    kernel_times,
    sustained_fraction,
)
from breakeven.device import DeviceSpec

# Fewer rows than this cannot tell four parameters apart: then only the leading one is fitted.
_MIN_ROWS = 28


def fit_table(timed: Sequence[TimedKernel], provenance: str) -> EfficiencyTable:
    """Return the efficiencies of every device with rows, and the leave-one-chip-out errors."""
    alone = [row for row in timed if not row.others]
    shared = [row for row in timed if row.others]
    if shared:
        families = {kernel.family for row in shared for kernel in row.others}
        known = [row for row in alone if row.kernel.family in families]
        timed = [*alone, *_without_others(shared, _fit_devices(known, provenance))]
    table = _fit_devices(timed, provenance)
    return msgspec.structs.replace(table, held_out=held_out_errors(table, timed))


def _without_others(rows: Sequence[TimedKernel], table: EfficiencyTable) -> Iterator[TimedKernel]:
    """Yield ``rows`` without the time of their other kernels, as ``table`` predicts it.

    Rows of which the others take most are left out: what remains would be their error.
    """
    for row in rows:
        others = kernel_times(
            row.others, [row.device], efficiencies=table, warm_fraction=TABLE_WARM_FRACTION
        )
        remaining_ns = row.time_ns - float(others.time_ns.sum())
        if remaining_ns > row.time_ns / 2:
            yield replace(row, time_ns=remaining_ns, others=())


def held_out_errors(
    table: EfficiencyTable, timed: Sequence[TimedKernel]
) -> tuple[HeldOutError, ...]:
    """Return the errors on each device as the others tell of it, pooled by family.

    Devices with the same chip are left out together, since they would give the answer away.
    """
    ratios: dict[tuple[FamilyKey, bool], list[Floats]] = defaultdict(list)
    for device, rows in _by_device(timed).items():
        spec = rows[0].device
        siblings = {row.device.id for row in timed if _has_same_chip(row.device, spec)}
        others = msgspec.structs.replace(
            table, devices=tuple(item for item in table.devices if item.device not in siblings)
        )
        assert device in siblings
        known = {
            (entry.family, entry.variant, entry.arithmetic)
            for item in others.devices
            for entry in item.families
        }
        for key, members in _by_family(rows).items():
            # With few rows chance decides; with no reference but a relative there is no answer.
            if len(members) < _MIN_ROWS or key not in known:
                continue
            is_other_line = is_from_other_vendors(others, spec, *key)
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
