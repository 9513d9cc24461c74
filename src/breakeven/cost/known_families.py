"""How each family of kernels is known: measured on which devices, or like which other family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from breakeven.cost.efficiency import EfficiencyTable
from breakeven.cost.kernel import Arithmetic, Family
from breakeven.cost.relatives import DEPTHWISE, RELATIVES, SMALL_RECURRENT, Relative


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFamily:
    """How one family of kernels is known.

    Args:
        family: Of the kernels.
        variant: As in `Kernel.variant`; empty for the common case.
        arithmetic: ``tensor`` where matrix units compute, else ``vector``; None for both.
        devices: Ids of the devices on which it was measured.
        num_rows: Measurements.
        relative: What it is taken to be like, where none was measured.
        unseen_median: Median error on devices that were left out; None where none was.
        unseen_p90: 90th percentile of the same.
    """

    family: Family
    variant: str
    arithmetic: Arithmetic | None
    devices: tuple[str, ...] = ()
    num_rows: int = 0
    relative: Relative | None = None
    unseen_median: float | None = None
    unseen_p90: float | None = None


def known_families(table: EfficiencyTable) -> tuple[KnownFamily, ...]:
    """Return how each family is known: what was measured first, then what is like another.

    Errors on devices left out are those with a reference of the same vendor.

    Args:
        table: Every calibrated device.
    """
    return (*_measured(table), *_alike(table))


def _measured(table: EfficiencyTable) -> Iterator[KnownFamily]:
    errors = {
        (error.family, error.variant, error.arithmetic): error
        for error in table.held_out
        if not error.is_other_line
    }
    entries = [(device.device, entry) for device in table.devices for entry in device.families]
    keys: set[tuple[Family, str, Arithmetic]] = {
        (entry.family, entry.variant, entry.arithmetic) for _, entry in entries
    }
    order = list(Family)
    for key in sorted(keys, key=lambda key: (order.index(key[0]), key)):
        family, variant, arithmetic = key
        own = [
            (device, entry)
            for device, entry in entries
            if (entry.family, entry.variant, entry.arithmetic) == key
        ]
        error = errors.get(key)
        yield KnownFamily(
            family=family,
            variant=variant,
            arithmetic=arithmetic,
            devices=tuple(device for device, _ in own),
            num_rows=sum(entry.num_rows for _, entry in own),
            unseen_median=error.median_error_fraction if error else None,
            unseen_p90=error.p90_error_fraction if error else None,
        )


def _alike(table: EfficiencyTable) -> Iterator[KnownFamily]:
    measured = {entry.family for device in table.devices for entry in device.families}
    yield KnownFamily(
        family=Family.CONVOLUTION, variant="depthwise", arithmetic=None, relative=DEPTHWISE
    )
    yield KnownFamily(
        family=Family.RECURRENT, variant="small", arithmetic=None, relative=SMALL_RECURRENT
    )
    # Layer norms alone were timed, and stand in for no others.
    yield KnownFamily(
        family=Family.NORMALIZATION,
        variant="batch, group, rms",
        arithmetic=None,
        relative=RELATIVES[Family.NORMALIZATION],
    )
    for family, relative in RELATIVES.items():
        if family not in measured:
            # On matrix units attention has rates of its own.
            arithmetic = "vector" if family is Family.ATTENTION else None
            yield KnownFamily(family=family, variant="", arithmetic=arithmetic, relative=relative)
