"""The statements of a step with several losses and updates, as one function that does them all.

So an actor and its critic are trained, or a generator and its discriminator: clearing, backward
passes and updates stand among the computing, in an order that matters. They are moved as they
stand. What reads values, such as a log, comes after them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.rewrite.known_calls import READS_VALUES, KnownCalls, last_called
from breakeven.rewrite.loop_parts import clip_call, ensure_lasting_model, ensure_plain, loops_of
from breakeven.rewrite.loss_block import (
    LOGGING,
    ensure_late,
    inner_names,
    inputs_of,
    is_read_after,
    written_in_order,
)
from breakeven.rewrite.optimizers import MethodCalls, Optimizers
from breakeven.rewrite.outer_call import Loop
from breakeven.rewrite.target_update import TargetUpdates
from breakeven.source import (
    NoEditError,
    SyntaxTree,
    declared_names,
    mentions,
    nodes_in,
    plain_name,
    read_names,
    spans,
    written_names,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBlock:
    """Statements that become one function, and what it takes and returns.

    Args:
        loops: The loop of the step and those around it, from within.
        models: That the statements name, as the source calls them.
        optimizers: In the order of their updates.
        moved: The statements, in order.
        place: That of them which the call of the step replaces.
        loss: The loss that the function returns first, by its name.
        inputs: Names that the function gets.
        beside: Names that the loop reads from what the function computes, besides that loss.
    """

    loops: tuple[Loop, ...]
    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    moved: tuple[ast.stmt, ...]
    place: ast.stmt
    loss: str
    inputs: tuple[str, ...]
    beside: tuple[str, ...]


def has_several_updates(script: SyntaxTree) -> bool:
    """Return whether a block updates with several optimizers, one after the other."""
    backward = next(_backward_calls(script), None)
    if backward is None or not isinstance(loop := script.parent(backward), ast.For | ast.While):
        return False
    return len(Optimizers(script).updates_of(loop.body)) > 1


def find_updates(script: SyntaxTree, backward_line: int | None) -> UpdateBlock:
    """Return the statements of a step that updates with several optimizers.

    Args:
        script: The script.
        backward_line: A line that calls ``backward()`` in the measured step; None where it is not
            known.

    Raises:
        NoEditError: There is one that is not known to be safe to move.
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
    if backward_line is not None and not any(spans(one, backward_line) for one in backwards):
        raise NoEditError(f"the measured step calls backward() in line {backward_line}")
    updates = optimizers.updates_of(block)
    _ensure_once(updates, block, optimizers)
    models = optimizers.models_in(loops[0], list(updates))
    step = _Step(script, loops, models, tuple(updates))
    first = step.first_of(block)
    end = 1 + max(block.index(one) for (one,) in updates.values())
    if backwards[-1] not in block[:end]:
        raise NoEditError(f"line {backwards[-1].lineno} calls backward() after the last update")
    while end < len(block) and step.moves_targets(block[end]):
        end += 1
    clearing = [one for one in block[:first] if step.is_own(one) and not _sets_mode(one)]
    moved, late = list[ast.stmt](clearing), list[ast.stmt]()
    for statement in block[first:end]:
        (moved if step.may_move(statement) else late).append(statement)
    if not any(one in moved for one in block[first:end]):
        raise NoEditError("the losses are not computed in the block that calls backward()")
    return step.block_of(moved, late, block, _loss_name(backwards))


