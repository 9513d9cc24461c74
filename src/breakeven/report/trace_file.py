"""Both timelines of a step in the trace format that Perfetto and Chrome read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from breakeven.report.charts.causes import TRACKS, group_of
from breakeven.units import NS_PER_US
from breakeven.verdict import ExplainReport, TimelineSpan

_PROCESS = 1


def chrome_trace(report: ExplainReport) -> bytes:
    r"""Return the timelines as a JSON document, for ui.perfetto.dev or ``chrome://tracing``.

    Times are in microseconds since the step began on the host. Every time is predicted, and the
    document says so. Names are data: JSON escapes what could end a string, and a byte that is not
    UTF-8 is written out as ``\udcff``.

    Args:
        report: The explanation; its timeline is what is written.

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
        "traceEvents": [*_names(report), *_spans(report.timeline)],
    }
    return msgspec.json.encode(_encodable(document)) + b"\n"


def _names(report: ExplainReport) -> Iterator[dict[str, Any]]:
    title = f"{report.target}: one step, predicted for {report.device}"
    yield _metadata("process_name", 0, name=title)
    for track, lanes in _tracks(report.timeline).items():
        what = {"host": report.host.name, "device": report.device}[track]
        for number in range(len(lanes)):
            thread = _thread(track, number)
            more = f" ({number + 1})" if number else ""
            yield _metadata("thread_name", thread, name=f"{track}{more}: {what}")
            yield _metadata("thread_sort_index", thread, sort_index=thread)


def _metadata(kind: str, thread: int, **arguments: object) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": arguments}


def _spans(timeline: Sequence[TimelineSpan]) -> Iterator[dict[str, Any]]:
    for track, lanes in _tracks(timeline).items():
        for number, lane in enumerate(lanes):
            for span in lane:
                yield _span(span, _thread(track, number))


def _span(span: TimelineSpan, thread: int) -> dict[str, Any]:
    place = None if span.file is None else f"{span.file}:{span.line}"
    arguments = {
        "cause": span.cause,
        "phase": span.phase,
        "module": span.module,
        "line": place,
        "critical": span.is_critical,
    }
    return {
        "ph": "X",
        "name": span.name,
        "cat": group_of(span.cause).value.word,
        "pid": _PROCESS,
        "tid": thread,
        "ts": _us(span.start_ns),
        "dur": max(round(_us(span.end_ns) - _us(span.start_ns), 3), 0.0),
        "args": {key: value for key, value in arguments.items() if value not in (None, "")},
    }


def _tracks(timeline: Sequence[TimelineSpan]) -> dict[str, list[list[TimelineSpan]]]:
    """Return the spans of each track in lanes: those of one lane follow one another.

    Viewers stack spans that overlap as calls within calls, which kernels and copies that run at
    the same time are not.
    """
    tracks: dict[str, list[list[TimelineSpan]]] = {track: [[]] for track in TRACKS}
    ordered = sorted(timeline, key=lambda span: (span.start_ns, span.end_ns))
    for span in ordered:
        if span.track not in tracks:
            continue
        lanes = tracks[span.track]
        free = next((lane for lane in lanes if not lane or _ends_before(lane[-1], span)), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return tracks


def _ends_before(earlier: TimelineSpan, later: TimelineSpan) -> bool:
    return _us(earlier.end_ns) <= _us(later.start_ns)


def _thread(track: str, number: int) -> int:
    # Lanes of a track lie below one another in a viewer, those of the host above the device's.
    return TRACKS.index(track) * 1_000 + number + 1


def _us(time_ns: float) -> float:
    """Return microseconds to the nanosecond."""
    return round(time_ns / NS_PER_US, 3)


def _encodable(value: Any) -> Any:
    r"""Return a value without lone surrogates, which JSON cannot hold: ``\udcff`` as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _encodable(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_encodable(member) for member in value]
    return value
