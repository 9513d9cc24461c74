"""The function of the model's output and one target that the loss of a loop is."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass

from breakeven.rewrite.loop_match import OUTPUT, TrainingLoop
from breakeven.source import (
    COMPREHENSIONS,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    declared_names,
    free_name,
    mentions,
    nodes_in,
    plain_name,
    read_names,
    substituted,
    written_names,
    written_part,
)

# Reading a value out of a tensor ends the graph, and so do these.
_LEAVES_GRAPH = frozenset({"item", "numpy", "tolist", "cpu", "cuda", "backward", "to"})
_NOT_PLAIN = (
    *COMPREHENSIONS, ast.IfExp, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom,
    ast.Starred,
)  # fmt: skip
_OUTPUT_NAMES = ("output", "prediction", "model_output")
_TARGET_NAMES = ("target", "targets", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """How a loss is computed from the model's output.

    Args:
        function: Function of output and targets.
        targets: What it gets as its second argument.
    """

    function: ast.expr
    targets: ast.expr


def loss_function(loop: TrainingLoop, script: SyntaxTree) -> LossCall:
    """Return the function of output and targets that a loop's loss is.

    Raises:
        NoEditError: It is none, or depends on what changes while the loop runs.
    """
    loss = loop.loss
    for part in ast.walk(loss):
        if isinstance(part, _NOT_PLAIN):
            raise NoEditError("the loss is not a plain expression of output and target")
        if isinstance(part, ast.Attribute) and part.attr in _LEAVES_GRAPH and _has_output(part):
            raise NoEditError(f"the loss calls .{part.attr}() on the model's output")
    for name in (loop.parts.model, loop.parts.optimizer):
        if mentions(loss, name):
            raise NoEditError(f"the loss uses `{name}` besides the model's output")
    if not _has_output(loss):
        raise NoEditError("the loss does not depend on the model's output")
    found = _called_directly(loss) or _as_lambda(loss, loop, script)
    # It is handed over once, so it must not be another one in each step.
    changing = set().union(*map(written_names, loop.parts.loops)) | declared_names(script.tree)
    if changed := written_part(found.function, changing):
        raise NoEditError(f"the loss depends on `{changed}`, which changes in the loop")
    return found


def _has_output(node: ast.AST) -> bool:
    return OUTPUT in read_names(node)


def _called_directly(loss: ast.expr) -> LossCall | None:
    """Return ``criterion`` of ``criterion(output, y)``."""
    match loss:
        case ast.Call(func=function, args=[ast.Name(id=name), targets], keywords=[]):
            is_data = not isinstance(targets, ast.Constant) and not _has_output(targets)
            if name == OUTPUT and is_data and not _has_output(function):
                return LossCall(function=function, targets=targets)
        case _:
            pass
    return None


def _as_lambda(loss: ast.expr, loop: TrainingLoop, script: SyntaxTree) -> LossCall:
    """Return ``lambda output, y: …`` with the one value of the batch that the loss reads."""
    values = _batch_values(loss, loop, script)
    if len(values) != 1:
        what = f"reads {', '.join(sorted(values))}" if values else "reads no target"
        raise NoEditError(f"the loss {what}: fast_step gives it the output and one target")
    (name,) = values
    tree = SyntaxTree(loss)
    places = [_longest_chain(part, tree) for part in nodes_in(loss, ast.Name) if part.id == name]
    targets = places[0]
    text = ast.unparse(targets)
    if any(ast.unparse(place) != text for place in places):
        raise NoEditError(f"the loss reads several parts of `{name}`")
    taken = all_identifiers(script.tree)
    # Names that go with the removed statements are free for other use.
    gone = {name for statement in loop.removed for name in written_names(statement)}
    output = free_name(_OUTPUT_NAMES, taken - gone)
    target = name if isinstance(targets, ast.Name) else free_name(_TARGET_NAMES, taken)

    def parameter(part: ast.expr) -> ast.expr | None:
        if isinstance(part, ast.Name) and part.id == OUTPUT:
            return ast.Name(output, part.ctx)
        return ast.Name(target, ast.Load()) if ast.unparse(part) == text else None

    function = ast.parse(f"lambda {output}, {target}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    function.body = substituted(loss, parameter)
    return LossCall(function=function, targets=targets)


def _batch_values(loss: ast.expr, loop: TrainingLoop, script: SyntaxTree) -> set[str]:
    """Return the names in a loss that stand for data."""
    called = {plain_name(call.func) for call in nodes_in(loss, ast.Call)}
    names = read_names(loss) - {OUTPUT, "self"} - set(dir(builtins)) - called
    for node in script.nodes(ast.alias, ast.FunctionDef, ast.ClassDef):
        names -= written_names(node) if isinstance(node, ast.alias) else {node.name}
    written = {name.partition(".")[0] for name in written_names(loop.parts.loops[0])}
    return names & written or names


def _longest_chain(node: ast.expr, tree: SyntaxTree) -> ast.expr:
    """Return ``batch["y"]`` around ``batch``: the whole of constant subscripts."""
    parent = tree.parent(node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        return _longest_chain(parent, tree)
    return node
