"""The user's files, parsed: the loop, function and call around each line."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

from breakeven.source.nodes import (
    DEFINITIONS,
    FUNCTIONS,
    LOOP_STATEMENTS,
    LOOPS,
    Function,
    Loop,
    dotted_name,
    is_named,
    lines_of,
    spans,
)
from breakeven.trace import Location, SourceText

# Magics of a notebook converted to a script: `%matplotlib inline`, `!pip install x`.
_MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)

# Before Python 3.11.9, two threads that parse at once can fail with "recursion depth mismatch".
_ONE_AT_A_TIME = threading.Lock()

_Node = TypeVar("_Node", bound=ast.AST)


class Binding(NamedTuple):
    """One target of an assignment, and its value."""

    statement: ast.Assign | ast.AnnAssign
    target: ast.expr
    value: ast.expr

    @property
    def name(self) -> str:
        """Return the dotted name of the target."""
        return dotted_name(self.target)


class SyntaxTree:
    """A parsed script or expression.

    Args:
        tree: Its outermost node.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.tree = tree
        self._nodes_by_kinds: dict[tuple[type[ast.AST], ...], tuple[ast.AST, ...]] = {}

    def nodes(self, *kinds: type[_Node]) -> Iterator[_Node]:
        """Yield all nodes of these kinds, in file order."""
        # Rules request few kinds, many times.
        found = self._nodes_by_kinds.get(kinds)
        if found is None:
            found = tuple(node for node in self._nodes if isinstance(node, kinds))
            self._nodes_by_kinds[kinds] = found
        yield from cast("tuple[_Node, ...]", found)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the direct parent of ``node``; None for the outermost."""
        return self._parents.get(node)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of ``node``, innermost first."""
        while (above := self.parent(node)) is not None:
            yield above
            node = above

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, class or module whose scope a node is in."""
        above = self.parents(node)
        return next((one for one in above if isinstance(one, DEFINITIONS)), self.tree)

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node; None at module level."""
        return next((one for one in self.parents(node) if isinstance(one, FUNCTIONS)), None)

    def is_in_loop(self, node: ast.AST) -> bool:
        """Return whether a node is in a loop, even of another function."""
        return any(isinstance(above, LOOP_STATEMENTS) for above in self.parents(node))

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """The assignments, one entry per target."""
        return tuple(
            Binding(node, target, node.value)
            for node in self.nodes(ast.Assign, ast.AnnAssign)
            if node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )

    @cached_property
    def imports(self) -> dict[str, str]:
        """The imported dotted names, by their names in the file."""
        found: dict[str, str] = {}
        for node in self.nodes(ast.Import, ast.ImportFrom):
            for alias in node.names:
                if isinstance(node, ast.Import):
                    library = alias.name.partition(".")[0]
                    found[alias.asname or library] = alias.name if alias.asname else library
                elif node.module and not node.level:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def names_for(self, known: frozenset[str]) -> frozenset[str]:
        """Return the file's names for some functions: ``now`` for ``now = time.perf_counter``.

        Args:
            known: Dotted names of the functions in their libraries.
        """
        names = {
            own + function.removeprefix(stands_for)
            for own, stands_for in self.imports.items()
            for function in known
            if f"{function}.".startswith(f"{stands_for}.")
        }
        for one in self.bindings:
            if isinstance(one.value, (ast.Name, ast.Attribute)) and dotted_name(one.value) in names:
                names.add(one.name)
        return frozenset(names)

    def reads_of(self, name: str) -> list[ast.Name | ast.Attribute]:
        """Return the nodes that read a dotted name."""
        return [
            node
            for node in self.nodes(ast.Name, ast.Attribute)
            if isinstance(node.ctx, ast.Load) and dotted_name(node) == name
        ]

    @cached_property
    def _nodes(self) -> tuple[ast.AST, ...]:
        return tuple(sorted(ast.walk(self.tree), key=_position))

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}


