"""Changes of the text of a script that leave every other line as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from breakeven.rewrite.outer_call import OuterCall
from breakeven.rewrite.python_names import NotMatchedError


class LineEdits:
    """Changes of whole lines; all other lines stay as they are, byte by byte.

    Args:
        lines: The script, with ends of lines.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = list(lines)
        self._before: dict[int, str] = {}
        self._replaced: dict[int, str] = {}
        self._within: list[tuple[int, int, str]] = []

    def replace(self, statements: Sequence[ast.stmt], place: ast.stmt, text: str) -> None:
        """Put ``text`` where ``place`` is, and take out the other statements.

        Blank lines and comments between two of them go too: they were about them.
        """
        last: int | None = None
        for statement in statements:
            first, end = self._span(statement)
            if last is not None and all(
                line.strip() == "" or line.lstrip().startswith("#")
                for line in self._lines[last:first]
            ):
                first = last
            for number in range(first, end):
                self._replaced[number] = ""
            last = end
        first, _ = self._span(place)
        self._replaced[first] = self._indent(first) + text

    def insert_before(self, statement: ast.stmt, text: str) -> None:
        """Put ``text`` on a line before a statement, as far to the right."""
        first, _ = self._span(statement)
        self._before[first] = self._indent(first) + text

    def insert_import(self, tree: ast.Module, text: str) -> None:
        """Put an import beside that of torch, or else where imports may begin."""
        number = next(
            (number for number in map(self._torch_import, tree.body) if number is not None), None
        )
        if number is None:
            number = self._first_free_line(tree)
        self._before[number] = text + self._before.get(number, "")

    def hand_over(self, outer: OuterCall, name: str) -> None:
        """Give a function one more argument, and its call a value for that, of the same name."""
        parameters = outer.function.args
        last = [parameters.args[-1], *parameters.defaults[-1:]]
        self._insert_after(last, f", *, {name}")
        given = [*outer.call.args, *(keyword.value for keyword in outer.call.keywords)]
        if given:
            self._insert_after(given, f", {name}={name}")
        else:
            end = outer.call.end_col_offset or 0
            self._within.append((outer.call.end_lineno or 0, end - 1, f"{name}={name}"))

    def _insert_after(self, nodes: Sequence[ast.expr | ast.arg], text: str) -> None:
        line, column = max((node.end_lineno or 0, node.end_col_offset or 0) for node in nodes)
        self._within.append((line, column, text))

    def text(self) -> str:
        """Return the changed script."""
        for number, column, added in self._within:
            line = self._lines[number - 1].encode()
            self._lines[number - 1] = (line[:column] + added.encode() + line[column:]).decode()
        self._within.clear()
        return "".join(
            self._before.get(number, "") + self._replaced.get(number, line)
            for number, line in enumerate(self._lines)
        )

    def _torch_import(self, statement: ast.stmt) -> int | None:
        match statement:
            case ast.Import(names=[alias, *_]):
                module = alias.name
            case ast.ImportFrom(module=str(module)):
                pass
            case _:
                return None
        if module.partition(".")[0] != "torch" or statement.col_offset:
            return None
        return statement.lineno - 1

    def _first_free_line(self, tree: ast.Module) -> int:
        for statement in tree.body:
            is_docstring = isinstance(statement, ast.Expr) and isinstance(
                statement.value, ast.Constant
            )
            is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not is_docstring and not is_future:
                return self._span(statement)[0]
        raise NotMatchedError("the script has no statements")

    def _span(self, statement: ast.stmt) -> tuple[int, int]:
        """Return the lines of a statement, first and past the last, counted from 0."""
        first = min(
            [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]
        )
        end = statement.end_lineno or statement.lineno
        before = self._lines[first - 1].encode()[: statement.col_offset]
        after = b""
        if not isinstance(statement, ast.For | ast.While | ast.FunctionDef | ast.ClassDef):
            after = self._lines[end - 1].encode()[statement.end_col_offset or 0 :]
        rest = after.strip()
        if before.strip() or (rest and not rest.startswith(b"#")):
            raise NotMatchedError(f"line {statement.lineno} holds more than one statement")
        return first - 1, end

    def _indent(self, number: int) -> str:
        line = self._lines[number]
        return line[: len(line) - len(line.lstrip())]


def split_lines(source: str) -> list[str]:
    r"""Return the lines as Python counts them, with their ends.

    ``str.splitlines`` would also split at form feeds and the like.

    Raises:
        NotMatchedError: They end as those of no system of today.
    """
    if re.search(r"\r(?!\n)", source):
        raise NotMatchedError("lines end in carriage returns alone")
    return re.findall(r"[^\n]*\n|[^\n]+", source)
