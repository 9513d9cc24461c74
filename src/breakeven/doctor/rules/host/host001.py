"""HOST001: the script computes something outside of torch in every step.

What it does:
    Finds pauses between operators of half a millisecond or more that return in most steps and
    take a tenth of it: simulators, NumPy, pandas, plotting.

Why it costs time:
    A GPU takes none of it over, and waits.

Evidence:
    GPUs at 5 to 50 % utilisation behind simulators in public reports; 10 hours on a CPU and 18
    on a GPU for one, 675 and 679 seconds for another.

Fix:
    Do it for many samples at once, less often, in another process, or in torch on the GPU.

    ```python
    for _ in range(horizon):
        observation, reward, *_ = env.step(policy(observation))
    ```

    ```python
    envs = gym.vector.AsyncVectorEnv([make_env] * 16)
    for _ in range(horizon // 16):
        observations, rewards, *_ = envs.step(policy(observations))
    ```

Known limits:
    The line is the one in the source between the operators before and after the pause that
    calls something other than torch. Python of torch itself may take that long in unusual
    places. What a line does with tensors that it logs is left to SYNC008. The gain shown
    assumes that the work is gone altogether.
"""

from __future__ import annotations

import ast
import re

from breakeven.doctor.events import line_of
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.doctor.sync_flow import SIMULATORS
from breakeven.doctor.sync_owner import Wait, waits_of
from breakeven.source import Source, dotted_name
from breakeven.trace import HostWork, Location, StepTrace, Sync
from breakeven.units import format_duration

CAUSE = "ENV_BOUND"

# Below this part of a step the host's other work is not worth moving.
_MIN_SHARE_FRACTION = 0.1
# Libraries whose calls issue operators, or take no time to speak of: a pause is not spent there.
_FAST_LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchmetrics", "lightning", "pytorch_lightning",
    "transformers", "accelerate", "einops", "functools", "itertools", "math", "os", "pathlib",
    "sys", "time", "tqdm", "typing", "collections", "contextlib", "dataclasses",
})  # fmt: skip
# Any method of a simulator.
_SIMULATOR = re.compile(SIMULATORS + r"\.\w+$")
# What optimizers and the like are called, whose methods are torch's or issue operators.
_UPDATING = re.compile(r"(opt|sched|scaler|loss|criterion|model|net)", re.IGNORECASE)
# So few events after a read the value is still on its way through NumPy.
_NEAR = 3


def detect(case: Case) -> Found:
    trace = case.trace
    found = [
        index
        for index, event in enumerate(trace.events)
        if isinstance(event, HostWork) and event.kind == "script" and not event.num_workers
    ]
    groups: dict[Location | None, list[int]] = {}
    for index in found:
        is_known, location = _working_line(case, index)
        if is_known:
            groups.setdefault(location, []).append(index)
    # What is done with a logged tensor goes away with the logging, which has its own rule.
    logging = {line_of(trace.events[i]) for i in waits_of(case, Wait.LOG, Wait.SAVED)} - {None}
    occurrences: list[Occurrence] = []
    for location, own in groups.items():
        if location is not None and (location.file, location.line) in logging:
            continue
        duration_ns = sum(_duration_ns(trace, index) for index in own)
        if duration_ns < _MIN_SHARE_FRACTION * case.step_ns:
            continue
        occurrences.append(
            Occurrence(
                title=f"the script computes for {format_duration(duration_ns, 2)} outside of "
                "torch in every step",
                fix="do it for many samples at once, less often, in another process, or in torch",
                evidence=f"no operator is issued for {format_duration(duration_ns, 2)} in "
                f"{len(own)} pauses",
                location=location,
                events=tuple(own),
                edit=without(own),
            )
        )
    return tuple(occurrences)


def _duration_ns(trace: StepTrace, index: int) -> int:
    event = trace.events[index]
    assert isinstance(event, HostWork)
    return event.duration_ns


