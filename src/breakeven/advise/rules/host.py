"""HOST: work of the script outside torch."""

from __future__ import annotations

import ast
import re
from functools import partial

from breakeven.advise.events import line_of
from breakeven.advise.rule import Match, Matches, RuleInput, once, rule, without
from breakeven.advise.rules.sync import Wait, waits_of
from breakeven.advise.transfers import SIMULATORS
from breakeven.source import SourceFile, dotted_name, lines_of
from breakeven.trace import HostWork, Location, Sync
from breakeven.units import format_duration

# Below this fraction of a step, other host work is not worth moving.
_MIN_SHARE_FRACTION = 0.1
# Libraries whose calls issue operators or take negligible time: a pause is not spent in them.
_FAST_LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchmetrics", "lightning", "pytorch_lightning",
    "transformers", "accelerate", "einops", "functools", "itertools", "math", "os", "pathlib",
    "sys", "time", "tqdm", "typing", "collections", "contextlib", "dataclasses",
})  # fmt: skip
# Any method call of a simulator.
_SIMULATOR = re.compile(SIMULATORS + r"\.\w+$")
# Names of optimizers, models and the like, whose methods are torch's or issue operators.
_UPDATING = re.compile(r"(opt|sched|scaler|loss|criterion|model|net)", re.IGNORECASE)
# Within this many events after a read, the value is still in NumPy.
_NEAR = 3
# Maximum number of events searched for the line before a pause.
_FAR = 1000


@rule("HOST001", "ENV_BOUND")
def script_pauses(case: RuleInput) -> Matches:
    groups: dict[Location | None, dict[int, HostWork]] = {}
    for index, work in case.each(HostWork):
        if work.kind == "script" and not work.num_workers:
            is_known, location = _working_line(case, index)
            if is_known:
                groups.setdefault(location, {})[index] = work
    # Work on a logged tensor disappears with the logging, which has its own rule.
    logged = waits_of(case, Wait.LOG)
    logging = {line_of(case.trace.events[index]) for index in logged} - {None}
    for location, pauses in groups.items():
        duration_ns = sum(work.duration_ns for work in pauses.values())
        is_short = duration_ns < _MIN_SHARE_FRACTION * case.step_ns
        if is_short or line_of(location) in logging:
            continue
        yield Match(
            title=f"the script computes for {format_duration(duration_ns, 2)} outside of "
            "torch in every step",
            fix="do it for many samples at once, less often, in another process, or in torch",
            evidence=f"no operator is issued for {format_duration(duration_ns, 2)} in "
            f"{len(pauses)} pauses",
            location=location,
            events=tuple(pauses),
            edit=without(pauses),
        )


def _working_line(case: RuleInput, index: int) -> tuple[bool, Location | None]:
    """Return whether a pause is the script's work, and the line of that work.

    A pause is recorded when it ends, at the line of the next operator. The work is between that
    line and the line before, in one function, at a call outside torch. Without such a call, the
    pause comes from Python, torch or the machine.
    """
    events = case.trace.events
    after = events[index].location
    source = case.sources.find(after)
    if after is None or source is None:
        return True, after
    earlier = range(index - 1, max(-1, index - _FAR), -1)
    last = next((n for n in earlier if events[n].location not in (None, after)), None)
    before = None if last is None else events[last].location
    first = after.line
    if before is not None and before.file == after.file and before.function == after.function:
        first = before.line
    elif (around := source.loops_around(after.line)) and isinstance(around[0], ast.stmt):
        first = around[0].lineno + 1
    elif (function := source.function_around(after.line)) is not None:
        first = function.lineno
    # NumPy work on a value that was just read belongs to the round trip of that value.
    is_round_trip = any(isinstance(one, Sync) for one in events[max(0, index - _NEAR) : index])
    search = partial(_calling_lines, case, source, with_libraries=not is_round_trip)
    lines = search(min(first, after.line), after.line)
    around = source.loops_around(after.line)
    shared = (loop for loop in source.loops_around(first) if loop in around)
    loop = next((one for one in shared if isinstance(one, ast.stmt)), None)
    if first > after.line and loop is not None:
        # The next iteration: search from the line before to the end of the body, then from the
        # start.
        lines = search(first, loop.end_lineno or first) or search(loop.lineno + 1, after.line)
    if not lines:
        return False, after
    return True, Location(file=after.file, line=lines[0], function=after.function)


def _calling_lines(
    case: RuleInput, source: SourceFile, first: int, last: int, *, with_libraries: bool
) -> list[int]:
    """Return the lines of a range that do work other than issuing operators, in order.

    Calls come before loops that issue nothing: the calls in a loop take its time.
    """
    issuing = _issuing_lines(case)

    def issues(source: SourceFile, node: ast.stmt) -> bool:
        return any((source.path, line) in issuing for line in lines_of(node))

    calls = list[int]()
    for call in source.nodes(ast.Call):
        if first <= call.lineno <= last:
            name = dotted_name(call.func)
            library = source.imports.get(name.split(".")[0], "").split(".")[0]
            is_foreign = with_libraries and library != "" and library not in _FAST_LIBRARIES
            receiver, _, own_name = name.rpartition(".")
            # A function of the user that issues no operators. A class of the user may have a method
            # with the same name as an optimizer's.
            is_own = (not library and not _UPDATING.search(receiver)) and any(
                function.name == own_name and not issues(where, function)
                for where, function in case.sources.nodes(ast.FunctionDef)
            )
            if is_foreign or is_own or _SIMULATOR.search(name) is not None:
                calls.append(call.lineno)
    loops = [
        loop.lineno
        for loop in source.nodes(ast.For, ast.While)
        if with_libraries and first <= loop.lineno <= last and not issues(source, loop)
    ]
    return [*sorted(calls), *sorted(loops)]


@once
def _issuing_lines(case: RuleInput) -> frozenset[tuple[str, int] | None]:
    """Return the lines that lead to operators."""
    below = (place for stack in case.trace.stacks for place in stack)
    return frozenset(map(line_of, (*below, *case.trace.ops)))
