"""The statements from a batch to its loss as a function, where they are no call of model and loss.

It is for loops that use the model's output, call a part of the model, have several targets, or
hand on a state from step to step. What such a function does besides computing tensors would be done
once, when it is compiled: only statements are taken whose calls are known to do no more.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import dataclass

from breakeven.rewrite.known_calls import MUST_PRECEDE, READS_VALUES, KnownCalls, last_called
from breakeven.rewrite.loop_match import is_bound_anew
from breakeven.rewrite.loop_parts import StepParts
from breakeven.rewrite.outer_call import Loop
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    declared_names,
    mentions,
    nodes_in,
    parameters_of,
    plain_name,
    read_names,
    reads_in_scope,
    written_names,
)

# What else such a statement may call.
LOGGING = frozenset({*READS_VALUES, "no_grad", "detach", "float", "format"})
_STOPS = (
    ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Assert,
    ast.NamedExpr, ast.Delete, ast.Import, ast.ImportFrom,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBlock:
    """Statements that become one function, and what it takes and returns.

    Args:
        parts: Of the step.
        moved: The statements, in order.
        place: That of them which the call of the step replaces.
        loss: What backward is called on.
        inputs: Names that the function gets.
        beside: Names that the loop reads from what the function computes, besides the loss.
    """

    parts: StepParts
    moved: tuple[ast.stmt, ...]
    place: ast.stmt
    loss: ast.expr
    inputs: tuple[str, ...]
    beside: tuple[str, ...]

    @property
    def removed(self) -> tuple[ast.stmt, ...]:
        """Return all statements that go, in order."""
        gone = {*self.parts.own, *self.moved}
        return tuple(statement for statement in self.parts.block if statement in gone)


def find_block(script: SyntaxTree, parts: StepParts) -> LossBlock:
    """Return the statements of a step that compute its loss.

    Raises:
        NoEditError: There is one that is not known to be safe to move.
    """
    block = parts.block
    before = [one for one in block[: block.index(parts.backward)] if one not in parts.own]
    moved, late = _sorted(before, parts)
    if not moved:
        raise NoEditError("the loss is not computed in the block that calls backward()")
    between = block[block.index(parts.backward) : block.index(parts.update)]
    late += [one for one in between if one not in parts.own]
    values = frozenset().union(*map(written_names, parts.loops))
    calls = KnownCalls(script, [parts.model], parts.loops)
    for statement in late:
        ensure_late(statement, moved, (parts.model, parts.optimizer))
        calls.ensure_pure(statement, values=values, harmless=LOGGING)
    first_late = min((block.index(one) for one in late), default=len(block))
    place = [one for one in moved if block.index(one) < first_late][-1]
    _ensure_order(before, moved, late, place, block)
    for statement in (*moved, ast.Expr(parts.loss)):
        calls.ensure_pure(statement, values=values)
        calls.ensure_lasting(statement)
    scope = script.scope_of(parts.backward)
    written = set().union(*map(written_names, moved))
    if shared := declared_names(script.tree) & written or {name for name in written if "." in name}:
        raise NoEditError(f"`{min(shared)}` is not a variable of the loop alone")
    read = (*moved, ast.Expr(parts.loss))
    own = {parts.model, parts.optimizer, "self"}
    inputs = tuple(inputs_of(read, parts.loops, own, script, scope))
    for statement in read:
        calls.ensure_constant(statement, written | {*inputs} | inner_names(statement))
    if not inputs:
        raise NoEditError("the loss is computed from nothing that changes in the loop")
    gone = {part for one in (*parts.own, *moved) for part in ast.walk(one)}
    removed = [one for one in block if one in parts.own or one in moved]
    beside = [
        name
        for name in dict.fromkeys(written_in_order(moved))
        if name != plain_name(parts.loss)
        and (name in inputs or is_read_after(name, removed, gone, script, scope))
    ]
    return LossBlock(
        parts=parts,
        moved=tuple(moved),
        place=place,
        loss=parts.loss,
        inputs=inputs,
        beside=tuple(beside),
    )


def _sorted(before: Sequence[ast.stmt], parts: StepParts) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements that depend on the model: those to move, those to come after."""
    computed: set[str] = set()
    moved: list[ast.stmt] = []
    late: list[ast.stmt] = []
    for statement in before:
        depends = mentions(statement, parts.model) or read_names(statement) & computed
        if not depends or (not moved and _sets_mode(statement, parts.model)):
            continue
        is_plain = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        if not is_plain or any(
            last_called(call) in READS_VALUES for call in nodes_in(statement, ast.Call)
        ):
            late.append(statement)
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for part in (part for target in targets for part in ast.walk(target)):
            if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context):
                raise NoEditError(
                    f"line {statement.lineno} puts what it computes into other than a variable"
                )
        if isinstance(statement, ast.AugAssign) and plain_name(statement.target) not in computed:
            late.append(statement)
            continue
        computed |= written_names(statement)
        moved.append(statement)
    return moved, late


