"""What a what-if showed, as the doctor tells it and every report shows it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Nanoseconds = Annotated[float, Meta(ge=0.0)]


class Severity(StrEnum):
    """How much a finding matters, by the part of the step that its fix is predicted to save.

    ``error`` is a line that raises or a figure that is wrong, ``high`` saves a fifth of the step
    or more, ``medium`` a twentieth, ``low`` a hundredth, ``info`` less or an amount that nothing
    here can tell.
    """

    ERROR = "error"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"


class Side(StrEnum):
    """Whose step a finding is about."""

    GPU = "gpu"
    CPU = "cpu"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a step is slower than it could be, at a line.

    Args:
        code: Stable code of the rule: ``SYNC001``.
        cause: Root cause that the rule detects: ``SYNC_ITEM``.
        title: One line for a person.
        file: The user's file; null where the finding has no line.
        line: Its line.
        share_fraction: Part of the step that the events of the finding take.
        gain_fraction: Part of the step saved by the fix; 0 where nothing here can tell.
        fix: What to change.
        gain_low_fraction: Lower end of the gain's 90 % interval.
        gain_high_fraction: Upper end.
        severity: How much it matters.
        side: Whose step the figures are of.
        evidence: What shows it, in words: the event, the setting or the source.
        fixed_ns: Step after the fix, everything else unchanged; null where no what-if tells.
        fixed_low_ns: Lower end of its 90 % interval.
        fixed_high_ns: Upper end.
        frames: Functions of a training framework in which it happens, below the user's line and
            outermost first; empty where the line does it itself.
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
