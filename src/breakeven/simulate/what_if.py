"""The effect of a change of a step on one device, fast enough to try many.

Also findings: the result of such a change, for `advise` and every report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.attribution import Attribution, attribution_of
from breakeven.simulate.cost_table import Lowered, cost_table
from breakeven.simulate.critical_path import CriticalPath, critical_path
from breakeven.simulate.priced_step import PricedStep, price
from breakeven.simulate.program import (
    FAST,
    MIXED,
    SLOW,
    TYPICAL,
    Z_90,
    Edit,
    Program,
    Scenario,
    lowered,
)
from breakeven.simulate.repeated_step import RepeatedStep
from breakeven.simulate.timelines import Timeline, timeline_of
from breakeven.timing import Estimate

_CORNERS = (TYPICAL, FAST, SLOW, *MIXED)
# The removed and the new events deviate independently of the rest of the step and of each other.
# Two independent errors are as likely to both be this large as one alone to be `Z_90`.
_APART = tuple(Scenario(deviation=sign * Z_90 / math.sqrt(2.0)) for sign in (-1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfResult:
    """A step after a change.

    Args:
        fixed: The step, as `predict_steps` would give it.
        gain_fraction: Fraction of the unchanged step that is saved; negative if it gets slower.
        gain_low_fraction: Lower end of its 90 % interval.
        gain_high_fraction: Upper end.
    """

    fixed: Estimate
    gain_fraction: float
    gain_low_fraction: float
    gain_high_fraction: float


class WhatIf:
    """A step on one device, and its times under changes.

    Args:
        program: The step.
        device: Device that runs it.
        host: Host that issues the work.
    """

    scenario = TYPICAL

    def __init__(self, program: Program, device: DeviceSpec, host: HostSpec) -> None:
        self._program = program
        self._table = cost_table((program,), (device,), host.for_device(device))

    @cached_property
    def timeline(self) -> Timeline:
        """Return the typical step in detail."""
        return timeline_of(self._table, self._repeated)

    @cached_property
    def spent_ns(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """Return the time of each event of the typical step on the host, and on the device."""
        spent: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for span in self.timeline.spans:
            own = spent[span.is_on_device]
            own[span.event] = own.get(span.event, 0.0) + span.end_ns - span.start_ns
        return spent

    @cached_property
    def step(self) -> Estimate:
        """Return the unchanged step."""
        return Estimate.predicted(*self._unchanged_ns[:3])

    def attribution(self) -> Attribution:
        """Return the typical step's time by cause and place."""
        return attribution_of(
            self._program, self._table, self._repeated, self._path, self.step.value_ns
        )

    def critical_events(self) -> frozenset[tuple[int, bool]]:
        """Return the events on the critical path, each with whether that is on the device."""
        events = self._table.rows.event
        return frozenset(
            (int(events[piece.point]), piece.spent.is_on_device) for piece in self._path.pieces
        )

    @cached_property
    def _repeated(self) -> RepeatedStep:
        return RepeatedStep(price(self._table, (self.scenario,), is_merged=False))

    @cached_property
    def _path(self) -> CriticalPath:
        return critical_path(self._repeated)

    @cached_property
    def _unchanged_ns(self) -> list[float]:
        return _steps_ns(price(self._table, _CORNERS))

    def fixed(self, edit: Edit | None, scenario: Scenario = TYPICAL) -> WhatIfResult:
        """Return the step after a change.

        The gain is that of the typical step. Its interval covers joint errors of host and kernels,
        opposite errors of the two, and separate errors of the removed and of the new events.

        Args:
            edit: Change of the step's events; None for no change.
            scenario: Circumstances after it, without its deviations.
        """

        def moved(corner: Scenario) -> Scenario:
            kernel = corner.kernel_deviation
            return replace(scenario, deviation=corner.deviation, kernel_deviation=kernel)

        table, base_ns = self._table, self._unchanged_ns
        if edit is None:
            fixed_ns = _steps_ns(price(table, [moved(corner) for corner in _CORNERS]))
        else:
            table, is_gone, is_new = table.edited(self._replaced(edit))
            fixed_ns = _steps_ns(price(table, [moved(corner) for corner in _CORNERS]))
            typical = (TYPICAL,) * len(_APART)
            base_ns = base_ns + _steps_ns(price(self._table, typical, deviating=(is_gone, _APART)))
            # If the removed events take longer, let the new ones take less.
            apart = [moved(corner) for corner in reversed(_APART)]
            fixed_ns += _steps_ns(
                price(table, [moved(TYPICAL)] * len(apart), deviating=(is_new, apart))
            )
        gains = [
            1.0 - fixed / base if base > 0 else 0.0
            for base, fixed in zip(base_ns, fixed_ns, strict=True)
        ]
        return WhatIfResult(
            fixed=Estimate.predicted(*fixed_ns[:3]),
            gain_fraction=gains[0],
            gain_low_fraction=min(gains),
            gain_high_fraction=max(gains),
        )

    def _replaced(self, edit: Edit) -> Mapping[int, tuple[Lowered, ...]]:
        """Return the new events by position, and all changed kernels if the settings change."""
        trace, costs = self._program.trace, self._program.costs
        settings = trace.settings if edit.settings is None else edit.settings
        replaced = {
            index: tuple((event, lowered(event, settings, costs)) for event in events)
            for index, events in edit.replaced.items()
        }
        if settings != trace.settings:
            old = enumerate(zip(trace.events, self._program.lowerings, strict=True))
            for index, (event, lowering) in old:
                changed = lowered(event, settings, costs)
                if changed != lowering and index not in replaced:
                    replaced[index] = ((event, changed),)
        return replaced


