"""A training loop in a function that a loop elsewhere calls, once for each epoch."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass

from breakeven.rewrite.python_names import (
    Function,
    Loop,
    NotMatchedError,
    Substitution,
    dotted,
    enclosing,
    read_names,
    scope_of,
    written_names,
)


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
    scope: ast.AST
    arguments: Mapping[str, ast.expr]

    def outside(self, expression: ast.expr) -> ast.expr:
        """Return an expression of the function as it reads where the function is called.

        Raises:
            NotMatchedError: It has another value there, or another one for each call.
        """
        free = read_names(expression) - _own_parameters(expression)
        written = {name.partition(".")[0] for name in written_names(self.function)}
        for name in sorted(free):
            argument = self.arguments.get(name)
            if argument is None:
                self._ensure_global(name, written)
            elif name in written - {"self"} or not dotted(argument):
                raise NotMatchedError(
                    f"`{name}` in `{self.function.name}` is not one name outside of it"
                )
        values = {name: self.arguments[name] for name in free & self.arguments.keys()}
        return Substitution(values).visit(copy.deepcopy(expression))

    def _ensure_global(self, name: str, written: set[str]) -> None:
        hides = not isinstance(self.scope, ast.Module) and (
            name in written_names(self.scope) | _parameters(self.scope)
        )
        if name in written - {self.function.name} or hides:
            raise NotMatchedError(f"`{name}` is known in `{self.function.name}` only")


def find_outer_call(
    function: Function, tree: ast.Module, parents: Mapping[ast.AST, ast.AST]
) -> OuterCall | None:
    """Return the call of a function that a loop makes; None where no loop does.

    Raises:
        NotMatchedError: A step could not be handed over in that call.
    """
    calls = [call for call in _calls(function, tree, parents) if _loops_around(call, parents)]
    if not calls:
        return None
    call = calls[0]
    again = NotMatchedError(
        f"line {call.lineno} calls `{function.name}` in a loop, so that the step would be "
        "compiled anew each time: make it before that loop, and hand it over"
    )
    if not isinstance(function, ast.FunctionDef) or len(_mentions(function, tree, parents)) != 1:
        raise again
    scope = scope_of(call, parents)
    arguments = _bound_arguments(function, call)
    is_called_in_loop = isinstance(scope, ast.FunctionDef) and any(
        _loops_around(other, parents) for other in _calls(scope, tree, parents)
    )
    if arguments is None or is_called_in_loop or scope is function:
        raise again
    if not isinstance(scope, ast.FunctionDef | ast.Module):
        raise again
    return OuterCall(
        function=function,
        call=call,
        loops=_loops_around(call, parents),
        scope=scope,
        arguments=arguments,
    )


def _mentions(
    function: Function, tree: ast.Module, parents: Mapping[ast.AST, ast.AST]
) -> list[ast.AST]:
    """Return where a function is named, or an attribute that may be it where it is a method."""
    is_method = isinstance(parents.get(function), ast.ClassDef)
    return [
        part
        for part in ast.walk(tree)
        if isinstance(part, ast.Attribute if is_method else ast.Name)
        and function.name in (getattr(part, "attr", None), getattr(part, "id", None))
    ]


def _calls(
    function: Function, tree: ast.Module, parents: Mapping[ast.AST, ast.AST]
) -> list[ast.Call]:
    around = (parents[mention] for mention in _mentions(function, tree, parents))
    return [call for call in around if isinstance(call, ast.Call)]


def _loops_around(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for around in enclosing(node, parents):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(around, ast.For | ast.While):
            loops.append(around)
    return tuple(loops)


def _bound_arguments(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return what each parameter gets; None where that is not plain to see."""
    parameters = function.args
    names = [parameter.arg for parameter in parameters.args]
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or parameters.posonlyargs:
        return None
    given = list(call.args)
    if isinstance(call.func, ast.Attribute):
        if names[:1] != ["self"] or dotted(call.func.value) != "self":
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


def _own_parameters(expression: ast.expr) -> set[str]:
    return {part.arg for part in ast.walk(expression) if isinstance(part, ast.arg)}


def _parameters(scope: ast.AST) -> set[str]:
    arguments = getattr(scope, "args", None)
    return set() if arguments is None else _own_parameters(arguments)
