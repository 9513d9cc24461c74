"""Names that a piece of Python source reads and writes, and the flow of their values."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping

from breakeven.source.files import SourceFile
from breakeven.source.line_edits import NoEditError
from breakeven.source.nodes import (
    FUNCTIONS,
    nodes_in,
    parameters_of,
    plain_name,
    spans,
    statements_of,
)


def mentions(node: ast.AST, *names: str) -> bool:
    """Return whether ``node`` contains one of these dotted names, or an attribute of it."""
    return any(plain_name(part) in names for part in ast.walk(node))


def read_names(node: ast.AST) -> set[str]:
    """Return the plain names that are read anywhere in ``node``."""
    return {part.id for part in nodes_in(node, ast.Name) if isinstance(part.ctx, ast.Load)}


def used_names(*nodes: ast.AST) -> set[str]:
    """Return the dotted names in nodes: ``self.hist``; a lone ``self`` does not count."""
    found: set[str] = set()
    for node in nodes:
        for part in nodes_in(node, ast.Attribute, ast.Name):
            if isinstance(part, ast.Name):
                found.add(part.id)
            elif isinstance(part.value, ast.Name) and part.value.id == "self":
                found.add(f"self.{part.attr}")
    return found - {"self"}


def written_names(node: ast.AST) -> set[str]:
    """Return the names bound anywhere in ``node``: plain ones, and dotted ones such as ``self.x``.

    Names in nested functions count too: better too many than too few.
    """
    written: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del()):
                written.add(plain_name(part))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                written.add(name)
            case ast.alias():
                written.add((part.asname or part.name).partition(".")[0])
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                written.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                written.add(name)
            case ast.MatchMapping(rest=str(name)):
                written.add(name)
            case ast.AugAssign():
                written.add(plain_name(part.target))
            case _:
                pass
    return written - {""}


def is_written(name: str, written: set[str]) -> bool:
    """Return whether ``written`` contains a dotted name, an owner of it, or an attribute of it."""
    return any(f"{name}.".startswith(f"{w}.") or w.startswith(f"{name}.") for w in written)


def written_part(expression: ast.AST, written: set[str]) -> str:
    """Return a name in an expression that is among ``written``; empty if there is none.

    Its own parameters, such as those of a ``lambda``, are ignored.
    """
    own = parameters_of(expression)
    names = filter(None, map(plain_name, ast.walk(expression)))
    free = (name for name in names if name.partition(".")[0] not in own)
    return next((name for name in free if is_written(name, written)), "")


def declared_names(node: ast.AST) -> set[str]:
    """Return the names that ``global`` and ``nonlocal`` assign to another scope."""
    return {name for part in nodes_in(node, ast.Global, ast.Nonlocal) for name in part.names}


def all_identifiers(node: ast.AST) -> set[str]:
    """Return every plain name in ``node``, in any role."""
    return written_names(node) | read_names(node) | declared_names(node) | parameters_of(node)


def reads_in_scope(scope: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield the nodes that need a value of ``name``: it is read, deleted or augmented.

    Nested functions are searched too, unless they have their own such name.
    """
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Name):
            if child.id == name and not isinstance(child.ctx, ast.Store):
                yield child
        elif not (isinstance(child, FUNCTIONS) and _has_own(child, name)):
            if isinstance(child, ast.AugAssign) and plain_name(child.target) == name:
                assert isinstance(child.target, ast.Name)
                yield child.target
            yield from reads_in_scope(child, name)


def _has_own(function: ast.AST, name: str) -> bool:
    inside = parameters_of(function)
    for child in ast.iter_child_nodes(function):
        inside |= written_names(child)
    return name in inside - declared_names(function)


def reached_by(source: SourceFile, line: int) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield the statement at ``line`` and the users of its results, with the result names.

    Each block is visited once, and calls are not followed.
    """
    made: set[str] = set()
    for statement in statements_of(source.scope_around(line)):
        if spans(statement, line) or made & used_names(statement):
            yield statement, made
            made |= _changed_names(statement)


def _changed_names(statement: ast.AST) -> set[str]:
    """Return the names that a statement writes or appends to."""
    match statement:
        case ast.Assign(targets=targets):
            return used_names(*targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return used_names(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
            return used_names(owner)
        case _:
            return set()


def substituted(
    expression: ast.expr, replacement: Callable[[ast.expr], ast.expr | None]
) -> ast.expr:
    """Return an expression with some parts replaced.

    Args:
        expression: The expression, which stays unchanged.
        replacement: Returns the replacement of a part; None to keep it. Replaced parts are not
            searched further.
    """
    changed = _Substitution(replacement).visit(copy.deepcopy(expression))
    assert isinstance(changed, ast.expr)
    return changed


def with_values(expression: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """Return an expression with the names that it reads replaced by ``values``."""

    def value(part: ast.expr) -> ast.expr | None:
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            return copy.deepcopy(values.get(part.id))
        return None

    return substituted(expression, value)


class _Substitution(ast.NodeTransformer):
    def __init__(self, replacement: Callable[[ast.expr], ast.expr | None]) -> None:
        self._replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        found = self._replacement(node) if isinstance(node, ast.expr) else None
        return self.generic_visit(node) if found is None else found


def free_name(names: tuple[str, ...], taken: set[str]) -> str:
    """Return the first unused one of some names.

    Raises:
        NoEditError: All names are in use.
    """
    for name in names:
        if name not in taken:
            return name
    raise NoEditError(f"the names {', '.join(names)} are all in use")
