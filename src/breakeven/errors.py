"""Every error that a user meets, and the caveats that a report carries instead of a guess."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class BreakevenError(Exception):
    """Something that the user asked for could not be done.

    Args:
        message: What went wrong, with the value that caused it.
        hint: What to do about it.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def sentence(self) -> str:
        """Return both, for where there is a line for them."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(BreakevenError):
    """The command line or the arguments of a call make no sense."""

    exit_code = 2


class UnknownDeviceError(BreakevenError):
    """A device name that matches no entry, or several entries, of the catalogue."""


class ScriptError(BreakevenError):
    """The user's script failed, or never reached a training step.

    Args:
        message: What went wrong.
        hint: What to do about it.
        file: The user's file in which it happened, where known.
        line: The line of that file.
        output: The end of what the script printed.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: str | None = None,
        line: int | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.line = line
        self.output = output


class StoredDataError(BreakevenError):
    """A file that breakeven wrote cannot be read back: cut off, edited, or of another version."""


class WorkloadError(BreakevenError):
    """The spec of a workload names nothing that can be built here, or its step cannot be traced."""


class Caveat(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust a figure less, shown by every report that shows the figure.

    Args:
        code: Stable identifier, such as ``uncosted-op``.
        message: One sentence for a person.
    """

    code: str
    message: str


def has_caveat(caveats: Iterable[Caveat], code: str) -> bool:
    """Return whether a caveat of that code is among some."""
    return any(caveat.code == code for caveat in caveats)
