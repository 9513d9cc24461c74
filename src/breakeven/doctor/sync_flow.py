"""What the source does with a value that was read back: which lines it reaches."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import cast

from breakeven.source import Source, dotted_name, spans

_CLOCKS = frozenset({
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns",
    "process_time", "elapsed_time", "record", "Timer",
})  # fmt: skip
# What simulators are called, as a pattern.
SIMULATORS = r"(^|[._])(v?envs?|gym|sim|simulator|game|world|board)"
# Objects whose step() is no simulator's.
_TRAINING = ("opt", "sched", "scaler", "lr", "accelerator", "profiler", "prof", "bar", "engine")

# Calls that write a tensor to a file, or draw it. ``torch.save`` is the checkpoints' rule's.
_SAVING = frozenset({
    "savez", "savez_compressed", "savetxt", "imsave", "imwrite", "imshow", "savefig", "save_image",
    "add_image", "add_images", "write_video", "to_csv", "to_parquet",
})  # fmt: skip
_SAVING_ENDS = (".np.save", ".numpy.save", ".fromarray.save", ".json.dump", ".pickle.dump")
_PLOTTING = frozenset({"plt", "pyplot", "matplotlib"})

# Lines whose answer is kept: each of them is asked about by several rules, for many events.
_REMEMBERED = 4096

_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@lru_cache(maxsize=_REMEMBERED)
def reaches(source: Source, line: int, other_line: int) -> bool:
    """Return whether what the statement at ``line`` makes is used by that at ``other_line``.

    Lines of different functions may always reach each other: no call is followed.
    """
    scope = _scope(source, line)
    if scope is not _scope(source, other_line):
        return True
    tainted: set[str] = set()
    for statement in _statements(scope):
        if spans(statement, line) or tainted & _uses(statement):
            if spans(statement, other_line):
                return True
            tainted |= _targets(statement)
    return False


@lru_cache(maxsize=_REMEMBERED)
def feeds_simulator(source: Source, line: int) -> bool:
    """Return whether what is read at ``line`` is given to the ``step`` of a simulator."""
    scope = _scope(source, line)
    statement = next((s for s in _statements(scope) if spans(s, line)), None)
    if statement is None:
        return False
    if any(True for _ in _simulator_calls(statement)):
        return True
    if isinstance(statement, ast.Return) and isinstance(scope, ast.FunctionDef):
        return any(
            _is_given_to_simulator(_scope(source, call.lineno), call.lineno)
            for call in source.calls(scope.name)
        )
    return _is_given_to_simulator(scope, line)


@lru_cache(maxsize=_REMEMBERED)
def is_saved(source: Source, line: int) -> bool:
    """Return whether what is read at ``line`` is written to a file or drawn each time it is read.

    A list that is filled in a loop and saved after it is not, nor what is saved under a condition
    of its own.
    """
    read_in = _blocks_around(source, line)
    loops = {block for block in read_in if not isinstance(block, ast.If)}
    for call in _given(_scope(source, line), line, _saving_calls):
        saved_in = _blocks_around(source, call.lineno)
        conditions = {block for block in saved_in if isinstance(block, ast.If)}
        if loops <= saved_in and conditions <= read_in:
            return True
    return False


@lru_cache(maxsize=_REMEMBERED)
def is_beside_clock(source: Source, line: int) -> bool:
    """Return whether a clock is read in the statement before or after that at ``line``."""
    found = list(_statements(_scope(source, line)))
    at = next((i for i, statement in enumerate(found) if spans(statement, line)), None)
    if at is None:
        return False
    return any(
        dotted_name(node.func).rpartition(".")[2] in _CLOCKS
        for statement in found[max(0, at - 1) : at + 2]
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    )


def _is_given_to_simulator(scope: _Scope, line: int) -> bool:
    return any(True for _ in _given(scope, line, _simulator_calls))


def _given(
    scope: _Scope, line: int, calls_in: Callable[[ast.AST], Iterator[ast.Call]]
) -> Iterator[ast.Call]:
    """Yield the calls of a kind that are given what is made at ``line``, or are part of it."""
    tainted: set[str] = set()
    for statement in _statements(scope):
        if spans(statement, line):
            yield from calls_in(statement)
            tainted |= _targets(statement)
        elif tainted & _uses(statement):
            yield from (call for call in calls_in(statement) if tainted & _used_by(call))
            tainted |= _targets(statement)


def _used_by(call: ast.Call) -> set[str]:
    """Return the names in the arguments of a call, and those that its object is made of."""
    own = call.func.value if isinstance(call.func, ast.Attribute) else None
    parts = (*call.args, *(given.value for given in call.keywords), *([own] if own else []))
    return {name for part in parts for name in _uses(part)}


def _simulator_calls(statement: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        owner, _, name = dotted_name(node.func).rpartition(".")
        receiver = owner.rpartition(".")[2].lower()
        if name == "step" and owner and not any(part in receiver for part in _TRAINING):
            yield node


def _saving_calls(statement: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        name = dotted_name(node.func)
        parts = name.split(".")
        is_saving = parts[-1] in _SAVING or f".{name}".endswith(_SAVING_ENDS)
        if is_saving or (len(parts) > 1 and parts[0] in _PLOTTING):
            yield node


def _blocks_around(source: Source, line: int) -> set[ast.AST]:
    """Return the loops and conditions whose statements are repeated or left out with a line."""
    return {
        node
        for node in source.nodes(ast.For, ast.AsyncFor, ast.While, ast.If)
        if any(spans(part, line) for part in _inner(node))
    }


def _scope(source: Source, line: int) -> _Scope:
    found = source.function_around(line)
    return source.tree if found is None else found


def _statements(scope: _Scope) -> Iterator[ast.AST]:
    """Yield simple statements and headers of compound ones in order, not those of inner scopes."""
    if isinstance(scope, ast.Lambda):
        return
    pending: list[ast.AST] = list(reversed(scope.body))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor)):
            # Its own lines alone, not those of its body.
            yield ast.copy_location(ast.Assign([node.target], node.iter), node.iter)
        elif isinstance(node, (ast.While, ast.If)):
            yield node.test
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in node.items)
        elif not isinstance(node, ast.Try):
            yield node
        pending.extend(reversed(_inner(node)))


def _inner(node: ast.AST) -> list[ast.AST]:
    """Return the statements of the blocks of a compound statement, in order."""
    found: list[ast.AST] = []
    for name in ("body", "handlers", "orelse", "finalbody"):
        block = cast("object", getattr(node, name, None))
        if isinstance(block, list):
            items = cast("list[object]", block)
            found.extend(item for item in items if isinstance(item, ast.AST))
    return found


def _targets(statement: ast.AST) -> set[str]:
    """Return the names that a statement writes, those that it appends to included."""
    if isinstance(statement, ast.Assign):
        return {name for target in statement.targets for name in _uses(target)}
    if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        return _uses(statement.target)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute):
            return _uses(function.value)
    return set()


def _uses(node: ast.AST) -> set[str]:
    """Return the dotted names within a node: ``self.hist``, and ``self`` for nothing but that."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            if inner.value.id == "self":
                found.add(f"self.{inner.attr}")
        elif isinstance(inner, ast.Name) and inner.id != "self":
            found.add(inner.id)
    return found