def _working_line(case: Case, index: int) -> tuple[bool, Location | None]:
    """Return whether a pause is the script's work, and the line that it is spent on.

    A pause is seen when it ends, at the line of the next operator. The work is between that and
    the line before, in one function, where the source shows a call that is not torch's. Without
    one the pause is Python's, torch's or the machine's own.
    """
    events = case.trace.events
    after = events[index].location
    source = case.sources.find(after)
    if after is None or source is None:
        return True, after
    earlier = range(index - 1, -1, -1)
    last = next((n for n in earlier if events[n].location not in (None, after)), None)
    before = None
    if last is not None:
        before, after = _parting(case.trace, last, index) or (events[last].location, after)
        source = case.sources.find(after) or source
    first = after.line
    if before is not None and before.file == after.file and before.function == after.function:
        first = before.line
    elif (around := source.loops_around(after.line)) and isinstance(around[0], ast.stmt):
        first = around[0].lineno + 1
    elif (function := source.function_around(after.line)) is not None:
        first = function.lineno
    # What NumPy does with a value that was just read belongs to the round trip of that value.
    is_round_trip = any(isinstance(one, Sync) for one in events[max(0, index - _NEAR) : index])
    lines = _calling_lines(case, source, min(first, after.line), after.line, not is_round_trip)
    if first > after.line and (loop := _shared_loop(source, first, after.line)) is not None:
        # The next iteration: from the line before to the end of the body, and from its beginning.
        end = loop.end_lineno or first
        lines = _calling_lines(case, source, first, end, not is_round_trip) or _calling_lines(
            case, source, loop.lineno + 1, after.line, not is_round_trip
        )
    if not lines:
        return False, after
    return True, Location(file=after.file, line=lines[0], function=after.function)


def _parting(trace: StepTrace, before: int, after: int) -> tuple[Location, Location] | None:
    """Return the lines of one function from which two events were reached; None for none."""
    stacks = trace.stack_of(trace.events[before]), trace.stack_of(trace.events[after])
    for one, other in zip(*stacks, strict=False):
        if one.file != other.file or one.function != other.function:
            return None
        if one.line != other.line:
            return one, other
    return None


def _shared_loop(source: Source, one: int, other: int) -> ast.stmt | None:
    around = source.loops_around(other)
    shared = [loop for loop in source.loops_around(one) if loop in around]
    return next((loop for loop in shared if isinstance(loop, ast.stmt)), None)


def _calling_lines(
    case: Case, source: Source, first: int, last: int, with_libraries: bool
) -> list[int]:
    """Return the lines of a range that do something other than issue operators, in order.

    Calls come before loops that issue nothing: what a loop calls is what takes the time.
    """
    issuing = _issuing_lines(case.trace)
    calls: list[int] = []
    loops: list[int] = []
    for node in source.nodes(ast.Call, ast.For, ast.While):
        line = getattr(node, "lineno", 0)
        end = getattr(node, "end_lineno", None) or line
        if not first <= line <= last:
            continue
        if isinstance(node, ast.Call):
            name = dotted_name(node.func)
            library = source.imports.get(name.split(".")[0], "").split(".")[0]
            is_foreign = with_libraries and library != "" and library not in _FAST_LIBRARIES
            is_own = not library and _is_free_of_operators(case, name, issuing)
            is_work = is_foreign or is_own or _SIMULATOR.search(name) is not None
        else:
            is_work = with_libraries and not any(
                (source.path, at) in issuing for at in range(line, end + 1)
            )
        if is_work:
            (calls if isinstance(node, ast.Call) else loops).append(line)
    return [*sorted(calls), *sorted(loops)]


def _issuing_lines(trace: StepTrace) -> frozenset[tuple[str, int]]:
    """Return the lines that lead to operators."""
    lines = {(place.file, place.line) for stack in trace.stacks for place in stack}
    lines.update(
        (op.location.file, op.location.line) for op in trace.ops if op.location is not None
    )
    return frozenset(lines)


def _is_free_of_operators(case: Case, name: str, issuing: frozenset[tuple[str, int]]) -> bool:
    """Return whether the user has a function of this name that issues none."""
    receiver, _, own_name = name.rpartition(".")
    if _UPDATING.search(receiver):  # a class of the user's may have a method of the same name
        return False
    for source in case.sources:
        for node in source.nodes(ast.FunctionDef):
            assert isinstance(node, ast.FunctionDef)
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if node.name == own_name and not any((source.path, at) in issuing for at in lines):
                return True
    return False
