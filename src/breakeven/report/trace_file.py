"""Both timelines of a step in the trace format of Perfetto and Chrome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from breakeven.report.explain_report import ExplainReport, TimelineSpan
from breakeven.report.text import place_text, with_texts
from breakeven.report.timeline import TRACKS, group_and_words
from breakeven.units import NS_PER_US

_PROCESS = 1


def chrome_trace(report: ExplainReport) -> bytes:
    r"""Return the timelines as a JSON document, for ui.perfetto.dev or ``chrome://tracing``.

    Times are in microseconds since the step's start on the host. All times are predicted, and the
    document says so. JSON escapes quotes in names; a byte that is not UTF-8 becomes ``\udcff``.

    Args:
        report: The explanation with the timeline to write.

    Source: "Trace Event Format", Google, JSON object format.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "written_by": "breakeven explain",
            "target": report.target,
            "device": report.device,
            "source": "predicted",
            "step_us": _us(report.step_ns),
            "low_us": _us(report.low_ns),
            "high_us": _us(report.high_ns),
            "bound": report.bound.value,
        },
        "traceEvents": list(_events(report)),
    }
    # JSON cannot contain a lone surrogate.
    encodable = with_texts(document, lambda text: text.encode("utf-8", "backslashreplace").decode())
    return msgspec.json.encode(encodable) + b"\n"


def _events(report: ExplainReport) -> Iterator[dict[str, Any]]:
    """Yield the names of the process and threads, then the spans."""

    def metadata(kind: str, thread: int, **arguments: object) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": arguments}

    title = f"{report.target}: one step, predicted for {report.device}"
    yield metadata("process_name", 0, name=title)
    for number, (track, what) in enumerate(
        zip(TRACKS, (report.host.name, report.device), strict=True)
    ):
        spans = [span for span in report.timeline if span.track == track]
        for lane, own in enumerate(_lanes(spans)):
            # Viewers stack lanes vertically: the host's above the device's.
            thread = number * 1_000 + lane + 1
            more = f" ({lane + 1})" if lane else ""
            yield metadata("thread_name", thread, name=f"{track}{more}: {what}")
            yield metadata("thread_sort_index", thread, sort_index=thread)
            for span in own:
                yield _event(span, thread)


def _lanes(spans: Sequence[TimelineSpan]) -> list[list[TimelineSpan]]:
    """Return spans in lanes without overlap.

    Viewers draw overlapping spans as nested calls, but concurrent kernels and copies are not
    nested.
    """
    lanes: list[list[TimelineSpan]] = [[]]
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        start_us = _us(span.start_ns)
        for lane in lanes:
            if not lane or _us(lane[-1].end_ns) <= start_us:
                lane.append(span)
                break
        else:
            lanes.append([span])
    return lanes


def _event(span: TimelineSpan, thread: int) -> dict[str, Any]:
    arguments = {
        "cause": span.cause,
        "phase": span.phase,
        "module": span.module,
        "line": place_text(span.file, span.line) or None,
        "critical": span.is_critical,
    }
    return {
        "ph": "X",
        "name": span.name,
        "cat": group_and_words(span.cause)[0].word,
        "pid": _PROCESS,
        "tid": thread,
        "ts": _us(span.start_ns),
        "dur": max(round(_us(span.end_ns) - _us(span.start_ns), 3), 0.0),
        "args": {key: value for key, value in arguments.items() if value not in (None, "")},
    }


def _us(time_ns: float) -> float:
    """Return microseconds, rounded to the nanosecond."""
    return round(time_ns / NS_PER_US, 3)