class SourceFile(SyntaxTree):
    """One file.

    Args:
        text: The file; if Python cannot parse it, it has no statements.
    """

    def __init__(self, text: SourceText) -> None:
        super().__init__(_parse(text.text))
        self.path = text.path
        self.lines = text.text.splitlines()
        self._loops_by_line: dict[int, tuple[Loop, ...]] = {}
        self._passed: dict[tuple[_Test, int], bool] = {}

    def location(self, node: ast.AST) -> Location:
        """Return the first line of ``node``."""
        return Location(file=self.path, line=getattr(node, "lineno", 1))

    def loops_around(self, line: int) -> tuple[Loop, ...]:
        """Return the loops and comprehensions whose body contains ``line``, innermost first.

        This excludes the header of a loop, and loops outside the function of the line.
        """
        if line not in self._loops_by_line:
            function = self.function_around(line)
            found = [
                node
                for node in self.nodes(*LOOPS)
                if _body_holds(node, line) and (function is None or function in self.parents(node))
            ]
            self._loops_by_line[line] = tuple(sorted(found, key=_size))
        return self._loops_by_line[line]

    def function_around(self, line: int) -> Function | None:
        """Return the innermost function that contains ``line``; None at module level."""
        around = [node for node in self.nodes(*FUNCTIONS) if spans(node, line)]
        return min(reversed(around), key=_size, default=None)

    def scope_around(self, line: int) -> ast.AST:
        """Return the innermost function that contains ``line``, or else the module."""
        return self.function_around(line) or self.tree

    def passes(self, test: _Test, line: int) -> bool:
        """Return whether a line passes a test, cached because many events share a line."""
        if (test, line) not in self._passed:
            self._passed[test, line] = test(self, line)
        return self._passed[test, line]

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls whose dotted name ends with one of ``names``: ``DataLoader``."""
        return (call for name, call in self._calls if is_named(name, *names))

    def call_at(self, line: int, *names: str) -> ast.Call | None:
        """Return the first call of one of ``names`` that spans ``line``."""
        return next((call for call in self.calls(*names) if spans(call, line)), None)

    def calls_on(self, line: int) -> Iterator[ast.Call]:
        """Yield the calls that span ``line``, in file order."""
        return (call for _, call in self._calls if spans(call, line))

    @cached_property
    def _calls(self) -> tuple[tuple[str, ast.Call], ...]:
        return tuple((dotted_name(call.func), call) for call in self.nodes(ast.Call))


# A test of a line of a file.
_Test = Callable[[SourceFile, int], bool]


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of the user.

    Args:
        files: Files by path.
    """

    files: dict[str, SourceFile] = field(default_factory=dict[str, SourceFile])

    @staticmethod
    def of(texts: Iterable[SourceText]) -> Sources:
        """Return the parsed files."""
        return Sources({text.path: SourceFile(text) for text in texts})

    def find(self, location: Location | None) -> SourceFile | None:
        """Return the file of a location; None if unknown."""
        return None if location is None else self.files.get(location.file)

    def is_at(self, location: Location | None, test: _Test) -> bool:
        """Return whether a line passes a test; False for an unknown line."""
        source = self.find(location)
        return source is not None and location is not None and source.passes(test, location.line)

    def call_at(self, location: Location | None, *names: str) -> ast.Call | None:
        """Return the first call of one of ``names`` that spans a line; None also without a line."""
        source = self.find(location)
        return source.call_at(location.line, *names) if source and location else None

    def nodes(self, *kinds: type[_Node]) -> Iterator[tuple[SourceFile, _Node]]:
        """Yield all nodes of these kinds, file by file."""
        return ((source, node) for source in self for node in source.nodes(*kinds))

    def calls(self, *names: str) -> Iterator[tuple[SourceFile, ast.Call]]:
        """Yield the calls of one of ``names``, file by file."""
        return ((source, call) for source in self for call in source.calls(*names))

    def bindings(self) -> Iterator[tuple[SourceFile, Binding]]:
        """Yield the assignments, file by file."""
        return ((source, binding) for source in self for binding in source.bindings)

    def __iter__(self) -> Iterator[SourceFile]:
        return iter(self.files.values())


def _parse(text: str) -> ast.Module:
    for candidate in (text, _MAGIC.sub(r"\1pass", text)):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    # A file that Python cannot run has nothing to show; the trace still does.
    return ast.Module(body=[], type_ignores=[])


def _body_holds(node: Loop, line: int) -> bool:
    if isinstance(node, LOOP_STATEMENTS):
        return any(spans(part, line) for part in (*node.body, *node.orelse))
    return spans(node, line)


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _size(node: ast.AST) -> int:
    return len(lines_of(node))
