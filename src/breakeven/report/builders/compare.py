"""The document of a comparison of two runs: what else differs comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from breakeven.report.charts.build import axis_word, crossover_interval, settings_text
from breakeven.report.document import Block, Document, Lines, Section
from breakeven.report.phrase import Line, place_of
from breakeven.report.table import Cell, Column, Table
from breakeven.report.text import plural, printable, ratio_with_interval
from breakeven.timing import Source
from breakeven.units import format_bytes, format_duration
from breakeven.verdict import (
    Change,
    Choice,
    ComparisonReport,
    Crossover,
    CrossoverChange,
    CrossoverShift,
    DeviceChange,
    Finding,
    NoCrossover,
    PointName,
    TimeChange,
    Verdict,
)

_MAX_POINTS = 8
_MAX_NAMES = 8
_CHOICE_WORDS = {
    Choice.CPU: "train on the CPU",
    Choice.GPU: "a GPU pays off",
    Choice.TOO_CLOSE: "too close to call",
    Choice.UNDECIDED: "undecided",
}
_WORDS = {Change.FASTER: "faster", Change.SLOWER: "slower", Change.NOT_SHOWN: "not shown"}
_STYLES = {Change.FASTER: "green", Change.SLOWER: "red", Change.NOT_SHOWN: "dim"}


def comparison_document(
    report: ComparisonReport, *, names: tuple[str, str] = ("the first run", "the second run")
) -> Document:
    """Return the document of a comparison.

    Args:
        report: What was found out.
        names: Of the first and the second run, such as their files'.
    """
    before, after = (printable(name, 120) for name in names)
    lists = (
        ("Points that changed most", _point_lines(report)),
        ("Crossovers", _crossover_lines(report.crossovers)),
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
    devices = (_device_table(report),) if report.devices else ()
    return Document(
        title="What differs between two runs?",
        before=(
            Lines((Line(f"A: {before}", "dim"), Line(f"B: {after}", "dim"))),
            *_fact_section(report),
        ),
        answers=[Line(line, "bold") for line in _headline(report)],
        blocks=(
            *(Section("Devices", heading="", blocks=(table,)) for table in devices),
            *(section for title, lines in lists for section in _list_section(title, lines)),
        ),
    )


def _list_section(title: str, lines: Iterable[str]) -> tuple[Section, ...]:
    items = tuple(Line(line, indent=2) for line in lines)
    return (Section(title, (Lines(items, is_list=True),)),) if items else ()


def _fact_section(report: ComparisonReport) -> Iterator[Block]:
    lines: list[Line] = []
    for fact in report.facts:
        ours, theirs = (printable(value, 120) or "none" for value in (fact.before, fact.after))
        lines.append(Line(f"{fact.name}: {ours} → {theirs}", "yellow", 2))
    if lines:
        title = "More than the answers differs:"
        yield Section(title, style="bold yellow", blocks=(Lines(tuple(lines), is_list=True),))


def _headline(report: ComparisonReport) -> Iterator[str]:
    verdicts = report.verdicts
    if verdicts is not None:
        before, after = _verdict_words(verdicts.before), _verdict_words(verdicts.after)
        same = before == after
        yield f"The verdict is the same: {after}." if same else f"Verdict: {before} → {after}."
    if not report.devices:
        yield "The two runs have no step time in common."
        return
    for variant in dict.fromkeys(device.variant for device in report.devices):
        counts = Counter(one.change for one in report.devices if one.variant == variant)
        parts = [f"{counts[change]} {_WORDS[change]}" for change in Change if counts[change]]
        noun = f"{variant} step" if variant else "device"
        yield f"Of {plural(counts.total(), noun)}: {', '.join(parts)}."


def _verdict_words(verdict: Verdict) -> str:
    return f"{_CHOICE_WORDS[verdict.choice]} ({printable(verdict.device, 60)})"


def _device_table(report: ComparisonReport) -> Table:
    has_many = any(device.num_points > 1 for device in report.devices)
    times = {_key(time.point): time for time in report.times}
    if has_many:
        headings = ("points", "faster", "slower", "median B / A")
        figures = [
            (str(one.num_points), str(one.num_faster), str(one.num_slower))
            for one in report.devices
        ]
    else:
        headings = ("A", "B", "B / A")
        figures = [_time_cells(times[_key(one)]) for one in report.devices]
    ratios = [ratio_with_interval(one.ratio, one.low, one.high) for one in report.devices]
    columns = (*zip(*figures, strict=True), ratios)
    return Table(
        (
            Column("device", list(map(_device_name, report.devices)), folds=True, least=14),
            *(
                Column(heading, cells, is_number=True)
                for heading, cells in zip(headings, columns, strict=True)
            ),
            Column(
                "change",
                [Cell(_WORDS[one.change], style=_STYLES[one.change]) for one in report.devices],
            ),
        ),
        caption="The step on each device, in B against A",
        note="B / A below 1 is faster; not shown: within the 90 % interval.",
        legend="B / A below 1 is faster; (low–high) 90 % interval; not shown: within it",
    )


def _key(one: DeviceChange | PointName) -> tuple[str, str, str]:
    return one.group, one.device, one.variant


def _device_name(one: DeviceChange | PointName, most: int = 120) -> str:
    name = ", ".join(printable(part, most) for part in (one.device, one.variant) if part)
    return f"{printable(one.group, 60)}: {name}" if one.group else name


def _time_cells(time: TimeChange) -> tuple[str, str]:
    return format_duration(time.before_ns), format_duration(time.after_ns)


def _point_lines(report: ComparisonReport) -> Iterator[str]:
    """Yield the single points that changed most; each device's own line tells the rest."""
    shown = [t for t in report.times if t.change is not Change.NOT_SHOWN and t.point.settings]
    shown.sort(key=lambda time: max(time.ratio, 1 / time.ratio), reverse=True)
    yield from map(_point_line, shown[:_MAX_POINTS])
    if len(shown) > _MAX_POINTS:
        yield f"and {len(shown) - _MAX_POINTS:,} more points, listed by --json"


