"""The time of a step summed up by cause, phase, line and module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from breakeven.report.builders.explain_words import frames_text
from breakeven.report.cause_text import CauseGroup, cause_words, group_of
from breakeven.report.text import printable
from breakeven.simulate import Attribution, TimePart
from breakeven.trace import Phase
from breakeven.verdict import RecordedStep

NO_MODULE = "outside of modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """What one cause takes of the step.

    Args:
        name: The cause in words.
        group: Whose colour it has; None for several causes together.
        time_ns: Nanoseconds of the step.
        fraction: The same as a part of the step.
    """

    name: str
    group: CauseGroup | None
    time_ns: int
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameShare:
    """What a part of a training framework's step takes, below one line of the user.

    Args:
        name: Its functions, outermost first: ``training_step → backward``.
        cause: What takes the most of it.
        time_ns: Nanoseconds of the step.
        fraction: The same as a part of the step.
    """

    name: str
    cause: str
    time_ns: int
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShare:
    """What one line of the user takes of the step.

    Args:
        file: The user's file; None for what no line of the user stands for.
        line: Its line.
        source: The text of the line; empty where it is not known.
        cause: What takes the most of it.
        time_ns: Nanoseconds of the step.
        fraction: The same as a part of the step.
        frames: What a training framework does below the line, the longest first; empty where the
            line does its work itself.
    """

    file: str | None
    line: int | None
    source: str
    cause: str
    time_ns: int
    fraction: float
    frames: tuple[FrameShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShare:
    """A module in the flame view, its children after it.

    Args:
        name: Its path below its parent's: ``layers.0``.
        depth: 0 for modules without a parent.
        start_fraction: Where its bar begins, as a part of the step: beside its siblings, within
            its parent.
        fraction: Length of the bar: the module with all that it contains.
        forward_fraction: Part of the step that is its forward pass.
        backward_fraction: The same of its backward pass.
    """

    name: str
    depth: int
    start_fraction: float
    fraction: float
    forward_fraction: float
    backward_fraction: float


def cause_shares(attribution: Attribution) -> tuple[CauseShare, ...]:
    """Return the step by cause, the longest first."""
    return tuple(
        CauseShare(
            name=cause_words(cause),
            group=group_of(cause),
            time_ns=time_ns,
            fraction=_fraction(time_ns, attribution),
        )
        for cause, time_ns in attribution.by(lambda part: part.cause).items()
        if time_ns > 0
    )


def phase_shares(attribution: Attribution) -> tuple[tuple[str, float], ...]:
    """Return the step by phase, in the order of a step; what is of no phase comes last."""
    by_phase = attribution.by(lambda part: part.phase)
    order = {phase.value: number for number, phase in enumerate(Phase)}
    return tuple(
        (printable(phase, 40) or "the rest", _fraction(by_phase[phase], attribution))
        for phase in sorted(by_phase, key=lambda phase: order.get(phase, len(order)))
        if by_phase[phase] > 0
    )


def line_shares(attribution: Attribution, recording: RecordedStep | None) -> tuple[LineShare, ...]:
    """Return the step by line of the user, the longest first.

    Args:
        attribution: The step.
        recording: Holds the user's files; None where it was not kept.
    """
    sources = () if recording is None else recording.sources
    texts = {source.path: source.text.splitlines() for source in sources}
    parts_of: dict[tuple[str | None, int | None], list[TimePart]] = {}
    for part in attribution.parts:
        parts_of.setdefault((part.file, part.line), []).append(part)
    return tuple(
        LineShare(
            file=file,
            line=line,
            source=_source_line(texts, file, line),
            cause=_main_cause(parts_of[file, line]),
            time_ns=time_ns,
            fraction=_fraction(time_ns, attribution),
            frames=_frame_shares(parts_of[file, line], attribution),
        )
        for (file, line), time_ns in attribution.by(lambda part: (part.file, part.line)).items()
        if time_ns > 0
    )


def _frame_shares(parts: Sequence[TimePart], attribution: Attribution) -> tuple[FrameShare, ...]:
    """Return what a framework does below a line, where that is more than one thing."""
    by_name: dict[str, list[TimePart]] = {}
    for part in parts:
        by_name.setdefault(frames_text(part.frames), []).append(part)
    if len(by_name) < 2:
        return ()
    shares = [
        FrameShare(
            name=name or "the line itself",
            cause=_main_cause(own),
            time_ns=time_ns,
            fraction=_fraction(time_ns, attribution),
        )
        for name, own in by_name.items()
        if (time_ns := sum(part.time_ns for part in own)) > 0
    ]
    return tuple(sorted(shares, key=lambda share: -share.time_ns))


def _main_cause(parts: Iterable[TimePart]) -> str:
    times_ns = Counter[str]()
    for part in parts:
        times_ns[part.cause] += part.time_ns
    return cause_words(times_ns.most_common(1)[0][0])


def module_shares(
    attribution: Attribution, *, least_fraction: float, max_depth: int
) -> tuple[ModuleShare, ...]:
    """Return the modules as a tree, from above to below, each level by time.

    Args:
        attribution: The step.
        least_fraction: Modules that take less of the step are left out.
        max_depth: Levels shown; what is below counts for the lowest one shown.
    """
    root = _Node(name="")
    for part in attribution.parts:
        path = part.module.split(".")[:max_depth] if part.module else [NO_MODULE]
        root.add(path, part)
    rows = tuple(_rows(root, attribution, least_fraction))
    return () if all(row.name == NO_MODULE for row in rows) else rows


class _Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.time_ns = 0
        self.by_phase = Counter[str]()
        self.children: dict[str, _Node] = {}

    def add(self, path: Sequence[str], part: TimePart) -> None:
        self._count(part)
        node = self
        for name in path:
            node = node.children.setdefault(name, _Node(name))
            node._count(part)

    def _count(self, part: TimePart) -> None:
        self.time_ns += part.time_ns
        self.by_phase[part.phase] += part.time_ns

    def shortened(self) -> _Node:
        """Return the first descendant that is more than the one child of its parent."""
        if len(self.children) != 1:
            return self
        (child,) = self.children.values()
        if child.time_ns < self.time_ns:
            return self
        child.name = f"{self.name}.{child.name}"
        return child.shortened()


def _rows(
    parent: _Node,
    attribution: Attribution,
    least_fraction: float,
    start_ns: int = 0,
    depth: int = 0,
) -> Iterator[ModuleShare]:
    for child in sorted(parent.children.values(), key=lambda child: -child.time_ns):
        node = child.shortened()
        fraction = _fraction(node.time_ns, attribution)
        if fraction < least_fraction or node.time_ns <= 0:
            continue
        yield ModuleShare(
            name=printable(node.name, 200),
            depth=depth,
            start_fraction=_fraction(start_ns, attribution),
            fraction=fraction,
            forward_fraction=_fraction(node.by_phase[Phase.FORWARD.value], attribution),
            backward_fraction=_fraction(node.by_phase[Phase.BACKWARD.value], attribution),
        )
        yield from _rows(node, attribution, least_fraction, start_ns, depth + 1)
        start_ns += node.time_ns


def _fraction(time_ns: int, attribution: Attribution) -> float:
    return time_ns / attribution.step_ns if attribution.step_ns > 0 else 0.0


def _source_line(texts: Mapping[str, list[str]], file: str | None, line: int | None) -> str:
    lines = texts.get(file or "", [])
    if line is None or not 1 <= line <= len(lines):
        return ""
    return printable(lines[line - 1].strip(), 160)
