"""The few lines to change in a script so that each of its steps is one compiled call."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass

from breakeven.rewrite.loop_match import match_loop
from breakeven.rewrite.loop_parts import find_parts
from breakeven.rewrite.loss_block import find_block
from breakeven.rewrite.outer_call import OuterCall
from breakeven.rewrite.step_call import StepCall, block_call, loop_call, updates_call
from breakeven.rewrite.update_block import find_updates, has_several_updates
from breakeven.source import (
    LineEdits,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    free_name,
    split_lines,
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
        origins: For each line of the text, the number of the line that it is from or stands before,
            and whether it is the same.
    """

    text: str
    change: CodeChange
    origins: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPatch:
    """Why a script is left as it is.

    Args:
        reason: In words for the user; no capital at the beginning, no full stop.
    """

    reason: str


def propose_fast_step(
    source: str | bytes, *, file: str, backward_line: int | None = None
) -> SourcePatch | NoPatch:
    """Return the change that makes a training loop call ``breakeven.fast_step``.

    The loop is matched by its form. Whatever is not known to do the same afterwards is a reason
    to propose nothing.

    Args:
        source: Text of the script, with its own ends of lines; or what is in its file.
        file: Its name in the diff, as seen from where the diff is applied.
        backward_line: Line of the call of ``backward()`` in the measured step, where known.
    """
    try:
        source = source.decode() if isinstance(source, bytes) else source
        script = SyntaxTree(ast.parse(source))
        lines = _lines(source, script, backward_line)
        text = "".join(line for line, _, _ in lines)
        compile(text, file, "exec", dont_inherit=True)
    except NoEditError as no_match:
        return NoPatch(reason=no_match.reason)
    except UnicodeDecodeError as error:
        return NoPatch(reason=f"the script cannot be read as UTF-8: {error}")
    except (SyntaxError, ValueError, RecursionError) as error:
        return NoPatch(reason=f"the script cannot be parsed: {error}")
    origins = tuple((number, is_same) for _, number, is_same in lines)
    return SourcePatch(text=text, change=_code_change(source, text, file), origins=origins)


def _lines(
    source: str, script: SyntaxTree, backward_line: int | None
) -> list[tuple[str, int, bool]]:
    """Return the changed lines, with where each is from."""
    if has_several_updates(script):
        block = find_updates(script, backward_line)
        return _changed(source, script, None, updates_call(script, block))
    parts = find_parts(script, backward_line)
    try:
        loop = match_loop(script, parts)
        call = loop_call(source, script, loop)
    except NoEditError as reason:
        try:
            call = block_call(source, script, find_block(script, parts))
        except NoEditError as other:
            both = f"{reason.reason}; as a function that computes the loss: {other.reason}"
            raise NoEditError(both) from None
    return _changed(source, script, parts.outer, call)


def _changed(
    source: str, script: SyntaxTree, outer: OuterCall | None, call: StepCall
) -> list[tuple[str, int, bool]]:
    lines = split_lines(source)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    tree = script.tree
    assert isinstance(tree, ast.Module)
    is_imported = _imports_breakeven(tree)
    taken = all_identifiers(tree)
    if "breakeven" in taken and not is_imported:
        raise NoEditError("the name `breakeven` stands for something else in the script")
    step = free_name(_STEP_NAMES, taken)
    edits = LineEdits(lines)
    edits.replace(call.removed, call.place, call.call.format(step=step) + newline)
    line = lines[call.before.lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    added = [*call.definition, f"{step} = {call.making}"]
    edits.insert_before(call.before, f"{newline}{indent}".join(added) + newline)
    if outer is not None:
        edits.insert_parameter(outer.function.args, step)
        edits.insert_argument(outer.call, f"{step}={step}")
    if not is_imported:
        edits.insert_import(tree, f"import breakeven{newline}", beside="torch")
    return edits.numbered()


def _imports_breakeven(tree: ast.Module) -> bool:
    return any(
        isinstance(statement, ast.Import)
        and any(alias.name == "breakeven" and alias.asname is None for alias in statement.names)
        for statement in tree.body
    )


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
