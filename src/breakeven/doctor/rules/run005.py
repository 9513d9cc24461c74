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
from itertools import pairwise

from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.source import (
    LOOP_STATEMENTS,
    LoopStatement,
    SourceFile,
    dotted_name,
    last_name,
    own_nodes,
)
from breakeven.units import format_bytes

CAUSE = "GRAPH_RETAINED"

# What makes a number or a tensor without history of a tensor.
_DETACHING = frozenset({
    "item", "detach", "detach_", "tolist", "numpy", "float", "int", "str", "bool", "format", "len",
    "repr",
})  # fmt: skip
_ENDS_HISTORY = frozenset({"data", "grad", "shape", "dtype", "device", "requires_grad"})
_COLLECTS = frozenset({"append", "extend", "add", "appendleft"})
# What a trainer calls, and on whose result it calls backward() itself.
_STEP_METHODS = frozenset({"training_step", "compute_loss"})
# Call backward() with the loss.
_RUNNERS = frozenset({"accelerator", "self.accelerator", "fabric", "self.fabric"})
_Kept = tuple[ast.stmt, str, str]


def detect(case: Case) -> Found:
    return tuple(
        Occurrence(
            title=f"{target} keeps the graph of {value} alive in every step",
            fix=f"add {value}.detach() instead",
            evidence=f"{value} has a history here, and {target} outlives the step" + _growth(case),
            location=source.location(statement),
        )
        for source in case.sources
        for statement, target, value in _kept(source)
    )


def _growth(case: Case) -> str:
    live = case.facts.live_bytes
    if len(live) < 3 or any(after <= before for before, after in pairwise(live)):
        return ""
    return f"; live memory grew by {format_bytes(live[-1] - live[0])} in {len(live)} steps"


def _kept(source: SourceFile) -> Iterator[_Kept]:
    """Yield statements that keep a graph, with the names of the keeper and of the tensor."""
    makers = _makers(source)
    for loop in source.nodes(*LOOP_STATEMENTS):
        losses = _losses(loop, makers)
        if losses and _is_step_loop(source, loop, makers):
            for statement, target, value in _keepers(loop, losses):
                is_free = target in losses or _is_without_history(source, statement)
                if not is_free and not _is_reset(loop, statement, target):
                    yield statement, target, value
    for function in source.nodes(ast.FunctionDef):
        losses = _backward_names(function)
        if function.name in _STEP_METHODS:
            losses |= _returned_names(function)
        for statement, target, value in _keepers(function, losses):
            # What a step adds to an attribute, or to a list from outside, outlives it; a loop in
            # the function was looked at above.
            is_own = target not in losses and _is_own(function, target)
            is_free = is_own or source.is_in_loop(statement)
            if not is_free and not _is_without_history(source, statement):
                yield statement, target, value


def _makers(source: SourceFile) -> set[str]:
    """Return calls of functions that run a step and return its loss with its history."""
    return {
        f"{prefix}{function.name}()"
        for function in source.nodes(ast.FunctionDef)
        if _returned_names(function) & _backward_names(function)
        for prefix in ("", "self.")
    }


def _losses(loop: LoopStatement, makers: set[str]) -> set[str]:
    """Return what has the history of a step in a loop: names, and calls that return such."""
    called = {_call_text(call) for call in own_nodes(loop, ast.Call)} & makers
    given = {
        ast.unparse(target)
        for node in own_nodes(loop, ast.Assign)
        if isinstance(node.value, ast.Call) and _call_text(node.value) in makers
        for target in node.targets
    }
    return _backward_names(loop) | called | given


