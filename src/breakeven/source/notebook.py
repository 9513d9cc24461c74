"""A notebook's code cells as one Python program, whose lines name cells.

A parser of our own, since it is short: `nbformat` would be one more dependency for every user, and
`IPython` translates magics to calls that need a running shell.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from breakeven.errors import ScriptError
from breakeven.trace import CELL_LINES

# The way out if a notebook cannot be used as a script.
CONVERT = "convert it to a script first: jupyter nbconvert --to script"

# Cell magics that run the rest of their cell as Python.
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun", "breakeven"})
# `%time x = f()` runs its statement once, in the notebook's namespace.
_TIMED = re.compile(r"(\s*)%time\s+(?=\S)")
# `x = !nvidia-smi` and `x = %magic`.
_ASSIGNED = re.compile(r"(\s*[\w., \[\]\"']+?=\s*)([!%]).*")
# `%magic`, `!command`, `?name`, `name?`; IPython also knows some commands without a prefix.
_SKIPPED = re.compile(
    r"(\s*)(?:[%!?].*|[^#]*\?\s*;?\s*|(?:pip|conda|cd|ls|cp|mv|rm|mkdir|cat) [^=].*)"
)


class _Cell(msgspec.Struct, frozen=True):
    """A cell; format 3 has the code in ``input``."""

    cell_type: str
    source: str | list[str] = ""
    input: str | list[str] = ""

    @property
    def code(self) -> str:
        text = self.source or self.input
        text = text if isinstance(text, str) else "".join(text)
        return text if self.cell_type == "code" else ""


class _Sheet(msgspec.Struct, frozen=True):
    cells: list[_Cell]


class _Document(msgspec.Struct, frozen=True):
    """A notebook of format 4, or 3 with worksheets.

    Source: https://nbformat.readthedocs.io/en/latest/format_description.html
    """

    nbformat: int
    cells: list[_Cell] = []
    worksheets: list[_Sheet] = []
    metadata: dict[str, object] = {}

    @property
    def language(self) -> str:
        for key, name in (("language_info", "name"), ("kernelspec", "language")):
            entry = self.metadata.get(key)
            if isinstance(entry, dict) and (found := entry.get(name)):  # pyright: ignore
                return str(found)  # pyright: ignore[reportUnknownArgumentType]
        return "python"


class Notebook(NamedTuple):
    """A notebook's program.

    Args:
        cells: Python code by number of the cell. The number is the one that Jupyter shows after
            "Restart and run all": it counts code cells that are not empty.
        skipped: Places and text of the lines that are not Python, and do not run.
    """

    cells: dict[int, str]
    skipped: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the program; line 2 of cell 3 is its line 3002."""
        text, num_lines = "", 0
        for number, code in self.cells.items():
            text += "\n" * (number * CELL_LINES - num_lines) + code
            num_lines = number * CELL_LINES + code.count("\n")
        return text


def read_notebook(document: bytes, label: str) -> Notebook:
    """Return the program of a notebook.

    Args:
        document: The file, in format 3 or 4.
        label: Its name, for errors.

    Raises:
        ScriptError: The file is no notebook in Python, has no code, or a cell is too long.
    """
    try:
        parsed = msgspec.json.decode(document, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScriptError(
            f"{label} is not a notebook: {error}", hint="open it in Jupyter, and save it again"
        ) from None
    if not parsed.language.lower().startswith(("python", "ipython")):
        raise ScriptError(f"{label} is written in {parsed.language}, not in Python")
    sheets = (parsed.cells, *(sheet.cells for sheet in parsed.worksheets))
    codes = [cell.code for sheet in sheets for cell in sheet if cell.code.strip()]
    if not codes:
        raise ScriptError(
            f"{label} has no code cells", hint="name a notebook that trains, or a script"
        )
    return notebook_of(dict(enumerate(codes, start=1)), label)


def notebook_of(cells: dict[int, str], label: str) -> Notebook:
    """Return the program of code cells, without their magics.

    Args:
        cells: Text of each code cell by number.
        label: Name of the notebook, for errors.

    Raises:
        ScriptError: A cell has a thousand lines or more.
    """
    codes: dict[int, str] = {}
    skipped: list[str] = []
    for number, text in cells.items():
        lines = text.rstrip("\n").replace("\r\n", "\n").split("\n")
        if len(lines) >= CELL_LINES:
            raise ScriptError(
                f"cell {number} of {label} has {len(lines):,} lines, and the limit is "
                f"{CELL_LINES - 1}",
                hint=f"split the cell, or {CONVERT}",
            )
        found = _remove_magics(lines)
        skipped += [f"cell {number}, line {at}: `{text}`" for at, text in sorted(found.items())]
        codes[number] = "\n".join(lines)
    return Notebook(codes, tuple(skipped))


def can_parse(code: str) -> bool:
    """Return whether code is Python."""
    return _error_line(code.split("\n")) is None


def _remove_magics(lines: list[str]) -> dict[int, str]:
    """Remove the lines that Python does not know, and return their text by line."""
    removed: dict[int, str] = {}
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    if lines[first : first + 1] and lines[first].startswith("%%"):
        if (lines[first][2:].split() or [""])[0] not in _PYTHON_MAGICS:
            removed[first + 1] = lines[first].strip()
            lines.clear()
            return removed
        lines[first] = ""
    while (at := _error_line(lines)) is not None:
        line = lines[at]
        if timed := _TIMED.match(line):
            lines[at] = timed[1] + line[timed.end() :]
        elif assigned := _ASSIGNED.fullmatch(line):
            # The output of a command is a list of lines; of one that does not run, it is empty.
            lines[at] = assigned[1] + ("[]" if assigned[2] == "!" else "None")
            removed[at + 1] = line.strip()
        elif skipped := _SKIPPED.fullmatch(line):
            removed[at + 1] = line.strip()
            while line.endswith("\\") and at + 1 < len(lines):
                lines[at] = ""
                at += 1
                line = lines[at]
            lines[at] = f"{skipped[1]}pass"
        else:
            break  # the user's own error, which the run reports
    return removed


def _error_line(lines: Sequence[str]) -> int | None:
    """Return the index of the first line that Python cannot parse; None if it can parse all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run shows them
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            return min(max(error.lineno or 1, 1), len(lines)) - 1
        except (ValueError, RecursionError, MemoryError):
            return None
    return None
