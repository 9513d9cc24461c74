"""A report in few words and values, for a reader that pays for every token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from breakeven.report import CheckReport, CostReport, ExplainReport, NormalReport
from breakeven.report.answer_text import device_label, sort_results
from breakeven.report.cost import machine_text, own_row, time_text, usd_text
from breakeven.report.document import Medium, evenly_spread, plain
from breakeven.report.explain import plan_sentence
from breakeven.report.kinds import kind_of
from breakeven.report.text import duration_with_interval, place_text, printable
from breakeven.units import format_duration, format_percent
from breakeven.verdict import DeviceResult, Finding

# Three characters of such a text are one token or less: at most 1,000 tokens.
MAX_CHARACTERS = 3_000
_MAX_DEVICES = 8
_MAX_FINDINGS = 6
_MAX_CAVEATS = 4
_MAX_SENTENCE = 300
# A fix that saves a smaller share of the step is not worth a line.
_LEAST_GAIN = 0.005
_TIMES = ("step_ns", "low_ns", "high_ns")
_GAINS = ("gain_fraction", "gain_low_fraction", "gain_high_fraction")


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an answer.

    Args:
        text: The line, for a reader.
        values: Its figures, as in the report's JSON, with four digits.
    """

    text: str
    values: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A report as short facts.

    Args:
        answer: The answer in sentences, the most important one first.
        devices: Devices or machines with their times, each with the ends of its 90 % interval.
        findings: What to change, or the causes of a slow step.
        caveats: Reasons to trust the figures less.
        report_uri: The whole report, as a resource and as a target of other tools.
        report_path: Its file.
    """

    answer: tuple[str, ...]
    devices: tuple[Fact, ...]
    findings: tuple[Fact, ...]
    caveats: tuple[str, ...]
    report_uri: str
    report_path: str

    @property
    def values(self) -> dict[str, Any]:
        """Return the answer as JSON values, without the texts of its figures."""
        named = {
            "devices": [fact.values for fact in self.devices],
            "findings": [fact.values for fact in self.findings],
        }
        return {**msgspec.to_builtins(self), **named}


def answer_of(report: Any, *, uri: str, path: str) -> Answer:
    """Return a report as short facts: findings with the smallest gain are cut first.

    Args:
        report: A report of check, explain, cost or normal.
        uri: The whole report as a resource.
        path: Its file.
    """
    build = kind_of(report).build
    assert build is not None
    document = build(report)
    sentences = [plain(one.phrase) for one in document.answers if one.only is not Medium.PAGE]
    if isinstance(report, ExplainReport) and len(report.plan) > 1:
        sentences.append(plan_sentence(report.plan))
    caveats = [*report.caveats]
    for one in _of_devices(report):
        caveats += one.caveats
    answer = Answer(
        answer=tuple(printable(one, _MAX_SENTENCE) for one in (*document.warnings, *sentences)),
        devices=tuple(_devices(report)),
        findings=tuple(_findings(report))[:_MAX_FINDINGS],
        caveats=tuple(
            printable(f"{one.code}: {one.message}", _MAX_SENTENCE) for one in dict.fromkeys(caveats)
        )[:_MAX_CAVEATS],
        report_uri=uri,
        report_path=path,
    )
    for cut in ("findings", "caveats", "devices", "answer"):
        while _size(answer) > MAX_CHARACTERS and getattr(answer, cut):
            answer = replace(answer, **{cut: getattr(answer, cut)[:-1]})
    return answer


def answer_text(answer: Answer) -> str:
    """Return the answer as text, a line for each fact."""
    lines = [*answer.answer]
    parts = {
        "Devices (90 % interval):": [one.text for one in answer.devices],
        "Caveats:": answer.caveats,
        "What to look at:": [one.text for one in answer.findings],
    }
    for heading, facts in parts.items():
        lines += [heading, *(f"- {fact}" for fact in facts)] if facts else []
    return "\n".join((*lines, f"Whole report: {answer.report_uri} ({answer.report_path})"))


def _size(answer: Answer) -> int:
    return max(len(answer_text(answer)), len(msgspec.json.encode(answer.values)))


def _of_devices(report: Any) -> tuple[Any, ...]:
    """Return the devices by step time, or this machine, those that none beats, and the fastest."""
    match report:
        case CostReport():
            rows = report.rows
            front = evenly_spread([row for row in rows if row.is_on_front], _MAX_DEVICES - 3)
            fastest = sorted(
                (r for r in rows if r.fits is not False), key=lambda r: r.time_ns.value
            )
            return tuple(dict.fromkeys((own_row(rows), *front, *fastest)))[:_MAX_DEVICES]
        case NormalReport():
            return sort_results(report.others)[:_MAX_DEVICES]
        case CheckReport():
            return sort_results((*report.results, *report.absent_cpus))[:_MAX_DEVICES]
        case _:
            return sort_results(report.results)[:_MAX_DEVICES]


def _devices(report: Any) -> Iterator[Fact]:
    if isinstance(report, NormalReport):
        for speed in report.speeds:
            named = ("device", "pace", "ratio", "ratio_low", "ratio_high")
            should = speed.expected
            time = duration_with_interval(should.value_ns, should.low_ns, should.high_ns)
            takes = format_duration(speed.measured.value_ns)
            text = f"{printable(speed.device, 80)}: {speed.pace}, {takes}; predicted: {time}"
            yield Fact(text=text, values=_values(speed, *named))
    for one in _of_devices(report):
        if isinstance(one, DeviceResult):
            limit = f", limited by {one.bound}" if one.bound else ""
            limit = ", too big for its memory" if one.fits is False else limit
            time = duration_with_interval(one.step_ns, one.low_ns, one.high_ns)
            text = f"{device_label(one)}: {time} a step, {one.source}{limit}"
            yield Fact(text=text, values=_values(one, "device", "source", *_TIMES, "fits"))
            continue
        money = "free"
        if one.usd.value:
            ends = f"{usd_text(one.usd.low)}–{usd_text(one.usd.high)}"
            money = f"{usd_text(one.usd.value)} ({ends})"
        place = "this machine" if one.is_here else machine_text(one, report.prices)
        limit = "" if one.meets_limits else ", outside of the limits"
        text = f"{printable(one.device, 80)}, {place}: {time_text(one)}, {money}{limit}"
        yield Fact(
            text=text, values=_values(one, "device", "machine", "time_ns", "usd", "meets_limits")
        )


def _findings(report: Any) -> Iterator[Fact]:
    found: tuple[Finding, ...] = getattr(report, "findings", ())
    for finding in found:
        gain = ""
        if finding.gain_fraction >= _LEAST_GAIN:
            ends = (finding.gain_low_fraction, finding.gain_high_fraction)
            low, high = map(format_percent, ends)
            interval = f" ({low} to {high})" if any(ends) else ""
            gain = f" saves {format_percent(finding.gain_fraction)}{interval}"
            gain += " of the CPU's step" if finding.side == "cpu" else ""
        elif finding.severity != "error":
            continue
        place = place_text(finding.file, finding.line)
        said = f"{finding.title}. Fix: {finding.fix}"
        text = f"{finding.code} {place}{gain}: {printable(said, _MAX_SENTENCE)}"
        values = _values(finding, "code", "file", "line", *_GAINS, "side", "title")
        yield Fact(text=text, values=values)
    for speed in getattr(report, "speeds", ()):
        for one in speed.suspects:
            amount = f"{format_duration(one.explained_ns, 2)}, {format_percent(one.share)} likely"
            text = f"{printable(speed.device, 80)}, {one.cause}: {amount}; look at: {one.look}"
            values = _values(one, "cause", "explained_ns", "share", "look")
            yield Fact(text=printable(text, _MAX_SENTENCE), values=values)


def _values(struct: msgspec.Struct, *names: str) -> dict[str, Any]:
    """Return some fields as JSON values; four digits are enough for any figure with an interval."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return {name: rounded(msgspec.to_builtins(getattr(struct, name))) for name in names}
