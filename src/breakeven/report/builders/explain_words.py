"""An explanation in words, and its attribution summed up by cause, line, phase and module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from breakeven.report.text import duration_with_interval, printable, shorten
from breakeven.simulate import Attribution, Bound, Finding, Severity, Side, StepCause, TimePart
from breakeven.trace import Phase, SourceText
from breakeven.units import format_digits, format_percent
from breakeven.verdict import ExplainReport, RecordedStep

_DEVICE_PREFIX = "device-"
_ARITHMETIC = frozenset(
    _DEVICE_PREFIX + family
    for family in ("gemm", "batched_gemm", "convolution", "attention", "recurrent")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseStyle:
    """How causes that belong together are drawn.

    Args:
        word: What they are, in a legend.
        letter: Stands for the group where there are no colours.
        style: Colour at a terminal.
        css_class: Colour in a page.
    """

    word: str
    letter: str
    style: str
    css_class: str


class CauseGroup(Enum):
    """Causes that share a colour: more than six could not be told apart."""

    ISSUING = CauseStyle(word="issuing operators", letter="I", style="blue", css_class="c1")
    HOST_WORK = CauseStyle(
        word="data and other host work", letter="H", style="yellow", css_class="c5"
    )
    COPIES = CauseStyle(word="copies", letter="C", style="magenta", css_class="c4")
    WAITING = CauseStyle(word="waiting", letter="W", style="red", css_class="c2")
    ARITHMETIC = CauseStyle(word="matrix kernels", letter="M", style="green", css_class="c3")
    KERNELS = CauseStyle(word="other kernels", letter="K", style="cyan", css_class="c6")


_GROUPS = {
    StepCause.PYTHON: CauseGroup.ISSUING,
    StepCause.DISPATCHER: CauseGroup.ISSUING,
    StepCause.AUTOGRAD: CauseGroup.ISSUING,
    StepCause.LAUNCH: CauseGroup.ISSUING,
    StepCause.OPTIMIZER: CauseGroup.ISSUING,
    StepCause.DATA_LOADING: CauseGroup.HOST_WORK,
    StepCause.SCRIPT: CauseGroup.HOST_WORK,
    StepCause.HOST_OPERATORS: CauseGroup.HOST_WORK,
    StepCause.COPY_PAGEABLE: CauseGroup.COPIES,
    StepCause.COPY_PINNED: CauseGroup.COPIES,
    StepCause.SYNC: CauseGroup.WAITING,
    StepCause.DEVICE_IDLE: CauseGroup.WAITING,
    StepCause.OVERLAP: CauseGroup.WAITING,
}
_CAUSE_WORDS = {
    StepCause.PYTHON: "Python between operators",
    StepCause.DISPATCHER: "dispatching operators",
    StepCause.AUTOGRAD: "autograd",
    StepCause.LAUNCH: "launching kernels",
    StepCause.OPTIMIZER: "issuing the optimizer",
    StepCause.DATA_LOADING: "loading data",
    StepCause.SCRIPT: "other Python and libraries",
    StepCause.HOST_OPERATORS: "operators on the CPU",
    StepCause.COPY_PAGEABLE: "copies, pageable memory",
    StepCause.COPY_PINNED: "copies, pinned memory",
    StepCause.SYNC: "waits, fixed cost",
    StepCause.DEVICE_IDLE: "GPU idle: latency, gaps",
    StepCause.OVERLAP: "host-device contention",
}
_BOUND_WORDS = {
    Bound.LAUNCH: "kernel launches",
    Bound.COMPUTE: "arithmetic",
    Bound.MEMORY: "memory bandwidth",
    Bound.LATENCY: "kernels that wait for each other",
    Bound.TRANSFER: "copies",
    Bound.SYNC: "waits for the GPU",
    Bound.HOST_DATA: "data and other work of the host",
    Bound.HOST_OPTIMIZER: "the optimizer on the host",
}


def group_of(cause: str) -> CauseGroup:
    """Return the group of a cause, as an attribution or a timeline names it."""
    if cause.startswith(_DEVICE_PREFIX) and cause != StepCause.DEVICE_IDLE:
        return CauseGroup.ARITHMETIC if cause in _ARITHMETIC else CauseGroup.KERNELS
    try:
        return _GROUPS[StepCause(cause)]
    except ValueError:  # a stored run of a later version, or edited by hand
        return CauseGroup.HOST_WORK


def cause_words(cause: str) -> str:
    """Return a cause as a person would say it: ``GPU: batched gemm``."""
    if cause.startswith(_DEVICE_PREFIX) and cause != StepCause.DEVICE_IDLE:
        return f"GPU: {printable(cause.removeprefix(_DEVICE_PREFIX).replace('_', ' '), 40)}"
    try:
        return _CAUSE_WORDS[StepCause(cause)]
    except ValueError:
        return printable(cause, 40)


def frames_text(frames: Sequence[str]) -> str:
    """Return functions of a framework as its users call them: ``training_step → backward``.

    The first is what the user's line calls, which that line says already.

    Args:
        frames: As an attribution has them: ``accelerate.accelerator:Accelerator.backward``.
    """
    shown = frames[1:] or frames
    return printable(" → ".join(map(_function_word, shown)), 80)


def _function_word(frame: str) -> str:
    qualified = frame.rpartition(":")[2]
    function = qualified.rpartition(".")[2]
    # `__next__` alone says nothing.
    return qualified if function.startswith("__") else function


def headline(report: ExplainReport) -> str:
    """Return what was explained, on which device, and what a step takes there."""
    time = duration_with_interval(report.step_ns, report.low_ns, report.high_ns)
    return (
        f"{shorten(printable(report.target, None), 60)} on {printable(report.device, 60)}: "
        f"{time} a step, predicted."
    )


def busy_sentence(report: ExplainReport) -> str:
    """Return what limits the step, and how busy both sides are."""
    return (
        f"Limited by {_BOUND_WORDS[report.bound]}; the GPU is busy "
        f"{_busy_percent(report.device_busy_ns, report)} of the step, "
        f"the host {_busy_percent(report.host_busy_ns, report)}."
    )


def _busy_percent(busy_ns: float, report: ExplainReport) -> str:
    # What is busy and what the step takes are rounded apart: 100.3 % would puzzle a reader.
    return format_percent(min(busy_ns / report.step_ns, 1.0) if report.step_ns > 0 else 0.0)


def gain_text(finding: Finding) -> str:
    """Return ``saves 24 % (18–27 %)``, or the share of the step, or nothing where none is known."""
    whose = " of the CPU's step" if finding.side is Side.CPU else ""
    gain = finding.gain_fraction
    if gain > 0:
        low, high = finding.gain_low_fraction, finding.gain_high_fraction
        ends = "" if low == high else f" ({_percent_digits(low)}–{format_percent(high)})"
        return f"saves {format_percent(gain)}{ends}{whose}"
    if finding.severity is not Severity.ERROR and finding.share_fraction > 0:
        return f"{format_percent(finding.share_fraction)}{whose or ' of the step'}"
    return ""


def _percent_digits(fraction: float) -> str:
    return format_digits(100 * fraction, 2)


# A module path of 10,000 dots must not become a tree of 10,000 levels.
_MAX_DEPTH = 12
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
    texts = _source_lines(recording.sources if recording is not None else ())
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
    causes: dict[str, int] = {}
    for part in parts:
        causes[part.cause] = causes.get(part.cause, 0) + part.time_ns
    return cause_words(max(causes, key=lambda cause: causes[cause]))


def short_names(files: Iterable[str | None]) -> dict[str, str]:
    """Return files by their path below the folder that all of them are in.

    Args:
        files: Paths as a report has them; None for none.
    """
    folders = {file: file.split("/")[:-1] for file in files if file is not None}
    common = list(next(iter(folders.values()), ()))
    for folder in folders.values():
        same = (ours == theirs for ours, theirs in zip(common, folder, strict=False))
        del common[sum(takewhile(bool, same)) :]
    return {file: "/".join(file.split("/")[len(common) :]) for file in folders}


def module_shares(
    attribution: Attribution, *, least_fraction: float, max_depth: int = _MAX_DEPTH
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
    rows: list[ModuleShare] = []
    _append(root, rows, attribution, start_ns=0, depth=0, least_fraction=least_fraction)
    if all(row.name == NO_MODULE for row in rows):
        return ()
    return tuple(rows)


class _Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.time_ns = 0
        self.by_phase: dict[str, int] = {}
        self.children: dict[str, _Node] = {}

    def add(self, path: Sequence[str], part: TimePart) -> None:
        self._count(part)
        node = self
        for name in path:
            node = node.children.setdefault(name, _Node(name))
            node._count(part)

    def _count(self, part: TimePart) -> None:
        self.time_ns += part.time_ns
        self.by_phase[part.phase] = self.by_phase.get(part.phase, 0) + part.time_ns

    def shortened(self) -> _Node:
        """Return the first descendant that is more than the one child of its parent."""
        if len(self.children) != 1:
            return self
        (child,) = self.children.values()
        if child.time_ns < self.time_ns:
            return self
        child.name = f"{self.name}.{child.name}"
        return child.shortened()


def _append(
    parent: _Node,
    rows: list[ModuleShare],
    attribution: Attribution,
    *,
    start_ns: int,
    depth: int,
    least_fraction: float,
) -> None:
    for child in sorted(parent.children.values(), key=lambda child: -child.time_ns):
        node = child.shortened()
        fraction = _fraction(node.time_ns, attribution)
        if fraction < least_fraction or node.time_ns <= 0:
            continue
        forward_ns = node.by_phase.get(Phase.FORWARD.value, 0)
        backward_ns = node.by_phase.get(Phase.BACKWARD.value, 0)
        rows.append(
            ModuleShare(
                name=printable(node.name, 200),
                depth=depth,
                start_fraction=_fraction(start_ns, attribution),
                fraction=fraction,
                forward_fraction=_fraction(forward_ns, attribution),
                backward_fraction=_fraction(backward_ns, attribution),
            )
        )
        _append(
            node,
            rows,
            attribution,
            start_ns=start_ns,
            depth=depth + 1,
            least_fraction=least_fraction,
        )
        start_ns += node.time_ns


def _fraction(time_ns: int, attribution: Attribution) -> float:
    return time_ns / attribution.step_ns if attribution.step_ns > 0 else 0.0


def _source_lines(sources: Sequence[SourceText]) -> dict[str, list[str]]:
    return {source.path: source.text.splitlines() for source in sources}


def _source_line(texts: dict[str, list[str]], file: str | None, line: int | None) -> str:
    lines = texts.get(file or "", [])
    if line is None or not 1 <= line <= len(lines):
        return ""
    return printable(lines[line - 1].strip(), 160)
