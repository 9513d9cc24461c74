"""The loss of a training loop as the function ``loss_fn(output, targets)``."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass

from breakeven.rewrite.loop_match import OUTPUT, TrainingLoop
from breakeven.rewrite.python_names import (
    NotMatchedError,
    all_identifiers,
    dotted,
    is_written,
    mentions,
    parents_of,
    read_names,
    shared_names,
    written_names,
)

# Reading a value out of a tensor ends the graph, and so do these.
_LEAVES_GRAPH = frozenset({"item", "numpy", "tolist", "cpu", "cuda", "backward", "to"})
_NOT_PLAIN = (
    ast.IfExp,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.NamedExpr,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.Starred,
)
_OUTPUT_NAMES = ("output", "prediction", "model_output")
_TARGET_NAMES = ("target", "targets", "expected")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFunction:
    """How a loss is computed from the model's output.

    Args:
        function: Function of output and targets.
        targets: What it gets as its second argument.
    """

    function: ast.expr
    targets: ast.expr


def loss_function(loop: TrainingLoop, tree: ast.Module) -> LossFunction:
    """Return the function of output and targets that a loop's loss is.

    Raises:
        NotMatchedError: It is none, or depends on what changes while the loop runs.
    """
    loss = loop.loss
    for part in ast.walk(loss):
        if isinstance(part, _NOT_PLAIN):
            raise NotMatchedError("the loss is not a plain expression of output and target")
        if isinstance(part, ast.Attribute) and part.attr in _LEAVES_GRAPH and _has_output(part):
            raise NotMatchedError(f"the loss calls .{part.attr}() on the model's output")
    for name in (loop.model, loop.optimizer):
        if mentions(loss, name):
            raise NotMatchedError(f"the loss uses `{name}` besides the model's output")
    if not _has_output(loss):
        raise NotMatchedError("the loss does not depend on the model's output")
    found = _called_directly(loss) or _as_lambda(loss, loop, tree)
    _ensure_lasting(found.function, loop, shared_names(tree))
    return found


def _has_output(node: ast.AST) -> bool:
    return OUTPUT in read_names(node)


def _called_directly(loss: ast.expr) -> LossFunction | None:
    """Return ``criterion`` of ``criterion(output, y)``."""
    match loss:
        case ast.Call(func=function, args=[ast.Name(id=name), targets], keywords=[]):
            is_data = not isinstance(targets, ast.Constant) and not _has_output(targets)
            if name == OUTPUT and is_data and not _has_output(function):
                return LossFunction(function=function, targets=targets)
        case _:
            pass
    return None


def _as_lambda(loss: ast.expr, loop: TrainingLoop, tree: ast.Module) -> LossFunction:
    """Return ``lambda output, y: …`` with the one value of the batch that the loss reads."""
    values = _batch_values(loss, loop, tree)
    if len(values) != 1:
        what = f"reads {', '.join(sorted(values))}" if values else "reads no target"
        raise NotMatchedError(f"the loss {what}: fast_step gives it the output and one target")
    (name,) = values
    parents = parents_of(loss)
    places = [_longest_chain(part, parents) for part in ast.walk(loss) if _is_read(part, name)]
    texts = {ast.unparse(place) for place in places}
    if len(texts) > 1:
        raise NotMatchedError(f"the loss reads several parts of `{name}`")
    taken = all_identifiers(tree)
    targets = places[0]
    parameter = name
    if not isinstance(targets, ast.Name):
        parameter = _free_name(_TARGET_NAMES, taken)
    output = _free_name(_OUTPUT_NAMES, taken - _names_of_removed(loop))
    body = _Renamed({OUTPUT: output}, targets, parameter).visit(loss)
    function = ast.parse(f"lambda {output}, {parameter}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    function.body = body
    return LossFunction(function=function, targets=targets)


def _names_of_removed(loop: TrainingLoop) -> set[str]:
    """Return the names that go with the removed statements: they are free for other use."""
    return set().union(*(written_names(statement) for statement in loop.removed))


def _batch_values(loss: ast.expr, loop: TrainingLoop, tree: ast.Module) -> set[str]:
    """Return the names in a loss that stand for data."""
    called = {dotted(part.func) for part in ast.walk(loss) if isinstance(part, ast.Call)}
    names = read_names(loss) - {OUTPUT, "self"} - set(dir(builtins)) - called - _defined(tree)
    bound = {name for name in names if is_written(name, written_names(loop.loops[0]))}
    return bound or names


def _defined(tree: ast.Module) -> set[str]:
    """Return what the file imports or defines: functions and classes, not data."""
    found: set[str] = set()
    for part in ast.walk(tree):
        if isinstance(part, ast.Import | ast.ImportFrom):
            found |= written_names(part)
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            found.add(part.name)
    return found


def _is_read(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _longest_chain(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> ast.expr:
    """Return ``batch["y"]`` around ``batch``: the whole of constant subscripts."""
    assert isinstance(node, ast.expr)
    parent = parents.get(node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        return _longest_chain(parent, parents)
    return node


def _free_name(names: tuple[str, ...], taken: set[str]) -> str:
    for name in names:
        if name not in taken:
            return name
    raise NotMatchedError(f"the names {', '.join(names)} are all in use")


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str], targets: ast.expr, parameter: str) -> None:
        self._names = names
        self._targets = ast.unparse(targets)
        self._parameter = parameter

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._names:
            return ast.Name(self._names[node.id], node.ctx)
        return self._as_parameter(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        return self._as_parameter(node)

    def _as_parameter(self, node: ast.expr) -> ast.expr:
        if ast.unparse(node) == self._targets:
            return ast.Name(self._parameter, ast.Load())
        return node


def _ensure_lasting(function: ast.expr, loop: TrainingLoop, shared: set[str]) -> None:
    """Refuse a loss function that is another one in each step: it is handed over once."""
    own = {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    written = loop.written_in_loops | shared
    for part in ast.walk(function):
        name = dotted(part)
        if name and name.partition(".")[0] not in own and is_written(name, written):
            raise NotMatchedError(f"the loss depends on `{name}`, which changes in the loop")
