"""The trace file: what Perfetto and Chrome need, and names that stay data."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.report import ExplainReport, chrome_trace
from factories import explanations as made_up

HOSTILE = (
    '"},{"ph":"X"',
    "\x00\x1b[31m\x7f\x85",
    "two\nlines\u2028and\u2029three",
    "caf\udce9.py",
    "\ud800 lone",
    "\u202egpj.exe",
    "</script><script>alert(1)</script>",
    "x" * 10_000,
)


def document(report: ExplainReport) -> dict[str, Any]:
    return json.loads(chrome_trace(report))


def events(report: ExplainReport, kind: str = "X") -> list[dict[str, Any]]:
    return [event for event in document(report)["traceEvents"] if event["ph"] == kind]


def test_times_are_microseconds() -> None:
    report = made_up.launch_bound()
    first = events(report)[0]
    assert (first["name"], first["ts"], first["dur"]) == ("data", 0.0, 92.0)
    last = max(events(report), key=lambda event: event["ts"] + event["dur"])
    assert last["ts"] + last["dur"] == pytest.approx(1_410.0)


def test_both_sides_have_a_named_thread_and_the_host_comes_first() -> None:
    report = made_up.launch_bound()
    named = {
        event["tid"]: event["args"]["name"]
        for event in events(report, "M")
        if event["name"] == "thread_name"
    }
    order = {
        event["args"]["sort_index"]: event["tid"]
        for event in events(report, "M")
        if event["name"] == "thread_sort_index"
    }
    assert [named[order[index]] for index in sorted(order)] == [
        "host: AMD EPYC 7B13",
        "device: RTX 4090",
    ]
    assert {event["tid"] for event in events(report)} == set(named)
    (process,) = [e for e in events(report, "M") if e["name"] == "process_name"]
    assert process["args"]["name"] == "examples/rnn_stream.py: one step, predicted for RTX 4090"


def test_a_span_tells_cause_phase_module_line_and_whether_it_is_critical() -> None:
    found = events(made_up.launch_bound())
    kernel = next(event for event in found if event["args"]["cause"] == "device-gemm")
    assert kernel["name"] == "aten.addmm.default"
    assert kernel["cat"] == "matrix kernels"
    assert kernel["args"] == {
        "cause": "device-gemm",
        "phase": "forward",
        "module": "StreamNet.encoder",
        "line": "examples/rnn_stream.py:22",
        "critical": False,
    }
    loading = next(event for event in found if event["name"] == "data")
    assert loading["args"]["critical"] is True
    assert "module" not in loading["args"]


def test_spans_of_one_thread_never_overlap() -> None:
    spans = (
        made_up.span("device", "kernel", "device-gemm", "forward", 1, 0, 100),
        made_up.span("device", "copy to device", "copy-pinned", "forward", 1, 50, 150),
        made_up.span("device", "kernel", "device-gemm", "forward", 1, 100, 120),
        made_up.span("device", "kernel", "device-gemm", "forward", 1, 120.0004, 130),
    )
    report = replace(made_up.launch_bound(), timeline=spans)
    by_thread: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events(report):
        by_thread[event["tid"]].append(event)
    assert sorted(len(found) for found in by_thread.values()) == [1, 3]
    for found in by_thread.values():
        found.sort(key=lambda event: event["ts"])
        for earlier, later in itertools.pairwise(found):
            assert earlier["ts"] + earlier["dur"] <= later["ts"] + 1e-9
    names = [e["args"]["name"] for e in events(report, "M") if e["name"] == "thread_name"]
    assert "device (2): RTX 4090" in names


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_data(name: str) -> None:
    report = made_up.with_names(made_up.launch_bound(), name)
    raw = chrome_trace(report)
    assert not any(byte < 0x20 for byte in raw.rstrip(b"\n"))
    raw.decode("utf-8")
    clean = document(made_up.with_names(made_up.launch_bound(), "plain"))["traceEvents"]
    found = json.loads(raw)["traceEvents"]
    assert [event["ph"] for event in found] == [event["ph"] for event in clean]
    assert [event.keys() for event in found] == [event.keys() for event in clean]
    expected = name.encode("utf-8", "backslashreplace").decode()
    assert {event["name"] for event in found if event["ph"] == "X"} == {expected}


def test_an_empty_timeline_is_a_valid_file() -> None:
    report = replace(made_up.launch_bound(), timeline=())
    assert events(report) == []
    assert len(events(report, "M")) == 5
