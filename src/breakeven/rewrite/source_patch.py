"""A small change of a script that turns each of its steps into one compiled call."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from breakeven.rewrite.known_calls import Loop
from breakeven.rewrite.loop_parts import StepParts, find_parts
from breakeven.rewrite.moved_block import (
    MovedBlock,
    find_loss_block,
    find_updates,
    has_several_updates,
)
from breakeven.rewrite.output_loss import OutputLoss, match_loop
from breakeven.source import (
    LineEdits,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    declared_names,
    free_name,
    nodes_in,
    plain_name,
    read_names,
    split_lines,
    written_names,
    written_part,
)
from breakeven.verdict import CodeChange

_STEP_NAMES = ("step", "train_step", "fast_step", "whole_step")
_FUNCTION_NAMES = ("compute_loss", "loss_of_batch", "whole_loss")
_UPDATE_NAMES = ("compute_updates", "update_all", "whole_update")
_LOSS_NAMES = ("loss", "step_loss")
_NO_NEWLINE = "\\ No newline at end of file\n"
# Column for tracebacks that underlines nothing, for a line whose text differs from the file.
_NO_COLUMN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePatch:
    """A change of a script.

    Args:
        text: The whole script after the change.
        change: The change as a diff.
        origins: For each line of the text, the number of its original line, or of the line that it
            was inserted before; and whether it is unchanged.
    """

    text: str
    change: CodeChange
    origins: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPatch:
    """The reason not to change a script.

    Args:
        reason: In words for the user; no capital at the beginning, no full stop.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepCall:
    """The text to insert into a script.

    Args:
        removed: Statements to remove.
        place: The removed statement that the call of the step replaces.
        call: The call of the step, with ``{step}`` for its name.
        before: The loop before which the step is made.
        definition: Lines to insert before ``making``, such as a function.
        making: The expression that makes the step.
    """

    removed: Sequence[ast.stmt]
    place: ast.stmt
    call: str
    before: Loop
    definition: Sequence[str] = ()
    making: str


def propose_fast_step(source: str | bytes, *, file: str) -> SourcePatch | NoPatch:
    """Return the change that makes a training loop call ``breakeven.fast_step``.

    The loop is matched by its form. If any part may behave differently afterwards, then the result
    is a `NoPatch` with the reason.

    Args:
        source: Text of the script with its original line ends, or the bytes of its file.
        file: Its name in the diff, relative to the folder where the diff is applied.
    """
    try:
        source = source.decode() if isinstance(source, bytes) else source
        lines = _lines(source, SyntaxTree(ast.parse(source)))
        text = "".join(line for line, _, _ in lines)
        compile(text, file, "exec", dont_inherit=True)
    except NoEditError as no_match:
        return NoPatch(reason=no_match.reason)
    except UnicodeDecodeError as error:
        return NoPatch(reason=f"the script cannot be read as UTF-8: {error}")
    except (SyntaxError, ValueError, RecursionError) as error:
        return NoPatch(reason=f"the script cannot be parsed: {error}")
    # End a name with a blank by a tab; otherwise `patch` ends the name at the blank.
    name = file + ("\t" if re.search(r"\s", file) else "")
    old, new = split_lines(source), split_lines(text)
    diff = [
        line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"
        for line in difflib.unified_diff(old, new, fromfile=name, tofile=name)
    ]
    first = next(
        number
        for number, line in enumerate([*old, ""], 1)
        if number > len(new) or new[number - 1] != line
    )
    return SourcePatch(
        text=text,
        change=CodeChange(file=file, line=first, diff="".join(diff)),
        origins=tuple((number, is_same) for _, number, is_same in lines),
    )


