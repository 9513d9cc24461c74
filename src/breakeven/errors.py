"""Errors that a user meets, and the caveats that a report shows with a figure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class BreakevenError(Exception):
    """Something that the user asked for could not be done.

    Args:
        message: The failure, with the value that caused it.
        hint: The remedy.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it, in a notebook too

    @property
    def sentence(self) -> str:
        """Return the message and the hint in one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(BreakevenError):
    """The command line or the arguments of a call make no sense."""

    exit_code = 2


class UnknownDeviceError(BreakevenError):
    """A device name that matches no entry, or several entries, of the catalogue."""


class ScriptError(BreakevenError):
    """The user's script failed, or never reached a training step.

    Args:
        message: The failure.
        hint: The remedy.
        file: The user's file in which it happened, if known.
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
    """The workload's spec names nothing that can be built, or its step cannot be traced."""


class Caveat(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust a figure less, shown by every report that shows the figure.

    Args:
        code: Stable identifier, such as ``uncosted-op``.
        message: One sentence for a person.
    """

    code: str
    message: str


def has_caveat(caveats: Iterable[Caveat], code: str) -> bool:
    """Return whether ``caveats`` contains one with this code."""
    return any(caveat.code == code for caveat in caveats)
