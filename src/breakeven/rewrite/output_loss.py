"""A training loop that calls its model and computes a loss from the output and one target."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.known_calls import last_called
from breakeven.rewrite.loop_parts import StepParts
from breakeven.source import (
    COMPREHENSIONS,
    DEFINITIONS,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    blocks_of,
    declared_names,
    free_name,
    mentions,
    nodes_in,
    plain_name,
    read_names,
    reads_in_scope,
    substituted,
    with_values,
    written_names,
    written_part,
)

# Placeholder for the model's output in an expression; no user's name can equal it.
_OUTPUT = "<output>"
_OUTPUT_NAMES = ("output", "prediction", "model_output")
_TARGET_NAMES = ("target", "targets", "expected")

# Calls allowed between loss and update: they have the same effect after the update.
_LOGGING = frozenset({"item", "detach", "cpu", "append", "size", "float", "int", "len", "print"})
# Calls allowed between forward pass and loss: they have the same effect before both.
_PREPARING = frozenset({
    "to", "cuda", "cpu", "long", "float", "double", "int", "view", "reshape", "squeeze",
    "unsqueeze", "flatten", "size", "len",
})  # fmt: skip
# Using these on the output ends the graph, as reading a value out of a tensor does.
_LEAVES_GRAPH = frozenset({"item", "numpy", "tolist", "cpu", "cuda", "backward", "to"})
_JUMPS = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)
_NOT_PLAIN = (*COMPREHENSIONS, *_JUMPS, ast.IfExp, ast.Starred)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLoss:
    """The parts of one step of a loop.

    Args:
        arguments: Arguments of the model's call.
        function: The loss as a function of output and target.
        target: Second argument of that function.
        place: The statement that the call of the step replaces.
        removed: All statements to remove, in order, including ``place``.
    """

    arguments: tuple[ast.expr, ...]
    function: ast.expr
    target: ast.expr
    place: ast.stmt
    removed: tuple[ast.stmt, ...]


def match_loop(script: SyntaxTree, parts: StepParts) -> OutputLoss:
    """Return the training step of a script that computes a loss from the output of its model.

    Args:
        script: The script.
        parts: Parts of its step.

    Raises:
        NoEditError: If it has another form, or may not be safe to change.
    """
    forward = _Forward(parts)
    for position, statement in enumerate(parts.block[: parts.block.index(parts.update)]):
        if statement not in parts.own:
            forward.take(position, statement)
    loss = forward.resolve(parts.loss)
    if forward.arguments is None:
        raise NoEditError(
            f"the loss of line {parts.backward.lineno} is not computed from a call of "
            f"{parts.model} in the same block"
        )
    for name, uses in forward.uses.items():
        if uses == 0:
            raise NoEditError(f"`{name}` is computed from the model's output, but not for the loss")
    if shared := declared_names(script.tree) & forward.values.keys():
        raise NoEditError(f"`{min(shared)}` is shared with another function")
    taken = {*parts.own, *forward.taken}
    removed = tuple(statement for statement in parts.block if statement in taken)
    # Refuse other code that reads a value which the step no longer leaves behind.
    gone = {part for statement in removed for part in ast.walk(statement)}
    scope = script.scope_of(parts.backward)
    for name in sorted(forward.values.keys() - {plain_name(parts.loss)}):
        for place in reads_in_scope(scope, name):
            if place not in gone and not is_rebound(place, name, removed, script):
                raise NoEditError(
                    f"`{name}` is used in line {place.lineno}, and the step returns only the loss"
                )
    function, target = _loss_function(loss, parts, removed, script)
    return OutputLoss(
        arguments=forward.arguments,
        function=function,
        target=target,
        place=parts.block[forward.loss_position],
        removed=removed,
    )


class _Forward:
    """Collects the statements from the call of the model to the loss into one expression."""

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        self.values: dict[str, ast.expr] = {}
        self.taken: list[ast.stmt] = []
        self.uses: dict[str, int] = {}
        self.arguments: tuple[ast.expr, ...] | None = None
        self._read: set[str] = set()
        self.loss_position = parts.block.index(parts.backward)
        if isinstance(parts.loss, ast.Name):
            before = parts.block[: self.loss_position]
            assigned = [n for n, one in enumerate(before) if parts.loss.id in written_names(one)]
            if not assigned:
                raise NoEditError(
                    f"`{parts.loss.id}` is not computed in the block that calls backward()"
                )
            self.loss_position = assigned[-1]

    def take(self, position: int, statement: ast.stmt) -> None:
        """Read a statement before the update that is not yet recognised as part of the step."""
        if position > self.loss_position:  # a log, which moves past the update
            others = self.values.keys() - {plain_name(self._parts.loss)}
            is_simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
            if not is_simple or read_names(statement) & others or self._acts(statement, _LOGGING):
                raise NoEditError(f"cannot move line {statement.lineno} past the update")
            return
        target = None
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                target = name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                target = name, value
            case _:
                pass
        calls_model = any(map(self._is_model_call, ast.walk(statement)))
        if not calls_model and not (read_names(statement) & self.values.keys()):
            # It prepares the target, which comes before the forward pass.
            is_late = self.arguments is not None
            if is_late and (target is None or self._acts(statement, _PREPARING)):
                raise NoEditError(f"cannot move line {statement.lineno} before the forward pass")
            return
        if target is None:
            what = "calls the model" if calls_model else "uses the model's output"
            raise NoEditError(f"line {statement.lineno} {what} in another way than x = …")
        self.values[target[0]] = self.resolve(target[1])
        self.uses[target[0]] = 0
        self.taken.append(statement)

    def resolve(self, expression: ast.expr) -> ast.expr:
        """Substitute the output for the model's call, and values for names, in an expression."""
        for name in (part.id for part in nodes_in(expression, ast.Name) if part.id in self.uses):
            self.uses[name] += 1
            if self.uses[name] > 1 and plain_name(self.values[name]) != _OUTPUT:
                # A value that draws random numbers would draw them twice.
                raise NoEditError(f"`{name}` enters the loss more than once")
        for call in nodes_in(expression, ast.Call):
            if not self._is_model_call(call):
                continue
            if self.arguments is not None:
                raise NoEditError(f"line {call.lineno} calls the model once more")
            if call.keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
                raise NoEditError(f"line {call.lineno} calls the model with keywords or *")
            if not call.args:
                raise NoEditError(f"line {call.lineno} calls the model without an input")
            for argument in call.args:
                is_nested = any(map(self._is_model_call, ast.walk(argument)))
                if is_nested or read_names(argument) & self.values.keys():
                    raise NoEditError(f"line {call.lineno} calls the model on its own output")
            self.arguments = tuple(call.args)
        self._read |= read_names(expression)
        output = ast.Name(_OUTPUT, ast.Load())
        replaced = substituted(
            expression, lambda part: output if self._is_model_call(part) else None
        )
        return with_values(replaced, self.values)

    def _is_model_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and plain_name(node.func) == self._parts.model

    def _acts(self, statement: ast.stmt, harmless: frozenset[str]) -> bool:
        """Whether a statement may have other effects, or changes values of the step."""
        return (
            mentions(statement, self._parts.model, self._parts.optimizer)
            or not all(last_called(call) in harmless for call in nodes_in(statement, ast.Call))
            or any(nodes_in(statement, *_JUMPS))
            or bool(written_names(statement) & (self._read | self.values.keys()))
        )


