"""A report in few words and values, for a reader that pays for every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from breakeven.report import CheckReport, CostReport, ExplainReport, NormalReport
from breakeven.report.answer_text import device_label, sort_results
from breakeven.report.check import is_small, other_forms
from breakeven.report.cost import machine_text, own_row, time_text, usd_text
from breakeven.report.document import Medium, evenly_spread, plain
from breakeven.report.explain import plan_sentence
from breakeven.report.kinds import kind_of
from breakeven.report.text import duration_with_interval, place_text, printable
from breakeven.timing import Source
from breakeven.units import format_duration, format_percent
from breakeven.verdict import DeviceResult

# Three characters of such a text are one token or less: at most 1,000 tokens.
MAX_CHARACTERS = 3_000
_MAX_DEVICES = 10
# Findings are worth more than the slowest of more devices.
_ENOUGH_DEVICES = 6
_MAX_FINDINGS = 6
_MAX_CAVEATS = 4
_MAX_SENTENCE = 300
_DEVICE = ("device", "setting", "source", "step_ns", "low_ns", "high_ns", "fits")
_MACHINE = ("device", "machine", "time_ns", "usd", "meets_limits")
_SPEED = ("device", "pace", "ratio", "ratio_low", "ratio_high")
_GAINS = ("gain_fraction", "gain_low_fraction", "gain_high_fraction")
_FINDING = ("code", "file", "line", *_GAINS, "side", "title")
_CAUSE = ("cause", "explained_ns", "share", "look")


class Fact(NamedTuple):
    """A line for a reader, and its figures: named as in the report's JSON, with four digits."""

    text: str
    values: Any


def answer_of(report: Any, *, uri: str, path: str) -> tuple[str, dict[str, Any]]:
    """Return a report as text, a line for each fact, and as JSON values.

    Neither is longer than `MAX_CHARACTERS`: slow devices and findings of little gain are cut first.

    Args:
        report: A report of check, explain, cost or normal.
        uri: The whole report as a resource.
        path: Its file.
    """
    devices = _best_devices(report)
    caveats = dict.fromkeys((*report.caveats, *(each for one in devices for each in one.caveats)))
    parts = {
        "answer": [_sentence(one) for one in _answers(report)],
        "devices": [*_speeds(report), *(_device(one, report) for one in devices)],
        "caveats": [_sentence(f"{one.code}: {one.message}") for one in caveats][:_MAX_CAVEATS],
        "findings": [*_findings(report), *_causes(report)][:_MAX_FINDINGS],
    }
    while True:
        lines = [fact.text for fact in parts["answer"]]
        for name in filter(parts.get, ("devices", "caveats", "findings")):
            lines += [f"{name.capitalize()}:", *(f"- {fact.text}" for fact in parts[name])]
        text = "\n".join((*lines, f"Whole report: {uri} ({path}). Intervals cover 90 %."))
        values = {name: [fact.values for fact in facts] for name, facts in parts.items()}
        values |= {"report_uri": uri, "report_path": path}
        if max(len(text), len(msgspec.json.encode(values))) <= MAX_CHARACTERS:
            return text, values
        order = ("findings", "caveats", "devices", "answer")
        if parts["findings"] and len(parts["devices"]) > _ENOUGH_DEVICES:
            order = ("devices",)
        next(parts[name] for name in order if parts[name]).pop()


def _answers(report: Any) -> Iterator[str]:
    build = kind_of(report).build
    assert build is not None
    document = build(report)
    yield from document.warnings
    yield from (plain(one.phrase) for one in document.answers if one.only is not Medium.PAGE)
    if isinstance(report, ExplainReport) and len(report.plan) > 1:
        yield plan_sentence(report.plan)


def _best_devices(report: Any) -> Sequence[Any]:
    """Return the devices, the most important first.

    These are measured ones, then predicted ones by step time; of a cost this machine, those that
    none beats, and the fastest.
    """
    match report:
        case CostReport(rows=rows):
            front = evenly_spread([row for row in rows if row.is_on_front], _MAX_DEVICES - 3)
            fitting = [row for row in rows if row.fits is not False]
            fastest = sorted(fitting, key=lambda row: row.time_ns.value)
            return [*dict.fromkeys((own_row(rows), *front, *fastest))][:_MAX_DEVICES]
        case NormalReport(others=others):
            return sort_results(others)[:_MAX_DEVICES]
        case CheckReport():
            found = (*report.results, *other_forms(report))
        case _:
            found = report.results
    measured_first = sorted(sort_results(found), key=lambda one: one.source is Source.PREDICTED)
    return measured_first[:_MAX_DEVICES]


def _device(one: Any, report: Any) -> Fact:
    if isinstance(one, DeviceResult):
        time = duration_with_interval(one.step_ns, one.low_ns, one.high_ns)
        limit = f", limited by {one.bound}" if one.bound else ""
        limit = ", too big for its memory" if one.fits is False else limit
        return Fact(
            f"{device_label(one)}: {time} a step, {one.source}{limit}", _fields(one, _DEVICE)
        )
    ends = f"{usd_text(one.usd.low)}–{usd_text(one.usd.high)}"
    money = f"{usd_text(one.usd.value)} ({ends})" if one.usd.value else "free"
    place = "this machine" if one.is_here else machine_text(one, report.prices)
    limit = "" if one.meets_limits else ", outside of the limits"
    text = f"{printable(one.device, 80)}, {place}: {time_text(one)}, {money}{limit}"
    return Fact(text, _fields(one, _MACHINE))


def _speeds(report: Any) -> Iterator[Fact]:
    for one in getattr(report, "speeds", ()):
        should = one.expected
        time = duration_with_interval(should.value_ns, should.low_ns, should.high_ns)
        takes = format_duration(one.measured.value_ns)
        text = f"{printable(one.device, 80)}: {one.pace}, {takes}; predicted: {time}"
        yield Fact(text, _fields(one, _SPEED))


def _findings(report: Any) -> Iterator[Fact]:
    for one in getattr(report, "findings", ()):
        gain, *ends = (format_percent(getattr(one, name)) for name in _GAINS)
        interval = f" ({' to '.join(ends)})" if one.gain_high_fraction else ""
        whose = " of the CPU's step" if one.side == "cpu" else ""
        has_gain = one.gain_fraction > 0 and not is_small(one)
        saves = f" saves {gain}{interval}{whose}" if has_gain else ""
        if not is_small(one) or one.severity == "error":
            what = printable(f"{one.title}. Fix: {one.fix}", _MAX_SENTENCE)
            place = place_text(one.file, one.line)
            yield Fact(f"{one.code} {place}{saves}: {what}", _fields(one, _FINDING))


def _causes(report: Any) -> Iterator[Fact]:
    for speed in getattr(report, "speeds", ()):
        for one in speed.suspects:
            amount = f"{format_duration(one.explained_ns, 2)}, {format_percent(one.share)} likely"
            text = f"{speed.device}, {one.cause}: {amount}; look at: {one.look}"
            yield Fact(printable(text, _MAX_SENTENCE), _fields(one, _CAUSE))


def _sentence(text: str) -> Fact:
    text = printable(text, _MAX_SENTENCE)
    return Fact(text, text)


def _fields(struct: msgspec.Struct, names: Sequence[str]) -> dict[str, Any]:
    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    values = {name: rounded(msgspec.to_builtins(getattr(struct, name))) for name in names}
    return {name: value for name, value in values.items() if value not in ("", None)}
