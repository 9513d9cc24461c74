"""The time of a step summed up by cause, phase, line and module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from breakeven.report.recording import RecordedStep
from breakeven.report.text import printable
from breakeven.report.timeline import CauseGroup, group_and_words
from breakeven.simulate import Attribution, TimePart
from breakeven.trace import Phase

NO_MODULE = "outside of modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one line of the user takes of the step, or what a framework does below it.

    Args:
        time_ns: Nanoseconds of the step.
        fraction: The same as a part of the step.
        name: The functions of a framework, outermost first: ``training_step → backward``; empty
            for a line.
        file: The user's file; None for what no line of the user stands for.
        line: Its line.
        source: The text of the line; empty if it is not known.
        cause: What takes the most of a line.
        frames: What a training framework does below a line, the longest first; empty if the line
            does its work itself.
    """

    time_ns: int
    fraction: float
    name: str = ""
    file: str | None = None
    line: int | None = None
    source: str = ""
    cause: str = ""
    frames: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleShare:
    """A module in the flame view, its children after it.

    Args:
        name: Its path below its parent's: ``layers.0``.
        depth: 0 for modules without a parent.
        start_fraction: Where its bar begins, as a part of the step: after its siblings, within
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


def cause_shares(attribution: Attribution) -> list[tuple[str, int, float, CauseGroup | None]]:
    """Return the step by cause, the longest first: words, nanoseconds, share and group."""
    shares: list[tuple[str, int, float, CauseGroup | None]] = []
    for cause, time_ns in attribution.by(lambda part: part.cause).items():
        if time_ns > 0:
            group, words = group_and_words(cause)
            shares.append((words, time_ns, _fraction(time_ns, attribution), group))
    return shares


def phase_shares(attribution: Attribution) -> tuple[tuple[str, float], ...]:
    """Return the step by phase, in the order of a step; what is of no phase comes last."""
    by_phase = attribution.by(lambda part: part.phase)
    order = {phase.value: number for number, phase in enumerate(Phase)}
    return tuple(
        (printable(phase, 40) or "the rest", _fraction(by_phase[phase], attribution))
        for phase in sorted(by_phase, key=lambda phase: order.get(phase, len(order)))
        if by_phase[phase] > 0
    )


def line_shares(attribution: Attribution, recording: RecordedStep | None) -> tuple[Share, ...]:
    """Return the step by line of the user, the longest first.

    Args:
        attribution: The step.
        recording: Holds the user's files; None if it was not kept.
    """
    sources = () if recording is None else recording.sources
    texts = {source.path: source.text.splitlines() for source in sources}
    parts_of: dict[tuple[str | None, int | None], list[TimePart]] = {}
    for part in attribution.parts:
        parts_of.setdefault((part.file, part.line), []).append(part)
    shares: list[Share] = []
    for (file, line), time_ns in attribution.by(lambda part: (part.file, part.line)).items():
        if time_ns <= 0:
            continue
        lines, parts = texts.get(file or "", []), parts_of[file, line]
        source = lines[line - 1] if line is not None and 1 <= line <= len(lines) else ""
        shares.append(
            Share(
                file=file,
                line=line,
                source=printable(source.strip(), 160),
                cause=_main_cause(parts),
                time_ns=time_ns,
                fraction=_fraction(time_ns, attribution),
                frames=_frame_shares(parts, attribution),
            )
        )
    return tuple(shares)


def _frame_shares(parts: Sequence[TimePart], attribution: Attribution) -> tuple[Share, ...]:
    """Return the parts that a framework does below a line, if there is more than one."""
    by_name: dict[str, list[TimePart]] = {}
    for part in parts:
        by_name.setdefault(frames_text(part.frames), []).append(part)
    if len(by_name) < 2:
        return ()
    shares = [
        Share(
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
    return group_and_words(times_ns.most_common(1)[0][0])[1]


def frames_text(frames: Sequence[str]) -> str:
    """Return functions of a framework as its users call them: ``training_step → backward``.

    The first is what the user's line calls, which that line says already. The class of a method
    is named only if the method's name is one of Python's own, such as ``__next__``.

    Args:
        frames: As an attribution has them: ``accelerate.accelerator:Accelerator.backward``.
    """
    qualified = [frame.rpartition(":")[2] for frame in frames[1:] or frames]
    functions = [name.rpartition(".")[2] for name in qualified]
    words = (
        name if function.startswith("__") else function
        for name, function in zip(qualified, functions, strict=True)
    )
    return printable(" → ".join(words), 80)


def short_names(files: Iterable[str | None]) -> dict[str, str]:
    """Return files by their path below the folder that all of them are in.

    Args:
        files: Paths as a report has them; None for none.
    """
    paths = {file: file.split("/") for file in files if file is not None}
    levels = zip(*(path[:-1] for path in paths.values()), strict=False)
    num_shared = len(list(takewhile(lambda names: len(set(names)) == 1, levels)))
    return {file: "/".join(path[num_shared:]) for file, path in paths.items()}


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
        node = root
        for name in ["", *path]:
            node = node.children.setdefault(name, _Node(name)) if name else node
            node.time_ns += part.time_ns
            node.by_phase[part.phase] += part.time_ns
    rows = tuple(_rows(root, attribution, least_fraction))
    return () if all(row.name == NO_MODULE for row in rows) else rows


@dataclass(slots=True)
class _Node:
    name: str
    time_ns: int = 0
    by_phase: Counter[str] = field(default_factory=Counter[str])
    children: dict[str, _Node] = field(default_factory=dict["str", "_Node"])


def _rows(
    parent: _Node,
    attribution: Attribution,
    least_fraction: float,
    start_ns: int = 0,
    depth: int = 0,
) -> Iterator[ModuleShare]:
    for node in sorted(parent.children.values(), key=lambda child: -child.time_ns):
        name = node.name
        # A module that holds nothing but another is one row with it.
        while len(node.children) == 1:
            (child,) = node.children.values()
            if child.time_ns < node.time_ns:
                break
            node, name = child, f"{name}.{child.name}"
        fraction = _fraction(node.time_ns, attribution)
        if fraction < least_fraction or node.time_ns <= 0:
            continue
        yield ModuleShare(
            name=printable(name, 200),
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
