"""The training loop of a script: which statements are one step, and what each of them does."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from breakeven.rewrite.loop_parts import StepParts, find_parts
from breakeven.rewrite.outer_call import OuterCall
from breakeven.rewrite.python_names import (
    Loop,
    NotMatchedError,
    Substitution,
    dotted,
    enclosing,
    mentions,
    parents_of,
    read_names,
    reads_in_scope,
    scope_of,
    shared_names,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """One step of a loop, taken apart.

    Args:
        loops: The loop of the step and those around it, from within, of the same function.
        scope: That function, or the module.
        model: As the source calls it: ``self.model``.
        optimizer: Likewise.
        max_norm: What gradients are clipped to; None for no clipping.
        arguments: What the model is called with.
        loss: The loss, with ``OUTPUT`` in place of the call of the model.
        loss_name: What the source calls it; empty where it has no name.
        outer: Where a loop elsewhere calls the function of these loops; None where none does.
        place: The statement that the call of the step replaces.
        removed: All statements that go, this one among them, in order.
    """

    loops: tuple[Loop, ...]
    scope: ast.AST
    model: str
    optimizer: str
    max_norm: ast.expr | None
    arguments: tuple[ast.expr, ...]
    loss: ast.expr
    loss_name: str
    outer: OuterCall | None
    place: ast.stmt
    removed: tuple[ast.stmt, ...]

    @property
    def written_in_loops(self) -> set[str]:
        """Return every name that is bound again while the loops run."""
        return {name for loop in self.loops for name in written_names(loop)}


def match_loop(tree: ast.Module, backward_line: int | None = None) -> TrainingLoop:
    """Return the training step of a script.

    Args:
        tree: The script.
        backward_line: Line of the call of ``backward()``, where it is known from a run.

    Raises:
        NotMatchedError: The script has none, or one that is not known to be safe to change.
    """
    parents = parents_of(tree)
    parts = find_parts(tree, parents, backward_line)
    forward = _Forward(parts)
    for position, statement in enumerate(parts.block[: parts.update_position]):
        if statement not in parts.own:
            forward.take(position, statement)
    loss, arguments = forward.result()
    shared = shared_names(tree) & forward.values.keys()
    if shared:
        raise NotMatchedError(f"`{min(shared)}` is shared with another function")
    scope = scope_of(parts.backward, parents)
    removed = tuple(
        statement
        for statement in parts.block
        if statement in parts.own or statement in forward.taken
    )
    loss_name = dotted(parts.loss)
    _ensure_unused(set(forward.values) - {loss_name}, removed, scope, parents)
    return TrainingLoop(
        loops=parts.loops,
        scope=scope,
        model=parts.model,
        optimizer=parts.optimizer,
        max_norm=parts.max_norm,
        arguments=arguments,
        loss=loss,
        loss_name=loss_name,
        outer=parts.outer,
        place=parts.block[forward.last_position],
        removed=removed,
    )


class _Forward:
    """Collects the statements from the call of the model to the loss into one expression."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self.values: dict[str, ast.expr] = {}
        self.taken: list[ast.stmt] = []
        self._uses: dict[str, int] = {}
        self._arguments: tuple[ast.expr, ...] | None = None
        self._read: set[str] = set()
        self._is_direct = not isinstance(parts.loss, ast.Name)
        self._loss_position = parts.backward_position
        if not self._is_direct:
            self._loss_position = self._last_assignment(dotted(parts.loss))
        self.last_position = self._loss_position

    def take(self, position: int, statement: ast.stmt) -> None:
        """Read one statement before the update that is not part of the step by its form."""
        if position > self._loss_position:
            self._ensure_logging(statement)
            return
        calls_model = self._calls_model(statement)
        if not calls_model and not (read_names(statement) & self.values.keys()):
            if self._arguments is not None:
                self._ensure_preparing(statement)
            return
        target = _single_target(statement)
        if target is None or not isinstance(statement, ast.Assign | ast.AnnAssign):
            what = "calls the model" if calls_model else "uses the model's output"
            raise NotMatchedError(f"line {statement.lineno} {what} in another way than x = …")
        assert statement.value is not None
        self.values[target] = self._resolve(statement.value)
        self._uses[target] = 0
        self.taken.append(statement)

    def result(self) -> tuple[ast.expr, tuple[ast.expr, ...]]:
        """Return the loss as one expression, and the arguments of the model."""
        loss = self._resolve(self._parts.loss)
        if self._arguments is None:
            raise NotMatchedError(
                f"the loss of line {self._parts.backward.lineno} is not computed from a call of "
                f"{self._parts.model} in the same block"
            )
        for name, uses in self._uses.items():
            if uses == 0:
                raise NotMatchedError(
                    f"`{name}` is computed from the model's output, but not for the loss"
                )
        return loss, self._arguments

    def _last_assignment(self, name: str) -> int:
        for position in reversed(range(self._parts.backward_position)):
            if name in written_names(self._parts.block[position]):
                return position
        raise NotMatchedError(f"`{name}` is not computed in the block that calls backward()")

    def _calls_model(self, node: ast.AST) -> bool:
        return any(self._is_model_call(part) for part in ast.walk(node))

    def _is_model_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and dotted(node.func) == self._parts.model

    def _resolve(self, expression: ast.expr) -> ast.expr:
        """Return an expression with the output for the model's call, and values for names."""
        for name in [part.id for part in ast.walk(expression) if isinstance(part, ast.Name)]:
            if name not in self._uses:
                continue
            self._uses[name] += 1
            if self._uses[name] > 1 and dotted(self.values[name]) != OUTPUT:
                # What draws random numbers would draw them twice.
                raise NotMatchedError(f"`{name}` enters the loss more than once")
        for part in ast.walk(expression):
            if isinstance(part, ast.Call) and self._is_model_call(part):
                self._keep_arguments(part)
        replaced = _ReplacedCall(self._parts.model).visit(copy.deepcopy(expression))
        self._read |= read_names(expression)
        return Substitution(self.values).visit(replaced)

    def _keep_arguments(self, call: ast.Call) -> None:
        if self._arguments is not None:
            raise NotMatchedError(f"line {call.lineno} calls the model once more")
        if call.keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
            raise NotMatchedError(f"line {call.lineno} calls the model with keywords or *")
        if not call.args:
            raise NotMatchedError(f"line {call.lineno} calls the model without an input")
        for argument in call.args:
            if read_names(argument) & self.values.keys() or self._calls_model(argument):
                raise NotMatchedError(f"line {call.lineno} calls the model on its own output")
        self._arguments = tuple(call.args)

    def _ensure_logging(self, statement: ast.stmt) -> None:
        """Refuse a statement after the loss that might do something else after the update."""
        others = self.values.keys() - {dotted(self._parts.loss)}
        is_simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
        touches = [
            name for name in (self._parts.model, self._parts.optimizer) if mentions(statement, name)
        ]
        writes = written_names(statement)
        if (
            not is_simple
            or touches
            or read_names(statement) & others
            or not _calls_only(statement, _LOGGING)
            or writes & (self._read | self.values.keys())
        ):
            raise NotMatchedError(
                f"line {statement.lineno} stands between the loss and the update, and is not "
                "known to do the same after them"
            )

    def _ensure_preparing(self, statement: ast.stmt) -> None:
        """Refuse a statement after the forward pass that might do something else before it."""
        if (
            not isinstance(statement, ast.Assign | ast.AnnAssign)
            or _single_target(statement) is None
            or mentions(statement, self._parts.model)
            or mentions(statement, self._parts.optimizer)
            or not _calls_only(statement, _PREPARING)
            or written_names(statement) & (self._read | self.values.keys())
        ):
            raise NotMatchedError(
                f"line {statement.lineno} stands between the forward pass and the loss, and is "
                "not known to do the same before them"
            )


