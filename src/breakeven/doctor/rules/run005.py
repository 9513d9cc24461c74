"""RUN005: a sum or a list keeps the graph of every step alive.

What it does:
    Finds ``total += loss`` and ``losses.append(loss)`` in a training loop, or in the function
    that runs a step, where ``loss`` is the tensor on which ``backward()`` was called and
    nothing takes its history away.

Why it costs time:
    The sum refers to the graph of each step so far. Memory grows with every step, and so does
    the chain of nodes that is walked when it is freed at last.

Evidence:
    Slow growth until the memory is full, in public reports.

Fix:
    Add up what has no history.

    ```python
    total += loss
    ```

    ```python
    total += loss.detach()
    ```

Known limits:
    Read from the source: a tensor that reaches the sum under another name is not seen. No gain
    is shown, for a single step shows none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.source import (
    LOOP_STATEMENTS,
    SourceFile,
    declared_names,
    dotted_name,
    last_name,
    own_nodes,
    written_names,
)
from breakeven.units import format_bytes

CAUSE = "GRAPH_RETAINED"

# What makes a number or a tensor without history of a tensor.
_DETACHING = frozenset({"item", "detach", "tolist", "numpy", "float", "int", "str", "format"})
_ENDS_HISTORY = frozenset({"data", "grad", "shape", "dtype", "device"})
# What a trainer calls, and on whose result it calls backward() itself.
_STEP_METHODS = frozenset({"training_step", "compute_loss"})
_Kept = tuple[ast.stmt, str, str]


def detect(case: Case) -> Found:
    live = case.facts.live_bytes
    growth = ""
    if len(live) > 2 and list(live) == sorted(set(live)):
        growth = f"; live memory grew by {format_bytes(live[-1] - live[0])} in {len(live)} steps"
    for source in case.sources:
        for statement, target, value in _kept(source):
            yield Occurrence(
                title=f"{target} keeps the graph of {value} alive in every step",
                fix=f"add {value}.detach() instead",
                evidence=f"{value} has a history here, and {target} outlives the step{growth}",
                location=source.location(statement),
            )


def _kept(source: SourceFile) -> Iterator[_Kept]:
    """Yield statements that keep a graph, with the names of the keeper and of the tensor."""
    functions = list(source.nodes(ast.FunctionDef))
    # Functions that run a step and return its loss with its history.
    makers = {one.name for one in functions if _returned(one) & _losses(one, set())}
    for loop in source.nodes(*LOOP_STATEMENTS):
        inner, losses = list(own_nodes(loop, *LOOP_STATEMENTS)), _losses(loop, makers)
        around = [one for one in source.parents(loop) if isinstance(one, LOOP_STATEMENTS)]
        # An iteration of the innermost loop that updates is a step; where the update is out of
        # sight, of the innermost that calls backward().
        if _updates(loop, makers):
            is_step = not any(_updates(one, makers) for one in inner)
        else:
            others = any(_losses(one, makers) for one in inner)
            is_step = not others and not any(_updates(one, makers) for one in around)
        for statement, target, value in _keepers(source, loop, losses) if is_step else ():
            if not _is_reset(loop, statement, target):
                yield statement, target, value
    for function in functions:
        losses = _losses(function, set())
        losses |= _returned(function) if function.name in _STEP_METHODS else set()
        own = written_names(function) - declared_names(function)
        for statement, target, value in _keepers(source, function, losses):
            # What a step adds to an attribute, or to a list from outside, outlives it.
            if _root(target) not in own and not source.is_in_loop(statement):
                yield statement, target, value


def _losses(scope: ast.AST, makers: set[str]) -> set[str]:
    """Return what has the history of a step: names, and calls of ``makers``."""
    found: set[str] = set()
    for call in own_nodes(scope, ast.Call):
        if last_name(call) in makers:
            found.add(ast.unparse(call))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            inside = call.func.value
            # `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.
            given = inside.args if isinstance(inside, ast.Call) else [*call.args, inside]
            found.update(map(ast.unparse, given))
    for node in own_nodes(scope, ast.Assign):
        name = ast.unparse(node.targets[0])
        if isinstance(node.value, ast.Call) and last_name(node.value) in makers:
            found.add(name)
        elif name in found & _names(node.value) and any(
            last_name(one) in _DETACHING for one in ast.walk(node.value)
        ):
            found.discard(name)  # `loss = loss.item()`
    return found


def _returned(function: ast.FunctionDef) -> set[str]:
    values = [node.value for node in own_nodes(function, ast.Return)]
    parts = (one.values if isinstance(one, ast.Dict) else [one] for one in values)
    return {one.id for part in parts for one in part if isinstance(one, ast.Name)}


def _updates(loop: ast.AST, makers: set[str]) -> bool:
    return any(last_name(call) in {"step", *makers} for call in own_nodes(loop, ast.Call))


def _keepers(source: SourceFile, scope: ast.AST, losses: set[str]) -> Iterator[_Kept]:
    """Yield statements of a scope that add one of ``losses`` to a sum or a list."""
    for node in sorted(own_nodes(scope, ast.stmt), key=lambda one: one.lineno):
        target, added = "", []
        if isinstance(node, ast.AugAssign):
            target, added = ast.unparse(node.target), [node.value]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            target, added = ast.unparse(node.targets[0]), [node.value]
            added = added if target in _names(node.value) else []
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target, _, method = ast.unparse(node.value.func).rpartition(".")
            added = node.value.args if method in ("append", "extend") else []
        value = next(filter(None, (_with_history(one, losses) for one in added)), "")
        if value and target not in losses and not _is_without_history(source, node):
            yield node, target, value


def _with_history(node: ast.AST, names: set[str]) -> str:
    """Return one of ``names`` in an expression that reaches its value with its history."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        is_name = isinstance(part, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        if is_name and (text := ast.unparse(part)) in names:
            return text
        is_end = isinstance(part, ast.Call) and last_name(part.func) in _DETACHING
        is_end = is_end or (isinstance(part, ast.Attribute) and part.attr in _ENDS_HISTORY)
        if not is_end and not isinstance(part, (ast.JoinedStr, ast.Compare, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(part))
    return ""


def _is_without_history(source: SourceFile, statement: ast.stmt) -> bool:
    """Return whether nothing is recorded at a statement: it is under ``torch.no_grad()``."""
    around = (block for block in source.parents(statement) if isinstance(block, ast.With))
    managers = (dotted_name(item.context_expr) for block in around for item in block.items)
    return any(name.endswith(("no_grad", "inference_mode")) for name in managers)


def _names(node: ast.AST) -> set[str]:
    names = (ast.Name, ast.Attribute, ast.Subscript)
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, names)}


def _root(target: str) -> str:
    return target.partition(".")[0].partition("[")[0]


def _is_reset(loop: ast.AST, statement: ast.stmt, target: str) -> bool:
    """Return whether the keeper starts anew within the loop, so that it cannot grow for long."""
    emptying = {f"{target}.clear", f"{target}.pop", f"{target}.zero_"}
    given = {
        name
        for node in own_nodes(loop, ast.Assign)
        if node is not statement and target not in _names(node.value)
        for name in _names(node.targets[0])
    }
    calls = {dotted_name(call) for call in own_nodes(loop, ast.Call)}
    return bool(calls & emptying) or target in given or _root(target) in given - {"self"}