class _Step:
    """What is known of the models and optimizers of a step, and judges its statements.

    Args:
        script: The script.
        loops: Around the step, from within.
        models: As the source calls them.
        optimizers: Likewise.
    """

    def __init__(
        self,
        script: SyntaxTree,
        loops: tuple[Loop, ...],
        models: tuple[str, ...],
        optimizers: tuple[str, ...],
    ) -> None:
        self._script = script
        self._loops = loops
        self._models = models
        self._optimizers = optimizers
        self._calls = KnownCalls(script, models, loops)
        self.targets = TargetUpdates(script, models)

    def first_of(self, block: Sequence[ast.stmt]) -> int:
        """Return the position of the first statement that computes something by a model."""
        for position, statement in enumerate(block):
            if mentions(statement, *self._models) and not self.is_own(statement):
                return position
        raise NoEditError("no model is called in the block that calls backward()")

    def is_own(self, statement: ast.stmt) -> bool:
        """Return whether it clears, goes backward, updates, or sets a model's mode."""
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
                name = plain_name(owner)
                is_plain = not call.args and not call.keywords
                if method == "backward":
                    return is_plain or _retains_graph(call)
                if method == "zero_grad":
                    return name in (*self._optimizers, *self._models) and is_plain
                if method in ("train", "eval"):
                    return name in self._models and is_plain
                return method == "step" and name in self._optimizers and is_plain
            case _:
                return False

    def moves_targets(self, statement: ast.stmt) -> bool:
        """Return whether a statement after the last update moves a target, and does no more."""
        if not self.targets.is_update(statement):
            return False
        try:
            self.targets.ensure_plain(statement, self._calls)
        except NoEditError:
            return False  # it stays where it is
        return True

    def may_move(self, statement: ast.stmt) -> bool:
        """Return whether a statement is of the step by its form; else it is one that comes after.

        Raises:
            NoEditError: It is neither.
        """
        if self.is_own(statement):
            if _sets_mode(statement):
                raise NoEditError(f"line {statement.lineno} sets a model's mode within the step")
            return True
        if _is_no_grad(statement):
            assert isinstance(statement, ast.With)
            kinds = {self.may_move(one) for one in statement.body}
            if kinds == {True, False}:
                raise NoEditError(f"line {statement.lineno} reads values among what it computes")
            return kinds == {True}
        if self.targets.is_update(statement) or clip_call(statement):
            return True
        is_plain = isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        return is_plain and not any(
            last_called(call) in READS_VALUES for call in nodes_in(statement, ast.Call)
        )

    def block_of(
        self,
        moved: Sequence[ast.stmt],
        late: Sequence[ast.stmt],
        block: Sequence[ast.stmt],
        loss: str,
    ) -> UpdateBlock:
        """Return the statements as a function, where all of them are known to be safe.

        Args:
            moved: Statements of the step.
            late: Others between them, which come after the call of it.
            block: The body of the loop.
            loss: Name of the loss.
        """
        script, own = self._script, {*self._models, *self._optimizers, "self"}
        scope = script.scope_of(moved[0])
        simple = list(_simple(moved))
        values = frozenset().union(*map(written_names, self._loops))
        for statement in late:
            ensure_late(statement, moved, (*self._models, *self._optimizers))
            self._calls.ensure_pure(statement, values=values, harmless=LOGGING)
            later = [one for one in moved if block.index(one) > block.index(statement)]
            written = set().union(*map(written_names, later))
            if changed := min(read_names(statement) & written, default=""):
                raise NoEditError(
                    f"line {statement.lineno} reads `{changed}`, which is another value after the "
                    "step"
                )
        computed = set[str]()
        for statement in simple:
            self._ensure_safe(statement, values, computed)
            computed |= written_names(statement)
        written = set().union(*map(written_names, simple))
        if shared := declared_names(script.tree) & written or {n for n in written if "." in n}:
            raise NoEditError(f"`{min(shared)}` is not a variable of the loop alone")
        if loss not in computed:
            raise NoEditError(f"`{loss}` is not computed in the block that calls backward()")
        inputs = tuple(inputs_of(simple, self._loops, own, script, scope))
        if not inputs:
            raise NoEditError("the losses are computed from nothing that changes in the loop")
        for statement in simple:
            known = written | {*inputs} | inner_names(statement) | own
            self._calls.ensure_constant(statement, known)
        gone = {part for one in moved for part in ast.walk(one)}
        beside = [
            name
            for name in dict.fromkeys(written_in_order(simple))
            if name != loss and (name in inputs or is_read_after(name, moved, gone, script, scope))
        ]
        first_late = min((block.index(one) for one in late), default=len(block))
        place = [one for one in moved if block.index(one) < first_late][-1]
        return UpdateBlock(
            loops=self._loops,
            models=self._models,
            optimizers=self._optimizers,
            moved=tuple(moved),
            place=place,
            loss=loss,
            inputs=inputs,
            beside=tuple(beside),
        )

    def _ensure_safe(self, statement: ast.stmt, values: frozenset[str], computed: set[str]) -> None:
        """Refuse a statement that may do more than compute, clear, go backward and update."""
        if self.targets.is_update(statement):
            self.targets.ensure_plain(statement, self._calls)
            return
        if self.is_own(statement):
            assert isinstance(statement, ast.Expr)
            assert isinstance(statement.value, ast.Call)
            if last_called(statement.value) == "backward":
                assert isinstance(statement.value.func, ast.Attribute)
                loss = ast.Expr(statement.value.func.value)
                self._calls.ensure_pure(ast.copy_location(loss, statement), values=values)
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        for part in (part for target in targets for part in ast.walk(target)):
            if not isinstance(part, ast.Name | ast.Tuple | ast.List | ast.expr_context):
                raise NoEditError(
                    f"line {statement.lineno} puts what it computes into other than a variable"
                )
        if isinstance(statement, ast.AugAssign) and plain_name(statement.target) not in computed:
            raise NoEditError(f"line {statement.lineno} adds to what another step has computed")
        self._calls.ensure_pure(statement, values=values)
        self._calls.ensure_lasting(statement)


