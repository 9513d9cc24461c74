"""The cells of one record of a table, each read as what its column holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from breakeven.errors import BreakevenError

_Choice = TypeVar("_Choice", bound=StrEnum)

# float() and int() also take "nan", "1_000" and digits of other scripts, which are mistakes here.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,10}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_COUNT = 1_000_000_000
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """One record of a table.

    Args:
        place: File and line, for error messages.
        by_column: Text of each cell, without spaces around it.
    """

    place: str
    by_column: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell that may be empty, or the empty text where there is no such column."""
        return self.by_column.get(column, "")

    def name(self, column: str) -> str:
        """Return a cell that must not be empty."""
        text = self.text(column)
        if not text:
            raise self.refused(column, "a name")
        return text

    def choice(
        self, column: str, choices: type[_Choice], *, default: _Choice | None = None
    ) -> _Choice:
        """Return the member that a cell names; ``default`` where it is empty or not there."""
        text = self._or_default(column, default)
        if text not in [choice.value for choice in choices]:
            raise self.refused(column, ", ".join(choice.value for choice in choices))
        return choices(text)

    def count(self, column: str, *, default: int | None = None) -> int:
        """Return a whole number of at least 1; ``default`` where the cell is empty or not there."""
        text = self._or_default(column, None if default is None else str(default))
        if not _WHOLE_NUMBER.fullmatch(text) or not 1 <= int(text) <= _LARGEST_COUNT:
            raise self.refused(column, f"a whole number from 1 to {_LARGEST_COUNT:,}")
        return int(text)

    def positive(self, column: str, *, most: float, unit: str) -> float:
        """Return a number above 0 and up to ``most``."""
        text = self.text(column)
        value = float(text) if _DECIMAL.fullmatch(text) else math.nan
        if not 0 < value <= most:
            raise self.refused(column, f"a number of {unit} above 0 and up to {most:,.0f}")
        return value

    def refused(self, column: str, allowed: str) -> BreakevenError:
        """Return the error of a cell that does not hold what its column allows."""
        text = self.text(column)
        if len(text) > _SHOWN_CHARACTERS:
            text = text[:_SHOWN_CHARACTERS] + "…"
        shown = f"“{text}”" if text else "an empty cell"
        return BreakevenError(f"{self.place}: column {column}: {shown}", hint=f"allowed: {allowed}")

    def _or_default(self, column: str, default: str | None) -> str:
        return self.text(column) or default or ""