def _backward_names(scope: ast.AST) -> set[str]:
    """Return the tensors on which ``backward()`` is called, if under their names."""
    names: set[str] = set()
    for call in own_nodes(scope, ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            inside = call.func.value
            # `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.
            values = [inside, *(inside.args if isinstance(inside, ast.Call) else ()), *call.args]
            names.update(ast.unparse(value) for value in values if _is_name(value))
    return names - _RUNNERS


def _returned_names(function: ast.FunctionDef) -> set[str]:
    names: set[str] = set()
    for node in own_nodes(function, ast.Return):
        values = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
        names.update(value.id for value in values if isinstance(value, ast.Name))
    return names


def _is_own(function: ast.FunctionDef, target: str) -> bool:
    """Return whether a keeper belongs to one call of a function, and ends with it."""
    root = _root(target)
    declarations = own_nodes(function, ast.Global, ast.Nonlocal)
    return not any(root in node.names for node in declarations) and any(
        node.id == root and isinstance(node.ctx, ast.Store)
        for node in own_nodes(function, ast.Name)
    )


def _keepers(scope: ast.AST, losses: set[str]) -> Iterator[_Kept]:
    detached: set[str] = set()
    for statement in sorted(own_nodes(scope, ast.stmt), key=lambda node: node.lineno):
        kept = losses - detached
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            value = _with_history(statement.value, kept)
            if value and _is_name(statement.target):
                yield statement, ast.unparse(statement.target), value
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = ast.unparse(statement.targets[0])
            value = _with_history(statement.value, kept)
            if target in losses:
                # `loss = loss.item()`: the name no longer has a history, and gets one again.
                detached.discard(target)
                if not value and target in _names(statement.value):
                    detached.add(target)
            elif value and _is_sum(statement.value) and target in _names(statement.value):
                yield statement, target, value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in _COLLECTS:
                continue
            keeper = call.func.value
            for argument in call.args if dotted_name(keeper) else ():
                if value := _with_history(argument, kept):
                    yield statement, ast.unparse(keeper), value


def _with_history(node: ast.AST, names: set[str]) -> str:
    """Return one of ``names`` in an expression that reaches its value with its history."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if _is_name(part) and (text := ast.unparse(part)) in names:
            return text
        if isinstance(part, ast.Call):
            # What follows the call may take the history away: `train_step(x).item()`.
            is_last = isinstance(part.func, (ast.Name, ast.Attribute))
            if is_last and _call_text(part) in names:
                return _call_text(part)
            if last_name(part.func) in _DETACHING:
                continue
        if isinstance(part, ast.Attribute) and part.attr in _ENDS_HISTORY:
            continue
        if not isinstance(part, (ast.JoinedStr, ast.Compare, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(part))
    return ""


def _is_name(node: ast.AST) -> bool:
    """Return whether a node is ``a``, ``a.b`` or ``a["b"]``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in _ENDS_HISTORY:
            return False
        node = node.value
    return isinstance(node, ast.Name)


def _is_without_history(source: SourceFile, statement: ast.stmt) -> bool:
    """Return whether nothing is recorded at a statement: it is under ``torch.no_grad()``."""
    return any(
        dotted_name(item.context_expr).endswith(("no_grad", "inference_mode"))
        for block in source.parents(statement)
        if isinstance(block, ast.With)
        for item in block.items
    )


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if _is_name(part)}


def _root(target: str) -> str:
    return target.partition(".")[0].partition("[")[0]


def _call_text(call: ast.Call) -> str:
    return f"{dotted_name(call.func)}()"


def _is_step_loop(source: SourceFile, loop: LoopStatement, makers: set[str]) -> bool:
    """Return whether an iteration of a loop is a step: it updates, and no loop within it does.

    Where the update is out of sight, the innermost loop that calls ``backward()`` stands for it.
    """
    inner = [node for node in own_nodes(loop, *LOOP_STATEMENTS) if _losses(node, makers)]
    if _updates(loop, makers):
        return not any(_updates(node, makers) for node in inner)
    around = [node for node in source.parents(loop) if isinstance(node, LOOP_STATEMENTS)]
    return not inner and not any(_updates(node, makers) for node in around)


def _updates(loop: LoopStatement, makers: set[str]) -> bool:
    called = map(_call_text, own_nodes(loop, ast.Call))
    return any(text.endswith(".step()") or text in makers for text in called)


def _is_reset(loop: LoopStatement, statement: ast.stmt, target: str) -> bool:
    """Return whether the keeper starts anew within the loop, so that it cannot grow for long."""
    emptying = {f"{target}.clear()", f"{target}.pop()", f"{target}.zero_()"}
    if any(_call_text(call) in emptying for call in own_nodes(loop, ast.Call)):
        return True
    for node in own_nodes(loop, ast.Assign, ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {ast.unparse(part) for one in targets for part in ast.walk(one)}
        is_sum = node.value is not None and target in _names(node.value)
        is_given = target in names or _root(target) in names - {"self"}
        if is_given and not is_sum and node is not statement:
            return True
    return False
