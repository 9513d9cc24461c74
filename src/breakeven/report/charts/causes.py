"""What takes the time of a step: names and colours of causes, and the timelines cut into cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from breakeven.report.text import printable
from breakeven.simulate import StepCause
from breakeven.verdict import DEVICE_TRACK, HOST_TRACK, TimelineSpan

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


TRACKS = (HOST_TRACK, DEVICE_TRACK)


class Strip:
    """Two timelines, cut into cells of the same length.

    Args:
        spans: What happens on both timelines; at least one of them ends after 0.
        num_cells: At least 1.
    """

    def __init__(self, spans: Sequence[TimelineSpan], num_cells: int) -> None:
        self.end_ns = timeline_end_ns(spans)
        cell_ns = self.end_ns / num_cells
        times_ns = {
            track: [defaultdict[CauseGroup, float](float) for _ in range(num_cells)]
            for track in TRACKS
        }
        critical_ns = [dict.fromkeys(TRACKS, 0.0) for _ in range(num_cells)]
        for span in spans:
            if span.track not in TRACKS:
                continue
            first, last = (
                min(int(end_ns / cell_ns), num_cells - 1) for end_ns in (span.start_ns, span.end_ns)
            )
            for number in range(first, last + 1):
                begin_ns, end_ns = number * cell_ns, (number + 1) * cell_ns
                part_ns = min(span.end_ns, end_ns) - max(span.start_ns, begin_ns)
                if part_ns > 0:
                    times_ns[span.track][number][group_of(span.cause)] += part_ns
                    critical_ns[number][span.track] += part_ns * span.is_critical
        # For each track the group that takes the most of a cell, and the busy part of the cell.
        self.tracks: dict[str, list[tuple[CauseGroup | None, float]]] = {
            track: [
                (max(cell, key=cell.__getitem__), min(sum(cell.values()) / cell_ns, 1.0))
                if cell
                else (None, 0.0)
                for cell in cells
            ]
            for track, cells in times_ns.items()
        }
        # For each cell the track that the end of the step waits for; empty for neither.
        self.critical = [
            max(TRACKS, key=cell.__getitem__) if any(cell.values()) else "" for cell in critical_ns
        ]


def timeline_end_ns(spans: Sequence[TimelineSpan]) -> float:
    """Return when the last of ``spans`` ends; 0 without any."""
    return max((span.end_ns for span in spans), default=0.0)
