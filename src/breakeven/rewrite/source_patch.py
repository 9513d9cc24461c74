"""The few lines to change in a script so that each of its steps is one compiled call."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.line_edits import LineEdits, split_lines
from breakeven.rewrite.loop_match import TrainingLoop, match_loop
from breakeven.rewrite.loss_expression import LossFunction, loss_function
from breakeven.rewrite.python_names import (
    Loop,
    NotMatchedError,
    all_identifiers,
    dotted,
    is_written,
    written_names,
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
        loop = match_loop(tree, backward_line)
        text = _changed(source, tree, loop, loss_function(loop, tree))
        compile(text, file, "exec", dont_inherit=True)
    except NotMatchedError as no_match:
        return NoPatch(reason=no_match.reason)
    except (SyntaxError, ValueError, RecursionError) as error:
        return NoPatch(reason=f"the script cannot be parsed: {error}")
    return SourcePatch(text=text, change=_code_change(source, text, file))


def _changed(source: str, tree: ast.Module, loop: TrainingLoop, loss: LossFunction) -> str:
    lines = split_lines(source)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    step = _free_step_name(tree)
    edits = LineEdits(lines)

    arguments = [_text(source, argument) for argument in loop.arguments]
    inputs = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
    if len(arguments) == 1 and _may_be_tuple(loop):
        inputs = f"({inputs},)"
    call = f"{step}({inputs}, {_text(source, loss.targets)})"
    if loop.loss_name:
        call = f"{loop.loss_name} = {call}"
    edits.replace(loop.removed, loop.place, call + newline)

    making = _making(loop, loss)
    edits.insert_before(making.before, f"{step} = {making.text(source)}{newline}")
    if loop.outer is not None:
        edits.hand_over(loop.outer, step)
    if not _imports_breakeven(tree):
        edits.insert_import(tree, "import breakeven" + newline)
    return edits.text()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """The call of ``fast_step``, in the names of the place where it stands."""

    before: Loop
    model: ast.expr
    loss: ast.expr
    optimizer: ast.expr
    max_norm: ast.expr | None

    def text(self, source: str) -> str:
        parts = [_text(source, part) for part in (self.model, self.loss, self.optimizer)]
        if self.max_norm is not None:
            parts.append(f"max_grad_norm={_text(source, self.max_norm)}")
        return f"breakeven.fast_step({', '.join(parts)})"


def _making(loop: TrainingLoop, loss: LossFunction) -> _Making:
    model, optimizer = (ast.parse(name, mode="eval").body for name in (loop.model, loop.optimizer))
    lasting = [model, optimizer] + ([] if loop.max_norm is None else [loop.max_norm])
    before = _loop_to_build_before(loop.loops, lasting)
    function, max_norm = loss.function, loop.max_norm
    if loop.outer is not None:
        if before is not loop.loops[-1]:
            raise NotMatchedError(f"the step changes within `{loop.outer.function.name}`")
        model, optimizer = loop.outer.outside(model), loop.outer.outside(optimizer)
        function = loop.outer.outside(function)
        max_norm = None if max_norm is None else loop.outer.outside(max_norm)
        lasting = [model, optimizer, function] + ([] if max_norm is None else [max_norm])
        before = _loop_to_build_before(loop.outer.loops, lasting)
    return _Making(
        before=before, model=model, loss=function, optimizer=optimizer, max_norm=max_norm
    )


def _loop_to_build_before(loops: Sequence[Loop], lasting: Sequence[ast.expr]) -> Loop:
    """Return the outermost loop in which what the step is made of stays what it is."""
    found: Loop | None = None
    for candidate in loops:
        changed = _changed_name(lasting, written_names(candidate))
        if changed and found is None:
            raise NotMatchedError(f"`{changed}` changes in the loop of line {candidate.lineno}")
        if changed:
            break
        found = candidate
    assert found is not None
    return found


def _changed_name(expressions: Sequence[ast.expr], written: set[str]) -> str:
    for expression in expressions:
        own = {part.arg for part in ast.walk(expression) if isinstance(part, ast.arg)}
        for part in ast.walk(expression):
            name = dotted(part)
            if name and name.partition(".")[0] not in own and is_written(name, written):
                return name
    return ""


def _may_be_tuple(loop: TrainingLoop) -> bool:
    """Return whether the model's one argument is taken apart elsewhere, so it may be a tuple."""
    (argument,) = loop.arguments
    for part in ast.walk(loop.loops[0]):
        if isinstance(part, ast.Subscript) and ast.dump(part.value) == ast.dump(argument):
            return True
        if (
            isinstance(part, ast.Assign)
            and isinstance(part.targets[0], ast.Tuple)
            and ast.dump(part.value) == ast.dump(argument)
        ):
            return True
    return False


def _free_step_name(tree: ast.Module) -> str:
    taken = all_identifiers(tree)
    if "breakeven" in taken and not _imports_breakeven(tree):
        raise NotMatchedError("the name `breakeven` stands for something else in the script")
    for name in _STEP_NAMES:
        if name not in taken:
            return name
    raise NotMatchedError(f"the names {', '.join(_STEP_NAMES)} are all in use")


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
