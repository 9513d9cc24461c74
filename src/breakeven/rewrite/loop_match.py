"""The training loop of a script: which statements are one step, and what each of them does."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.known_calls import last_called
from breakeven.rewrite.loop_parts import StepParts
from breakeven.source import (
    DEFINITIONS,
    NoEditError,
    SyntaxTree,
    blocks_of,
    declared_names,
    mentions,
    nodes_in,
    plain_name,
    read_names,
    reads_in_scope,
    substituted,
    with_values,
    written_names,
)

# Stands for the model's output in an expression; no user's name can be the same.
OUTPUT = "<output>"

# What a statement between loss and update may call, and still do the same after the update.
_LOGGING = frozenset({"item", "detach", "cpu", "append", "size", "float", "int", "len", "print"})
# What a statement between forward pass and loss may call, and still do the same before both.
_PREPARING = frozenset({
    "to", "cuda", "cpu", "long", "float", "double", "int", "view", "reshape", "squeeze",
    "unsqueeze", "flatten", "size", "len",
})  # fmt: skip
_JUMPS = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """One step of a loop, taken apart.

    Args:
        parts: Where it calls backward and update, and on what.
        arguments: What the model is called with.
        loss: The loss, with ``OUTPUT`` in place of the call of the model.
        place: The statement that the call of the step replaces.
        removed: All statements that go, this one among them, in order.
    """

    parts: StepParts
    arguments: tuple[ast.expr, ...]
    loss: ast.expr
    place: ast.stmt
    removed: tuple[ast.stmt, ...]

    @property
    def loss_name(self) -> str:
        """Return what the source calls the loss; empty where it has no name."""
        return plain_name(self.parts.loss)


def match_loop(script: SyntaxTree, parts: StepParts) -> TrainingLoop:
    """Return the training step of a script that calls the model, and computes a loss of its output.

    Args:
        script: The script.
        parts: Of its step.

    Raises:
        NoEditError: It is of another form, or not known to be safe to change.
    """
    forward = _Forward(parts)
    for position, statement in enumerate(parts.block[: parts.block.index(parts.update)]):
        if statement not in parts.own:
            forward.take(position, statement)
    loss, arguments = forward.result()
    shared = declared_names(script.tree) & forward.values.keys()
    if shared:
        raise NoEditError(f"`{min(shared)}` is shared with another function")
    taken = {*parts.own, *forward.taken}
    loop = TrainingLoop(
        parts=parts,
        arguments=arguments,
        loss=loss,
        place=parts.block[forward.loss_position],
        removed=tuple(statement for statement in parts.block if statement in taken),
    )
    _ensure_unused(set(forward.values) - {loop.loss_name}, loop, script)
    return loop


class _Forward:
    """Collects the statements from the call of the model to the loss into one expression."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self.values: dict[str, ast.expr] = {}
        self.taken: list[ast.stmt] = []
        self._uses: dict[str, int] = {}
        self._arguments: tuple[ast.expr, ...] | None = None
        self._read: set[str] = set()
        self.loss_position = parts.block.index(parts.backward)
        if isinstance(parts.loss, ast.Name):
            self.loss_position = self._last_assignment(parts.loss.id, self.loss_position)

    def take(self, position: int, statement: ast.stmt) -> None:
        """Read one statement before the update that is not part of the step by its form."""
        if position > self.loss_position:
            self._ensure_logging(statement)
            return
        calls_model = any(map(self._is_model_call, ast.walk(statement)))
        if not calls_model and not (read_names(statement) & self.values.keys()):
            if self._arguments is not None:
                self._ensure_preparing(statement)
            return
        target = _single_target(statement)
        if target is None or not isinstance(statement, ast.Assign | ast.AnnAssign):
            what = "calls the model" if calls_model else "uses the model's output"
            raise NoEditError(f"line {statement.lineno} {what} in another way than x = …")
        assert statement.value is not None
        self.values[target] = self._resolve(statement.value)
        self._uses[target] = 0
        self.taken.append(statement)

    def result(self) -> tuple[ast.expr, tuple[ast.expr, ...]]:
        """Return the loss as one expression, and the arguments of the model."""
        loss = self._resolve(self._parts.loss)
        if self._arguments is None:
            raise NoEditError(
                f"the loss of line {self._parts.backward.lineno} is not computed from a call of "
                f"{self._parts.model} in the same block"
            )
        for name, uses in self._uses.items():
            if uses == 0:
                raise NoEditError(
                    f"`{name}` is computed from the model's output, but not for the loss"
                )
        return loss, self._arguments

    def _last_assignment(self, name: str, before: int) -> int:
        for position in reversed(range(before)):
            if name in written_names(self._parts.block[position]):
                return position
        raise NoEditError(f"`{name}` is not computed in the block that calls backward()")

    def _is_model_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and plain_name(node.func) == self._parts.model

    def _resolve(self, expression: ast.expr) -> ast.expr:
        """Return an expression with the output for the model's call, and values for names."""
        for name in (part.id for part in nodes_in(expression, ast.Name) if part.id in self._uses):
            self._uses[name] += 1
            if self._uses[name] > 1 and plain_name(self.values[name]) != OUTPUT:
                # What draws random numbers would draw them twice.
                raise NoEditError(f"`{name}` enters the loss more than once")
        for call in nodes_in(expression, ast.Call):
            if self._is_model_call(call):
                self._keep_arguments(call)
        self._read |= read_names(expression)
        output = ast.Name(OUTPUT, ast.Load())
        replaced = substituted(
            expression, lambda part: output if self._is_model_call(part) else None
        )
        return with_values(replaced, self.values)

    def _keep_arguments(self, call: ast.Call) -> None:
        if self._arguments is not None:
            raise NoEditError(f"line {call.lineno} calls the model once more")
        if call.keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
            raise NoEditError(f"line {call.lineno} calls the model with keywords or *")
        if not call.args:
            raise NoEditError(f"line {call.lineno} calls the model without an input")
        for argument in call.args:
            is_nested = any(map(self._is_model_call, ast.walk(argument)))
            if is_nested or read_names(argument) & self.values.keys():
                raise NoEditError(f"line {call.lineno} calls the model on its own output")
        self._arguments = tuple(call.args)

    def _ensure_logging(self, statement: ast.stmt) -> None:
        """Refuse a statement after the loss that might do something else after the update."""
        others = self.values.keys() - {plain_name(self._parts.loss)}
        is_simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
        if not is_simple or read_names(statement) & others or self._acts(statement, _LOGGING):
            raise NoEditError(
                f"line {statement.lineno} stands between the loss and the update, and is not "
                "known to do the same after them"
            )

    def _ensure_preparing(self, statement: ast.stmt) -> None:
        """Refuse a statement after the forward pass that might do something else before it."""
        if _single_target(statement) is None or self._acts(statement, _PREPARING):
            raise NoEditError(
                f"line {statement.lineno} stands between the forward pass and the loss, and is "
                "not known to do the same before them"
            )

    def _acts(self, statement: ast.stmt, harmless: frozenset[str]) -> bool:
        """Return whether a statement may do more than it shows, or changes what a step is of."""
        return (
            mentions(statement, self._parts.model, self._parts.optimizer)
            or not all(last_called(call) in harmless for call in nodes_in(statement, ast.Call))
            or any(nodes_in(statement, *_JUMPS))
            or bool(written_names(statement) & (self._read | self.values.keys()))
        )


