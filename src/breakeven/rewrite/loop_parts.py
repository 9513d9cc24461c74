"""Where a training loop calls backward and update, and on which model and optimizer."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from breakeven.rewrite.loop_optimizer import (
    built_for,
    built_optimizers,
    ensure_one_optimizer,
    ensure_same_model,
    updated_model,
    updating_optimizer,
)
from breakeven.rewrite.outer_call import OuterCall, find_outer_call
from breakeven.rewrite.python_names import (
    Loop,
    NotMatchedError,
    dotted,
    enclosing,
)

# Scripts that do these look into a step, or change how it is run, in ways that one call of a
# compiled step does not allow.
_FORBIDDEN_ATTRIBUTES = {
    "grad": "reads gradients, which a compiled step does not leave behind",
    "grad_fn": "looks at the graph of gradients",
    "retain_grad": "reads gradients, which a compiled step does not leave behind",
    "clip_grad_value_": "clips single gradients",
    "register_hook": "has hooks on gradients",
    "register_full_backward_hook": "has hooks on gradients",
    "register_post_accumulate_grad_hook": "has hooks on gradients",
    "register_step_post_hook": "has hooks on the optimizer",
    "register_step_pre_hook": "has hooks on the optimizer",
    "GradScaler": "scales gradients",
    "DataParallel": "trains on several devices",
    "DistributedDataParallel": "trains on several devices",
    "fast_step": "has a compiled step already",
}
# Done while the loops run, these change what was compiled before them.
_CHANGES_MODEL = {
    "requires_grad": "freezes or thaws parameters",
    "requires_grad_": "freezes or thaws parameters",
    "add_param_group": "gives the optimizer more parameters",
    "register_forward_hook": "adds hooks",
    "register_forward_pre_hook": "adds hooks",
    "add_module": "changes the model",
    "register_module": "changes the model",
}
_CONTEXTS = ("autocast", "no_grad", "inference_mode", "anomaly", "saved_tensors", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The statements that a step is made of, as far as their form tells.

    Args:
        block: Body of the innermost loop.
        loops: That loop and those around it, from within, of the same function.
        backward: The statement that calls ``backward()``.
        loss: What it is called on.
        backward_position: Of that statement in ``block``.
        update_position: Of the update.
        model: As the source names it.
        optimizer: Likewise.
        max_norm: What gradients are clipped to; None for no clipping.
        outer: Where a loop elsewhere calls the function of these loops; None where none does.
        own: Statements that clear gradients, clip them, call backward or update.
    """

    block: Sequence[ast.stmt]
    loops: tuple[Loop, ...]
    backward: ast.stmt
    loss: ast.expr
    backward_position: int
    update_position: int
    model: str
    optimizer: str
    max_norm: ast.expr | None
    outer: OuterCall | None
    own: Sequence[ast.stmt]


def find_parts(
    tree: ast.Module, parents: Mapping[ast.AST, ast.AST], backward_line: int | None
) -> StepParts:
    """Return the parts of the training step of a script.

    Args:
        tree: The script.
        parents: The node around each node of it.
        backward_line: Line of the call of ``backward()``; None where it is not known.

    Raises:
        NotMatchedError: There is none, or one that is not known to be safe to change.
    """
    _ensure_plain(tree)
    call = _backward_call(tree, parents, backward_line)
    backward = parents[call]
    assert isinstance(call.func, ast.Attribute)
    if not isinstance(backward, ast.Expr) or call.args or call.keywords:
        raise NotMatchedError(f"line {call.lineno} calls backward() with arguments")
    loops, outer = _loops_around(backward, tree, parents)
    for loop in (loops[-1], *(() if outer is None else (outer.loops[-1],))):
        _ensure_lasting_model(loop)
    block = loops[0].body
    position = block.index(backward)
    cleared = _method_calls(block, "zero_grad")
    updates = _method_calls(block[position + 1 :], "step")
    optimizers = dict(built_optimizers(tree))
    optimizer = updating_optimizer(updates, cleared, optimizers, backward)
    update = updates[optimizer][0]
    model = updated_model(optimizer, optimizers, loops[0], tree, parents)
    if outer is not None:
        ensure_same_model(model, optimizer, outer, optimizers)
    ensure_one_optimizer(updates, cleared, built_for(tree, optimizer), optimizer, model)
    update_position = block.index(update)
    clip = next(
        (s for s in block[position + 1 : update_position] if _clip_call(s) is not None), None
    )
    clearing = [statement for statements in cleared.values() for statement in statements]
    for statement in clearing:
        if position < block.index(statement) < update_position:
            raise NotMatchedError(f"line {statement.lineno} clears gradients before they are used")
    return StepParts(
        block=block,
        loops=loops,
        backward=backward,
        loss=call.func.value,
        backward_position=position,
        update_position=update_position,
        model=model,
        optimizer=optimizer,
        max_norm=None if clip is None else _max_norm(clip, model),
        outer=outer,
        own=[*clearing, backward, update, *([] if clip is None else [clip])],
    )


