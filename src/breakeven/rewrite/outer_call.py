"""A training loop in a function that a loop elsewhere calls, once for each epoch."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from breakeven.source import (
    NoEditError,
    SyntaxTree,
    parameters_of,
    plain_name,
    read_names,
    with_values,
    written_names,
)

Loop = ast.For | ast.While
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterCall:
    """The one place from which the function of a training loop is called.

    Args:
        function: That has the training loop.
        call: Of it.
        loops: Around the call, from within, of the same scope.
        scope: Function or module of the call.
        arguments: What the call gives for each parameter.
    """

    function: ast.FunctionDef
    call: ast.Call
    loops: tuple[Loop, ...]
    scope: ast.FunctionDef | ast.Module
    arguments: Mapping[str, ast.expr]

    def outside(self, expression: ast.expr) -> ast.expr:
        """Return an expression of the function as it reads where the function is called.

        Raises:
            NoEditError: It has another value there, or another one for each call.
        """
        free = read_names(expression) - parameters_of(expression)
        written = {name.partition(".")[0] for name in written_names(self.function)}
        for name in sorted(free):
            argument = self.arguments.get(name)
            if argument is None:
                self._ensure_global(name, written)
            elif name in written - {"self"} or not plain_name(argument):
                raise NoEditError(
                    f"`{name}` in `{self.function.name}` is not one name outside of it"
                )
        return with_values(expression, {n: self.arguments[n] for n in free & self.arguments.keys()})

    def statement_outside(self, statement: ast.stmt, kept: set[str]) -> ast.stmt:
        """Return a statement of the function as it reads outside.

        Args:
            statement: Assigns variables of its own.
            kept: Its variables, and names that it gets.

        Raises:
            NoEditError: As for `outside`.
        """
        return _Outside(self, kept).visit(copy.deepcopy(statement))

    def _ensure_global(self, name: str, written: set[str]) -> None:
        hiding: set[str] = set()
        if isinstance(self.scope, ast.FunctionDef):
            hiding = written_names(self.scope) | parameters_of(self.scope.args)
        if name in written - {self.function.name} or name in hiding:
            raise NoEditError(f"`{name}` is known in `{self.function.name}` only")


class _Outside(ast.NodeTransformer):
    def __init__(self, call: OuterCall, kept: set[str]) -> None:
        self._call = call
        self._kept = kept

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._kept or not isinstance(node.ctx, ast.Load):
            return node
        return self._call.outside(node)


def find_outer_call(function: ast.FunctionDef, script: SyntaxTree) -> OuterCall | None:
    """Return the call of a function that a loop makes; None where no loop does.

    Raises:
        NoEditError: A step could not be handed over in that call.
    """
    call = next((call for call in _calls(function, script) if loops_around(call, script)), None)
    if call is None:
        return None
    scope = script.scope_of(call)
    arguments = _bound_arguments(function, call)
    is_called_in_loop = isinstance(scope, ast.FunctionDef) and any(
        loops_around(other, script) for other in _calls(scope, script)
    )
    if (
        arguments is None
        or len(_mentions(function, script)) != 1
        or is_called_in_loop
        or scope is function
        or not isinstance(scope, ast.FunctionDef | ast.Module)
    ):
        raise NoEditError(
            f"line {call.lineno} calls `{function.name}` in a loop, so that the step would be "
            "compiled anew each time: make it before that loop, and hand it over"
        )
    return OuterCall(
        function=function,
        call=call,
        loops=loops_around(call, script),
        scope=scope,
        arguments=arguments,
    )


def loops_around(node: ast.AST, script: SyntaxTree) -> tuple[Loop, ...]:
    """Return the loops around a node in its function, class or module, from within."""
    above = takewhile(lambda one: not isinstance(one, _SCOPES), script.parents(node))
    return tuple(one for one in above if isinstance(one, ast.For | ast.While))


def _mentions(function: ast.FunctionDef, script: SyntaxTree) -> list[ast.AST]:
    """Return where a function is named, or an attribute that may be it where it is a method."""
    if isinstance(script.parent(function), ast.ClassDef):
        return [part for part in script.nodes(ast.Attribute) if part.attr == function.name]
    return [part for part in script.nodes(ast.Name) if part.id == function.name]


def _calls(function: ast.FunctionDef, script: SyntaxTree) -> list[ast.Call]:
    around = map(script.parent, _mentions(function, script))
    return [call for call in around if isinstance(call, ast.Call)]


def _bound_arguments(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return what each parameter gets; None where that is not plain to see."""
    parameters = function.args
    names = [parameter.arg for parameter in parameters.args]
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
        return None
    given = list(call.args)
    if isinstance(call.func, ast.Attribute):
        if names[:1] != ["self"] or plain_name(call.func.value) != "self":
            return None
        given.insert(0, call.func.value)
    if any(isinstance(argument, ast.Starred) for argument in given) or len(given) > len(names):
        return None
    bound = dict(zip(names, given, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in bound:
            return None
        bound[keyword.arg] = keyword.value
    return bound
