"""A comparison of two runs for a person at a terminal: what else differs comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.chart_build import axis_word, crossover_interval, settings_text
from breakeven.report.text import printable, ratio_with_interval, shorten
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
_NAME_CHARACTERS = 26
_WORDS = {Change.FASTER: "faster", Change.SLOWER: "slower", Change.NOT_SHOWN: "not shown"}
_STYLES = {Change.FASTER: "green", Change.SLOWER: "red", Change.NOT_SHOWN: "dim"}


def render_comparison(
    report: ComparisonReport, console: Console, *, names: tuple[str, str]
) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven compare`` found out.
        console: Where to; its width, colours and encoding are honoured.
        names: Of the first and the second run, such as their files'.
    """
    before, after = (printable(name, 120) for name in names)
    _say(console, Text(f"A: {before}", style="dim"))
    _say(console, Text(f"B: {after}", style="dim"))
    _render_facts(report, console)
    console.line()
    for line in _headline(report):
        _say(console, Text(line, style="bold"))
    if report.devices:
        console.line()
        console.print(_device_table(report, console))
        legend = "B / A below 1 is faster; (low–high) 90 % interval; not shown: within it"
        _say(console, Text(legend, style="dim"))
    _render_points(report, console)
    _render_list(console, "Crossovers", _crossover_lines(report.crossovers))
    _render_list(console, "The step", _step_lines(report))
    _render_list(console, "Findings that are gone", map(_finding_line, report.findings_gone))
    _render_list(console, "New findings", map(_finding_line, report.findings_new))
    _render_list(console, "Claims", _claim_lines(report))
    _render_list(console, "Only in A", _name_lines(report.only_before))
    _render_list(console, "Only in B", _name_lines(report.only_after))
    _render_list(
        console,
        "Not to be compared: a time of 0, or outside its interval",
        _name_lines(report.incomparable),
    )


def _say(console: Console, text: Text, indent: int = 0) -> None:
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)


def _render_facts(report: ComparisonReport, console: Console) -> None:
    if not report.facts:
        return
    console.line()
    _say(console, Text("More than the answers differs:", style="bold yellow"))
    for fact in report.facts:
        ours, theirs = (printable(value, 120) or "none" for value in (fact.before, fact.after))
        _say(console, Text(f"{fact.name}: {ours} → {theirs}", style="yellow"), 2)


def _headline(report: ComparisonReport) -> Iterator[str]:
    counts = Counter(device.change for device in report.devices)
    verdicts = report.verdicts
    if verdicts is not None:
        before, after = _verdict_words(verdicts.before), _verdict_words(verdicts.after)
        same = before == after
        yield f"The verdict is the same: {after}." if same else f"Verdict: {before} → {after}."
    if not report.devices:
        yield "The two runs have no step time in common."
        return
    parts = [f"{counts[change]} {_WORDS[change]}" for change in Change if counts[change]]
    noun = "device" if len(report.devices) == 1 else "devices"
    yield f"Of {len(report.devices)} {noun}: {', '.join(parts)}."


def _verdict_words(verdict: Verdict) -> str:
    device = printable(verdict.device, 60)
    match verdict.choice:
        case Choice.CPU:
            return f"train on the CPU ({device})"
        case Choice.GPU:
            return f"a GPU pays off ({device})"
        case Choice.TOO_CLOSE:
            return f"too close to call ({device})"
        case Choice.UNDECIDED:
            return f"undecided ({device})"
        case _:
            assert_never(verdict.choice)


def _device_table(report: ComparisonReport, console: Console) -> Table:
    has_many = any(device.num_points > 1 for device in report.devices)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("device", no_wrap=True, overflow="ellipsis")
    if has_many:
        table.add_column("points", justify="right", no_wrap=True)
        table.add_column("faster", justify="right", no_wrap=True)
        table.add_column("slower", justify="right", no_wrap=True)
    else:
        table.add_column("A", justify="right", no_wrap=True)
        table.add_column("B", justify="right", no_wrap=True)
    heading = "median B / A" if has_many else "B / A"
    table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("change", no_wrap=True)
    room = _NAME_CHARACTERS if console.width >= 80 else 14
    times = {(time.point.group, time.point.device): time for time in report.times}
    for device in report.devices:
        cells = (
            (str(device.num_points), str(device.num_faster), str(device.num_slower))
            if has_many
            else _time_cells(times[device.group, device.device])
        )
        table.add_row(
            shorten(_device_name(device), room),
            *cells,
            ratio_with_interval(device.ratio, device.low, device.high),
            Text(_WORDS[device.change], style=_STYLES[device.change]),
        )
    return table


def _device_name(device: DeviceChange) -> str:
    name = printable(device.device, 120)
    return f"{printable(device.group, 60)}: {name}" if device.group else name


def _time_cells(time: TimeChange) -> tuple[str, str]:
    return format_duration(time.before_ns), format_duration(time.after_ns)


def _render_points(report: ComparisonReport, console: Console) -> None:
    """Show the single points that changed most; each device's own line tells the rest."""
    shown = [t for t in report.times if t.change is not Change.NOT_SHOWN and t.point.settings]
    if not shown:
        return
    shown.sort(key=lambda time: max(time.ratio, 1 / time.ratio), reverse=True)
    lines = [_point_line(time) for time in shown[:_MAX_POINTS]]
    if len(shown) > len(lines):
        lines.append(f"and {len(shown) - len(lines):,} more points, listed by --json")
    _render_list(console, "Points that changed most", lines)


def _point_line(time: TimeChange) -> str:
    ratio = ratio_with_interval(time.ratio, time.low, time.high)
    how = "" if time.before_source is time.after_source else f", {_sources(time)}"
    before, after = _time_cells(time)
    return f"{_point_name(time.point)}: {before} → {after}, {ratio}{how}"


def _sources(time: TimeChange) -> str:
    return "measured in A only" if time.before_source is Source.MEASURED else "measured in B only"


def _point_name(point: PointName) -> str:
    name = printable(point.device, 60)
    if point.group:
        name = f"{printable(point.group, 60)}: {name}"
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
    place = ""
    if finding.file is not None:
        line = "" if finding.line is None else f":{finding.line}"
        place = f" ({printable(finding.file, 120)}{line})"
    return f"{printable(finding.code, 20)}  {printable(finding.title)}{place}"


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
    by_device: dict[tuple[str, str], list[PointName]] = {}
    for point in points:
        by_device.setdefault((point.group, point.device), []).append(point)
    for own in list(by_device.values())[:_MAX_NAMES]:
        name = _point_name(PointName(group=own[0].group, device=own[0].device, settings={}))
        settings = [settings_text(point.settings) for point in own if point.settings]
        if len(settings) > 1:
            yield f"{name}: {len(settings):,} points, {settings[0]} to {settings[-1]}"
        else:
            yield ", ".join([name, *settings])
    if len(by_device) > _MAX_NAMES:
        yield f"and {len(by_device) - _MAX_NAMES:,} more, listed by --json"


def _render_list(console: Console, title: str, lines: Iterable[str]) -> None:
    rows = list(lines)
    if not rows:
        return
    console.line()
    _say(console, Text(title, style="bold"))
    for row in rows:
        _say(console, Text(row), 2)