def _ensure_plain(tree: ast.Module) -> None:
    for part in ast.walk(tree):
        name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
        if isinstance(part, ast.Attribute | ast.Name) and name in _FORBIDDEN_ATTRIBUTES:
            if isinstance(part, ast.Name) and name == "grad":
                continue
            raise NotMatchedError(f"line {part.lineno} {_FORBIDDEN_ATTRIBUTES[name]}")
        if name == "compile" and isinstance(part, ast.Attribute) and dotted(part) != "re.compile":
            raise NotMatchedError(f"line {part.lineno} compiles by itself")


def _ensure_lasting_model(loop: Loop) -> None:
    for part in ast.walk(loop):
        if isinstance(part, ast.Attribute) and part.attr in _CHANGES_MODEL:
            raise NotMatchedError(
                f"line {part.lineno} {_CHANGES_MODEL[part.attr]} while the loop runs"
            )


def _backward_call(
    tree: ast.Module, parents: Mapping[ast.AST, ast.AST], line: int | None
) -> ast.Call:
    calls = [
        part
        for part in ast.walk(tree)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "backward"
    ]
    if not calls:
        raise NotMatchedError("the script itself does not call backward()")
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call in sorted(calls, key=lambda c: c.lineno))
        raise NotMatchedError(f"backward() is called in several places: lines {lines}")
    call = calls[0]
    if line is not None and not call.lineno <= line <= (call.end_lineno or call.lineno):
        raise NotMatchedError(
            f"the measured step calls backward() in line {line}, this file in line {call.lineno}"
        )
    return call


def _loops_around(
    backward: ast.stmt, tree: ast.Module, parents: Mapping[ast.AST, ast.AST]
) -> tuple[tuple[Loop, ...], OuterCall | None]:
    """Return the loops of the step, and the call of their function where a loop makes it."""
    innermost = parents[backward]
    if not isinstance(innermost, ast.For | ast.While) or backward not in innermost.body:
        raise NotMatchedError(
            f"line {backward.lineno} calls backward() in another place than directly in a loop"
        )
    loops: list[Loop] = [innermost]
    for around in enclosing(innermost, parents):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(around, ast.AsyncFunctionDef) or around.decorator_list:
                raise NotMatchedError(f"`{around.name}` has a decorator, or is async")
            outer = find_outer_call(around, tree, parents)
            for node in () if outer is None else enclosing(outer.call, parents):
                _ensure_plain_context(node)
            return tuple(loops), outer
        if isinstance(around, ast.Lambda | ast.ClassDef | ast.AsyncFor | ast.AsyncWith):
            raise NotMatchedError(f"the loop in line {innermost.lineno} stands in a class")
        _ensure_plain_context(around)
        if isinstance(around, ast.For | ast.While):
            loops.append(around)
    return tuple(loops), None


def _ensure_plain_context(node: ast.AST) -> None:
    if isinstance(node, ast.With):
        text = " ".join(ast.unparse(item.context_expr) for item in node.items)
        if any(word in text.lower() for word in _CONTEXTS):
            raise NotMatchedError(f"the loop runs within `with {text}`")


def _method_calls(block: Sequence[ast.stmt], method: str) -> dict[str, list[ast.Expr]]:
    """Return the statements ``name.method(…)`` of a block, by name."""
    found: dict[str, list[ast.Expr]] = {}
    for statement in block:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr))):
                if attr == method and dotted(owner):
                    found.setdefault(dotted(owner), []).append(statement)
            case _:
                pass
    return found


def _clip_call(statement: ast.stmt) -> ast.Call | None:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            is_clip = dotted(call.func).rpartition(".")[2] == "clip_grad_norm_"
            return call if is_clip else None
        case _:
            return None


def _max_norm(statement: ast.stmt, model: str) -> ast.expr:
    call = _clip_call(statement)
    assert call is not None
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if len(call.args) > 2 or values.keys() != {"parameters", "max_norm"}:
        raise NotMatchedError(f"line {statement.lineno} clips gradients with further settings")
    if ast.unparse(values["parameters"]) != f"{model}.parameters()":
        raise NotMatchedError(f"line {statement.lineno} clips other gradients than the model's")
    if any(isinstance(part, ast.Call) for part in ast.walk(values["max_norm"])):
        raise NotMatchedError(f"line {statement.lineno} clips to a norm that may change")
    return values["max_norm"]
