"""The time of a step, summed by cause, phase, line and module."""

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
    """The share of the step of one user line, or of a framework's functions below it.

    Args:
        time_ns: Nanoseconds of the step.
        fraction: The same as a fraction of the step.
        name: The functions of a framework, outermost first: ``training_step → backward``; empty
            for a line.
        file: File of the user's code; None for work without a user line.
        line: Its line.
        source: The text of the line; empty if unknown.
        cause: The cause with the largest share of the line.
        frames: Shares of a training framework below the line, longest first; empty if the line
            itself does the work.
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
        name: Its path relative to its parent's: ``layers.0``.
        depth: 0 for modules without a parent.
        start_fraction: Left end of its bar, as a fraction of the step: after its siblings, within
            its parent.
        fraction: Length of the bar: the module with all its children.
        forward_fraction: Fraction of the step in its forward pass.
        backward_fraction: Fraction of the step in its backward pass.
    """

    name: str
    depth: int
    start_fraction: float
    fraction: float
    forward_fraction: float
    backward_fraction: float


def cause_shares(attribution: Attribution) -> list[tuple[str, int, float, CauseGroup | None]]:
    """Return the step by cause, longest first: words, nanoseconds, share and group."""
    shares: list[tuple[str, int, float, CauseGroup | None]] = []
    for cause, time_ns in attribution.by(lambda part: part.cause).items():
        if time_ns > 0:
            group, words = group_and_words(cause)
            shares.append((words, time_ns, _fraction(time_ns, attribution), group))
    return shares


def phase_shares(attribution: Attribution) -> tuple[tuple[str, float], ...]:
    """Return the step by phase, in step order; time without a phase comes last."""
    by_phase = attribution.by(lambda part: part.phase)
    order = {phase.value: number for number, phase in enumerate(Phase)}
    return tuple(
        (printable(phase, 40) or "the rest", _fraction(by_phase[phase], attribution))
        for phase in sorted(by_phase, key=lambda phase: order.get(phase, len(order)))
        if by_phase[phase] > 0
    )


def line_shares(attribution: Attribution, recording: RecordedStep | None) -> tuple[Share, ...]:
    """Return the step by user line, longest first.

    Args:
        attribution: The step.
        recording: The recording with the user's files; None if it was not kept.
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
    """Return the framework's shares below a line, if there is more than one."""
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
    """Return functions of a framework by their short names: ``training_step → backward``.

    The first function is left out: the user's line already names it. The class of a method is named
    only for special methods, such as ``__next__``.

    Args:
        frames: Functions as in an attribution: ``accelerate.accelerator:Accelerator.backward``.
    """
    qualified = [frame.rpartition(":")[2] for frame in frames[1:] or frames]
    functions = [name.rpartition(".")[2] for name in qualified]
    words = (
        name if function.startswith("__") else function
        for name, function in zip(qualified, functions, strict=True)
    )
    return printable(" → ".join(words), 80)


def short_names(files: Iterable[str | None]) -> dict[str, str]:
    """Return files with their paths relative to the folder that contains them all.

    Args:
        files: Paths as in a report; None entries are skipped.
    """
    paths = {file: file.split("/") for file in files if file is not None}
    levels = zip(*(path[:-1] for path in paths.values()), strict=False)
    num_shared = len(list(takewhile(lambda names: len(set(names)) == 1, levels)))
    return {file: "/".join(path[num_shared:]) for file, path in paths.items()}


def module_shares(
    attribution: Attribution, *, least_fraction: float, max_depth: int
) -> tuple[ModuleShare, ...]:
    """Return the module tree, parents first, each level by time.

    Args:
        attribution: The step.
        least_fraction: Modules with a smaller share of the step are left out.
        max_depth: Levels shown; deeper modules count towards the lowest level shown.
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
        # Merge a module with its only child, if the child takes all its time.
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