def _sets_mode(statement: ast.stmt, model: str) -> bool:
    """Return whether a statement is ``model.train()`` or ``model.eval()``."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="train" | "eval"))):
            return plain_name(owner) == model
        case _:
            return False


def ensure_late(statement: ast.stmt, moved: Sequence[ast.stmt], own: Sequence[str]) -> None:
    """Refuse a statement that might do something else after the update."""
    used = set().union(*(read_names(one) | written_names(one) for one in moved))
    if (
        mentions(statement, *own)
        or any(nodes_in(statement, *_STOPS))
        or written_names(statement) & used
        or any(last_called(call) in MUST_PRECEDE for call in nodes_in(statement, ast.Call))
    ):
        raise NoEditError(
            f"line {statement.lineno} stands before the update, and is not known to do the same "
            "after it"
        )


def _ensure_order(
    before: Sequence[ast.stmt],
    moved: Sequence[ast.stmt],
    late: Sequence[ast.stmt],
    place: ast.stmt,
    block: Sequence[ast.stmt],
) -> None:
    """Refuse where what stays gives another result before or after what moves."""
    first, at = block.index(moved[0]), block.index(place)
    used = set[str]()
    for statement in before:
        position = block.index(statement)
        if statement in moved:
            used |= read_names(statement) | written_names(statement)
        elif statement not in late and position > first:
            later = [one for one in moved if block.index(one) > position]
            needed = set().union(*map(read_names, later))
            is_simple = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
            is_safe = not written_names(statement) & used and is_simple
            if not is_safe or (position > at and written_names(statement) & needed):
                raise NoEditError(
                    f"line {statement.lineno} stands between the forward pass and the loss, and is "
                    "not known to do the same before them"
                )


def is_read_after(
    name: str,
    removed: Sequence[ast.stmt],
    gone: Container[ast.AST],
    script: SyntaxTree,
    scope: ast.AST,
) -> bool:
    """Return whether what stays of a scope reads what the removed statements bind to a name.

    Args:
        name: The name.
        removed: The statements that go.
        gone: All nodes in them.
        script: The script.
        scope: Of the loop.
    """
    return any(
        place not in gone and not is_bound_anew(place, name, removed, script)
        for place in reads_in_scope(scope, name)
    )


def written_in_order(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        yield from sorted(written_names(statement) - inner_names(statement))


def inputs_of(
    statements: Sequence[ast.stmt],
    loops: Sequence[Loop],
    own: Set[str],
    script: SyntaxTree,
    scope: ast.AST,
) -> Iterator[str]:
    """Yield the names that statements read and do not compute before.

    Args:
        statements: In order.
        loops: Around them, from within.
        own: Models, optimizers and the like, which are no values of a batch.
        script: The script.
        scope: Of the loops.
    """
    changing_names = set().union(*map(written_names, loops))
    changing = {name.partition(".")[0] for name in changing_names}
    variables = _variables_of(scope)
    handed_over = parameters_of(scope.args) if isinstance(scope, ast.FunctionDef) else set()
    known, found = set[str](), dict[str, None]()
    for statement in statements:
        if isinstance(statement, ast.AugAssign):
            known |= written_names(statement)
        for name in sorted(read_names(statement) - known):
            is_variable = name in changing or (
                name in variables | handed_over and not _is_tool(name, statement, script)
            )
            if is_variable and name not in inner_names(statement):
                found[name] = None
        known |= written_names(statement)
    dotted = {name.partition(".")[0] for name in changing_names if "." in name}
    counted = _numbers_of(loops)
    for name in found:
        is_tool = all(_is_tool(name, one, script) for one in statements if name in read_names(one))
        is_own = name in own
        if (
            name in dotted - {"self"}
            or name in counted
            or (name in changing and (is_tool or is_own))
        ):
            raise NoEditError(f"the loss depends on `{name}`, which changes in the loop")
        if not is_own:
            yield name


def _numbers_of(loops: Sequence[Loop]) -> set[str]:
    """Return the counters of the loops: each of their values would be compiled anew."""
    found: set[str] = set()
    for loop in loops:
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
            called = plain_name(loop.iter.func)
            if called in ("range", "trange", "tqdm.trange"):
                found |= written_names(loop.target)
            elif called == "enumerate" and isinstance(loop.target, ast.Tuple):
                found |= written_names(loop.target.elts[0])
        for node in nodes_in(loop, ast.AugAssign):
            if isinstance(node.value, ast.Constant):
                found.add(plain_name(node.target))
    return found


def _variables_of(scope: ast.AST) -> set[str]:
    """Return the names that a function or module assigns, less its functions and classes."""
    found: set[str] = set()
    for node in ast.walk(scope):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                found |= {
                    part.id
                    for part in ast.walk(node)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
            case _:
                pass
    return found


def _is_tool(name: str, statement: ast.stmt, script: SyntaxTree) -> bool:
    """Return whether a name is called, or only holds attributes: no tensor, as it seems."""
    places = [part for part in nodes_in(statement, ast.Name) if part.id == name]

    def is_tool(part: ast.Name) -> bool:
        above = script.parent(part)
        if isinstance(above, ast.Call):
            return above.func is part
        if isinstance(above, ast.Attribute):
            around = script.parent(above)
            return not (isinstance(around, ast.Call) and around.func is above)
        return False

    return all(map(is_tool, places))


def inner_names(statement: ast.stmt) -> set[str]:
    """Return names that belong to a comprehension or a lambda within a statement."""
    found: set[str] = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.comprehension | ast.For):
            found |= written_names(part.target)
        elif isinstance(part, ast.Lambda):
            found |= parameters_of(part.args)
    return found
