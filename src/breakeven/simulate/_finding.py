"""What a what-if showed, as the doctor tells it and every report shows it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why the GPU is not (much) faster, at a line.

    Args:
        code: Stable code of the rule: ``SYNC001``.
        cause: Root cause that the rule detects: ``SYNC_ITEM``.
        title: One line for a person.
        file: The user's file; null where the finding has no line.
        line: Its line.
        share_fraction: Part of the step that the events of the finding take.
        gain_fraction: Part of the step saved by the fix, simulated; 0 for a line that raises.
        fix: What to change.
    """

    code: str
    cause: str
    title: str
    file: str | None
    line: int | None
    share_fraction: Fraction
    gain_fraction: Fraction
    fix: str
