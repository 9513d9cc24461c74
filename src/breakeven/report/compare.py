"""The document of a comparison of two runs: differences in their circumstances come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from breakeven.report.chart import axis_word, crossover_interval, settings_text
from breakeven.report.comparison_report import (
    Change,
    ComparisonReport,
    CrossoverShift,
    DeviceChange,
    PointName,
)
from breakeven.report.document import Cell, Column, Document, Line, Section, Table, columns_of
from breakeven.report.text import place_text, plural, printable, ratio_with_interval
from breakeven.timing import Source
from breakeven.units import format_bytes, format_duration
from breakeven.verdict import Choice, Crossover, Finding, NoCrossover, Verdict

_MAX_POINTS = 8
_MAX_NAMES = 8
_CHOICE_WORDS = {
    Choice.CPU: "train on the CPU",
    Choice.GPU: "a GPU pays off",
    Choice.TOO_CLOSE: "too close to call",
    Choice.UNDECIDED: "undecided",
}
_WORDS = {Change.FASTER: "faster", Change.SLOWER: "slower", Change.NOT_SHOWN: "unclear"}
_STYLES = {Change.FASTER: "green", Change.SLOWER: "red", Change.NOT_SHOWN: "dim"}


def comparison_document(
    report: ComparisonReport, *, names: tuple[str, str] = ("the first run", "the second run")
) -> Document:
    """Return the document of a comparison.

    Args:
        report: The comparison.
        names: Names of the first and the second run, such as file names.
    """
    before, after = (printable(name, 120) for name in names)
    facts = [
        f"{fact.name}: {printable(fact.before, 120) or 'none'} → "
        f"{printable(fact.after, 120) or 'none'}"
        for fact in report.facts
    ]
    lists = (
        ("Points that changed most", _point_lines(report)),
        ("Crossovers", _crossover_lines(report)),
        ("The step", _step_lines(report)),
        ("Findings that are gone", map(_finding_line, report.findings_gone)),
        ("New findings", map(_finding_line, report.findings_new)),
        ("Claims", _claim_lines(report)),
        ("Only in A", _name_lines(report.only_before)),
        ("Only in B", _name_lines(report.only_after)),
        (
            "Not to be compared: a time of 0, or outside its interval",
            _name_lines(report.incomparable),
        ),
    )
    return Document(
        title="What differs between two runs?",
        before=(
            Line(f"A: {before}", "dim"),
            Line(f"B: {after}", "dim"),
            *_list_section("The runs also differ in:", facts, "yellow"),
        ),
        answers=[Line(line, "bold") for line in _headline(report)],
        blocks=(
            *([Section("", (_device_table(report),))] if report.devices else []),
            *(section for title, lines in lists for section in _list_section(title, lines)),
        ),
    )


def _list_section(title: str, lines: Iterable[str], style: str = "") -> tuple[Section, ...]:
    items = tuple(Line(line, style, 2) for line in lines)
    return (Section(title, items, style=f"bold {style}".strip()),) if items else ()


def _headline(report: ComparisonReport) -> Iterator[str]:
    if report.verdicts is not None:
        before, after = map(_verdict_words, (report.verdicts.before, report.verdicts.after))
        same = before == after
        yield f"The verdict is the same: {after}." if same else f"Verdict: {before} → {after}."
    if not report.devices:
        yield "The two runs have no step time in common."
    for variant in dict.fromkeys(device.variant for device in report.devices):
        counts = Counter(one.change for one in report.devices if one.variant == variant)
        parts = [f"{counts[change]} {_WORDS[change]}" for change in Change if counts[change]]
        noun = f"{variant} step" if variant else "device"
        yield f"Of {plural(counts.total(), noun)}: {', '.join(parts)}."


def _verdict_words(verdict: Verdict) -> str:
    return f"{_CHOICE_WORDS[verdict.choice]} ({printable(verdict.device, 60)})"


def _device_table(report: ComparisonReport) -> Table:
    times = {_key(time.point): time for time in report.times}
    has_many = any(device.num_points > 1 for device in report.devices)
    headings = ("points", "faster", "slower", "median B / A") if has_many else ("A", "B", "B / A")
    rows: list[tuple[str, ...]] = []
    for one in report.devices:
        if has_many:
            figures = (str(one.num_points), str(one.num_faster), str(one.num_slower))
        else:
            time = times[_key(one)]
            figures = (format_duration(time.before_ns), format_duration(time.after_ns))
        rows.append((*figures, ratio_with_interval(one.ratio, one.low, one.high)))
    words = [Cell(_WORDS[one.change], style=_STYLES[one.change]) for one in report.devices]
    return Table(
        (
            Column("device", list(map(_device_name, report.devices)), least=14),
            *columns_of(headings, rows, numbers="n" * len(headings)),
            Column("change", words),
        ),
        legend="B / A below 1 is faster; (low–high) 90 % interval; unclear: it holds 1",
    )


def _key(one: DeviceChange | PointName) -> tuple[str, str, str]:
    return one.group, one.device, one.variant


def _device_name(one: DeviceChange | PointName, most: int = 120) -> str:
    name = ", ".join(printable(part, most) for part in (one.device, one.variant) if part)
    return f"{printable(one.group, 60)}: {name}" if one.group else name


def _point_lines(report: ComparisonReport) -> Iterator[str]:
    """Yield the points that changed most; the device table summarizes the rest."""
    shown = [t for t in report.times if t.change is not Change.NOT_SHOWN and t.point.settings]
    shown.sort(key=lambda time: max(time.ratio, 1 / time.ratio), reverse=True)
    for time in shown[:_MAX_POINTS]:
        before, after = format_duration(time.before_ns), format_duration(time.after_ns)
        ratio = ratio_with_interval(time.ratio, time.low, time.high)
        how = ""
        if time.before_source is not time.after_source:
            only = "A" if time.before_source is Source.MEASURED else "B"
            how = f", measured in {only} only"
        name = f"{_device_name(time.point, 60)}, {settings_text(time.point.settings)}"
        yield f"{name}: {before} → {after}, {ratio}{how}"
    if len(shown) > _MAX_POINTS:
        yield f"and {len(shown) - _MAX_POINTS:,} more points, listed by --json"


def _crossover_lines(report: ComparisonReport) -> Iterator[str]:
    for change in report.crossovers:
        if change.shift is CrossoverShift.NONE or change.before == change.after:
            continue
        parts = [printable(part, 60) for part in (change.group, change.device) if part]
        held = f" ({settings_text(change.held)})" if change.held else ""
        words: list[str] = []
        for outcome in (change.before, change.after):
            match outcome:
                case Crossover():
                    device = "" if change.device else f" {printable(outcome.device, 60)}"
                    start = f"from {outcome.value:,} ({crossover_interval(outcome)})"
                    words.append(start + device)
                case NoCrossover(searched=(first, last)):
                    words.append(f"none in {first:,} to {last:,}")
                case NoCrossover():
                    words.append("not known")
                case None:
                    words.append("not searched")
        # A crossover that is gone may mean that a GPU is now faster at every size.
        shifts = {
            CrossoverShift.EARLIER: ": earlier",
            CrossoverShift.LATER: ": later",
            CrossoverShift.NOT_SHOWN: ": unclear",
        }
        shift = "" if change.shift is None else shifts.get(change.shift, "")
        where = ", ".join([*parts, axis_word(change.axis)])
        yield f"{where}{held}: {' → '.join(words)}{shift}"


def _step_lines(report: ComparisonReport) -> Iterator[str]:
    for count in report.steps:
        is_bytes = count.name.endswith("_bytes")
        before, after = (
            "not known" if value is None else format_bytes(value) if is_bytes else f"{value:,}"
            for value in (count.before, count.after)
        )
        name = count.name.removeprefix("num_").removesuffix("_bytes").replace("_", " ")
        copies = {"h2d": "copied to the GPU", "d2h": "copied from the GPU"}
        yield f"{copies.get(name, name)}: {before} → {after}"


def _finding_line(finding: Finding) -> str:
    place = place_text(finding.file, finding.line, 120)
    where = f" ({place})" if place else ""
    return f"{printable(finding.code, 20)}  {printable(finding.title)}{where}"


def _claim_lines(report: ComparisonReport) -> Iterator[str]:
    for claim in report.claims:
        outcomes = dict.fromkeys((claim.before.value, claim.after.value))
        ours = f"{printable(claim.before_ours, 120)} → {printable(claim.after_ours, 120)}"
        name = f"{printable(claim.system, 60)}, {printable(claim.claim)}"
        yield f"{name}: {' → '.join(outcomes)}; {ours}"


def _name_lines(points: Sequence[PointName]) -> Iterator[str]:
    """Yield devices with a readable number of points."""
    by_device: dict[tuple[str, str, str], list[PointName]] = {}
    for point in points:
        by_device.setdefault(_key(point), []).append(point)
    for own in list(by_device.values())[:_MAX_NAMES]:
        name = _device_name(own[0], 60)
        settings = [settings_text(point.settings) for point in own if point.settings]
        if len(settings) > 1:
            yield f"{name}: {len(settings):,} points, {settings[0]} to {settings[-1]}"
        else:
            yield ", ".join([name, *settings])
    if len(by_device) > _MAX_NAMES:
        yield f"and {len(by_device) - _MAX_NAMES:,} more, listed by --json"
