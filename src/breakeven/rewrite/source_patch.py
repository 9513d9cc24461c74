"""The few lines to change in a script so that each of its steps is one compiled call."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.rewrite.loop_match import OUTPUT, TrainingLoop, match_loop
from breakeven.rewrite.loop_parts import StepParts, find_parts
from breakeven.rewrite.loss_block import LossBlock, find_block
from breakeven.rewrite.outer_call import Loop, OuterCall
from breakeven.rewrite.update_block import UpdateBlock, find_updates, has_several_updates
from breakeven.source import (
    COMPREHENSIONS,
    LineEdits,
    NoEditError,
    SyntaxTree,
    all_identifiers,
    declared_names,
    mentions,
    nodes_in,
    plain_name,
    read_names,
    split_lines,
    substituted,
    written_names,
    written_part,
)
from breakeven.verdict import CodeChange

_STEP_NAMES = ("step", "train_step", "fast_step", "whole_step")
_FUNCTION_NAMES = ("compute_loss", "loss_of_batch", "whole_loss")
_UPDATE_NAMES = ("compute_updates", "update_all", "whole_update")
_LOSS_NAMES = ("loss", "step_loss")
_NO_NEWLINE = "\\ No newline at end of file\n"
# Reading a value out of a tensor ends the graph, and so do these.
_LEAVES_GRAPH = frozenset({"item", "numpy", "tolist", "cpu", "cuda", "backward", "to"})
_NOT_PLAIN = (
    *COMPREHENSIONS, ast.IfExp, ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom,
    ast.Starred,
)  # fmt: skip
_OUTPUT_NAMES = ("output", "prediction", "model_output")
_TARGET_NAMES = ("target", "targets", "expected")


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
        return _changed(source, script, None, _of_updates(script, block))
    parts = find_parts(script, backward_line)
    try:
        loop = match_loop(script, parts)
        call = _of_model_and_loss(source, script, loop)
    except NoEditError as reason:
        try:
            call = _of_block(source, script, find_block(script, parts))
        except NoEditError as other:
            both = f"{reason.reason}; as a function that computes the loss: {other.reason}"
            raise NoEditError(both) from None
    return _changed(source, script, parts.outer, call)


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


def _of_model_and_loss(source: str, script: SyntaxTree, loop: TrainingLoop) -> StepCall:
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


def _of_block(source: str, script: SyntaxTree, block: LossBlock) -> StepCall:
    """Return the change of a loop whose statements up to the loss become a function."""
    parts = block.parts
    taken = all_identifiers(script.tree)
    name = free_name(_FUNCTION_NAMES, taken)
    before, making = _making(parts, ast.Name(name, ast.Load()), of_block=block)
    returned = ast.unparse(block.loss)
    beside = f"({', '.join(block.beside)},)" if block.beside else ""
    statements = [*block.moved, ast.parse(f"return {returned}{beside and ', ' + beside}").body[0]]
    if parts.outer is not None:
        kept = {*block.inputs, *(name for one in block.moved for name in written_names(one))}
        statements = [parts.outer.statement_outside(one, kept) for one in statements]
    own = {used for one in statements for used in read_names(one)} - set(block.inputs)
    own -= {written for one in statements for written in written_names(one)}
    changing = set().union(*map(written_names, (before, *parts.loops))) | declared_names(
        script.tree
    )
    if changed := min(own & changing, default=""):
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


def _of_updates(script: SyntaxTree, block: UpdateBlock) -> StepCall:
    """Return the change of a loop whose statements up to the last update become a function."""
    name = free_name(_UPDATE_NAMES, all_identifiers(script.tree))
    models, optimizers = (
        [ast.parse(one, mode="eval").body for one in names]
        for names in (block.models, block.optimizers)
    )
    before = _loop_to_build_before(block.loops, [*models, *optimizers])
    beside = f"({', '.join(block.beside)},)" if block.beside else ""
    returned = f"return {block.loss}{beside and ', ' + beside}"
    statements = [*block.moved, *ast.parse(returned, mode="exec").body]
    written = {written for one in statements for written in written_names(one)}
    own = {used for one in statements for used in read_names(one)} - {*block.inputs} - written
    changing = set().union(*map(written_names, (before, *block.loops))) | declared_names(
        script.tree
    )
    if changed := min(own & changing, default=""):
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
    parts: StepParts, function: ast.expr, of_block: LossBlock | None = None
) -> tuple[Loop, list[ast.expr]]:
    """Return the loop before which the step is made, and of what, in the names of that place.

    That is the model, the loss function, the optimizer, and the norm that gradients are clipped
    to, if any.
    """
    model, optimizer = (ast.parse(n, mode="eval").body for n in (parts.model, parts.optimizer))
    max_norm = [] if parts.max_norm is None else [parts.max_norm]
    before = _loop_to_build_before(parts.loops, [model, optimizer, *max_norm])
    lasting = [model, optimizer, *max_norm]
    if (outer := parts.outer) is not None:
        if before is not parts.loops[-1]:
            raise NoEditError(f"the step changes within `{outer.function.name}`")
        lasting = [outer.outside(part) for part in lasting]
        function = function if of_block is not None else outer.outside(function)
        looked_at = lasting if of_block is not None else [*lasting, function]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCall:
    """How a loss is computed from the model's output.

    Args:
        function: Function of output and targets.
        targets: What it gets as its second argument.
    """

    function: ast.expr
    targets: ast.expr


def loss_function(loop: TrainingLoop, script: SyntaxTree) -> LossCall:
    """Return the function of output and targets that a loop's loss is.

    Raises:
        NoEditError: It is none, or depends on what changes while the loop runs.
    """
    loss = loop.loss
    for part in ast.walk(loss):
        if isinstance(part, _NOT_PLAIN):
            raise NoEditError("the loss is not a plain expression of output and target")
        if isinstance(part, ast.Attribute) and part.attr in _LEAVES_GRAPH and _has_output(part):
            raise NoEditError(f"the loss calls .{part.attr}() on the model's output")
    for name in (loop.parts.model, loop.parts.optimizer):
        if mentions(loss, name):
            raise NoEditError(f"the loss uses `{name}` besides the model's output")
    if not _has_output(loss):
        raise NoEditError("the loss does not depend on the model's output")
    found = _called_directly(loss) or _as_lambda(loss, loop, script)
    # It is handed over once, so it must not be another one in each step.
    changing = set().union(*map(written_names, loop.parts.loops)) | declared_names(script.tree)
    if changed := written_part(found.function, changing):
        raise NoEditError(f"the loss depends on `{changed}`, which changes in the loop")
    return found


def free_name(names: tuple[str, ...], taken: set[str]) -> str:
    """Return the first of some names that is not in use.

    Raises:
        NoEditError: All of them are.
    """
    for name in names:
        if name not in taken:
            return name
    raise NoEditError(f"the names {', '.join(names)} are all in use")


def _has_output(node: ast.AST) -> bool:
    return OUTPUT in read_names(node)


def _called_directly(loss: ast.expr) -> LossCall | None:
    """Return ``criterion`` of ``criterion(output, y)``."""
    match loss:
        case ast.Call(func=function, args=[ast.Name(id=name), targets], keywords=[]):
            is_data = not isinstance(targets, ast.Constant) and not _has_output(targets)
            if name == OUTPUT and is_data and not _has_output(function):
                return LossCall(function=function, targets=targets)
        case _:
            pass
    return None


def _as_lambda(loss: ast.expr, loop: TrainingLoop, script: SyntaxTree) -> LossCall:
    """Return ``lambda output, y: …`` with the one value of the batch that the loss reads."""
    values = _batch_values(loss, loop, script)
    if len(values) != 1:
        what = f"reads {', '.join(sorted(values))}" if values else "reads no target"
        raise NoEditError(f"the loss {what}: fast_step gives it the output and one target")
    (name,) = values
    tree = SyntaxTree(loss)
    places = [_longest_chain(part, tree) for part in nodes_in(loss, ast.Name) if part.id == name]
    targets = places[0]
    text = ast.unparse(targets)
    if any(ast.unparse(place) != text for place in places):
        raise NoEditError(f"the loss reads several parts of `{name}`")
    taken = all_identifiers(script.tree)
    # Names that go with the removed statements are free for other use.
    gone = {name for statement in loop.removed for name in written_names(statement)}
    output = free_name(_OUTPUT_NAMES, taken - gone)
    target = name if isinstance(targets, ast.Name) else free_name(_TARGET_NAMES, taken)

    def parameter(part: ast.expr) -> ast.expr | None:
        if isinstance(part, ast.Name) and part.id == OUTPUT:
            return ast.Name(output, part.ctx)
        return ast.Name(target, ast.Load()) if ast.unparse(part) == text else None

    function = ast.parse(f"lambda {output}, {target}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    function.body = substituted(loss, parameter)
    return LossCall(function=function, targets=targets)


def _batch_values(loss: ast.expr, loop: TrainingLoop, script: SyntaxTree) -> set[str]:
    """Return the names in a loss that stand for data."""
    called = {plain_name(call.func) for call in nodes_in(loss, ast.Call)}
    names = read_names(loss) - {OUTPUT, "self"} - set(dir(builtins)) - called
    for node in script.nodes(ast.alias, ast.FunctionDef, ast.ClassDef):
        names -= written_names(node) if isinstance(node, ast.alias) else {node.name}
    written = {name.partition(".")[0] for name in written_names(loop.parts.loops[0])}
    return names & written or names


def _longest_chain(node: ast.expr, tree: SyntaxTree) -> ast.expr:
    """Return ``batch["y"]`` around ``batch``: the whole of constant subscripts."""
    parent = tree.parent(node)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
        return _longest_chain(parent, tree)
    return node
