"""Rules about the script's own measurements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar, final

from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.source import LOOP_STATEMENTS, Source, dotted_name, spans
from breakeven.doctor.timing_names import TimingNames, compares_devices
from breakeven.doctor.timing_use import is_mean, is_used, iterations
from breakeven.doctor.timing_walk import (
    Timed,
    TimedFile,
    WorkLines,
    clock_readers,
    timed_work,
)
from breakeven.trace import NEVER_ON_DEVICE, Copy, Event, Location, Op, Phase, Sync

# The host runs ahead of the device by so many launches at most (as the simulator assumes); over
# twenty times as many the end of a measurement is a few percent off, and no more.
_LAUNCHES_AHEAD, _ENOUGH_QUEUES = 1024, 20
# In a mean over so many steps the first does not show.
_MANY_STEPS = 1000


@final
class TimedWithoutSync:
    """TIME001: the script reads a clock while the GPU is still at work.

    What it does:
        Finds the difference of two clock readings with work of the GPU between them and nothing
        that waits for it: no ``synchronize()``, no value read, no tensor printed.

    Why it costs time:
        It costs none, but the figure is wrong: the calls between the readings only put work into
        a queue, so the clock shows how long that took. What decides by the figure decides wrongly.

    Evidence:
        Figures were 2 to 45 times too small in public reports; a published benchmark showed 0.03
        instead of 1.36 ms for a matrix product.

    Fix:
        Wait before both readings, or time with events of the device.

        ```python
        start = time.perf_counter()
        output = model(x)
        elapsed = time.perf_counter() - start
        ```

        ```python
        torch.cuda.synchronize()
        start = time.perf_counter()
        output = model(x)
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        ```

    Known limits:
        A wait anywhere after the first work counts as one, since work that is still under way at
        the end then is at most a step's. Times of whole trainings, over several epochs or twenty
        thousand launches, are not judged: the queue is a small part of them. Stopwatches of the
        script (``tic()``, ``timer.stop()``, in any of its files) are followed where one function
        has the name; lists of readings are not.
    """

    code: ClassVar[str] = "TIME001"
    cause: ClassVar[str] = "TIME_NO_SYNC"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each reading that ends a wrong measurement."""
        found: dict[tuple[str, int], Occurrence] = {}
        for source, timed in _measurements(case):
            if timed.is_awaited or _is_long(case, source, timed):
                continue
            location = timed.ended_in.location(timed.end)
            found.setdefault(
                (location.file, location.line),
                Occurrence(
                    title="the clock is read while the GPU is still at work",
                    fix="call torch.cuda.synchronize() before both readings of the clock",
                    evidence=f"{_what(timed)} is timed from line "
                    f"{timed.started_in.location(timed.start).line}, and nothing waits for it",
                    location=location,
                    is_error=True,
                ),
            )
        return tuple(found.values())


@final
class FirstStepsTimed:
    """TIME002: the first steps are part of a mean.

    What it does:
        Finds times that are divided by a number of steps, or that give a throughput, or whose mean
        is taken, where the clock starts before any step has run.

    Why it costs time:
        It costs none, but the figure is wrong: the first steps set up the context of the device,
        load kernels, choose algorithms, allocate memory and, with ``torch.compile``, compile.

    Evidence:
        The first call took 3.1 s and the others 0.023 s in a public report, 1800 and 10 ms in
        another.

    Fix:
        Leave three to ten steps out.

        ```python
        start = time.perf_counter()
        for step in range(100):
            train_step()
        torch.cuda.synchronize()
        print((time.perf_counter() - start) / 100)
        ```

        ```python
        for step in range(110):
            if step == 10:
                torch.cuda.synchronize()
                start = time.perf_counter()
            train_step()
        torch.cuda.synchronize()
        print((time.perf_counter() - start) / 100)
        ```

    Known limits:
        Judged by the source of one function; anything named after warming up counts as a warm-up.
        Means over a thousand steps and more are not judged.
    """

    code: ClassVar[str] = "TIME002"
    cause: ClassVar[str] = "TIME_WARMUP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each reading that ends a measurement of first steps."""
        found: dict[tuple[str, int], Occurrence] = {}
        for source, timed in _measurements(case):
            if _is_warm(source, timed) or not is_mean(source, timed):
                continue
            if _steps_within(case, source, timed)[0] > 1:
                continue  # over several epochs the first steps hardly show
            location = timed.ended_in.location(timed.end)
            found.setdefault(
                (location.file, location.line),
                Occurrence(
                    title="the mean of these times includes the first steps",
                    fix="run three to ten steps before the clock starts, or leave them out",
                    evidence="the clock starts at line "
                    f"{timed.started_in.location(timed.start).line}, "
                    "before the GPU has done anything",
                    location=location,
                    is_error=True,
                ),
            )
        return tuple(found.values())


