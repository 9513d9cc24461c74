"""Calibrated efficiencies: what share of its datasheet a device reaches, by kernel family."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal, Protocol, TypeVar

import msgspec

from breakeven.cost.kernel import Family, TileSet

TABLE_VERSION = 2

Arithmetic = Literal["vector", "tensor"]


class FamilyEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """How far a device gets in one family of kernels.

    Args:
        family: Family of the kernels.
        variant: Finer key, as in ``Kernel.variant``; empty for the common case.
        arithmetic: ``tensor`` where matrix units compute, else ``vector``.
        compute_fraction: Share of the peak, before the losses below. The peak is the datasheet's
            times the share that the board's power allows (`sustained_fraction`).
        tile_loss: A tile of m × n results reaches 1 / (1 + tile_loss × (1/m + 1/n)) of it.
        prologue_k: Steps of the contraction that filling the pipeline of a tile costs.
        tiles: Which tiles the library chooses from: those whose shorter side is at least a number,
            or a single one, rows along m × columns along n.
        memory_fraction: Share of the DRAM bandwidth.
        num_rows: Measurements that the fit used.
        median_error_fraction: Median of |predicted / measured - 1| over them.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    family: Family
    arithmetic: Arithmetic
    compute_fraction: float
    tile_loss: float
    prologue_k: float
    tiles: TileSet
    memory_fraction: float
    num_rows: int
    median_error_fraction: float
    log_sigma: float
    variant: str = ""


class DeviceEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of one device.

    Args:
        device: Its id in the catalogue.
        chip: Copied from the catalogue, as is the next: what its neighbours are found by.
        launch_generation: Its generation.
        sustained_fraction: Share of the boost clock that its power sustains; a board that clocks
            down says less of others, since its clock hides what else slows it.
        families: One entry for each family, variant and arithmetic that its tables cover.
        source: Tables that the rows are from.
    """

    device: str
    chip: str
    launch_generation: str
    sustained_fraction: float
    families: tuple[FamilyEfficiency, ...]
    source: str


class HeldOutError(msgspec.Struct, frozen=True, kw_only=True):
    """Error on devices of which the model had seen no row, pooled over devices.

    Args:
        family: Family of the kernels.
        variant: As in `FamilyEfficiency`.
        arithmetic: As in `FamilyEfficiency`.
        is_other_line: Whether all reference devices were of other vendors than the device.
        num_devices: Devices left out in turn.
        num_rows: Rows predicted.
        median_error_fraction: Median of |predicted / measured - 1|.
        p90_error_fraction: 90th percentile of the same.
        log_sigma: Standard deviation of log(predicted / measured) that covers 90 %.
    """

    family: Family
    arithmetic: Arithmetic
    is_other_line: bool
    num_devices: int
    num_rows: int
    median_error_fraction: float
    p90_error_fraction: float
    log_sigma: float
    variant: str = ""


class EfficiencyTable(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Every calibrated device, and how well others are predicted from them.

    Args:
        version: Of this format.
        provenance: How the table was made.
        devices: Calibrated devices.
        held_out: Leave-one-device-out errors.
    """

    version: int
    provenance: str
    devices: tuple[DeviceEfficiency, ...]
    held_out: tuple[HeldOutError, ...]


_Table = TypeVar("_Table", bound="_Versioned")


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


def read_shipped(package: str, name: str, kind: type[_Table], version: int) -> _Table:
    """Return a fitted table that ships with the package.

    Args:
        package: Where it lies.
        name: Of its file.
        kind: What it holds.
        version: That this code reads.

    Raises:
        ValueError: The file is of another version.
    """
    text = resources.files(package).joinpath(name).read_bytes()
    table = msgspec.json.decode(text, type=kind)
    if table.version != version:
        raise ValueError(f"{name} has version {table.version}, expected {version}")
    return table


@cache
def load_efficiencies() -> EfficiencyTable:
    """Return the table that ships with the package."""
    return read_shipped("breakeven.cost", "efficiency.json", EfficiencyTable, TABLE_VERSION)
