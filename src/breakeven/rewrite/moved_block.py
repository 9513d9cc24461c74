"""Statements of a step that move into one function, if the step is not just a model and a loss.

With one optimizer, they lead from a batch to its loss. Such loops use the model's output, call a
part of the model, have several targets, or pass a state from step to step.

With several optimizers (an actor and its critic, a generator and its discriminator), they are the
whole step. Clearing, backward passes and updates are mixed with the computation in an order that
matters, so they move unchanged. Statements that read values, such as a log, come after them.

Any other effect of the function would happen only once, when it is compiled. Only statements whose
calls are known to just compute are moved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial

from breakeven.rewrite.known_calls import MUST_PRECEDE, READS_VALUES, KnownCalls, Loop, last_called
from breakeven.rewrite.loop_parts import (
    StepParts,
    clip_call,
    ensure_lasting_model,
    ensure_plain,
    loops_of,
)
from breakeven.rewrite.optimizers import Optimizers
from breakeven.rewrite.output_loss import is_rebound
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

# Calls that are allowed in a statement after the step.
_LOGGING = frozenset({*READS_VALUES, "no_grad", "detach", "float", "format"})
_STOPS = (
    ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Assert,
    ast.NamedExpr, ast.Delete, ast.Import, ast.ImportFrom,
)  # fmt: skip
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBlock:
    """Statements that become one function, with its inputs and outputs.

    Args:
        loops: The loop of the step and those around it, innermost first.
        models: Models in the statements, as the source names them.
        optimizers: The optimizers, in the order of their updates.
        moved: Statements of the function, in order.
        removed: All statements to remove, in order.
        place: The removed statement that the call of the step replaces.
        loss: The loss, which the function returns first.
        inputs: Parameters of the function.
        aux: Other names that the function computes and the loop reads.
    """

    loops: tuple[Loop, ...]
    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    moved: tuple[ast.stmt, ...]
    removed: tuple[ast.stmt, ...]
    place: ast.stmt
    loss: ast.expr
    inputs: tuple[str, ...]
    aux: tuple[str, ...]


def find_loss_block(script: SyntaxTree, parts: StepParts) -> MovedBlock:
    """Return the statements of a step with one optimizer that compute its loss.

    Raises:
        NoEditError: If a statement may not be safe to move.
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
        _ensure_late(statement, moved, (parts.model, parts.optimizer))
        calls.ensure_pure(statement, values=values, harmless=_LOGGING)
    place = _place(moved, late, block)
    used = set[str]()
    for statement in before:
        position = block.index(statement)
        if statement in moved:
            used |= read_names(statement) | written_names(statement)
        elif statement not in late and position > block.index(moved[0]):
            later = [one for one in moved if block.index(one) > position]
            needed = set().union(*map(read_names, later))
            written = written_names(statement)
            is_safe = not written & used and isinstance(statement, _ASSIGNMENTS)
            if not is_safe or (position > block.index(place) and written & needed):
                raise NoEditError(f"cannot move line {statement.lineno} before the forward pass")
    read = (*moved, ast.Expr(parts.loss))
    for statement in read:
        calls.ensure_pure(statement, values=values)
        calls.ensure_lasting(statement)
    removed = tuple(one for one in block if one in parts.own or one in moved)
    own = {parts.model, parts.optimizer, "self"}
    inputs, aux = _interface(
        read, removed, plain_name(parts.loss), parts.loops, own, set(), calls, script
    )
    return MovedBlock(
        loops=parts.loops,
        models=(parts.model,),
        optimizers=(parts.optimizer,),
        moved=tuple(moved),
        removed=removed,
        place=place,
        loss=parts.loss,
        inputs=inputs,
        aux=aux,
    )


