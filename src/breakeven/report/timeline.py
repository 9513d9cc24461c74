"""Names and colours of the causes of step time, and the timelines cut into cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum

from breakeven.report.explain_report import DEVICE_TRACK, HOST_TRACK, TimelineSpan
from breakeven.report.text import printable
from breakeven.simulate import StepCause

TRACKS = (HOST_TRACK, DEVICE_TRACK)
_DEVICE_PREFIX = "device-"
_ARITHMETIC = frozenset(
    _DEVICE_PREFIX + family
    for family in ("gemm", "batched_gemm", "convolution", "attention", "recurrent")
)


class CauseGroup(Enum):
    """Causes that share a colour: readers cannot distinguish more than six.

    Args:
        word: Name of the group in a legend.
        letter: Letter of the group, for output without colours.
        style: Colour in a terminal.
        css_class: Colour in a page.
    """

    ISSUING = ("issuing operators", "I", "blue", "c1")
    HOST_WORK = ("data and other host work", "H", "yellow", "c5")
    COPIES = ("copies", "C", "magenta", "c4")
    WAITING = ("waiting", "W", "red", "c2")
    ARITHMETIC = ("matrix kernels", "M", "green", "c3")
    KERNELS = ("other kernels", "K", "cyan", "c6")

    def __init__(self, word: str, letter: str, style: str, css_class: str) -> None:
        self.word, self.letter, self.style, self.css_class = word, letter, style, css_class


_CAUSES = {
    StepCause.PYTHON: (CauseGroup.ISSUING, "Python between operators"),
    StepCause.DISPATCHER: (CauseGroup.ISSUING, "dispatching operators"),
    StepCause.AUTOGRAD: (CauseGroup.ISSUING, "autograd"),
    StepCause.LAUNCH: (CauseGroup.ISSUING, "launching kernels"),
    StepCause.OPTIMIZER: (CauseGroup.ISSUING, "issuing the optimizer"),
    StepCause.DATA_LOADING: (CauseGroup.HOST_WORK, "loading data"),
    StepCause.SCRIPT: (CauseGroup.HOST_WORK, "other Python and libraries"),
    StepCause.HOST_OPERATORS: (CauseGroup.HOST_WORK, "operators on the CPU"),
    StepCause.COPY_PAGEABLE: (CauseGroup.COPIES, "copies, pageable memory"),
    StepCause.COPY_PINNED: (CauseGroup.COPIES, "copies, pinned memory"),
    StepCause.SYNC: (CauseGroup.WAITING, "waits, fixed cost"),
    StepCause.DEVICE_IDLE: (CauseGroup.WAITING, "GPU idle: latency, gaps"),
    StepCause.OVERLAP: (CauseGroup.WAITING, "host-device contention"),
}


def group_and_words(cause: str) -> tuple[CauseGroup, str]:
    """Return the group of a cause, and the cause in words: ``GPU: batched gemm``.

    Args:
        cause: The cause, as in an attribution or a timeline.
    """
    if cause.startswith(_DEVICE_PREFIX) and cause != StepCause.DEVICE_IDLE:
        group = CauseGroup.ARITHMETIC if cause in _ARITHMETIC else CauseGroup.KERNELS
        return group, f"GPU: {printable(cause.removeprefix(_DEVICE_PREFIX).replace('_', ' '), 40)}"
    try:
        return _CAUSES[StepCause(cause)]
    except ValueError:  # a stored run of a later version or a manual edit
        return CauseGroup.HOST_WORK, printable(cause, 40)


class Strip:
    """Two timelines, cut into cells of equal length.

    Args:
        spans: Spans of both; at least one ends after 0.
        num_cells: Number of cells, at least 1.
    """

    def __init__(self, spans: Sequence[TimelineSpan], num_cells: int) -> None:
        self.end_ns = max(span.end_ns for span in spans)
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
                    group, _ = group_and_words(span.cause)
                    times_ns[span.track][number][group] += part_ns
                    critical_ns[number][span.track] += part_ns * span.is_critical
        # For each track and cell: the group with the largest share, and the busy fraction.
        self.tracks: dict[str, list[tuple[CauseGroup | None, float]]] = {
            track: [
                (max(cell, key=cell.__getitem__), min(sum(cell.values()) / cell_ns, 1.0))
                if cell
                else (None, 0.0)
                for cell in cells
            ]
            for track, cells in times_ns.items()
        }
        # For each cell: the track that the end of the step waits for; empty for neither.
        self.critical = [
            max(TRACKS, key=cell.__getitem__) if any(cell.values()) else "" for cell in critical_ns
        ]