def code_of_fast_step(source: bytes, file: str) -> CodeType | NoPatch:
    """Return the code of a script with ``breakeven.fast_step`` in its loop.

    Line numbers are those of the original script, so that tracebacks, warnings and
    ``inspect.getsource`` show the user's file. An inserted line takes the number of the line after
    it; a call of the step takes that of the statement that computed the loss.

    Args:
        source: Content of the file.
        file: Name of the file, for tracebacks.
    """
    patch = propose_fast_step(source, file=file)
    if isinstance(patch, NoPatch):
        return patch
    tree = ast.parse(patch.text)
    for node in ast.walk(tree):
        # Such nodes are statements, expressions, arguments, names of imports, patterns.
        if not hasattr(node, "lineno"):
            continue
        place: Any = node
        (first, is_same), (last, ends_same) = (
            patch.origins[number - 1] for number in (place.lineno, place.end_lineno)
        )
        place.lineno, place.end_lineno = first, max(first, last)
        if not (is_same and ends_same):
            place.end_lineno = first
            place.col_offset = place.end_col_offset = _NO_COLUMN
    return compile(tree, file, "exec", dont_inherit=True)


def _lines(source: str, script: SyntaxTree) -> list[tuple[str, int, bool]]:
    """Return the changed lines, each with its original line number and whether it is unchanged."""
    outer = None
    if has_several_updates(script):
        call = _updates_call(script, find_updates(script))
    else:
        parts = find_parts(script)
        outer = parts.outer
        try:
            call = _loop_call(source, parts, match_loop(script, parts))
        except NoEditError as reason:
            try:
                call = _block_call(source, script, parts, find_loss_block(script, parts))
            except NoEditError as other:
                both = f"{reason.reason}; as a function that computes the loss: {other.reason}"
                raise NoEditError(both) from None
    lines = split_lines(source)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    tree = script.tree
    assert isinstance(tree, ast.Module)
    is_imported = any(
        isinstance(statement, ast.Import)
        and any(alias.name == "breakeven" and alias.asname is None for alias in statement.names)
        for statement in tree.body
    )
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


def _loop_call(source: str, parts: StepParts, loop: OutputLoss) -> _StepCall:
    """Return the change of a loop that calls the model, then a function of output and target."""
    arguments = [_text(source, argument) for argument in loop.arguments]
    inputs = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
    # The model's only argument may be a tuple, if the loop unpacks it elsewhere.
    dumped = ast.dump(loop.arguments[0])
    if len(arguments) == 1 and any(
        ast.dump(part.value) == dumped
        for part in nodes_in(parts.loops[0], ast.Subscript, ast.Assign)
        if isinstance(part, ast.Subscript) or isinstance(part.targets[0], ast.Tuple)
    ):
        inputs = f"({inputs},)"
    plain = f"({inputs}, {_text(source, loop.target)})".replace("{", "{{").replace("}", "}}")
    loss_name = plain_name(parts.loss)
    before, making = _making(source, parts, loop.function)
    return _StepCall(
        removed=loop.removed,
        place=loop.place,
        call=f"{loss_name} = {{step}}{plain}" if loss_name else f"{{step}}{plain}",
        before=before,
        making=making,
    )


def _block_call(source: str, script: SyntaxTree, parts: StepParts, block: MovedBlock) -> _StepCall:
    """Return the change of a loop whose statements up to the loss become a function."""
    taken = all_identifiers(script.tree)
    name = free_name(_FUNCTION_NAMES, taken)
    options = ["calls_model=True", *(["has_aux=True"] if block.aux else [])]
    before, making = _making(source, parts, ast.Name(name, ast.Load()), options, is_new=True)
    statements = [*block.moved, _return(block)]
    if parts.outer is not None:
        kept = {*block.inputs, *(name for one in block.moved for name in written_names(one))}
        statements = [parts.outer.statement_outside(one, kept) for one in statements]
    loss_name = plain_name(block.loss) or (free_name(_LOSS_NAMES, taken) if block.aux else "")
    return _function_call(script, block, before, name, statements, loss_name, making)


