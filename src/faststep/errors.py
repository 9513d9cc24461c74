"""The one error of this package."""

from __future__ import annotations


class FastStepError(Exception):
    """A step cannot be compiled, or an argument is wrong.

    Args:
        message: The error, with the value that caused it.
        hint: The suggested fix.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it
