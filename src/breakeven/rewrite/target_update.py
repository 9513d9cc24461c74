"""Updates of networks beside the optimizers' own: a target that follows the network it copies.

They write into parameters, which nothing else in a step is allowed to do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from breakeven.rewrite.known_calls import KnownCalls, last_called
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    nodes_in,
    parameters_of,
    plain_name,
    read_names,
    written_names,
)

_WRITES = frozenset({"mul_", "add_", "sub_", "lerp_", "copy_"})
_PARTS = frozenset({
    "parameters", "named_parameters", "buffers", "named_buffers", "zip",
})  # fmt: skip


class TargetUpdates:
    """Which statements of a script are such updates.

    Args:
        script: The script.
        models: Whose parameters may be written, as the script calls them.
    """

    def __init__(self, script: SyntaxTree, models: Sequence[str]) -> None:
        self._models = frozenset(models)
        self._functions = {
            node.name: node
            for node in script.nodes(ast.FunctionDef)
            if not isinstance(script.parent(node), ast.ClassDef)
        }

    def is_update(self, statement: ast.stmt) -> bool:
        """Return whether it is a loop over parameters, or calls a function of such a loop."""
        match statement:
            case ast.For():
                return self._goes_over(statement, self._models)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call):
                function = self._functions.get(name)
                return function is not None and self._is_given_models(call, function)
            case _:
                return False

    def ensure_plain(self, statement: ast.stmt, calls: KnownCalls) -> None:
        """Refuse such an update that does anything else.

        Args:
            statement: One for which ``is_update`` holds.
            calls: What the calls of the step are known to do.

        Raises:
            NoEditError: It does.
        """
        if isinstance(statement, ast.For):
            self._ensure_loop(statement, calls, set())
            return
        assert isinstance(statement, ast.Expr)
        assert isinstance(statement.value, ast.Call)
        function = self._functions[plain_name(statement.value.func)]
        known = parameters_of(function.args)
        for one in _statements(function.body):
            assert isinstance(one, ast.For)
            self._ensure_loop(one, calls, known)

    def _is_given_models(self, call: ast.Call, function: ast.FunctionDef) -> bool:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        decorators = {ast.unparse(one) for one in function.decorator_list}
        parameters = frozenset(parameters_of(function.args))
        body = list(_statements(function.body))
        return (
            any(read_names(one) & self._models for one in given)
            and decorators <= {"torch.no_grad()"}
            and all(map(self._is_model_or_number, given))
            and bool(body)
            and all(isinstance(one, ast.For) and self._goes_over(one, parameters) for one in body)
        )

    def _is_model_or_number(self, given: ast.expr) -> bool:
        if isinstance(given, ast.Call):
            owner, _, method = plain_name(given.func).rpartition(".")
            return owner in self._models and method in _PARTS and not given.args
        return bool(plain_name(given)) or isinstance(given, ast.Constant)

    def _goes_over(self, loop: ast.For, owners: frozenset[str]) -> bool:
        """Return whether a loop is one over parameters of some models, or of what it is given."""
        calls = list(nodes_in(loop.iter, ast.Call))
        return (
            all(last_called(call) in _PARTS for call in calls)
            and not loop.orelse
            and read_names(loop.iter) - {"zip", "strict"} <= owners
        )

    def _ensure_loop(self, loop: ast.For, calls: KnownCalls, known: set[str]) -> None:
        own = written_names(loop.target)
        for statement in _statements(loop.body):
            calls.ensure_constant(statement, own | known)
            is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if not is_call:
                raise NoEditError(
                    f"line {statement.lineno} does more than to move a parameter towards another"
                )
            for call in nodes_in(statement, ast.Call):
                written = [one.value for one in call.keywords if one.arg == "out"]
                if isinstance(call.func, ast.Attribute) and last_called(call) in _WRITES:
                    written.append(call.func.value)
                elif written or last_called(call) != "detach":
                    calls.ensure_pure(
                        ast.copy_location(ast.Expr(call), statement), values=frozenset(own)
                    )
                if any(plain_name(one).partition(".")[0] not in own for one in written):
                    raise NoEditError(
                        f"line {statement.lineno} writes to other than a model's parameters"
                    )


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those within ``with torch.no_grad()`` in its place."""
    for statement in body:
        match statement:
            case ast.With(items=[ast.withitem(context_expr=context)], body=inner):
                if ast.unparse(context) != "torch.no_grad()":
                    yield statement
                yield from _statements(inner)
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                yield statement
