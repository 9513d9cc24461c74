"""The few lines to change in a script so that each of its steps is one compiled call."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.loop_match import TrainingLoop, match_loop
from breakeven.rewrite.loss_expression import LossFunction, free_name, loss_function
from breakeven.rewrite.outer_call import Loop
from breakeven.source import (
    LineEdits,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    nodes_in,
    split_lines,
    written_names,
    written_part,
)
from breakeven.verdict import CodeChange

_STEP_NAMES = ("step", "train_step", "fast_step", "whole_step")
_NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePatch:
    """A change of a script.

    Args:
        text: The whole script after it.
        change: What changes.
    """

    text: str
    change: CodeChange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPatch:
    """Why a script is left as it is.

    Args:
        reason: In words for the user; no capital at the beginning, no full stop.
    """

    reason: str


def propose_fast_step(
    source: str, *, file: str, backward_line: int | None = None
) -> SourcePatch | NoPatch:
    """Return the change that makes a training loop call ``breakeven.fast_step``.

    The loop is matched by its form. Whatever is not known to do the same afterwards is a reason
    to propose nothing.

    Args:
        source: Text of the script, with its own ends of lines.
        file: Its name in the diff, as seen from where the diff is applied.
        backward_line: Line of the call of ``backward()`` in the measured step, where known.
    """
    try:
        tree = ast.parse(source)
        script = SyntaxTree(tree)
        loop = match_loop(script, backward_line)
        text = _changed(source, tree, loop, loss_function(loop, script))
        compile(text, file, "exec", dont_inherit=True)
    except NoEditError as no_match:
        return NoPatch(reason=no_match.reason)
    except (SyntaxError, ValueError, RecursionError) as error:
        return NoPatch(reason=f"the script cannot be parsed: {error}")
    return SourcePatch(text=text, change=_code_change(source, text, file))


def _changed(source: str, tree: ast.Module, loop: TrainingLoop, loss: LossFunction) -> str:
    lines = split_lines(source)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    is_imported = _imports_breakeven(tree)
    taken = all_identifiers(tree)
    if "breakeven" in taken and not is_imported:
        raise NoEditError("the name `breakeven` stands for something else in the script")
    step = free_name(_STEP_NAMES, taken)
    edits = LineEdits(lines)

    arguments = [_text(source, argument) for argument in loop.arguments]
    inputs = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
    if len(arguments) == 1 and _may_be_tuple(loop):
        inputs = f"({inputs},)"
    call = f"{step}({inputs}, {_text(source, loss.targets)})"
    if loop.loss_name:
        call = f"{loop.loss_name} = {call}"
    edits.replace(loop.removed, loop.place, call + newline)

    before, making = _making(loop, loss)
    given = [_text(source, part) for part in making[:3]]
    given += [f"max_grad_norm={_text(source, max_norm)}" for max_norm in making[3:]]
    making_call = f"breakeven.fast_step({', '.join(given)})"
    edits.insert_before(before, f"{step} = {making_call}{newline}")
    if (outer := loop.parts.outer) is not None:
        edits.insert_parameter(outer.function.args, step)
        edits.insert_argument(outer.call, f"{step}={step}")
    if not is_imported:
        edits.insert_import(tree, f"import breakeven{newline}", beside="torch")
    return edits.text()


def _making(loop: TrainingLoop, loss: LossFunction) -> tuple[Loop, list[ast.expr]]:
    """Return the loop before which the step is made, and of what, in the names of that place.

    That is the model, the loss function, the optimizer, and the norm that gradients are clipped
    to, if any.
    """
    parts = loop.parts
    model, optimizer = (ast.parse(n, mode="eval").body for n in (parts.model, parts.optimizer))
    max_norm = [] if parts.max_norm is None else [parts.max_norm]
    before = _loop_to_build_before(parts.loops, [model, optimizer, *max_norm])
    made_of = [model, loss.function, optimizer, *max_norm]
    if (outer := parts.outer) is not None:
        if before is not parts.loops[-1]:
            raise NoEditError(f"the step changes within `{outer.function.name}`")
        made_of = [outer.outside(part) for part in made_of]
        before = _loop_to_build_before(outer.loops, made_of)
    return before, made_of


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


def _imports_breakeven(tree: ast.Module) -> bool:
    return any(
        isinstance(statement, ast.Import)
        and any(alias.name == "breakeven" and alias.asname is None for alias in statement.names)
        for statement in tree.body
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


def _code_change(source: str, text: str, file: str) -> CodeChange:
    # A name with a blank ends at a tab, or `patch` takes the blank for its end.
    name = file + ("\t" if re.search(r"\s", file) else "")
    old, new = split_lines(source), split_lines(text)
    diff: list[str] = []
    for line in difflib.unified_diff(old, new, fromfile=name, tofile=name):
        diff.append(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}")
    first = next(
        number
        for number, line in enumerate([*old, ""], 1)
        if number > len(new) or new[number - 1] != line
    )
    return CodeChange(file=file, line=first, diff="".join(diff))
