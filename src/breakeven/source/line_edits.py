"""Edits of a script's text that keep every other line unchanged."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence


class NoEditError(Exception):
    """The text has a layout that cannot be changed safely.

    Args:
        reason: The reason, for the user.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LineEdits:
    """Edits of whole lines; all other bytes stay the same.

    Args:
        lines: Lines of the script, with line endings.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = list(lines)
        self._before: dict[int, str] = {}
        self._replaced: dict[int, str] = {}
        self._within: list[tuple[int, int, str]] = []

    def replace(self, statements: Sequence[ast.stmt], place: ast.stmt, text: str) -> None:
        """Put ``text`` in place of ``place``, and remove the other statements.

        Blank lines and comments between two of them are removed too: they belong to them.

        Raises:
            NoEditError: A statement shares its line with another.
        """
        last: int | None = None
        for statement in statements:
            first, end = self._span(statement)
            between = [] if last is None else self._lines[last:first]
            if last is not None and all(re.match(r"\s*(#|$)", line) for line in between):
                first = last
            self._replaced |= dict.fromkeys(range(first, end), "")
            last = end
        first, _ = self._span(place)
        self._replaced[first] = self._indent(first) + text

    def insert_before(self, statement: ast.stmt, text: str) -> None:
        """Put ``text`` on a line before a statement, with the same indentation."""
        first, _ = self._span(statement)
        self._before[first] = self._indent(first) + text

    def insert_import(self, tree: ast.Module, text: str, beside: str) -> None:
        """Put an import next to that of the library ``beside``, or else on the first free line."""
        libraries = (s for s in tree.body if beside in _libraries(s) and not s.col_offset)
        statement = next(libraries, None)
        number = self._first_free_line(tree) if statement is None else statement.lineno - 1
        self._before[number] = text + self._before.get(number, "")

    def insert_argument(self, call: ast.Call, text: str) -> None:
        """Add an argument to a call, after all others."""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        end = (call.end_lineno or 0, call.end_col_offset or 0)
        if given:
            place = max(one for one in self._ends(given)[0] if one < end)
            self._within.append((*place, f", {text}"))
        else:
            self._within.append((end[0], end[1] - 1, text))

    def insert_parameter(self, parameters: ast.arguments, name: str) -> None:
        """Add a keyword-only parameter to a function with plain parameters."""
        ends, is_inside = self._ends([parameters.args[-1], *parameters.defaults[-1:]])
        # Without a comma before it, the last parenthesis is the function's own.
        self._within.append((*ends[-1 if is_inside else -2], f", *, {name}"))

    def _ends(self, nodes: Sequence[ast.expr | ast.arg]) -> tuple[list[tuple[int, int]], bool]:
        """Return the end of the last of some nodes, and of the parentheses that follow it.

        Also returns whether a comma follows: then all these parentheses surround that node.
        """
        line, column = max((node.end_lineno or 0, node.end_col_offset or 0) for node in nodes)
        ends = [(line, column)]
        while line <= len(self._lines):
            rest = self._lines[line - 1].encode()[column:]
            if found := re.match(rb"[\s\\]*\)", rest):
                column += found.end()
                ends.append((line, column))
            elif re.match(rb"[\s\\]*(#|$)", rest):
                line, column = line + 1, 0
            else:
                return ends, rest.lstrip().startswith(b",")
        return ends, False

    def text(self) -> str:
        """Return the changed script."""
        return "".join(line for line, _, _ in self.numbered())

    def numbered(self) -> list[tuple[str, int, bool]]:
        """Return the new lines, each with its original line number and whether it is unchanged.

        An added line has the number of the line that it precedes.
        """
        lines = list(self._lines)
        for number, column, added in self._within:
            line = lines[number - 1].encode()
            lines[number - 1] = (line[:column] + added.encode() + line[column:]).decode()
        found: list[tuple[str, int, bool]] = []
        for number, line in enumerate(lines):
            own = self._replaced.get(number, line)
            added = split_lines(self._before.get(number, ""))
            found += [(one, number + 1, False) for one in added]
            found += [(one, number + 1, one == self._lines[number]) for one in split_lines(own)]
        return found

    def _first_free_line(self, tree: ast.Module) -> int:
        for statement in tree.body:
            match statement:
                case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="__future__"):
                    continue
                case _:
                    return self._span(statement)[0]
        raise NoEditError("the script has no statements")

    def _span(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the lines of a statement, from the first to past the last, counted from 0."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in (statement, *decorators))
        end = statement.end_lineno or statement.lineno
        before = self._lines[first - 1].encode()[: statement.col_offset]
        after = b""
        if not isinstance(statement, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
            after = self._lines[end - 1].encode()[statement.end_col_offset or 0 :]
        if before.strip() or not re.match(rb"\s*(#|$)", after):
            raise NoEditError(f"line {statement.lineno} holds more than one statement")
        return first - 1, end

    def _indent(self, number: int) -> str:
        line = self._lines[number]
        return line[: len(line) - len(line.lstrip())]


def split_lines(text: str) -> list[str]:
    r"""Return the lines as Python counts them, with line endings.

    Unlike ``str.splitlines``, this does not split at form feeds and similar characters.

    Raises:
        NoEditError: Lines end in lone carriage returns.
    """
    if re.search(r"\r(?!\n)", text):
        raise NoEditError("lines end in carriage returns alone")
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _libraries(statement: ast.stmt) -> list[str]:
    """Return the first library of an import."""
    match statement:
        case ast.Import(names=[alias, *_]):
            return [alias.name.partition(".")[0]]
        case ast.ImportFrom(module=str(module)):
            return [module.partition(".")[0]]
        case _:
            return []
