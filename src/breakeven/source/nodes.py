"""Nodes of Python source: their kinds, names and parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from typing import TypeVar, cast

LoopStatement = ast.For | ast.AsyncFor | ast.While
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = LoopStatement | Comprehension
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
LOOP_STATEMENTS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (*LOOP_STATEMENTS, *COMPREHENSIONS)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Nodes with a scope of their own. Names of a class body are not visible in its methods.
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)

_Node = TypeVar("_Node", bound=ast.AST)


def nodes_in(node: ast.AST, *kinds: type[_Node]) -> Iterator[_Node]:
    """Yield all nodes of these kinds in ``node``, including itself, outermost first."""
    return (part for part in ast.walk(node) if isinstance(part, kinds))


def own_nodes(scope: ast.AST, *kinds: type[_Node]) -> Iterator[_Node]:
    """Yield the nodes that a scope runs itself, without functions defined in it; in no order."""
    waiting = [scope]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, DEFINITIONS):
                continue
            waiting.append(child)
            if isinstance(child, kinds):
                yield child


def blocks_of(node: ast.AST) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement, a function or a module, in order."""
    found: list[list[ast.stmt]] = []
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        held = cast("object", getattr(node, name, None))
        if not isinstance(held, list):
            continue
        block = cast("list[ast.AST]", held)
        if name in ("handlers", "cases"):
            found += [inner for part in block for inner in blocks_of(part)]
        elif block:
            found.append(cast("list[ast.stmt]", block))
    return found


def headers_of(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that a compound statement evaluates outside its blocks."""
    match node:
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.While() | ast.If():
            return [node.test]
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in node.items]
        case ast.Match():
            return [node.subject]
        case _:
            return []


def statements_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield simple statements and headers of compound ones in order, without inner scopes."""
    for node in chain.from_iterable(blocks_of(scope)):
        if isinstance(node, DEFINITIONS):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor)):
            # Only the lines of its header, without its body.
            yield ast.copy_location(ast.Assign([node.target], node.iter), node.iter)
        elif blocks_of(node):
            yield from headers_of(node)
        else:
            yield node
        yield from statements_of(node)


def methods_of(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    """Return the methods of a class, by name."""
    return {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}


def dotted_name(node: ast.AST) -> str:
    """Return ``a.b.c`` for names and attributes, without calls and indices."""
    parts: list[str] = []
    while True:
        match node:
            case ast.Attribute():
                parts.append(node.attr)
                node = node.value
            case ast.Call():
                node = node.func
            case ast.Subscript():
                node = node.value
            case _:
                break
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def last_name(node: ast.AST) -> str:
    """Return ``c`` for ``a.b.c``, and for a call or an index of it."""
    return dotted_name(node).rpartition(".")[2]


def plain_name(node: ast.AST) -> str:
    """Return ``self.model`` for such a chain of names, and "" for any other expression."""
    if isinstance(node, ast.Attribute):
        owner = plain_name(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_named(name: str, *endings: str) -> bool:
    """Return whether a dotted name ends with one of these: ``torch.no_grad`` with ``no_grad``."""
    return f".{name}".endswith(tuple(f".{ending}" for ending in endings))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument; None if it is not given."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return all arguments of a call, by position and by keyword."""
    return [*call.args, *(given.value for given in call.keywords)]


def parameters_of(node: ast.AST) -> set[str]:
    """Return the parameter names of all functions in a node, including lambdas."""
    return {part.arg for part in nodes_in(node, ast.arg)}


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Return whether ``node`` is the literal ``value``, such as ``True`` or 0."""
    return (
        isinstance(node, ast.Constant) and node.value == value and type(node.value) is type(value)
    )


def text_of(node: ast.AST | None) -> str | None:
    """Return the text of a literal; None for anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None  # pyright: ignore


def spans(node: ast.AST, line: int) -> bool:
    """Return whether ``line`` is one of the lines of ``node``."""
    return line in lines_of(node)


def lines_of(node: ast.AST) -> range:
    """Return the lines of a node; empty for a node without a position, such as a module."""
    first: int = getattr(node, "lineno", 0)
    return range(first, (getattr(node, "end_lineno", None) or first) + 1) if first else range(0)
