"""What lies between two readings of a clock, by walking through the source as it would run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from breakeven.doctor.timed_file import TimedFile
from breakeven.source import (
    DEFINITIONS,
    LOOP_STATEMENTS,
    LoopStatement,
    SourceFile,
    blocks_of,
    bound_arguments,
    dotted_name,
    headers_of,
    last_name,
    lines_of,
    methods_of,
)
from breakeven.trace import Location

# Loops within each other that are gone through twice.
_DEPTH = 3
# A context manager that enters itself ends here.
_MAX_MANAGERS = 8
# What trainers call around each step.
_AROUND_A_STEP = (
    ("on_train_batch_start", "on_train_batch_end"),
    ("on_step_begin", "on_step_end"),
    ("on_batch_begin", "on_batch_end"),
)


class Reading(NamedTuple):
    """A clock that was read, and where in the log: there, and before the loops around it."""

    node: ast.expr
    source: SourceFile
    position: int
    before: int

    @property
    def location(self) -> Location:
        """Return its line."""
        return self.source.location(self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWork:
    """A difference of two readings, with work of the device between them.

    Args:
        start: The reading that starts it.
        end: The reading that ends it, in the file of the difference.
        difference: The expression that takes one from the other, or has a clock of its own.
        shown: The call of the script's own stopwatch that gives the difference in the scope; the
            difference itself where there is none.
        work: Lines that issue work in between, in the order of the walk; 0 is a trainer's step.
        is_awaited: Whether something waits for that work in between.
        loops: Loops that are entered in between.
        has_work_before: Whether the scope issues work before the start, or before the outermost
            loop that the start is in.
        source: The file that it is in.
        scope: Function or module that it is in.
    """

    start: Reading
    end: Reading
    difference: ast.expr
    shown: ast.expr
    work: tuple[int, ...]
    is_awaited: bool
    loops: tuple[LoopStatement, ...]
    has_work_before: bool
    source: SourceFile
    scope: ast.AST


Readers = Mapping[str, tuple[TimedFile, ast.FunctionDef]]


def clock_readers(files: Iterable[TimedFile]) -> Readers:
    """Return the functions and classes that read a clock and do no work, by name, where one does.

    Those are the script's own stopwatches: ``tic`` and ``toc``, ``timer.start()``, ``Timer()``.
    """
    found: dict[str, list[tuple[TimedFile, ast.FunctionDef]]] = {}
    for file in files:
        for function in file.source.nodes(ast.FunctionDef):
            reads = any(map(file.is_clock, ast.walk(function)))
            if reads and file.issuing.isdisjoint(lines_of(function)):
                holder = file.source.parent(function)
                is_class = isinstance(holder, ast.ClassDef)
                name = holder.name if is_class and function.name == "__init__" else function.name
                found.setdefault(name, []).append((file, function))
    return {name: own[0] for name, own in found.items() if len(own) == 1}


def timed_work(file: TimedFile, readers: Readers) -> Iterator[TimedWork]:
    """Yield what a file times, in each function and at the level of the module."""
    source = file.source
    for scope in source.nodes(ast.Module, ast.FunctionDef, ast.AsyncFunctionDef):
        walk = _Walk(file, readers, scope)
        walk.statements(scope.body)
        yield from walk.found
    for node in source.nodes(ast.ClassDef):
        methods = methods_of(node)
        for before, after in _AROUND_A_STEP:
            if before in methods and after in methods:
                walk = _Walk(file, readers, node)
                walk.statements(methods[before].body)
                walk.step()
                walk.statements(methods[after].body)
                yield from walk.found


class _Walk:
    """One scope, statement by statement; loops are gone through twice, all branches once.

    The log holds what was met: the line of work, ``None`` for a wait, or a loop that is entered.
    A clock reading is a position in it, so the log between two positions is what was timed.
    """

    def __init__(self, file: TimedFile, readers: Readers, scope: ast.AST) -> None:
        self.found: list[TimedWork] = []
        self._file = file
        self._readers = readers
        self._source = file.source
        self._scope = scope
        self._log: list[int | LoopStatement | None] = []
        self._readings: dict[str, Reading] = {}
        self._loops: list[int] = []
        self._bodies: list[Sequence[ast.stmt]] = []
        # Stopwatches of the script that run now, by their calls, and what they have returned.
        self._running: list[tuple[ast.Call, ast.FunctionDef]] = []
        self._returned: dict[ast.Call, Reading] = {}
        self._last_return: Reading | None = None

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Walk through statements in turn."""
        for statement in body:
            self._statement(statement)

    def step(self) -> None:
        """Let a whole step of a trainer go by, which is at no line of the file."""
        self._log.append(0)
        if self._file.waiting:
            self._log.append(None)

    def _statement(self, node: ast.stmt) -> None:
        blocks = blocks_of(node)
        if isinstance(node, DEFINITIONS):
            return
        if isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node, 0)
            return
        for header in headers_of(node):
            self._expression(header)
        if isinstance(node, LOOP_STATEMENTS):
            self._log.append(node)
            self._loops.append(len(self._log))
            # Twice shows what one iteration leaves to the next; deeper down once is enough.
            for _ in range(2 if len(self._loops) <= _DEPTH else 1):
                self.statements(node.body)
            self._loops.pop()
            self.statements(node.orelse)
        elif blocks:
            for block in blocks:
                self.statements(block)
        else:
            self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        self._expression(node)
        if isinstance(node, ast.Return) and node.value is not None and self._running:
            self._last_return = self._reading(node.value)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            held = self._reading(node.value)
            for target in map(ast.unparse, targets):
                if held is not None:
                    self._readings[target] = held
                else:
                    self._readings.pop(target, None)

    def _with(self, node: ast.With | ast.AsyncWith, position: int) -> None:
        """Enter the managers one by one; those of the file run their own code around the body."""
        if position == len(node.items):
            self.statements(node.body)
            return
        manager = node.items[position].context_expr
        self._expression(manager)
        code = self._manager(manager)
        if code is None:
            self._with(node, position + 1)
        elif isinstance(code, ast.FunctionDef):
            # The rest of the managers and the body run where the generator yields.
            inner = ast.With(items=node.items[position + 1 :], body=node.body)
            self._bodies.append([inner] if inner.items else node.body)
            depth = len(self._bodies)
            self.statements(code.body)
            del self._bodies[depth - 1 :]
        else:
            enter, leave = code
            self.statements(enter.body)
            self._with(node, position + 1)
            self.statements(leave.body)

    def _manager(
        self, node: ast.expr
    ) -> ast.FunctionDef | tuple[ast.FunctionDef, ast.FunctionDef] | None:
        """Return the generator, or the two methods, that a context manager of the file runs."""
        if len(self._bodies) > _MAX_MANAGERS:
            return None
        for defined in self._file.source.nodes(ast.FunctionDef, ast.ClassDef):
            if defined.name != dotted_name(node):
                continue
            if isinstance(defined, ast.FunctionDef):
                decorators = map(dotted_name, defined.decorator_list)
                return defined if any(d.endswith("contextmanager") for d in decorators) else None
            methods = methods_of(defined)
            if "__enter__" in methods and "__exit__" in methods:
                return methods["__enter__"], methods["__exit__"]
        return None

    def _expression(self, node: ast.AST) -> None:
        """Log what an expression or a simple statement does, in the order of evaluation."""
        lines = lines_of(node)
        if not self._file.issuing.isdisjoint(lines):
            self._log.append(lines[0])
        if not self._file.waiting.isdisjoint(lines):
            self._log.append(None)
        self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        if isinstance(node, DEFINITIONS):
            return
        for child in ast.iter_child_nodes(node):
            self._parts(child)
        if isinstance(node, (ast.Yield, ast.YieldFrom)) and self._bodies:
            self.statements(self._bodies.pop())
        elif isinstance(node, ast.NamedExpr):
            if (held := self._reading(node.value)) is not None:
                self._readings[node.target.id] = held
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            self._difference(node)
        elif isinstance(node, ast.Call):
            self._own_clock(node)
            self._stopwatch(node)
        if self._file.is_work(node):
            self._log.append(getattr(node, "lineno", 0))
        if self._file.is_wait(node):
            self._log.append(None)

    def _stopwatch(self, call: ast.Call) -> None:
        """Run a function of the script that reads a clock where it is called."""
        found = self._readers.get(last_name(call.func))
        if found is None or found[1] in (self._scope, *(function for _, function in self._running)):
            return
        file, function = found
        for name, given in bound_arguments(call, function).items():
            if (held := self._reading(given)) is not None:
                self._readings[name] = held
        before, self._file = self._file, file
        self._running.append((call, function))
        self._last_return = None
        self.statements(function.body)
        if self._last_return is not None:
            self._returned[call] = self._last_return
        self._running.pop()
        self._file = before

    def _own_clock(self, call: ast.Call) -> None:
        """Note a call such as ``timeit.timeit(step)``, which reads the clock around it."""
        run = self._file.own_clock_runs(call)
        if run is None or call.lineno not in self._file.issuing:
            return
        body = run.body if isinstance(run, ast.Lambda) else run
        waits = (
            call.lineno in self._file.waiting
            or any(map(self._file.is_wait, ast.walk(body)))
            or self._file.is_waiting_name(dotted_name(body))
        )
        # The line of the call is in the log already.
        reading = Reading(call, self._file.source, len(self._log), len(self._log) - 1)
        self._note(reading, reading, call, [call.lineno, None] if waits else [call.lineno])

    def _reading(self, node: ast.expr) -> Reading | None:
        if self._file.is_clock(node):
            here = len(self._log)
            before = self._loops[0] if self._loops else here
            return Reading(node, self._file.source, here, before)
        if isinstance(node, ast.Call):
            return self._returned.get(node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return self._readings.get(ast.unparse(node))
        return None

    def _difference(self, node: ast.BinOp) -> None:
        end, start = self._reading(node.left), self._reading(node.right)
        if end is None or start is None or end.node is start.node:
            return
        if end.source is not self._file.source:
            return  # taken apart elsewhere than where it is shown
        self._note(start, end, node, self._log[start.position : end.position])

    def _note(
        self,
        start: Reading,
        end: Reading,
        difference: ast.expr,
        between: Sequence[int | LoopStatement | None],
    ) -> None:
        """Keep what lies between two readings, if that is work."""
        work = [at for at, one in enumerate(between) if isinstance(one, int)]
        if not work:
            return
        self.found.append(
            TimedWork(
                start=start,
                end=end,
                difference=difference,
                shown=self._running[0][0] if self._running else difference,
                work=tuple(one for one in between if isinstance(one, int)),
                is_awaited=None in between[work[0] :],
                loops=tuple(one for one in between if isinstance(one, LOOP_STATEMENTS)),
                has_work_before=any(isinstance(one, int) for one in self._log[: start.before]),
                source=self._source,
                scope=self._scope,
            )
        )