def _updates_call(script: SyntaxTree, block: MovedBlock) -> _StepCall:
    """Return the change of a loop whose statements up to the last update become a function."""
    name = free_name(_UPDATE_NAMES, all_identifiers(script.tree))
    lasting = [ast.parse(n, mode="eval").body for n in (*block.models, *block.optimizers)]
    before = _loop_to_build_before(block.loops, lasting)
    given = f"[{', '.join(block.models)}], {name}, [{', '.join(block.optimizers)}]"
    making = f"breakeven.fast_step({given}{', has_aux=True' if block.aux else ''})"
    statements = [*block.moved, _return(block)]
    loss_name = plain_name(block.loss)
    return _function_call(script, block, before, name, statements, loss_name, making)


def _return(block: MovedBlock) -> ast.stmt:
    returned = ", ".join(filter(None, (ast.unparse(block.loss), _tuple_of(block.aux))))
    return ast.parse(f"return {returned}").body[0]


def _tuple_of(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)" if names else ""


def _function_call(
    script: SyntaxTree,
    block: MovedBlock,
    before: Loop,
    name: str,
    statements: Sequence[ast.stmt],
    loss_name: str,
    making: str,
) -> _StepCall:
    """Return the change of a loop whose statements become a function.

    Raises:
        NoEditError: If they read a value that changes in the loops and is not a parameter: the
            function would be compiled with its first value.
    """
    own = {used for one in statements for used in read_names(one)} - {*block.inputs}
    own -= {written for one in statements for written in written_names(one)}
    loops = (before, *block.loops)
    changing = set().union(*map(written_names, loops)) | declared_names(script.tree)
    if changed := min(own & changing, default=""):
        raise NoEditError(f"the loss depends on `{changed}`, which changes in the loop")
    body = [line for one in statements for line in ast.unparse(one).splitlines()]
    given = f"({', '.join(block.inputs)}{',' if len(block.inputs) == 1 else ''})"
    targets = ", ".join(filter(None, (loss_name, _tuple_of(block.aux))))
    return _StepCall(
        removed=block.removed,
        place=block.place,
        call=f"{targets} = {{step}}({given})" if targets else f"{{step}}({given})",
        before=before,
        definition=[f"def {name}({', '.join(block.inputs)}):", *(f"    {line}" for line in body)],
        making=making,
    )


def _making(
    source: str,
    parts: StepParts,
    function: ast.expr,
    options: Sequence[str] = (),
    *,
    is_new: bool = False,
) -> tuple[Loop, str]:
    """Return the loop to make the step before, and the expression that makes it there.

    Args:
        source: Text of the script.
        parts: Parts of the step.
        function: The loss function.
        options: Further arguments.
        is_new: Whether the function is inserted there, so its name needs no translation.
    """
    lasting = [ast.parse(n, mode="eval").body for n in (parts.model, parts.optimizer)]
    lasting += [] if parts.max_norm is None else [parts.max_norm]
    before = _loop_to_build_before(parts.loops, lasting)
    if (outer := parts.outer) is not None:
        if before is not parts.loops[-1]:
            raise NoEditError(f"the step changes within `{outer.function.name}`")
        lasting = [outer.outside(part) for part in lasting]
        function = function if is_new else outer.outside(function)
        looked_at = lasting if is_new else [*lasting, function]
        before = _loop_to_build_before(outer.loops, looked_at)
    model, optimizer, *max_norm = lasting
    given = [_text(source, part) for part in (model, function, optimizer)]
    given += [f"max_grad_norm={_text(source, part)}" for part in max_norm]
    return before, f"breakeven.fast_step({', '.join([*given, *options])})"


def _loop_to_build_before(loops: Sequence[Loop], lasting: Sequence[ast.expr]) -> Loop:
    """Return the outermost loop in which the parts of the step do not change."""
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


def _text(source: str, node: ast.expr) -> str:
    """Return an expression as the script writes it, if it is on one line."""
    segment = ast.get_source_segment(source, node) if hasattr(node, "lineno") else None
    if segment is None or "\n" in segment:
        return ast.unparse(node)
    try:  # a built expression has no position in the script
        parsed = ast.parse(f"({segment}\n)", mode="eval").body
    except SyntaxError:
        return ast.unparse(node)
    return segment if ast.dump(parsed) == ast.dump(node) else ast.unparse(node)
