"""Where a training loop calls backward and update, and on which model and optimizer."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.optimizers import Optimizers, method_calls
from breakeven.rewrite.outer_call import Loop, OuterCall, find_outer_call, loops_around
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    nodes_in,
    plain_name,
    spans,
)

# Scripts that do these look into a step, or change how it is run, in ways that one call of a
# compiled step does not allow.
_FORBIDDEN = {
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
    """The statements that a step is made of, as far as their form shows.

    Args:
        block: Body of the innermost loop.
        loops: That loop and those around it, from within, of the same function.
        backward: The statement that calls ``backward()``.
        loss: What it is called on.
        update: The statement that updates.
        model: As the source calls it: ``self.model``.
        optimizer: Likewise.
        max_norm: What gradients are clipped to; None for no clipping.
        outer: Where a loop elsewhere calls the function of these loops; None where none does.
        own: Statements that clear gradients, clip them, call backward or update.
    """

    block: Sequence[ast.stmt]
    loops: tuple[Loop, ...]
    backward: ast.stmt
    loss: ast.expr
    update: ast.stmt
    model: str
    optimizer: str
    max_norm: ast.expr | None
    outer: OuterCall | None
    own: Sequence[ast.stmt]


def find_parts(script: SyntaxTree, backward_line: int | None) -> StepParts:
    """Return the parts of the training step of a script.

    Args:
        script: The script.
        backward_line: Line of the call of ``backward()``; None where it is not known.

    Raises:
        NoEditError: There is none, or one that is not known to be safe to change.
    """
    ensure_plain(script)
    backward, loss = _backward(script, backward_line)
    loops, outer = loops_of(backward, script)
    for loop in (loops[-1], *(() if outer is None else (outer.loops[-1],))):
        ensure_lasting_model(loop)
    block = loops[0].body
    position = block.index(backward)
    cleared = method_calls(block, "zero_grad")
    updates = method_calls(block[position + 1 :], "step")
    optimizers = Optimizers(script)
    optimizer = optimizers.updating(updates, cleared, backward)
    model = optimizers.model_of(optimizer, loops[0])
    if outer is not None:
        optimizers.ensure_same_model(model, optimizer, outer)
    optimizers.ensure_only(optimizer, model, updates, cleared)
    update = updates[optimizer][0]
    between = block[position + 1 : block.index(update)]
    clips = [(statement, call) for statement in between if (call := clip_call(statement))][:1]
    clearing = [statement for statements in cleared.values() for statement in statements]
    for statement in clearing:
        if statement in between:
            raise NoEditError(f"line {statement.lineno} clears gradients before they are used")
    return StepParts(
        block=block,
        loops=loops,
        backward=backward,
        loss=loss,
        update=update,
        model=model,
        optimizer=optimizer,
        max_norm=_max_norm(clips[0][1], model) if clips else None,
        outer=outer,
        own=[*clearing, backward, update, *(statement for statement, _ in clips)],
    )


def ensure_plain(script: SyntaxTree) -> None:
    """Refuse a script that looks into its steps, or changes how they are run."""
    for part in script.nodes(ast.Attribute, ast.Name):
        is_attribute = isinstance(part, ast.Attribute)
        name = part.attr if is_attribute else part.id
        if name in _FORBIDDEN and (is_attribute or name != "grad"):
            raise NoEditError(f"line {part.lineno} {_FORBIDDEN[name]}")
        if is_attribute and name == "compile" and plain_name(part) != "re.compile":
            raise NoEditError(f"line {part.lineno} compiles by itself")


def ensure_lasting_model(loop: Loop) -> None:
    """Refuse a loop that changes what a step was compiled for."""
    for part in nodes_in(loop, ast.Attribute):
        if part.attr in _CHANGES_MODEL:
            raise NoEditError(f"line {part.lineno} {_CHANGES_MODEL[part.attr]} while the loop runs")


def _backward(script: SyntaxTree, line: int | None) -> tuple[ast.stmt, ast.expr]:
    """Return the one statement that calls ``backward()``, and on what."""
    calls = [
        (call, call.func.value)
        for call in script.nodes(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
    ]
    if not calls:
        raise NoEditError("the script itself does not call backward()")
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call, _ in calls)
        raise NoEditError(f"backward() is called in several places: lines {lines}")
    ((call, loss),) = calls
    if line is not None and not spans(call, line):
        raise NoEditError(
            f"the measured step calls backward() in line {line}, this file in line {call.lineno}"
        )
    statement = script.parent(call)
    if not isinstance(statement, ast.Expr) or call.args or call.keywords:
        raise NoEditError(f"line {call.lineno} calls backward() with arguments")
    return statement, loss


def loops_of(backward: ast.stmt, script: SyntaxTree) -> tuple[tuple[Loop, ...], OuterCall | None]:
    """Return the loops of the step, and the call of their function where a loop makes it."""
    innermost = script.parent(backward)
    if not isinstance(innermost, ast.For | ast.While) or backward not in innermost.body:
        raise NoEditError(
            f"line {backward.lineno} calls backward() in another place than directly in a loop"
        )
    loops = (innermost, *loops_around(innermost, script))
    for around in script.parents(innermost):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(around, ast.AsyncFunctionDef) or around.decorator_list:
                raise NoEditError(f"`{around.name}` has a decorator, or is async")
            outer = find_outer_call(around, script)
            for node in () if outer is None else script.parents(outer.call):
                _ensure_plain_context(node)
            return loops, outer
        if isinstance(around, ast.ClassDef | ast.AsyncFor | ast.AsyncWith):
            raise NoEditError(f"the loop in line {innermost.lineno} stands in a class")
        _ensure_plain_context(around)
    return loops, None


def _ensure_plain_context(node: ast.AST) -> None:
    if isinstance(node, ast.With):
        text = " ".join(ast.unparse(item.context_expr) for item in node.items)
        if any(word in text.lower() for word in _CONTEXTS):
            raise NoEditError(f"the loop runs within `with {text}`")


def clip_call(statement: ast.stmt) -> ast.Call | None:
    """Return the call of ``clip_grad_norm_`` that a statement is, if it is one."""
    match statement:
        case ast.Expr(value=ast.Call() as call):
            is_clip = plain_name(call.func).rpartition(".")[2] == "clip_grad_norm_"
            return call if is_clip else None
        case _:
            return None


def _max_norm(call: ast.Call, model: str) -> ast.expr:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    values = dict(zip(("parameters", "max_norm"), call.args, strict=False)) | named
    if len(call.args) > 2 or values.keys() != {"parameters", "max_norm"}:
        raise NoEditError(f"line {call.lineno} clips gradients with further settings")
    if ast.unparse(values["parameters"]) != f"{model}.parameters()":
        raise NoEditError(f"line {call.lineno} clips other gradients than the model's")
    if any(nodes_in(values["max_norm"], ast.Call)):
        raise NoEditError(f"line {call.lineno} clips to a norm that may change")
    return values["max_norm"]
