"""What the script times, the steps within, and what it makes of the time."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from breakeven.doctor.device_source import compares_devices
from breakeven.doctor.rule import Case
from breakeven.doctor.timed_file import TimedFile
from breakeven.doctor.timing_walk import TimedWork, clock_readers, timed_work
from breakeven.source import (
    LOOP_STATEMENTS,
    SourceFile,
    dotted_name,
    last_name,
    lines_of,
    plain_name,
)
from breakeven.trace import Copy, Event, Location, Op, Phase, Sync

# Dividing by these turns one unit into another.
_UNITS = frozenset({60, 3600, 1000, 1_000_000, 1_000_000_000})
_MEANS = frozenset({"mean", "fmean", "average"})
# So many names a value may pass through.
_MAX_NAMES = 4


def wrong_measurements(case: Case, is_wrong: Callable[[TimedWork], bool]) -> list[TimedWork]:
    """Return what the script times wrongly: the first that ends at each line."""
    found: dict[Location, TimedWork] = {}
    for timed in case.once(_measurements):
        if is_wrong(timed):
            found.setdefault(timed.end.location, timed)
    return list(found.values())


def _measurements(case: Case) -> list[TimedWork]:
    """Return what the script times and uses, with work of a device in it."""
    found: list[TimedWork] = []
    is_never = case.is_never_on_device and not compares_devices(case.sources)
    if not case.trace.uses_device or is_never:
        return found  # a CPU is done when a call returns
    files = [_timed_file(case, source) for source in case.sources]
    readers = clock_readers(files)
    for file in files:
        # An expression may be nested a thousand times over, as programs write it.
        with suppress(RecursionError):
            if file.has_clocks or readers:
                found += filter(is_used, list(timed_work(file, readers)))
    return found


def _timed_file(case: Case, source: SourceFile) -> TimedFile:
    issuing: set[int] = set()
    waiting: set[int] = set()
    for event in case.trace.events:
        lines = [
            location.line
            for location in (*case.trace.stack_of(event), event.location)
            if location is not None and location.file == source.path
        ]
        if _waits(event):
            waiting.update(lines)
        elif isinstance(event, Op) and not event.is_on_host and event.phase is not Phase.DATA:
            issuing.update(lines)
    return TimedFile(
        source,
        issuing=issuing | _calls_of_holders(source, issuing),
        waiting=waiting | _calls_of_holders(source, waiting),
    )


def _calls_of_holders(source: SourceFile, lines: set[int]) -> set[int]:
    """Return the lines that call a function which holds one of ``lines``, by its name.

    The recorded steps may be over before the timed ones begin, which call the same.
    """
    found: set[int] = set()
    for _ in range(3):  # functions that call functions that work
        for function in source.nodes(ast.FunctionDef):
            if not (lines | found).isdisjoint(lines_of(function)):
                found.update(call.lineno for call in source.calls(function.name))
    return found


def _waits(event: Event) -> bool:
    return isinstance(event, Sync) or (
        isinstance(event, Copy) and not event.is_to_device and event.is_blocking
    )


def steps_within(case: Case, timed: TimedWork) -> tuple[int, int | None]:
    """Return how many loops over steps lie between the readings, and the innermost's iterations."""
    loops = _loops_within(case, timed)
    if not loops:
        return 0, None
    num_steps = iterations(*loops[-1])
    facts = case.facts.loaders
    if num_steps is None and facts and facts[0].batch_size:
        num_steps = facts[0].num_samples // facts[0].batch_size
    return len(loops), num_steps


def _loops_within(case: Case, timed: TimedWork) -> list[tuple[SourceFile, ast.AST]]:
    """Return the loops between the readings that lead to an update, the outermost first."""
    loops: list[tuple[SourceFile, ast.AST]] = []
    is_below = False
    for location in _way_to_update(case):
        holder = case.sources.find(location)
        if holder is None:
            continue
        for loop in reversed(holder.loops_around(location.line)):
            if isinstance(loop, LOOP_STATEMENTS) and (is_below or loop in timed.loops):
                loops.append((holder, loop))
        # All that the timed lines call lies between the readings.
        is_below = is_below or (holder is timed.source and location.line in timed.work)
    return loops


def _way_to_update(case: Case) -> tuple[Location, ...]:
    """Return the user's lines that lead to the first update of the step, the outermost first."""
    for event in case.trace.events:
        if isinstance(event, Op) and event.phase is Phase.OPTIMIZER:
            stack = case.trace.stack_of(event)
            return stack or ((event.location,) if event.location else ())
    return ()


def is_used(timed: TimedWork) -> bool:
    """Return whether a time is shown, kept or computed with, rather than compared with a limit."""
    return any(
        not isinstance(use, (ast.Compare, ast.Assign, ast.AnnAssign))
        for use in _uses(timed.end.source, timed.difference)
    )


