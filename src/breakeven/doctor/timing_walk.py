"""What lies between two readings of a clock, by walking through the source as it would run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from breakeven.doctor.timing_names import TimingNames
from breakeven.source import DEFINITIONS, LOOP_STATEMENTS, Source, dotted_name

_Loop = ast.For | ast.AsyncFor | ast.While
# Loops within each other that are gone through twice.
_DEPTH = 3
# What trainers call around each step.
_AROUND_A_STEP = (
    ("on_train_batch_start", "on_train_batch_end"),
    ("on_step_begin", "on_step_end"),
    ("on_batch_begin", "on_batch_end"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLines:
    """Lines of one file that the trace shows at work.

    Args:
        issuing: Lines that issue work of the device.
        waiting: Lines that wait for it.
    """

    issuing: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TimedFile:
    """One file of the script, and what it says of clocks and work.

    Args:
        source: The file.
        names: What its names stand for.
        lines: Where it works.
    """

    source: Source
    names: TimingNames
    lines: WorkLines


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A difference of two readings, with work of the device between them.

    Args:
        start: The reading that starts it.
        started_in: Its file.
        end: The reading that ends it.
        ended_in: Its file, and that of the difference.
        difference: The expression that takes one from the other, or has a clock of its own.
        shown: The call of the script's own stopwatch that gives the difference in the scope; the
            difference itself where there is none.
        work: Lines that issue work in between, in the order of the walk; 0 is a trainer's step.
        is_awaited: Whether something waits for that work in between.
        loops: Loops that are entered in between.
        has_work_before: Whether the scope issues work before the start, or before the outermost
            loop that the start is in.
        scope: Function or module that it is in.
    """

    start: ast.AST
    started_in: Source
    end: ast.AST
    ended_in: Source
    difference: ast.expr
    shown: ast.expr
    work: tuple[int, ...]
    is_awaited: bool
    loops: tuple[_Loop, ...]
    has_work_before: bool
    scope: ast.AST


Readers = Mapping[str, tuple[TimedFile, ast.FunctionDef]]


def clock_readers(files: Iterable[TimedFile]) -> Readers:
    """Return the functions and classes that read a clock and do no work, by name, where one does.

    Those are the script's own stopwatches: ``tic`` and ``toc``, ``timer.start()``, ``Timer()``.
    """
    found: dict[str, list[tuple[TimedFile, ast.FunctionDef]]] = {}
    for file in files:
        for function in file.source.nodes(ast.FunctionDef):
            assert isinstance(function, ast.FunctionDef)
            lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
            reads = any(map(file.names.is_clock, ast.walk(function)))
            if reads and not any(line in file.lines.issuing for line in lines):
                holder = file.source.parent(function)
                is_class = isinstance(holder, ast.ClassDef)
                name = holder.name if is_class and function.name == "__init__" else function.name
                found.setdefault(name, []).append((file, function))
    return {name: own[0] for name, own in found.items() if len(own) == 1}


def timed_work(file: TimedFile, readers: Readers) -> Iterator[Timed]:
    """Yield what a file times, in each function and at the level of the module."""
    source = file.source
    for scope in (source.tree, *source.nodes(ast.FunctionDef, ast.AsyncFunctionDef)):
        assert isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef))
        walk = _Walk(file, readers, scope)
        walk.statements(scope.body)
        yield from walk.found
    for node in source.nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        methods = _methods(node)
        for before, after in _AROUND_A_STEP:
            if before in methods and after in methods:
                walk = _Walk(file, readers, node)
                walk.statements(methods[before].body)
                walk.step()
                walk.statements(methods[after].body)
                yield from walk.found


@dataclass(frozen=True, slots=True)
class _Reading:
    """A clock that was read, and where in the log: there, and before the loops around it."""

    node: ast.AST
    source: Source
    position: int
    before: int


