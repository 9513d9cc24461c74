"""What a piece of Python source reads and writes, by name."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping

Loop = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What has names of its own. Names of a class's body are not those of its methods.
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)


class NotMatchedError(Exception):
    """The source is not written in the way that a change is known to be right for.

    Args:
        reason: Why, in words for the user.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def dotted(node: ast.AST) -> str:
    """Return ``self.model`` for such a chain of names, and nothing for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def mentions(node: ast.AST, name: str) -> bool:
    """Return whether ``node`` holds the dotted ``name``, or an attribute of it."""
    return any(dotted(part) == name for part in ast.walk(node))


def read_names(node: ast.AST) -> set[str]:
    """Return the plain names that are read anywhere in ``node``."""
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def written_names(node: ast.AST) -> set[str]:
    """Return what is bound anywhere in ``node``: plain names, and dotted ones such as ``self.x``.

    Names of nested functions count as well: too many rather than too few.
    """
    written: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                written.add(name)
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                written.add(dotted(part))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                written.add(part.name)
            case ast.alias():
                written.add((part.asname or part.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                written.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                written.add(name)
            case ast.AugAssign():
                written.add(dotted(part.target))
            case _:
                pass
    return written - {""}


def is_written(name: str, written: set[str]) -> bool:
    """Return whether a dotted name, or what it hangs on, or a part of it, is among ``written``."""
    parts = name.split(".")
    owners = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return bool(owners & written) or any(other.startswith(f"{name}.") for other in written)


def all_identifiers(tree: ast.AST) -> set[str]:
    """Return every plain name that occurs in ``tree``, in whatever role."""
    found = written_names(tree) | read_names(tree)
    for part in ast.walk(tree):
        if isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.Global | ast.Nonlocal):
            found.update(part.names)
    return found


def shared_names(tree: ast.AST) -> set[str]:
    """Return the names that a function declares to be those of another scope."""
    return {
        name
        for part in ast.walk(tree)
        if isinstance(part, ast.Global | ast.Nonlocal)
        for name in part.names
    }


def parents_of(tree: ast.AST) -> Mapping[ast.AST, ast.AST]:
    """Return the node around each node."""
    return {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}


def enclosing(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """Yield what surrounds ``node``, from within."""
    while (parent := parents.get(node)) is not None:
        yield parent
        node = parent


def scope_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> ast.AST:
    """Return the function, class or module whose names a statement uses."""
    return next(
        around for around in enclosing(node, parents) if isinstance(around, (*_SCOPES, ast.Module))
    )


def reads_in_scope(scope: ast.AST, name: str) -> Iterator[ast.Name]:
    """Yield where ``name`` of ``scope`` must have a value: is read, deleted or added to.

    Functions within that have no such name of their own are looked through too.
    """
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Name):
            if child.id == name and not isinstance(child.ctx, ast.Store):
                yield child
        elif not (isinstance(child, _FUNCTIONS) and _has_own(child, name)):
            if isinstance(child, ast.AugAssign) and dotted(child.target) == name:
                assert isinstance(child.target, ast.Name)
                yield child.target
            yield from reads_in_scope(child, name)


class Substitution(ast.NodeTransformer):
    """Puts expressions in place of names that are read.

    Args:
        values: Expression of each name.
    """

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the name's expression, or the name."""
        if isinstance(node.ctx, ast.Load) and node.id in self._values:
            return copy.deepcopy(self._values[node.id])
        return node


def _has_own(scope: ast.AST, name: str) -> bool:
    if any(
        isinstance(part, ast.Global | ast.Nonlocal) and name in part.names
        for part in ast.walk(scope)
    ):
        return False
    arguments = {part.arg for part in ast.walk(scope) if isinstance(part, ast.arg)}
    body = [scope.body] if isinstance(scope, ast.Lambda) else getattr(scope, "body", [])
    return name in arguments or any(name in written_names(part) for part in body)
