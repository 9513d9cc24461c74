"""The call of ``fast_step`` that takes the place of a loop's statements, and what makes it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.loop_match import TrainingLoop
from breakeven.rewrite.loop_parts import StepParts
from breakeven.rewrite.loss_block import LossBlock
from breakeven.rewrite.loss_function import loss_function
from breakeven.rewrite.outer_call import Loop
from breakeven.rewrite.update_block import UpdateBlock
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    all_identifiers,
    declared_names,
    free_name,
    nodes_in,
    plain_name,
    read_names,
    written_names,
    written_part,
)

_FUNCTION_NAMES = ("compute_loss", "loss_of_batch", "whole_loss")
_UPDATE_NAMES = ("compute_updates", "update_all", "whole_update")
_LOSS_NAMES = ("loss", "step_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """What is written into a script.

    Args:
        removed: Statements that go.
        place: That of them in whose place the step is called.
        call: That, with ``{step}`` for the name of the step.
        before: The loop before which the step is made.
        definition: Lines before that, such as of a function.
        making: What makes the step.
    """

    removed: Sequence[ast.stmt]
    place: ast.stmt
    call: str
    before: Loop
    definition: Sequence[str] = ()
    making: str


def loop_call(source: str, script: SyntaxTree, loop: TrainingLoop) -> StepCall:
    """Return the change of a loop that calls the model, and a function of output and target."""
    loss = loss_function(loop, script)
    arguments = [_text(source, argument) for argument in loop.arguments]
    inputs = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
    if len(arguments) == 1 and _may_be_tuple(loop):
        inputs = f"({inputs},)"
    call = f"{{step}}({_plain(inputs)}, {_plain(_text(source, loss.targets))})"
    if loop.loss_name:
        call = f"{loop.loss_name} = {call}"
    before, making = _making(loop.parts, loss.function)
    return StepCall(
        removed=loop.removed,
        place=loop.place,
        call=call,
        before=before,
        making=_making_call(source, making),
    )


def block_call(source: str, script: SyntaxTree, block: LossBlock) -> StepCall:
    """Return the change of a loop whose statements up to the loss become a function."""
    parts = block.parts
    taken = all_identifiers(script.tree)
    name = free_name(_FUNCTION_NAMES, taken)
    before, making = _making(parts, ast.Name(name, ast.Load()), is_new=True)
    returned = ast.unparse(block.loss)
    beside = _tuple_of(block.beside)
    statements = [*block.moved, _return(returned, beside)]
    if parts.outer is not None:
        kept = {*block.inputs, *(name for one in block.moved for name in written_names(one))}
        statements = [parts.outer.statement_outside(one, kept) for one in statements]
    if changed := _changing(script, (before, *parts.loops), block.inputs, statements):
        raise NoEditError(f"the loss depends on `{changed}`, which changes in the loop")
    loss_name = plain_name(block.loss) or (free_name(_LOSS_NAMES, taken) if beside else "")
    options = ["has_aux=True"] if beside else []
    return StepCall(
        removed=block.removed,
        place=block.place,
        call=_call_of_function(block.inputs, loss_name, beside),
        before=before,
        definition=_definition(name, block.inputs, statements),
        making=_making_call(source, making, ["calls_model=True", *options]),
    )


def updates_call(script: SyntaxTree, block: UpdateBlock) -> StepCall:
    """Return the change of a loop whose statements up to the last update become a function."""
    name = free_name(_UPDATE_NAMES, all_identifiers(script.tree))
    models, optimizers = (
        [ast.parse(one, mode="eval").body for one in names]
        for names in (block.models, block.optimizers)
    )
    before = _loop_to_build_before(block.loops, [*models, *optimizers])
    beside = _tuple_of(block.beside)
    statements = [*block.moved, _return(block.loss, beside)]
    if changed := _changing(script, (before, *block.loops), block.inputs, statements):
        raise NoEditError(f"the losses depend on `{changed}`, which changes in the loop")
    given = f"[{', '.join(block.models)}], {name}, [{', '.join(block.optimizers)}]"
    return StepCall(
        removed=block.moved,
        place=block.place,
        call=_call_of_function(block.inputs, block.loss, beside),
        before=before,
        definition=_definition(name, block.inputs, statements),
        making=f"breakeven.fast_step({given}{', has_aux=True' if beside else ''})",
    )


def _tuple_of(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)" if names else ""


def _return(loss: str, beside: str) -> ast.stmt:
    return ast.parse(f"return {', '.join(filter(None, (loss, beside)))}").body[0]


def _changing(
    script: SyntaxTree,
    loops: Sequence[Loop],
    inputs: Sequence[str],
    statements: Sequence[ast.stmt],
) -> str:
    """Return what statements read that changes in loops, and that they are not given; or nothing.

    As a function they would be compiled with the value that it has before.
    """
    own = {used for one in statements for used in read_names(one)} - {*inputs}
    own -= {written for one in statements for written in written_names(one)}
    changing = set().union(*map(written_names, loops)) | declared_names(script.tree)
    return min(own & changing, default="")


def _definition(name: str, inputs: Sequence[str], statements: Sequence[ast.stmt]) -> list[str]:
    body = [line for one in statements for line in ast.unparse(one).splitlines()]
    return [f"def {name}({', '.join(inputs)}):", *(f"    {line}" for line in body)]


def _call_of_function(inputs: Sequence[str], loss_name: str, beside: str) -> str:
    given = f"({', '.join(inputs)}{',' if len(inputs) == 1 else ''})"
    targets = ", ".join(filter(None, (loss_name, beside)))
    return f"{targets} = {{step}}({given})" if targets else f"{{step}}({given})"


def _plain(text: str) -> str:
    """Return a text for ``str.format``."""
    return text.replace("{", "{{").replace("}", "}}")


def _making_call(source: str, making: Sequence[ast.expr], options: Sequence[str] = ()) -> str:
    given = [_text(source, part) for part in making[:3]]
    given += [f"max_grad_norm={_text(source, max_norm)}" for max_norm in making[3:]]
    return f"breakeven.fast_step({', '.join([*given, *options])})"


def _making(
    parts: StepParts, function: ast.expr, *, is_new: bool = False
) -> tuple[Loop, list[ast.expr]]:
    """Return the loop before which the step is made, and of what, in the names of that place.

    That is the model, the loss function, the optimizer, and the norm that gradients are clipped
    to, if any.

    Args:
        parts: Of the step.
        function: The loss function.
        is_new: Whether that is written there, so that it has no other name elsewhere.
    """
    lasting = [ast.parse(n, mode="eval").body for n in (parts.model, parts.optimizer)]
    lasting += [] if parts.max_norm is None else [parts.max_norm]
    before = _loop_to_build_before(parts.loops, lasting)
    if (outer := parts.outer) is not None:
        if before is not parts.loops[-1]:
            raise NoEditError(f"the step changes within `{outer.function.name}`")
        lasting = [outer.outside(part) for part in lasting]
        looked_at = lasting
        if not is_new:
            function = outer.outside(function)
            looked_at = [*lasting, function]
        before = _loop_to_build_before(outer.loops, looked_at)
    return before, [lasting[0], function, *lasting[1:]]


def _loop_to_build_before(loops: Sequence[Loop], lasting: Sequence[ast.expr]) -> Loop:
    """Return the outermost loop in which what the step is made of stays what it is."""
    found: Loop | None = None
    for candidate in loops:
        written = written_names(candidate)
        changed = next(filter(None, (written_part(part, written) for part in lasting)), "")
        if changed and found is None:
            raise NoEditError(f"`{changed}` changes in the loop of line {candidate.lineno}")
        if changed:
            break
        found = candidate
    assert found is not None
    return found


def _may_be_tuple(loop: TrainingLoop) -> bool:
    """Return whether the model's one argument is taken apart elsewhere, so it may be a tuple."""
    text = ast.dump(loop.arguments[0])
    return any(
        ast.dump(part.value) == text
        for part in nodes_in(loop.parts.loops[0], ast.Subscript, ast.Assign)
        if isinstance(part, ast.Subscript) or isinstance(part.targets[0], ast.Tuple)
    )


def _text(source: str, node: ast.expr) -> str:
    """Return an expression as the script writes it, where that is one line."""
    segment = ast.get_source_segment(source, node) if hasattr(node, "lineno") else None
    if segment is None or "\n" in segment or not _means(segment, node):
        return ast.unparse(node)
    return segment


def _means(text: str, node: ast.expr) -> bool:
    """Return whether ``text`` is the expression: a built one has no place in the script."""
    try:
        parsed = ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return False
    return ast.dump(parsed) == ast.dump(node)