def _point_line(time: TimeChange) -> str:
    ratio = ratio_with_interval(time.ratio, time.low, time.high)
    how = "" if time.before_source is time.after_source else f", {_sources(time)}"
    before, after = _time_cells(time)
    return f"{_point_name(time.point)}: {before} → {after}, {ratio}{how}"


def _sources(time: TimeChange) -> str:
    return "measured in A only" if time.before_source is Source.MEASURED else "measured in B only"


def _point_name(point: PointName) -> str:
    name = _device_name(point, 60)
    return f"{name}, {settings_text(point.settings)}" if point.settings else name


def _crossover_lines(changes: Sequence[CrossoverChange]) -> Iterator[str]:
    for change in changes:
        if change.shift is CrossoverShift.NONE or change.before == change.after:
            continue
        parts = [printable(part, 60) for part in (change.group, change.device) if part]
        where = [*parts, axis_word(change.axis)]
        held = f" ({settings_text(change.held)})" if change.held else ""
        before, after = (
            _outcome_words(outcome, names_device=not change.device)
            for outcome in (change.before, change.after)
        )
        shift = "" if change.shift is None else f": {change.shift.value.replace('_', ' ')}"
        yield f"{', '.join(where)}{held}: {before} → {after}{shift}"


def _outcome_words(outcome: Crossover | NoCrossover | None, *, names_device: bool) -> str:
    match outcome:
        case Crossover():
            device = f" {printable(outcome.device, 60)}" if names_device else ""
            return f"from {outcome.value:,} ({crossover_interval(outcome)}){device}"
        case NoCrossover():
            if outcome.searched is None:
                return "not known"
            return f"none in {outcome.searched[0]:,} to {outcome.searched[1]:,}"
        case None:
            return "not searched"


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
    place = place_of(finding.file, finding.line)
    where = "" if place is None else f" ({place.text(120)})"
    return f"{printable(finding.code, 20)}  {printable(finding.title)}{where}"


def _claim_lines(report: ComparisonReport) -> Iterator[str]:
    for claim in report.claims:
        outcome = (
            claim.after.value
            if claim.before is claim.after
            else f"{claim.before.value} → {claim.after.value}"
        )
        ours = f"{printable(claim.before_ours, 120)} → {printable(claim.after_ours, 120)}"
        yield f"{printable(claim.system, 60)}, {printable(claim.claim)}: {outcome}; {ours}"


def _name_lines(points: Sequence[PointName]) -> Iterator[str]:
    """Yield devices with their points, as many points as can be read."""
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