def _steps_ns(step: PricedStep) -> list[float]:
    """Return the times of the only program on the only device under each scenario."""
    return RepeatedStep(step).step_ns[0, 0].tolist()


Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Nanoseconds = Annotated[float, Meta(ge=0.0)]


class Severity(StrEnum):
    """The importance of a finding, by the fraction of the step that its fix should save.

    ``error`` is a line that raises or a wrong figure, ``high`` saves a fifth of the step or more,
    ``medium`` a twentieth, ``low`` a hundredth, ``info`` less or an unknown amount.
    """

    ERROR = "error"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Side(StrEnum):
    """The device of the step that a finding is about."""

    GPU = "gpu"
    CPU = "cpu"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a step is slower than it could be, at a line.

    Args:
        code: Stable code of the rule: ``SYNC001``.
        cause: Root cause that the rule detects: ``SYNC_ITEM``.
        title: One line for a person.
        file: The user's file; null if the finding has no line.
        line: Its line.
        share_fraction: Fraction of the step in the events of the finding.
        gain_fraction: Fraction of the step saved by the fix; 0 if unknown.
        fix: The change to make.
        gain_low_fraction: Lower end of the gain's 90 % interval.
        gain_high_fraction: Upper end.
        severity: Its importance.
        side: Device of the step in the figures.
        evidence: The evidence, in words: the event, the setting or the source.
        fixed_ns: Step after the fix, everything else unchanged; null without a what-if.
        fixed_low_ns: Lower end of its 90 % interval.
        fixed_high_ns: Upper end.
        frames: Functions of a training framework that do it, below the user's line and outermost
            first; empty if the line does it itself.
    """

    code: str
    cause: str
    title: str
    file: str | None
    line: int | None
    share_fraction: Fraction
    gain_fraction: Fraction
    fix: str
    gain_low_fraction: Fraction = 0.0
    gain_high_fraction: Fraction = 0.0
    severity: Severity = Severity.INFO
    side: Side = Side.GPU
    evidence: str = ""
    fixed_ns: Nanoseconds | None = None
    fixed_low_ns: Nanoseconds | None = None
    fixed_high_ns: Nanoseconds | None = None
    frames: tuple[str, ...] = ()