class _ReplacedCall(ast.NodeTransformer):
    def __init__(self, model: str) -> None:
        self._model = model

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if dotted(node.func) == self._model:
            return ast.Name(OUTPUT, ast.Load())
        self.generic_visit(node)
        return node


def _single_target(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return name
        case _:
            return None


def _calls_only(statement: ast.stmt, allowed: frozenset[str]) -> bool:
    """Return whether all that a statement calls has one of the names, and nothing jumps."""
    return all(
        dotted(part.func).rpartition(".")[2] in allowed
        or (isinstance(part.func, ast.Attribute) and part.func.attr in allowed)
        for part in ast.walk(statement)
        if isinstance(part, ast.Call)
    ) and not any(
        isinstance(part, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Lambda)
        for part in ast.walk(statement)
    )


def _ensure_unused(
    names: set[str],
    removed: Sequence[ast.stmt],
    scope: ast.AST,
    parents: Mapping[ast.AST, ast.AST],
) -> None:
    """Refuse where something else reads a value that the step no longer leaves behind."""
    gone = {part for statement in removed for part in ast.walk(statement)}
    for name in sorted(names):
        for place in reads_in_scope(scope, name):
            if place not in gone and not _is_bound_anew(place, name, set(removed), parents):
                raise NotMatchedError(
                    f"`{name}` is used in line {place.lineno}, and the step returns only the loss"
                )


def _is_bound_anew(
    place: ast.AST, name: str, removed: set[ast.AST], parents: Mapping[ast.AST, ast.AST]
) -> bool:
    """Return whether ``name`` gets its value at ``place`` from what stays, for sure.

    That is an assignment before it in a block around it, with no part of the step in between.
    """
    inner = place
    for outer in enclosing(place, parents):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return False
        block = next((b for b in _blocks(outer) if inner in b), None)
        if block is not None:
            for statement in reversed(block[: block.index(inner) + 1]):
                if removed & set(ast.walk(statement)):
                    break
                if (
                    statement is not inner
                    and isinstance(statement, ast.Assign)
                    and name in written_names(statement)
                ):
                    return True
        inner = outer
    return False


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block