def _single_target(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return name
        case _:
            return None


def _ensure_unused(names: set[str], loop: TrainingLoop, script: SyntaxTree) -> None:
    """Refuse where something else reads a value that the step no longer leaves behind."""
    gone = {part for statement in loop.removed for part in ast.walk(statement)}
    scope = script.scope_of(loop.parts.backward)
    for name in sorted(names):
        for place in reads_in_scope(scope, name):
            if place not in gone and not is_bound_anew(place, name, loop.removed, script):
                raise NoEditError(
                    f"`{name}` is used in line {place.lineno}, and the step returns only the loss"
                )


def is_bound_anew(
    place: ast.AST, name: str, removed: Sequence[ast.stmt], script: SyntaxTree
) -> bool:
    """Return whether ``name`` gets its value at ``place`` from what stays, for sure.

    That is an assignment before it in a block around it, with no part of the step in between.
    """
    inner = place
    for outer in script.parents(place):
        if isinstance(outer, DEFINITIONS):
            return False
        block = next((block for block in blocks_of(outer) if inner in block), [])
        for statement in reversed(block[: [*block, inner].index(inner) + 1]):
            if any(part in removed for part in ast.walk(statement)):
                break
            if (
                statement is not inner
                and isinstance(statement, ast.Assign)
                and name in written_names(statement)
            ):
                return True
        inner = outer
    return False
