"""Which statements a value reaches, within one scope."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from breakeven.source.files import Source
from breakeven.source.nodes import (
    DEFINITIONS,
    blocks_of,
    headers_of,
    nodes_in,
    spans,
)


def statements_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield simple statements and headers of compound ones in order, not those of inner scopes."""
    for node in chain.from_iterable(blocks_of(scope)):
        if isinstance(node, DEFINITIONS):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor)):
            # Its own lines alone, not those of its body.
            yield ast.copy_location(ast.Assign([node.target], node.iter), node.iter)
        elif blocks_of(node):
            yield from headers_of(node)
        else:
            yield node
        yield from statements_of(node)


def reached_by(source: Source, line: int) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield the statement at ``line`` and those that use what it makes, with the names of that.

    Each block is gone through once, and no call is followed.
    """
    made: set[str] = set()
    for statement in statements_of(source.scope_around(line)):
        if spans(statement, line) or made & used_names(statement):
            yield statement, made
            made |= _changed_names(statement)


def used_names(*nodes: ast.AST) -> set[str]:
    """Return the dotted names within nodes: ``self.hist``, and ``self`` for nothing but that."""
    found: set[str] = set()
    for node in nodes:
        for part in nodes_in(node, ast.Attribute, ast.Name):
            if isinstance(part, ast.Name):
                found.add(part.id)
            elif isinstance(part.value, ast.Name) and part.value.id == "self":
                found.add(f"self.{part.attr}")
    return found - {"self"}


def _changed_names(statement: ast.AST) -> set[str]:
    """Return the names that a statement writes, those that it appends to included."""
    match statement:
        case ast.Assign(targets=targets):
            return used_names(*targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return used_names(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):
            return used_names(owner)
        case _:
            return set()
