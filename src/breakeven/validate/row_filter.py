"""Rows of a table that a person asked for alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of

from breakeven.errors import BreakevenError, UsageError
from breakeven.validate.table_row import TableRow

# Numbers of a row that were measured are not what rows are chosen by.
_KEYS = tuple(field.name for field in fields_of(TableRow) if field.name not in {"value_ns", "note"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Which rows of a table count: those with one of the values in each column.

    Args:
        values_by_column: Allowed texts of each column, in any case of letters.
    """

    values_by_column: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, conditions: Sequence[str]) -> RowFilter:
        """Return the filter of ``KEY=VALUE`` conditions; a key given twice allows both values.

        Raises:
            UsageError: A condition is not of this form, or its key is no column.
        """
        values: dict[str, tuple[str, ...]] = {}
        for condition in conditions:
            key, equals, value = condition.partition("=")
            if not equals or key not in _KEYS:
                raise UsageError(
                    f"“{condition}” is no condition KEY=VALUE",
                    hint=f"KEY is one of {', '.join(_KEYS)}",
                )
            values[key] = (*values.get(key, ()), value)
        return cls(values_by_column=values)

    def select(self, rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
        """Return the rows that meet every condition.

        Raises:
            BreakevenError: None does.
        """
        selected = tuple(rows)
        for column, values in self.values_by_column.items():
            wanted = {value.casefold() for value in values}
            present = dict.fromkeys(str(getattr(row, column)) for row in selected)
            selected = tuple(
                row for row in selected if str(getattr(row, column)).casefold() in wanted
            )
            if not selected:
                some = ", ".join(f"“{value}”" for value in list(present)[:12])
                raise BreakevenError(
                    f"no row has {column} {' or '.join(f'“{value}”' for value in values)}",
                    hint=f"values of {column} in these rows: {some}",
                )
        return selected