def _sorted(before: Sequence[ast.stmt], parts: StepParts) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Split the statements that depend on the model: to move, and to run after the step."""
    computed: set[str] = set()
    moved: list[ast.stmt] = []
    late: list[ast.stmt] = []
    for statement in before:
        depends = mentions(statement, parts.model) or read_names(statement) & computed
        sets_mode = _method_of(statement, "train", "eval") == parts.model
        if not depends or (not moved and sets_mode):
            continue
        if not isinstance(statement, _ASSIGNMENTS) or _reads_values(statement):
            late.append(statement)
            continue
        _ensure_variables(statement)
        if isinstance(statement, ast.AugAssign) and plain_name(statement.target) not in computed:
            late.append(statement)
            continue
        computed |= written_names(statement)
        moved.append(statement)
    return moved, late


def has_several_updates(script: SyntaxTree) -> bool:
    """Whether a block updates with several optimizers in turn."""
    backward = next(_backward_calls(script), None)
    if backward is None or not isinstance(loop := script.parent(backward), ast.For | ast.While):
        return False
    return len(Optimizers(script).updates_of(loop.body)) > 1


def find_updates(script: SyntaxTree) -> MovedBlock:
    """Return the statements of a step that updates with several optimizers.

    Raises:
        NoEditError: If a statement may not be safe to move.
    """
    ensure_plain(script)
    optimizers = Optimizers(script)
    backwards = list(_backward_calls(script))
    loops, outer = loops_of(backwards[0], script)
    ensure_lasting_model(loops[-1])
    if outer is not None:
        raise NoEditError(
            f"`{outer.function.name}` updates with several optimizers, and a loop calls it"
        )
    block = loops[0].body
    for one in backwards:
        if one not in block:
            raise NoEditError(
                f"line {one.lineno} calls backward() in another place than directly in the loop"
            )
    updates = optimizers.updates_of(block)
    optimizers.ensure_once(updates, block)
    models = optimizers.models_in(loops[0], list(updates))
    calls = KnownCalls(script, models, loops)
    is_own = partial(_is_own, models=models, optimizers=tuple(updates))
    first = next(
        (n for n, one in enumerate(block) if mentions(one, *models) and not is_own(one)), -1
    )
    if first < 0:
        raise NoEditError("no model is called in the block that calls backward()")
    end = 1 + max(block.index(one) for (one,) in updates.values())
    if backwards[-1] not in block[:end]:
        raise NoEditError(f"line {backwards[-1].lineno} calls backward() after the last update")
    while end < len(block) and calls.is_polyak_update(block[end]):
        try:
            calls.ensure_plain_polyak(block[end])
        except NoEditError:
            break  # leave it in the loop
        end += 1

    def may_move(statement: ast.stmt) -> bool:
        """Whether the form of a statement allows it in the step; otherwise it comes after."""
        if is_own(statement):
            if _method_of(statement, "train", "eval"):
                raise NoEditError(f"line {statement.lineno} sets a model's mode within the step")
            return True
        if isinstance(statement, ast.With) and _is_no_grad(statement):
            kinds = set(map(may_move, statement.body))
            if kinds == {True, False}:
                raise NoEditError(f"line {statement.lineno} reads values among what it computes")
            return kinds == {True}
        if calls.is_polyak_update(statement) or clip_call(statement):
            return True
        return isinstance(statement, _ASSIGNMENTS) and not _reads_values(statement)

    moved = [one for one in block[:first] if is_own(one) and not _method_of(one, "train", "eval")]
    late: list[ast.stmt] = []
    for statement in block[first:end]:
        (moved if may_move(statement) else late).append(statement)
    if not any(one in moved for one in block[first:end]):
        raise NoEditError("the losses are not computed in the block that calls backward()")
    simple = list(_simple(moved))
    values = frozenset().union(*map(written_names, loops))
    for statement in late:
        _ensure_late(statement, moved, (*models, *updates))
        calls.ensure_pure(statement, values=values, harmless=_LOGGING)
        later = [one for one in moved if block.index(one) > block.index(statement)]
        written = set().union(*map(written_names, later))
        if changed := min(read_names(statement) & written, default=""):
            raise NoEditError(
                f"line {statement.lineno} reads `{changed}`, which is another value after the step"
            )
    for number, statement in enumerate(simple):
        computed = set().union(*map(written_names, simple[:number]))
        _ensure_safe(statement, computed, calls, values, is_own=is_own(statement))
    names = [name for one in backwards if "." not in (name := _method_of(one, "backward")) and name]
    if not names:
        raise NoEditError(f"the loss of line {backwards[-1].lineno} has no name")
    if names[-1] not in set().union(*map(written_names, simple)):
        raise NoEditError(f"`{names[-1]}` is not computed in the block that calls backward()")
    own = {*models, *updates, "self"}
    inputs, aux = _interface(simple, moved, names[-1], loops, own, own, calls, script)
    return MovedBlock(
        loops=loops,
        models=models,
        optimizers=tuple(updates),
        moved=tuple(moved),
        removed=tuple(moved),
        place=_place(moved, late, block),
        loss=ast.Name(names[-1], ast.Load()),
        inputs=inputs,
        aux=aux,
    )


def _ensure_safe(
    statement: ast.stmt,
    computed: Set[str],
    calls: KnownCalls,
    values: frozenset[str],
    *,
    is_own: bool,
) -> None:
    """Refuse a statement with effects other than computing, clearing, backward and update."""
    if calls.is_polyak_update(statement):
        calls.ensure_plain_polyak(statement)
    elif is_own:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=loss, attr="backward"))):
                calls.ensure_pure(ast.copy_location(ast.Expr(loss), statement), values=values)
            case _:
                pass
    else:
        if isinstance(statement, ast.AugAssign) and plain_name(statement.target) not in computed:
            raise NoEditError(f"line {statement.lineno} adds to a value of another step")
        _ensure_variables(statement)
        calls.ensure_pure(statement, values=values)
        calls.ensure_lasting(statement)


def _is_own(statement: ast.stmt, models: Sequence[str], optimizers: Sequence[str]) -> bool:
    """Whether a statement clears gradients, calls backward, updates, or sets a model's mode."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
            owners = {
                "zero_grad": (*optimizers, *models),
                "train": models,
                "eval": models,
                "step": optimizers,
            }
            if call.args or call.keywords:
                return method == "backward" and _retains_graph(call)
            return method == "backward" or plain_name(owner) in owners.get(method, ())
        case _:
            return False


