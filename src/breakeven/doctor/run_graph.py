"""Sums and lists that keep the graph of every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from breakeven.source import DEFINITIONS, LOOP_STATEMENTS, Source, dotted_name

# What makes a number or a tensor without history of a tensor.
_DETACHING = frozenset({
    "item", "detach", "detach_", "tolist", "numpy", "float", "int", "str", "bool", "format", "len",
    "repr",
})  # fmt: skip
_ENDS_HISTORY = frozenset({"data", "grad", "shape", "dtype", "device", "requires_grad"})
_COLLECTS = frozenset({"append", "extend", "add", "appendleft"})
# What a trainer calls, and on whose result it calls backward() itself.
_STEP_METHODS = frozenset({"training_step", "compute_loss"})
_Loop = ast.For | ast.AsyncFor | ast.While
_Kept = tuple[ast.stmt, str, str]


def kept_graphs(source: Source) -> Iterator[_Kept]:
    """Yield statements that keep a graph, with the names of the keeper and of the tensor."""
    makers = _makers(source)
    for loop in source.nodes(*LOOP_STATEMENTS):
        assert isinstance(loop, LOOP_STATEMENTS)
        losses = _losses(loop, makers)
        if losses and _is_step_loop(source, loop, makers):
            for statement, target, value in _keepers(loop, losses):
                is_free = target in losses or _is_without_history(source, statement)
                if not is_free and not _is_reset(loop, statement, target):
                    yield statement, target, value
    for function in source.nodes(ast.FunctionDef):
        assert isinstance(function, ast.FunctionDef)
        losses = _backward_names(function)
        if function.name in _STEP_METHODS:
            losses |= _returned_names(function)
        for statement, target, value in _keepers(function, losses):
            # What a step adds to an attribute, or to a list from outside, outlives it; a loop in
            # the function was looked at above.
            is_looped = any(isinstance(node, LOOP_STATEMENTS) for node in source.parents(statement))
            is_own = target not in losses and _is_own(function, target)
            if not is_own and not is_looped and not _is_without_history(source, statement):
                yield statement, target, value


def _makers(source: Source) -> frozenset[str]:
    """Return calls of functions that run a step and return its loss with its history."""
    return frozenset(
        f"{prefix}{function.name}()"
        for function in source.nodes(ast.FunctionDef)
        if isinstance(function, ast.FunctionDef)
        and _returned_names(function) & _backward_names(function)
        for prefix in ("", "self.")
    )


def _losses(loop: _Loop, makers: frozenset[str]) -> frozenset[str]:
    """Return what has the history of a step in a loop: names, and calls that return such."""
    names = set(_backward_names(loop))
    for node in _own(loop):
        if isinstance(node, ast.Call) and (call := f"{dotted_name(node.func)}()") in makers:
            names.add(call)
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and f"{dotted_name(node.value.func)}()" in makers
        ):
            names.update(ast.unparse(target) for target in node.targets)
    return frozenset(names)


def _backward_names(scope: ast.AST) -> frozenset[str]:
    """Return the tensors on which ``backward()`` is called, if under their names."""
    names: set[str] = set()
    for node in _own(scope):
        if isinstance(node, ast.Call) and dotted_name(node.func).endswith(".backward"):
            assert isinstance(node.func, ast.Attribute)
            inside = node.func.value
            # `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.
            values = [inside, *(inside.args if isinstance(inside, ast.Call) else ()), *node.args]
            names.update(ast.unparse(value) for value in values if _is_name(value))
    return frozenset(names - {"accelerator", "self.accelerator", "fabric", "self.fabric"})


def _is_own(function: ast.FunctionDef, target: str) -> bool:
    """Return whether a keeper belongs to one call of a function, and ends with it."""
    root = target.partition(".")[0].partition("[")[0]
    shared = {
        name
        for node in _own(function)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    assigned = {
        node.id
        for node in _own(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return root in assigned and root not in shared


def _keepers(scope: ast.AST, losses: frozenset[str]) -> Iterator[_Kept]:
    detached: set[str] = set()
    nodes = [node for node in _own(scope) if isinstance(node, ast.stmt)]
    for statement in sorted(nodes, key=lambda node: node.lineno):
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
            elif value and _is_sum_with(statement.value, target):
                yield statement, target, value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            keeper, _, method = dotted_name(call.func).rpartition(".")
            if method in _COLLECTS and keeper and isinstance(call.func, ast.Attribute):
                for argument in call.args:
                    if value := _with_history(argument, kept):
                        yield statement, ast.unparse(call.func.value), value


def _with_history(node: ast.AST, names: frozenset[str] | set[str]) -> str:
    """Return one of ``names`` in an expression that reaches its value with its history."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if _is_name(part) and (text := ast.unparse(part)) in names:
            return text
        if isinstance(part, ast.Call):
            name = dotted_name(part.func)
            # What follows the call may take the history away: `train_step(x).item()`.
            is_last = isinstance(part.func, (ast.Name, ast.Attribute))
            if is_last and f"{name}()" in names:
                return f"{name}()"
            if name.rpartition(".")[2] in _DETACHING:
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


def _is_sum_with(value: ast.expr, target: str) -> bool:
    return (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and target in _names(value)
    )


def _is_without_history(source: Source, statement: ast.stmt) -> bool:
    """Return whether nothing is recorded at a statement: it is under ``torch.no_grad()``."""
    return any(
        dotted_name(item.context_expr).endswith(("no_grad", "inference_mode"))
        for block in source.parents(statement)
        if isinstance(block, ast.With)
        for item in block.items
    )


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if _is_name(part)}


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what a scope runs itself, not the functions that it defines; in no order."""
    waiting = [scope]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, DEFINITIONS):
                yield child
                waiting.append(child)


def _is_step_loop(source: Source, loop: _Loop, makers: frozenset[str]) -> bool:
    """Return whether an iteration of a loop is a step: it updates, and no loop within it does.

    Where the update is out of sight, the innermost loop that calls ``backward()`` stands for it.
    """
    inner = [
        node for node in _own(loop) if isinstance(node, LOOP_STATEMENTS) and _losses(node, makers)
    ]
    if _updates(loop, makers):
        return not any(_updates(node, makers) for node in inner)
    around = [node for node in source.parents(loop) if isinstance(node, LOOP_STATEMENTS)]
    return not inner and not any(_updates(node, makers) for node in around)


def _updates(loop: _Loop, makers: frozenset[str]) -> bool:
    called = {dotted_name(node.func) for node in _own(loop) if isinstance(node, ast.Call)}
    return any(name.endswith(".step") or f"{name}()" in makers for name in called)


def _is_reset(loop: _Loop, statement: ast.stmt, target: str) -> bool:
    """Return whether the keeper starts anew within the loop, so that it cannot grow for long."""
    root = target.partition(".")[0].partition("[")[0]
    for node in _own(loop):
        if node is statement or not isinstance(node, (ast.Assign, ast.AnnAssign, ast.Call)):
            continue
        if isinstance(node, ast.Call):
            if dotted_name(node.func) in {f"{target}.clear", f"{target}.pop", f"{target}.zero_"}:
                return True
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {ast.unparse(part) for one in targets for part in ast.walk(one)}
        is_sum = node.value is not None and target in _names(node.value)
        if (target in names or (root in names and root != "self")) and not is_sum:
            return True
    return False


def _returned_names(function: ast.FunctionDef) -> frozenset[str]:
    names: set[str] = set()
    for node in _own(function):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            values = value.values if isinstance(value, ast.Dict) else [value]
            names.update(ast.unparse(one) for one in values if isinstance(one, ast.Name))
    return frozenset(names)