def _measurements(case: Case) -> Iterator[tuple[Source, Timed]]:
    """Yield what the script times and uses, with work of a device in it."""
    is_never = NEVER_ON_DEVICE in case.trace.caveats and not compares_devices(case.sources)
    if not case.trace.uses_device or is_never:
        return  # a CPU is done when a call returns
    files = [
        TimedFile(source, TimingNames.of(source), _lines_of(case, source))
        for source in case.sources
    ]
    readers = clock_readers(files)
    for file in files:
        if not file.names.has_clocks and not readers:
            continue
        try:
            found = tuple(timed_work(file, readers))
        except RecursionError:
            continue  # an expression nested a thousand times over, as programs write it
        yield from (
            (file.source, timed) for timed in found if is_used(timed.ended_in, timed.difference)
        )


def _lines_of(case: Case, source: Source) -> WorkLines:
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
    return WorkLines(
        issuing=frozenset(issuing | _calls_of_holders(source, issuing)),
        waiting=frozenset(waiting | _calls_of_holders(source, waiting)),
    )


def _calls_of_holders(source: Source, lines: set[int]) -> set[int]:
    """Return the lines that call a function which holds one of ``lines``, by its name.

    The recorded steps may be over before the timed ones begin, which call the same.
    """
    found: set[int] = set()
    functions = [
        node for node in source.nodes(ast.FunctionDef) if isinstance(node, ast.FunctionDef)
    ]
    for _ in range(3):  # functions that call functions that work
        for function in functions:
            if any(spans(function, line) for line in lines | found):
                found.update(call.lineno for call in source.calls(function.name))
    return found


def _waits(event: Event) -> bool:
    return isinstance(event, Sync) or (
        isinstance(event, Copy) and not event.is_to_device and event.is_blocking
    )


def _what(timed: Timed) -> str:
    first, last = min(timed.work), max(timed.work)
    if not first:
        return "a step"
    return f"work of line {first}" if first == last else f"work of lines {first} to {last}"


def _is_long(case: Case, source: Source, timed: Timed) -> bool:
    """Return whether so much is timed that the queue at its end is a small part of it."""
    depth, num_steps = _steps_within(case, source, timed)
    if depth != 1:
        return depth > 1
    launches = (num_steps or 0) * case.prediction.num_kernels
    return launches > _ENOUGH_QUEUES * _LAUNCHES_AHEAD


def _steps_within(case: Case, source: Source, timed: Timed) -> tuple[int, int | None]:
    """Return how many loops over steps lie between the readings, and the innermost's iterations."""
    loops = _loops_within(case, source, timed)
    if not loops:
        return 0, None
    num_steps = iterations(*loops[-1])
    facts = case.facts.loaders
    if num_steps is None and facts and facts[0].batch_size:
        num_steps = facts[0].num_samples // facts[0].batch_size
    return len(loops), num_steps


def _loops_within(case: Case, source: Source, timed: Timed) -> list[tuple[Source, ast.AST]]:
    """Return the loops between the readings that lead to an update, the outermost first."""
    own = {id(loop) for loop in timed.loops}
    loops: list[tuple[Source, ast.AST]] = []
    is_below = False
    for location in _way_to_update(case):
        holder = case.sources.find(location)
        if holder is None:
            continue
        for loop in reversed(holder.loops_around(location.line)):
            if isinstance(loop, LOOP_STATEMENTS) and (is_below or id(loop) in own):
                loops.append((holder, loop))
        # All that the timed lines call lies between the readings.
        is_below = is_below or (holder is source and location.line in timed.work)
    return loops


def _way_to_update(case: Case) -> tuple[Location, ...]:
    """Return the user's lines that lead to the first update of the step, the outermost first."""
    for event in case.trace.events:
        if isinstance(event, Op) and event.phase is Phase.OPTIMIZER:
            stack = case.trace.stack_of(event)
            return stack or ((event.location,) if event.location else ())
    return ()


def _is_warm(source: Source, timed: Timed) -> bool:
    """Return whether steps were run before the clock starts, or so many after it that few show."""
    if timed.has_work_before:
        return True
    nodes = list(ast.walk(timed.scope))
    names = [dotted_name(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))]
    names += [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    if any("warm" in name.lower() for name in names):
        return True
    if isinstance(timed.scope, ast.FunctionDef):
        calls = list(source.calls(timed.scope.name))
        if len(calls) > 1 or any("warm" in ast.unparse(call).lower() for call in calls):
            return True
    return any((iterations(source, loop) or 0) >= _MANY_STEPS for loop in timed.loops)


TIMING_RULES: tuple[Rule, ...] = (TimedWithoutSync(), FirstStepsTimed())