def _backward_calls(script: SyntaxTree) -> Iterator[ast.stmt]:
    """Yield the statements that call ``backward()``, in order."""
    found: list[ast.stmt] = []
    for call in script.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            statement = script.parent(call)
            if not isinstance(statement, ast.Expr):
                raise NoEditError(f"line {call.lineno} uses the result of backward()")
            if (call.args or call.keywords) and not _retains_graph(call):
                raise NoEditError(f"line {call.lineno} calls backward() with arguments")
            found.append(statement)
    yield from sorted(found, key=lambda one: one.lineno)


def _retains_graph(call: ast.Call) -> bool:
    return not call.args and [keyword.arg for keyword in call.keywords] == ["retain_graph"]


def _method_of(statement: ast.stmt, *methods: str) -> str:
    """Return the owner if a statement only calls one of its methods; else an empty string."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method))):
            return plain_name(owner) if method in methods else ""
        case _:
            return ""


def _is_no_grad(statement: ast.With) -> bool:
    match statement.items:
        case [ast.withitem(context_expr=context, optional_vars=None)]:
            return ast.unparse(context) == "torch.no_grad()"
        case _:
            return False


def _simple(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements in order, with each ``with`` replaced by its body."""
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _simple(statement.body)
        else:
            yield statement


def _reads_values(statement: ast.stmt) -> bool:
    return any(last_called(call) in READS_VALUES for call in nodes_in(statement, ast.Call))


