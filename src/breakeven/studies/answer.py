"""The answer to a question about a training step, for code and notebooks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import msgspec

from breakeven.errors import BreakevenError, UsageError
from breakeven.report import (
    KINDS,
    CheckReport,
    ExplainReport,
    card_document,
    chart_document,
    documents_of,
    html_part,
    plain,
    printable,
    show,
    to_json,
)
from breakeven.store import ensure_writable, write_document

_MAX_CHARACTERS = 200
# The fields with the main table of each kind; no kind has two of them.
_TABLES = ("results", "points", "trials", "rows", "speeds", "devices")
_FRAMES = ("pandas", "polars")


@final
class Report:
    """A report of any command, to show, save or tabulate.

    Args:
        value: What a study returned or `read_document` read, such as a ``CheckReport``.

    Raises:
        UsageError: If ``value`` is no report.
    """

    __slots__ = ("_kind", "_value")

    def __init__(self, value: msgspec.Struct) -> None:
        shown = (kind for kind in KINDS if kind.build or kind.parts)
        kind = next((kind for kind in shown if kind.type is type(value)), None)
        if kind is None:
            raise UsageError(
                f"a {type(value).__name__} is no report", hint="pass what a study returned"
            )
        self._kind, self._value = kind, value

    @property
    def value(self) -> Any:
        """The report's figures, as a struct: the content of its JSON."""
        return self._value

    def show(self) -> None:
        """Write the report to stdout as the command shows it, at the width of the terminal."""
        from rich.console import Console

        show(self._value, Console(file=sys.stdout, force_jupyter=False))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the report to a file, atomically.

        Args:
            path: Ends in ``.json`` (read back by `read_report`), ``.html`` (a page), ``.svg``
                (its charts), or ``.md`` (a card with costs, of a check or an explanation).
            force: Whether to replace an existing file.

        Raises:
            UsageError: If the suffix is not supported for this report.
            BreakevenError: If the file exists or cannot be written.
        """
        file = Path(path)
        ensure_writable(file, force=force)
        match file.suffix.lower():
            case ".json":
                document = to_json(self._value, with_recording=True)
            case ".md":
                document = self._card()
            case suffix:
                document = chart_document(self._value, suffix)
        write_document(file, document, force=force)

    def to_frame(self) -> Any:
        """Return the main table as a data frame of pandas, or else of polars.

        It has one row per device, point, trial or machine. Columns have the names and units of the
        JSON document; a nested figure's name is joined with ``_``, as ``time_ns_low``.

        Raises:
            UsageError: If the report has no such table.
            BreakevenError: If neither pandas nor polars is installed.
        """
        table = next(
            (getattr(self._value, name) for name in _TABLES if hasattr(self._value, name)), None
        )
        if table is None:
            command = self._kind.command
            raise UsageError(f"a report of breakeven {command} has no table", hint="use .value")
        rows = [_flat(msgspec.to_builtins(row)) for row in table]
        for name in _FRAMES:
            try:
                library = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
            else:
                return library.DataFrame(rows)
        raise BreakevenError(
            "a data frame needs pandas or polars, and neither is installed",
            hint="pip install pandas, or pip install polars",
        )

    def _card(self) -> bytes:
        if not isinstance(self._value, CheckReport | ExplainReport):
            raise UsageError(
                f"a report of breakeven {self._kind.command} has no card",
                hint="name a file that ends in .html or .json",
            )
        # Imported here, since all else works without torch.
        from breakeven.studies.cost import CostRequest, cost_run
        from breakeven.studies.measured_step import UNKNOWN_LENGTH

        cost = cost_run(self._value, CostRequest(length=UNKNOWN_LENGTH))
        return card_document(self._value, cost, ".md")

    def _repr_html_(self) -> str:
        return html_part(self._value)

    def __repr__(self) -> str:
        first = documents_of(self._value)[0]
        sentence = plain(first.answers[0].phrase) if first.answers else first.title
        return printable(sentence, _MAX_CHARACTERS)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row whose nested mappings became columns ``outer_inner``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= (
            _flat(value, f"{prefix}{name}_")
            if isinstance(value, Mapping)
            else {prefix + name: value}
        )
    return flat
