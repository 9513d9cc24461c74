"""TIME: times that the script measures: two clock readings, and the work between them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from breakeven.advise.rule import Match, Matches, RuleInput, once, rule
from breakeven.advise.rules.dev import compares_devices
from breakeven.source import (
    LOOP_STATEMENTS,
    SourceFile,
    dotted_name,
    last_name,
    lines_of,
    nodes_in,
    own_nodes,
)
from breakeven.trace import Copy, Location, Op, Phase, Sync, line_words

# The device has finished when these return; a trainer's loop reads the loss on the way.
_WAITS = frozenset({"item", "cpu", "tolist", "numpy", "synchronize", "elapsed_time", "fit"})
# Divisors that only convert units.
_UNITS = frozenset({60, 3600, 1000, 1_000_000, 1_000_000_000})
# Maximum chain of names for a time, and of functions that call each other.
_MAX_NAMES = 3


class TimedWork(NamedTuple):
    """A difference of two clock readings, with device work between them.

    Args:
        source: The file.
        scope: Function or module that reads the clock twice.
        start: Line of the first reading.
        end: Line of the second reading.
        work: Lines in between that issue device work.
        loops: Loops of the scope that start in between.
        is_awaited: Whether a line in between waits for that work.
        has_work_before: Whether the scope issues work before the first reading.
        uses: Uses of the time: comparisons, divisions, other statements.
    """

    source: SourceFile
    scope: ast.AST
    start: int
    end: int
    work: list[int]
    loops: list[ast.AST]
    is_awaited: bool
    has_work_before: bool
    uses: list[ast.AST]

    @property
    def location(self) -> Location:
        """Return the line of the second reading."""
        return Location(file=self.source.path, line=self.end)


_CLOCKS = frozenset({
    "time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
    "time.monotonic_ns", "time.process_time", "timeit.default_timer", "datetime.datetime.now",
})  # fmt: skip


@once
def timed_work(case: RuleInput) -> list[TimedWork]:
    """Return the timed work whose time is used, once for each line of a second reading."""
    found: dict[Location, TimedWork] = {}
    is_never = case.is_never_on_device and not compares_devices(case.sources)
    if case.trace.uses_device and not is_never:  # a CPU has finished when a call returns
        for source in case.sources:
            # Generated code may nest an expression a thousand levels deep.
            with suppress(RecursionError):
                for timed in _in_file(case, source):
                    # A time that is only compared with a limit need not be exact.
                    if not all(isinstance(use, ast.Compare) for use in timed.uses):
                        found.setdefault(timed.location, timed)
    return list(found.values())


def _in_file(case: RuleInput, source: SourceFile) -> Iterator[TimedWork]:
    clocks = source.names_for(_CLOCKS)

    def reads_clock(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and dotted_name(node) in clocks

    read_in: dict[ast.AST, dict[str, list[int]]] = {}
    for node in source.nodes(ast.Assign) if clocks else ():
        if reads_clock(node.value):
            read_at = read_in.setdefault(source.scope_of(node), {})
            read_at.setdefault(ast.unparse(node.targets[0]), []).append(node.lineno)
    all_work, waits = _lines(case, source) if read_in else (set[int](), set[int]())
    for scope, read_at in read_in.items():
        work = [line for line in sorted(all_work) if source.scope_around(line) is scope]
        for node in own_nodes(scope, ast.BinOp):
            if not isinstance(node.op, ast.Sub):
                continue
            ends = read_at.get(ast.unparse(node.left), [])
            ends = [node.left.lineno] if reads_clock(node.left) else ends
            end = max((line for line in ends if line <= node.lineno), default=0)
            starts = (line for line in read_at.get(ast.unparse(node.right), ()) if line < end)
            start = max(starts, default=end)
            if between := [line for line in work if start < line <= end]:
                loops = [
                    one for one in own_nodes(scope, *LOOP_STATEMENTS) if start < one.lineno <= end
                ]
                # In a loop, lines before the work follow the work of the previous iteration.
                around = (one.lineno for one in loops if between[0] in lines_of(one))
                first = min(around, default=between[0])
                before = min((one.lineno for one in source.loops_around(start)), default=start)
                yield TimedWork(
                    source, scope, start, end, between, list(loops),
                    is_awaited=any(first <= line <= end for line in waits),
                    has_work_before=work[0] < before,
                    uses=list(_uses(source, node, _MAX_NAMES)),
                )  # fmt: skip


def _lines(case: RuleInput, source: SourceFile) -> tuple[set[int], set[int]]:
    """Return the lines of a file that issue device work, and those that wait for it.

    The source is searched too: recorded steps may end before the timed ones start.
    """
    losses = {dotted_name(call).removesuffix(".backward") for call in source.calls("backward")}
    late = _WAITS | {
        binding.name
        for binding in source.bindings
        if any(part.attr == "synchronize" for part in nodes_in(binding.value, ast.Attribute))
    }
    work, waits = {call.lineno for call in source.calls("backward")}, set[int]()
    for call in source.nodes(ast.Call):
        shown = {dotted_name(given) for given in call.args if last_name(call) == "print"}
        if last_name(call) in late or shown & losses:
            waits.add(call.lineno)
    for event in case.trace.events:
        places = (*case.trace.stack_of(event), event.location)
        lines = {at.line for at in places if at is not None and at.file == source.path}
        if isinstance(event, Op) and not event.is_on_host and event.phase is not Phase.DATA:
            work |= lines
        elif isinstance(event, Sync) or (
            isinstance(event, Copy) and event.is_blocking and not event.is_to_device
        ):
            waits |= lines
    for function in _MAX_NAMES * tuple(source.nodes(ast.FunctionDef)):
        for lines in (work, waits):
            if not lines.isdisjoint(lines_of(function)):
                lines.update(call.lineno for call in source.calls(function.name))
    return work, waits


def _uses(source: SourceFile, node: ast.AST, names_left: int) -> Iterator[ast.AST]:
    inner = node
    for above in source.parents(node):
        if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
            for read in source.reads_of(above.targets[0].id) if names_left else ():
                yield from _uses(source, read, names_left - 1)
            return
        if isinstance(above, (ast.Compare, ast.stmt)) or _is_division(above, inner):
            yield above
            return
        inner = above


def _is_division(node: ast.AST, part: ast.AST) -> bool:
    """Return whether a node divides by ``part``, or ``part`` by anything but a unit factor."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return False
    other = node.left if node.right is part else node.right
    return not (isinstance(other, ast.Constant) and other.value in _UNITS)