def _ensure_variables(statement: ast.stmt) -> None:
    """Refuse an assignment whose target is not a variable."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    for part in (part for target in targets for part in ast.walk(target)):
        if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context):
            raise NoEditError(
                f"line {statement.lineno} assigns its result to something other than a variable"
            )


def _ensure_late(statement: ast.stmt, moved: Sequence[ast.stmt], own: Sequence[str]) -> None:
    """Refuse a statement whose effect may change after the update."""
    used = set().union(*(read_names(one) | written_names(one) for one in moved))
    if (
        mentions(statement, *own)
        or any(nodes_in(statement, *_STOPS))
        or written_names(statement) & used
        or any(last_called(call) in MUST_PRECEDE for call in nodes_in(statement, ast.Call))
    ):
        raise NoEditError(f"cannot move line {statement.lineno} past the update")


def _place(
    moved: Sequence[ast.stmt], late: Sequence[ast.stmt], block: Sequence[ast.stmt]
) -> ast.stmt:
    """Return the last moved statement before the first late one."""
    first_late = min((block.index(one) for one in late), default=len(block))
    return [one for one in moved if block.index(one) < first_late][-1]


def _interface(
    statements: Sequence[ast.stmt],
    removed: Sequence[ast.stmt],
    loss: str,
    loops: Sequence[Loop],
    own: Set[str],
    known: Set[str],
    calls: KnownCalls,
    script: SyntaxTree,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters of a function made of statements, and its extra results.

    Args:
        statements: The statements, in order.
        removed: The statements to remove.
        loss: Name of the loss, which is always returned; empty for none.
        loops: Loops around the statements, innermost first.
        own: Models, optimizers and other names that are no values of a batch.
        known: Those of them that the function may use.
        calls: Decides what calls do.
        script: The script.

    Raises:
        NoEditError: If the function would depend on a value that changes otherwise.
    """
    scope = script.scope_of(removed[0])
    written = set().union(*map(written_names, statements))
    if shared := declared_names(script.tree) & written or {name for name in written if "." in name}:
        raise NoEditError(f"`{min(shared)}` is not a variable of the loop alone")
    inputs = tuple(_inputs_of(statements, loops, own, script, scope))
    if not inputs:
        raise NoEditError("the loss is computed from nothing that changes in the loop")
    for statement in statements:
        calls.ensure_constant(statement, {*written, *inputs, *known, *_inner_names(statement)})
    gone = {part for one in removed for part in ast.walk(one)}
    computed = [
        name for one in statements for name in sorted(written_names(one) - _inner_names(one))
    ]
    aux = [
        name
        for name in dict.fromkeys(computed)
        if name != loss
        and (
            name in inputs
            or any(
                place not in gone and not is_rebound(place, name, removed, script)
                for place in reads_in_scope(scope, name)
            )
        )
    ]
    return inputs, tuple(aux)


def _inputs_of(
    statements: Sequence[ast.stmt],
    loops: Sequence[Loop],
    own: Set[str],
    script: SyntaxTree,
    scope: ast.AST,
) -> Iterator[str]:
    """Yield the names that the statements read before they assign them."""
    changing_names = set().union(*map(written_names, loops))
    changing = {name.partition(".")[0] for name in changing_names}
    # Variables that the function or module assigns, without functions and classes; and parameters.
    variables = {
        part.id
        for node in nodes_in(scope, *_ASSIGNMENTS)
        for part in nodes_in(node, ast.Name)
        if isinstance(part.ctx, ast.Store)
    }
    if isinstance(scope, ast.FunctionDef):
        variables |= parameters_of(scope.args)
    known, found = set[str](), dict[str, None]()
    for statement in statements:
        if isinstance(statement, ast.AugAssign):
            known |= written_names(statement)
        for name in sorted(read_names(statement) - known):
            is_variable = name in changing or (
                name in variables and not _is_tool(name, statement, script)
            )
            if is_variable and name not in _inner_names(statement):
                found[name] = None
        known |= written_names(statement)
    dotted = {name.partition(".")[0] for name in changing_names if "." in name}
    counted = _counters_of(loops)
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


def _counters_of(loops: Sequence[Loop]) -> set[str]:
    """Return the counters of the loops: each new value would cause another compilation."""
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


def _is_tool(name: str, statement: ast.stmt, script: SyntaxTree) -> bool:
    """Whether a name is only called or used for its attributes, so probably is no tensor."""
    for part in nodes_in(statement, ast.Name):
        above = script.parent(part)
        if part.id != name or (isinstance(above, ast.Call) and above.func is part):
            continue
        around = script.parent(above) if isinstance(above, ast.Attribute) else None
        if around is None or (isinstance(around, ast.Call) and around.func is above):
            return False
    return True


def _inner_names(statement: ast.stmt) -> set[str]:
    """Return the names local to comprehensions, inner loops and lambdas of a statement."""
    found: set[str] = set()
    for part in ast.walk(statement):
        if isinstance(part, ast.comprehension | ast.For):
            found |= written_names(part.target)
        elif isinstance(part, ast.Lambda):
            found |= parameters_of(part.args)
    return found
