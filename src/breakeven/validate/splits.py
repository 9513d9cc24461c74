"""Which groups a row is counted in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from breakeven.units import NS_PER_MS
from breakeven.verdict import LeaveOut, RowResult

# Below this, what the host spends to issue the step mostly decides how long it takes.
_SHORT_STEP_NS = 20 * NS_PER_MS
_NOT_GIVEN = "(not given)"

SPLIT_BY_PROTOCOL: Mapping[LeaveOut, str] = {
    LeaveOut.NONE: "shipped",
    LeaveOut.GPU: "new-gpu",
    LeaveOut.MODEL: "new-model",
}
CALIBRATED_ON = "calibrated-on"


def split_of(split: str, protocol: LeaveOut, *, is_calibrated_on: bool) -> str:
    """Return the split of a row: the table's own, or what the protocol makes of it.

    A row that the calibration has seen is no validation, whatever the table calls it.
    """
    if is_calibrated_on:
        return CALIBRATED_ON
    return split or SPLIT_BY_PROTOCOL[protocol]


def _regime(row: RowResult) -> str:
    return "under 20 ms" if row.value_ns < _SHORT_STEP_NS else "20 ms and over"


def _bound(row: RowResult) -> str:
    if row.prediction is None:
        return "(not predicted)"
    return "(not known)" if row.prediction.bound is None else row.prediction.bound.value


_SINGLE: Mapping[str, Callable[[RowResult], str]] = {
    "all": lambda _: "all",
    "split": lambda row: row.split,
    "source": lambda row: row.source or _NOT_GIVEN,
    "device": lambda row: row.device,
    "architecture": lambda row: row.architecture or "(not in the catalogue)",
    "workload": lambda row: row.workload,
    "precision": lambda row: row.precision.value,
    "phase": lambda row: row.phase.value,
    "era": lambda row: row.era or _NOT_GIVEN,
    "regime": _regime,
    "bound": _bound,
    "num_devices": lambda row: str(row.num_devices),
}
# Single figures that targets and published ones of others are about.
_CROSSED = (
    ("source", "phase"),
    ("regime", "bound"),
    ("split", "era"),
    ("split", "regime"),
    ("split", "bound"),
    ("split", "num_devices"),
)

GROUPINGS: tuple[str, ...] = (*_SINGLE, *(",".join(names) for names in _CROSSED))


def group_of(row: RowResult, by: str) -> str:
    """Return the group of a row under a grouping: ``precision``, or crossed, ``source,phase``."""
    return ",".join(_SINGLE[name](row) for name in by.split(","))


def groups_of(rows: Sequence[RowResult], by: str) -> dict[str, list[RowResult]]:
    """Return the rows of each group, groups in the order in which a person would sort them."""
    groups: dict[str, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(group_of(row, by), []).append(row)
    return {group: groups[group] for group in sorted(groups, key=_natural)}


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which ``2`` comes before ``16``, and ``(not known)`` last."""
    if text.startswith("("):
        return ((2, 0, text),)
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