def is_rebound(place: ast.AST, name: str, removed: Sequence[ast.stmt], script: SyntaxTree) -> bool:
    """Whether ``name`` certainly gets its value at ``place`` from statements that stay.

    This needs an assignment before ``place`` in a surrounding block, with no part of the step in
    between.
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


def _loss_function(
    loss: ast.expr, parts: StepParts, removed: Sequence[ast.stmt], script: SyntaxTree
) -> tuple[ast.expr, ast.expr]:
    """Split a loss into a function of output and target, and the target.

    Raises:
        NoEditError: If it has another form, or depends on a value that changes in the loop.
    """
    for part in ast.walk(loss):
        if isinstance(part, _NOT_PLAIN):
            raise NoEditError("the loss is not a plain expression of output and target")
        if isinstance(part, ast.Attribute) and part.attr in _LEAVES_GRAPH and _has_output(part):
            raise NoEditError(f"the loss calls .{part.attr}() on the model's output")
    for name in (parts.model, parts.optimizer):
        if mentions(loss, name):
            raise NoEditError(f"the loss uses `{name}` besides the model's output")
    if not _has_output(loss):
        raise NoEditError("the loss does not depend on the model's output")
    found: tuple[ast.expr, ast.expr] | None = None
    match loss:
        case ast.Call(func=function, args=[ast.Name(id=name), target], keywords=[]):
            # ``criterion`` of ``criterion(output, y)``.
            is_data = not isinstance(target, ast.Constant) and not _has_output(target)
            if name == _OUTPUT and is_data and not _has_output(function):
                found = function, target
        case _:
            pass
    found = found or _as_lambda(loss, parts, removed, script)
    # The step gets the function once, so it must be the same in each step.
    changing = set().union(*map(written_names, parts.loops)) | declared_names(script.tree)
    if changed := written_part(found[0], changing):
        raise NoEditError(f"the loss depends on `{changed}`, which changes in the loop")
    return found


def _has_output(node: ast.AST) -> bool:
    return _OUTPUT in read_names(node)


def _as_lambda(
    loss: ast.expr, parts: StepParts, removed: Sequence[ast.stmt], script: SyntaxTree
) -> tuple[ast.expr, ast.expr]:
    """Return ``lambda output, y: …`` and the only value of the batch that the loss reads."""
    called = {plain_name(call.func) for call in nodes_in(loss, ast.Call)}
    names = read_names(loss) - {_OUTPUT, "self"} - set(dir(builtins)) - called
    for node in script.nodes(ast.alias, ast.FunctionDef, ast.ClassDef):
        names -= written_names(node) if isinstance(node, ast.alias) else {node.name}
    written = {name.partition(".")[0] for name in written_names(parts.loops[0])}
    values = names & written or names
    if len(values) != 1:
        what = f"reads {', '.join(sorted(values))}" if values else "reads no target"
        raise NoEditError(f"the loss {what}: fast_step gives it the output and one target")
    (name,) = values
    tree = SyntaxTree(loss)
    places = [_longest_chain(part, tree) for part in nodes_in(loss, ast.Name) if part.id == name]
    text = ast.unparse(places[0])
    if any(ast.unparse(place) != text for place in places):
        raise NoEditError(f"the loss reads several parts of `{name}`")
    taken = all_identifiers(script.tree)
    # Names that vanish with the removed statements are free.
    gone = {name for statement in removed for name in written_names(statement)}
    output = free_name(_OUTPUT_NAMES, taken - gone)
    target = name if isinstance(places[0], ast.Name) else free_name(_TARGET_NAMES, taken)

    def parameter(part: ast.expr) -> ast.expr | None:
        if isinstance(part, ast.Name) and part.id == _OUTPUT:
            return ast.Name(output, part.ctx)
        return ast.Name(target, ast.Load()) if ast.unparse(part) == text else None

    function = ast.parse(f"lambda {output}, {target}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    function.body = substituted(loss, parameter)
    return function, places[0]


def _longest_chain(node: ast.expr, tree: SyntaxTree) -> ast.expr:
    """Return the outermost constant subscript around a name: ``batch["y"]`` for ``batch``."""
    parent = tree.parent(node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        return _longest_chain(parent, tree)
    return node