def _backward_calls(script: SyntaxTree) -> Iterator[ast.stmt]:
    """Yield the statements that call ``backward()``, in order."""
    found: list[ast.stmt] = []
    for call in script.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            statement = script.parent(call)
            if not isinstance(statement, ast.Expr):
                raise NoEditError(f"line {call.lineno} uses what backward() returns")
            if (call.args or call.keywords) and not _retains_graph(call):
                raise NoEditError(f"line {call.lineno} calls backward() with arguments")
            found.append(statement)
    yield from sorted(found, key=lambda one: one.lineno)


def _retains_graph(call: ast.Call) -> bool:
    names = [keyword.arg for keyword in call.keywords]
    return last_called(call) == "backward" and not call.args and names == ["retain_graph"]


def _ensure_once(updates: MethodCalls, block: Sequence[ast.stmt], optimizers: Optimizers) -> None:
    """Refuse an optimizer that updates twice, or elsewhere too, such as within an ``if``."""
    for statement in block:
        for call in nodes_in(statement, ast.Call):
            owner = plain_name(call.func).rpartition(".")[0]
            if last_called(call) == "step" and optimizers.is_built(owner):
                first, *_ = updates.get(owner, [None])
                if statement is not first or call.args or call.keywords:
                    raise NoEditError(
                        f"line {call.lineno} updates in another way than once in each step"
                    )


def _loss_name(backwards: Sequence[ast.stmt]) -> str:
    """Return the name of the last loss that has one."""
    for statement in reversed(backwards):
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
                return name
            case _:
                pass
    raise NoEditError(f"the loss of line {backwards[-1].lineno} has no name")


def _sets_mode(statement: ast.stmt) -> bool:
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    return last_called(statement.value) in ("train", "eval")


def _is_no_grad(statement: ast.stmt) -> bool:
    match statement:
        case ast.With(items=[ast.withitem(context_expr=context, optional_vars=None)]):
            return ast.unparse(context) == "torch.no_grad()"
        case _:
            return False


def _simple(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements in order, with those of a ``with`` in its place."""
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _simple(statement.body)
        else:
            yield statement