@dataclass(slots=True)
class _Walk:
    """One scope, statement by statement; loops are gone through twice, all branches once.

    The log holds what was met: the line of work, ``None`` for a wait, or a loop that is entered.
    A clock reading is a position in it, so the log between two positions is what was timed.
    """

    file: TimedFile
    readers: Readers
    scope: ast.AST
    found: list[Timed] = field(default_factory=list[Timed])
    _log: list[int | _Loop | None] = field(default_factory=list["int | _Loop | None"])
    _readings: dict[str, _Reading] = field(default_factory=dict[str, "_Reading"])
    _loops: list[int] = field(default_factory=list[int])
    _bodies: list[Sequence[ast.stmt]] = field(default_factory=list[Sequence[ast.stmt]])
    # Stopwatches of the script that run now, and the readings that they have returned.
    _inside: list[ast.AST] = field(default_factory=list[ast.AST])
    _calls: list[ast.Call] = field(default_factory=list[ast.Call])
    _returned: dict[int, _Reading] = field(default_factory=dict[int, "_Reading"])
    _last_return: _Reading | None = None

    @property
    def source(self) -> Source:
        """Return the file whose statements run."""
        return self.file.source

    @property
    def names(self) -> TimingNames:
        """Return its names."""
        return self.file.names

    @property
    def lines(self) -> WorkLines:
        """Return its lines."""
        return self.file.lines

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Walk through statements in turn."""
        for statement in body:
            self._statement(statement)

    def step(self) -> None:
        """Let a whole step of a trainer go by, which is at no line of the file."""
        self._log.append(0)
        if self.lines.waiting:
            self._log.append(None)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, DEFINITIONS):
            return
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            head = node.test if isinstance(node, ast.While) else node.iter
            self._expression(head)
            self._log.append(node)
            self._loops.append(len(self._log))
            # Twice shows what one iteration leaves to the next; deeper down once is enough.
            for _ in range(2 if len(self._loops) <= _DEPTH else 1):
                self.statements(node.body)
            self._loops.pop()
            self.statements(node.orelse)
        elif isinstance(node, ast.If):
            self._expression(node.test)
            self.statements(node.body)
            self.statements(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node, 0)
        elif isinstance(node, ast.Try):
            self.statements(node.body)
            for handler in node.handlers:
                self.statements(handler.body)
            self.statements(node.orelse)
            self.statements(node.finalbody)
        elif isinstance(node, ast.Match):
            self._expression(node.subject)
            for case in node.cases:
                self.statements(case.body)
        else:
            self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        self._expression(node)
        if isinstance(node, ast.Return) and node.value is not None and self._inside:
            self._last_return = self._reading(node.value)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            held = self._reading(node.value)
            for target in targets:
                if held is not None:
                    self._readings[ast.unparse(target)] = held
                else:
                    self._readings.pop(ast.unparse(target), None)

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
        name = dotted_name(node)
        if len(self._bodies) > 8:  # a manager that enters itself
            return None
        for defined in self.source.nodes(ast.FunctionDef, ast.ClassDef):
            if isinstance(defined, ast.FunctionDef) and defined.name == name:
                is_manager = any(
                    dotted_name(one).endswith("contextmanager") for one in defined.decorator_list
                )
                return defined if is_manager else None
            if isinstance(defined, ast.ClassDef) and defined.name == name:
                parts = {
                    part.name: part for part in defined.body if isinstance(part, ast.FunctionDef)
                }
                if "__enter__" in parts and "__exit__" in parts:
                    return parts["__enter__"], parts["__exit__"]
        return None

    def _expression(self, node: ast.AST) -> None:
        """Log what an expression or a simple statement does, in the order of evaluation."""
        first = getattr(node, "lineno", 0)
        spanned = range(first, (getattr(node, "end_lineno", None) or first) + 1)
        if any(line in self.lines.issuing for line in spanned):
            self._log.append(first)
        if any(line in self.lines.waiting for line in spanned):
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
            self._stopwatch(node)
        if self.names.is_work(node):
            self._log.append(getattr(node, "lineno", 0))
        if self.names.is_wait(node):
            self._log.append(None)

    def _stopwatch(self, call: ast.Call) -> None:
        """Run a function of the script that reads a clock where it is called."""
        own_clock = self.names.own_clock_runs(call)
        if own_clock is not None:
            self._own_clock(call, own_clock)
        file, function = self.readers.get(dotted_name(call.func).rpartition(".")[2], (None, None))
        if file is None or function is None or function is self.scope or function in self._inside:
            return
        parameters = [argument.arg for argument in function.args.args]
        if parameters[:1] == ["self"]:
            del parameters[0]
        for name, given in zip(parameters, call.args, strict=False):
            if (held := self._reading(given)) is not None:
                self._readings[name] = held
        before, self.file = self.file, file
        self._inside.append(function)
        self._calls.append(call)
        self._last_return = None
        self.statements(function.body)
        if self._last_return is not None:
            self._returned[id(call)] = self._last_return
        self._inside.pop()
        self._calls.pop()
        self.file = before

    def _own_clock(self, call: ast.Call, run: ast.expr) -> None:
        """Note a call such as ``timeit.timeit(step)``, which reads the clock around it."""
        line = call.lineno
        body = run.body if isinstance(run, ast.Lambda) else run
        waits = any(map(self.names.is_wait, ast.walk(body)))
        waits = waits or dotted_name(body) in self.names.waiting
        if line not in self.lines.issuing:
            return
        self.found.append(
            Timed(
                start=call,
                started_in=self.source,
                end=call,
                ended_in=self.source,
                difference=call,
                shown=call,
                work=(line,),
                is_awaited=waits or line in self.lines.waiting,
                loops=(),
                has_work_before=any(isinstance(one, int) for one in self._log[:-1]),
                scope=self.scope,
            )
        )

    def _reading(self, node: ast.expr) -> _Reading | None:
        if self.names.is_clock(node):
            here = len(self._log)
            return _Reading(node, self.source, here, self._loops[0] if self._loops else here)
        if isinstance(node, ast.Call):
            return self._returned.get(id(node))
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return self._readings.get(ast.unparse(node))
        return None

    def _difference(self, node: ast.BinOp) -> None:
        end, start = self._reading(node.left), self._reading(node.right)
        if end is None or start is None or end.node is start.node:
            return
        if end.source is not self.source:
            return  # taken apart elsewhere than where it is shown
        between = self._log[start.position : end.position]
        work = [at for at, one in enumerate(between) if isinstance(one, int)]
        if not work:
            return
        self.found.append(
            Timed(
                start=start.node,
                started_in=start.source,
                end=end.node,
                ended_in=end.source,
                difference=node,
                shown=self._calls[0] if self._calls else node,
                work=tuple(one for one in between if isinstance(one, int)),
                is_awaited=None in between[work[0] :],
                loops=tuple(one for one in between if isinstance(one, LOOP_STATEMENTS)),
                has_work_before=any(isinstance(one, int) for one in self._log[: start.before]),
                scope=self.scope,
            )
        )


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