def iterations(source: SourceFile, loop: ast.AST) -> int:
    """Return the iterations of a loop over ``range(N)``; 0 if N is not a literal."""
    calls = nodes_in(loop.iter, ast.Call) if isinstance(loop, ast.For) else ()
    bounds = [one.args[:2][-1] for one in calls if one.args and last_name(one).endswith("range")]
    bound = bounds[0] if bounds else None
    if isinstance(bound, ast.Name):
        values = [one.value for one in source.bindings if one.name == bound.id]
        bound = values[0] if len(values) == 1 else None
    is_number = isinstance(bound, ast.Constant) and isinstance(bound.value, int)
    return int(bound.value) if is_number else 0  # pyright: ignore


def steps_within(case: RuleInput, timed: TimedWork) -> tuple[int, int]:
    """Return the depth of timed step loops, and the innermost's iterations (0 if unknown).

    The stack of the recorded update gives the loops: all calls from timed lines are timed.
    """
    updates = (e for e in case.trace.events if isinstance(e, Op) and e.phase is Phase.OPTIMIZER)
    update = next(updates, case.trace.events[0])
    depth, num_steps, is_below = 0, 0, False
    for location in case.trace.stack_of(update) or (update.location,):
        source = case.sources.find(location)
        if source is None or location is None:
            continue
        for loop in reversed(source.loops_around(location.line)):
            if (is_below or loop in timed.loops) and isinstance(loop, LOOP_STATEMENTS):
                depth, num_steps = depth + 1, iterations(source, loop)
        is_below = is_below or (source is timed.source and location.line in timed.work)
    loaders = case.facts.loaders
    if depth and not num_steps and loaders and loaders[0].batch_size:
        num_steps = loaders[0].num_samples // loaders[0].batch_size
    return depth, num_steps


# Maximum launches by which the host runs ahead of the device (as in the simulator). If a
# measurement covers twenty times as many, its end is off by only a few percent.
_LAUNCHES_AHEAD, _ENOUGH_QUEUES = 1024, 20


@rule("TIME001", "TIME_NO_SYNC")
def unawaited_work(case: RuleInput) -> Matches:
    for timed in timed_work(case):
        # If enough is timed, the queue at the end is a small part of it.
        depth, num_steps = steps_within(case, timed)
        launches = num_steps * case.prediction.num_kernels
        is_long = depth > 1 or (depth == 1 and launches > _ENOUGH_QUEUES * _LAUNCHES_AHEAD)
        if timed.is_awaited or is_long:
            continue
        first, last = timed.work[0], timed.work[-1]
        place = partial(line_words, timed.source.path)
        work = place(first) if first == last else f"{place(first)} to {place(last)}"
        yield Match(
            title="the clock is read while the GPU is still at work",
            fix="call torch.cuda.synchronize() before both readings of the clock",
            evidence=f"work of {work} is timed from {place(timed.start)}, and nothing waits for it",
            location=timed.location,
            is_error=True,
        )


# In a mean over this many steps, the first step does not matter.
_MANY_STEPS = 1000


@rule("TIME002", "TIME_WARMUP")
def means_with_first_steps(case: RuleInput) -> Matches:
    for timed in timed_work(case):
        depth, num_steps = steps_within(case, timed)
        # Whether steps ran before the clock starts.
        scope, source = timed.scope, timed.source
        is_repeated = isinstance(scope, ast.FunctionDef) and len([*source.calls(scope.name)]) > 1
        is_warm = timed.has_work_before or is_repeated or "warm" in ast.unparse(scope).lower()
        # In a mean over several epochs, the first steps hardly matter.
        if depth > 1 or num_steps >= _MANY_STEPS or not _is_mean(timed) or is_warm:
            continue
        start = line_words(source.path, timed.start)
        yield Match(
            title="the mean of these times includes the first steps",
            fix="run three to ten steps before the clock starts, or leave them out",
            evidence=f"the clock starts at {start}, before the GPU has done anything",
            location=timed.location,
            is_error=True,
        )


def _is_mean(timed: TimedWork) -> bool:
    """Return whether a time of many steps is divided."""
    is_divided = any(isinstance(use, ast.BinOp) for use in timed.uses)
    return bool(timed.loops) and not timed.source.loops_around(timed.start) and is_divided