def is_mean(timed: TimedWork) -> bool:
    """Return whether a mean over steps, the first included, is made of a time.

    Either a time of many steps is divided by their number (or the other way round), or the times
    of single steps are collected and their mean is taken.
    """
    source = timed.source
    if timed.loops:
        return not source.is_in_loop(timed.start.node) and any(
            isinstance(use, ast.BinOp)
            for shown in {timed.difference, timed.shown}
            for use in _uses(source, shown)
        )
    if not source.is_in_loop(timed.start.node) or _is_guarded(source, timed.difference):
        return False
    keepers = map(_keeper, _uses(source, timed.difference))
    return any(_is_averaged(source, keeper) for keeper in keepers if keeper)


def iterations(source: SourceFile, loop: ast.AST) -> int | None:
    """Return how often a loop runs, where ``range`` and constants say so."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return None
    call = loop.iter
    if isinstance(call, ast.Call) and dotted_name(call.func).endswith("tqdm"):
        call = next(iter(call.args), call)
    # `trange` ends so too.
    if not isinstance(call, ast.Call) or not dotted_name(call.func).endswith("range"):
        return None
    bounds = [_whole_number(source, given) for given in call.args]
    known = [bound for bound in bounds if bound is not None]
    if len(known) != len(bounds) or not known:
        return None
    return known[0] if len(known) == 1 else max(0, known[1] - known[0])


def _whole_number(source: SourceFile, node: ast.AST) -> int | None:
    if isinstance(node, ast.Name):
        values = [own.value for own in source.bindings if plain_name(own.target) == node.id]
        node = values[0] if len(values) == 1 else node
    is_known = isinstance(node, ast.Constant) and type(node.value) is int
    return node.value if is_known else None  # pyright: ignore


def _uses(source: SourceFile, node: ast.AST, names_left: int = _MAX_NAMES) -> Iterator[ast.AST]:
    """Yield what a value ends in: a division, a comparison, a call, a statement."""
    inner = node
    for above in source.parents(node):
        is_end = isinstance(above, ast.Compare) or _collects(above) is not None
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Div, ast.FloorDiv)):
            is_end = not _is_unit(above.left if above.right is inner else above.right)
        if isinstance(above, (ast.Assign, ast.AnnAssign)):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            yield from _uses_of_names(source, targets, names_left)
            return
        if is_end or isinstance(above, ast.stmt):
            yield above
            return
        inner = above


def _uses_of_names(
    source: SourceFile, targets: Sequence[ast.expr], names_left: int
) -> Iterator[ast.AST]:
    for target in targets:
        if not isinstance(target, ast.Name):
            # An attribute or an item outlives the function; it is kept for something.
            yield target
        if names_left:
            for load in _loads(source, target):
                yield from _uses(source, load, names_left - 1)


def _loads(source: SourceFile, target: ast.expr) -> Sequence[ast.AST]:
    """Return where a name is read; an attribute, whatever the object is called there."""
    if isinstance(target, ast.Name):
        return source.reads_of(target.id)
    if not isinstance(target, ast.Attribute):
        return ()
    same = (node for node in source.nodes(ast.Attribute) if node.attr == target.attr)
    return [node for node in same if isinstance(node.ctx, ast.Load)]


def _collects(node: ast.AST) -> str | None:
    """Return the name of the list that a call appends to."""
    if not isinstance(node, ast.Call):
        return None
    name, _, method = dotted_name(node.func).rpartition(".")
    return name if method == "append" and name else None


def _keeper(use: ast.AST) -> str | None:
    """Return the list or sum that a use puts a time into."""
    if isinstance(use, ast.AugAssign) and isinstance(use.op, ast.Add):
        return dotted_name(use.target)
    return _collects(use)


def _is_averaged(source: SourceFile, keeper: str) -> bool:
    """Return whether the mean of all that a list or sum holds is taken."""
    loads = source.reads_of(keeper)
    for above in map(source.parent, loads):
        if isinstance(above, ast.Subscript) and isinstance(above.slice, ast.Slice):
            return False  # `times[5:]` leaves the first ones out
        if isinstance(above, ast.Attribute) and above.attr in {"pop", "remove", "clear"}:
            return False
    return any(_is_in_mean(source, load) for load in loads)


def _is_in_mean(source: SourceFile, load: ast.AST) -> bool:
    for above in source.parents(load):
        if isinstance(above, ast.Call) and last_name(above.func) in _MEANS:
            return True
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Div):
            return not _is_unit(above.right)
        if isinstance(above, ast.stmt):
            return False
    return False


def _is_unit(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _UNITS


def _is_guarded(source: SourceFile, node: ast.AST) -> bool:
    """Return whether a condition within the loop decides whether a time counts."""
    kinds = (*LOOP_STATEMENTS, ast.If, ast.IfExp)
    first = next((above for above in source.parents(node) if isinstance(above, kinds)), None)
    return isinstance(first, (ast.If, ast.IfExp))
