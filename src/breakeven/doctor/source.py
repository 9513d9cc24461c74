"""The user's files, parsed: which loop, function and call a line is part of."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from breakeven.trace import Location, SourceText

# Magics of a notebook turned script: `%matplotlib inline`, `!pip install x`.
_MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)

Loop = (
    ast.For
    | ast.AsyncFor
    | ast.While
    | ast.ListComp
    | ast.SetComp
    | ast.DictComp
    | ast.GeneratorExp
)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
LOOP_STATEMENTS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (*LOOP_STATEMENTS, *COMPREHENSIONS)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

# Up to Python 3.11.8 two threads that parse at once can fail with "recursion depth mismatch".
_ONE_AT_A_TIME = threading.Lock()


class Source:
    """One file.

    Args:
        text: The file; one that Python cannot parse has no tree.
    """

    def __init__(self, text: SourceText) -> None:
        self.path = text.path
        self.lines = text.text.splitlines()
        self.tree = _parse(text.text)
        self._nodes_by_kinds: dict[tuple[type[ast.AST], ...], tuple[ast.AST, ...]] = {}

    def location(self, node: ast.AST) -> Location:
        """Return the line at which ``node`` begins."""
        return Location(file=self.path, line=getattr(node, "lineno", 1))

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return what ``node`` is directly part of; None for the module."""
        return self._parents.get(id(node))

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what ``node`` is part of, innermost first."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def loops_around(self, line: int) -> tuple[Loop, ...]:
        """Return the loops and comprehensions whose body holds ``line``, innermost first.

        The header of a loop is not part of it, and loops outside of the function that holds the
        line are not either.
        """
        return tuple(node for node in self._enclosing(line) if isinstance(node, _LOOPS))

    def function_around(self, line: int) -> Function | None:
        """Return the innermost function that holds ``line``; None at the level of the module."""
        found: Function | None = None
        for node in self.nodes(*_FUNCTIONS):
            if isinstance(node, _FUNCTIONS) and spans(node, line):
                found = node if found is None or _size(node) <= _size(found) else found
        return found

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield all nodes of these kinds, in the order of the file."""
        # Rules ask for few kinds, many times.
        found = self._nodes_by_kinds.get(kinds)
        if found is None:
            found = tuple(node for node in self._nodes if isinstance(node, kinds))
            self._nodes_by_kinds[kinds] = found
        yield from found

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls whose dotted name ends with one of ``names``: ``DataLoader``."""
        for call in self._calls:
            called = dotted_name(call.func)
            if any(called == name or called.endswith("." + name) for name in names):
                yield call

    def call_at(self, line: int, *names: str) -> ast.Call | None:
        """Return the first call of one of ``names`` that spans ``line``."""
        return next((call for call in self.calls(*names) if spans(call, line)), None)

    def calls_on(self, line: int) -> Iterator[ast.Call]:
        """Yield the calls that span ``line``, in the order of the file."""
        return (call for call in self._calls if spans(call, line))

    @cached_property
    def imports(self) -> dict[str, str]:
        """What the file imports, as dotted names by the name that it has in the file."""
        found: dict[str, str] = {}
        for node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    library = alias.name.split(".")[0]
                    found[alias.asname or library] = alias.name if alias.asname else library
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def _enclosing(self, line: int) -> list[ast.AST]:
        function = self.function_around(line)
        found = [
            node
            for node in self.nodes(*_LOOPS)
            if _body_holds(node, line) and (function is None or function in self.parents(node))
        ]
        return sorted(found, key=_size)

    @cached_property
    def _nodes(self) -> tuple[ast.AST, ...]:
        return tuple(sorted(ast.walk(self.tree), key=_position))

    @cached_property
    def _calls(self) -> tuple[ast.Call, ...]:
        return tuple(node for node in self.nodes(ast.Call) if isinstance(node, ast.Call))

    @cached_property
    def _parents(self) -> dict[int, ast.AST]:
        return {
            id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of the user.

    Args:
        files: By path.
    """

    files: dict[str, Source] = field(default_factory=dict[str, Source])

    @staticmethod
    def of(texts: Iterable[SourceText]) -> Sources:
        """Return the parsed files."""
        return Sources({text.path: Source(text) for text in texts})

    def find(self, location: Location | None) -> Source | None:
        """Return the file that holds a location; None where it is not known."""
        return None if location is None else self.files.get(location.file)

    def is_at(self, location: Location | None, test: Callable[[Source, int], bool]) -> bool:
        """Return whether the source passes a test at a line; an unknown one does not."""
        source = self.find(location)
        return source is not None and location is not None and test(source, location.line)

    def __iter__(self) -> Iterator[Source]:
        return iter(self.files.values())


def dotted_name(node: ast.AST) -> str:
    """Return ``a.b.c`` of names and attributes; calls and indices within are left out."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            break
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument; None where it is not given."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Return whether ``node`` is the literal ``value``, such as ``True`` or 0."""
    return (
        isinstance(node, ast.Constant) and node.value == value and type(node.value) is type(value)
    )


def spans(node: ast.AST, line: int) -> bool:
    """Return whether ``line`` is one of the lines of ``node``."""
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def _parse(text: str) -> ast.Module:
    for candidate in (text, _MAGIC.sub(r"\1pass", text)):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    # What Python itself could not run tells nothing; the trace still does.
    return ast.Module(body=[], type_ignores=[])


def _body_holds(node: ast.AST, line: int) -> bool:
    if isinstance(node, LOOP_STATEMENTS):
        return any(spans(part, line) for part in (*node.body, *node.orelse))
    return spans(node, line)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _size(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", None) or 0) - getattr(node, "lineno", 0)
