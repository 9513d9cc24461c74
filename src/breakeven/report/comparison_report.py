"""The differences between two stored runs, as values.

The JSON schema is generated from these types, so a changed key breaks the contract: raise
``COMPARISON_SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from breakeven.report.system_report import ClaimOutcome
from breakeven.simulate import Finding
from breakeven.timing import Source
from breakeven.verdict.report import Crossover, NoCrossover, Verdict
from breakeven.verdict.results import Nanoseconds
from breakeven.verdict.sweep_report import AxisValue

COMPARISON_SCHEMA_VERSION = 1

PointKey = tuple[str, str, str, tuple[tuple[str, AxisValue], ...]]


def settings_key(settings: Mapping[str, AxisValue]) -> tuple[tuple[str, AxisValue], ...]:
    """Return settings as a dictionary key, independent of the order of the axes."""
    return tuple(sorted(settings.items(), key=lambda item: item[0]))


class Change(StrEnum):
    """The change of a time between two runs."""

    FASTER = "faster"
    SLOWER = "slower"
    NOT_SHOWN = "not_shown"
    """The difference is within the intervals."""


class CrossoverShift(StrEnum):
    """The change of a crossover between two runs."""

    EARLIER = "earlier"
    LATER = "later"
    NOT_SHOWN = "not_shown"
    """The intervals overlap."""
    FOUND = "found"
    """There was none before."""
    LOST = "lost"
    """There is none any more."""
    NONE = "none"
    """Neither run has one."""


class PointName(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one step time within a run.

    Args:
        group: The system, if a run has several; else empty.
        device: Name of the device; for a table, the subject of its row.
        settings: The value of every axis; for a table, its title and column.
        variant: ``compiled`` for the step under ``torch.compile``; else empty.
    """

    group: str
    device: str
    settings: dict[str, AxisValue]
    variant: str = ""

    @property
    def key(self) -> PointKey:
        """Return the same as a dictionary key, independent of the order of the axes."""
        return self.group, self.device, self.variant, settings_key(self.settings)


class FactChange(msgspec.Struct, frozen=True, kw_only=True):
    """A circumstance of the runs that differs.

    Args:
        name: Name of the circumstance.
        before: Its value in the first run.
        after: Its value in the second run.
    """

    name: str
    before: str
    after: str


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the traced step that differs.

    Args:
        name: Its key in the report.
        before: Its value in the first run; null if unknown.
        after: Its value in the second run; null if unknown.
    """

    name: str
    before: int | None
    after: int | None


class ClaimChange(msgspec.Struct, frozen=True, kw_only=True):
    """A published claim that both runs checked.

    Args:
        system: Name of the system.
        claim: The statement.
        before: Whether the first run agrees.
        after: Whether the second run agrees.
        before_ours: The figure of the first run.
        after_ours: The figure of the second run.
    """

    system: str
    claim: str
    before: ClaimOutcome
    after: ClaimOutcome
    before_ours: str
    after_ours: str


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One step time in both runs.

    Args:
        point: The step time's identity.
        before_ns: Time in the first run.
        after_ns: Time in the second run.
        before_source: Whether the first was measured or predicted.
        after_source: Whether the second was measured or predicted.
        ratio: The second time divided by the first; below 1 means faster.
        low: Lower end of its 90 % interval. Two similar predictions for one GPU share most of their
            error; other errors count as independent.
        high: Upper end.
        change: The change, if it is beyond the interval.
    """

    point: PointName
    before_ns: Nanoseconds
    after_ns: Nanoseconds
    before_source: Source
    after_source: Source
    ratio: float
    low: float
    high: float
    change: Change


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True):
    """All step times of a device in both runs.

    Args:
        group: The system, if a run has several; else empty.
        device: Name of the device.
        num_points: Number of step times in both runs.
        num_faster: Number of times that became faster beyond their interval.
        num_slower: Number of times that became slower beyond their interval.
        ratio: Median of the ratios.
        low: Median of the lower ends of their intervals.
        high: Median of the upper ends.
        change: The change according to ``ratio``, ``low`` and ``high``.
        variant: See `PointName`.
    """

    group: str
    device: str
    num_points: int
    num_faster: int
    num_slower: int
    ratio: float
    low: float
    high: float
    change: Change
    variant: str = ""


class VerdictChange(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of both runs.

    Args:
        before: Verdict of the first run.
        after: Verdict of the second run.
    """

    before: Verdict
    after: Verdict


class CrossoverChange(msgspec.Struct, frozen=True, kw_only=True):
    """A crossover in both runs.

    Args:
        group: The system, if a run has several; else empty.
        device: The GPU; empty for a check, whose GPU may differ between the runs.
        axis: The varied quantity.
        held: The value of every other axis.
        before: The crossover in the first run; null if it was not searched.
        after: The crossover in the second run; null if it was not searched.
        shift: The difference; null if one run did not search.
    """

    group: str
    device: str
    axis: str
    held: dict[str, AxisValue]
    before: Crossover | NoCrossover | None
    after: Crossover | NoCrossover | None
    shift: CrossoverShift | None


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven compare`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        facts: Differences in the circumstances of the runs.
        verdicts: Verdicts of two checks; else null.
        devices: Median change of each device in both runs.
        times: Change of each step time in both runs.
        only_before: Step times of the first run only.
        only_after: Step times of the second run only.
        incomparable: Step times that are 0 or outside their own interval in one of the runs.
        crossovers: Crossovers in both runs.
        steps: Differing numbers of the traced step, for two checks.
        findings_gone: Findings of the first run only.
        findings_new: Findings of the second run only.
        claims: Published claims whose outcome or measured figure differs.
    """

    schema_version: int
    facts: tuple[FactChange, ...]
    verdicts: VerdictChange | None
    devices: tuple[DeviceChange, ...]
    times: tuple[TimeChange, ...]
    only_before: tuple[PointName, ...] = ()
    only_after: tuple[PointName, ...] = ()
    incomparable: tuple[PointName, ...] = ()
    crossovers: tuple[CrossoverChange, ...] = ()
    steps: tuple[CountChange, ...] = ()
    findings_gone: tuple[Finding, ...] = ()
    findings_new: tuple[Finding, ...] = ()
    claims: tuple[ClaimChange, ...] = ()
