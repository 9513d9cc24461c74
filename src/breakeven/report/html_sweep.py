"""The page of a sweep: from where on a GPU wins, the curves, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.report.chart_build import (
    axis_word,
    crossover_interval,
    report_charts,
    settings_text,
    value_text,
)
from breakeven.report.chart_svg import published_text, svg_chart
from breakeven.report.check_text import busy_warnings, grouped_caveats, host_facts
from breakeven.report.html_model import Page, PageSection, PageTable, caveat_section
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.sweep_crossovers import headline
from breakeven.report.text import printable, shorten
from breakeven.verdict import (
    AxisValue,
    Crossover,
    DeviceKind,
    SweepCrossover,
    SweepReport,
)

_MAX_CHARACTERS = 400
_MAX_VALUES = 16
_NEVER = {DeviceKind.CPU: "never", DeviceKind.GPU: "always", None: "not known"}
_MAX_CHARTS = 24


def sweep_page(report: SweepReport) -> Page:
    """Return the page of a sweep."""
    words = " and ".join(axis_word(axis.name) for axis in report.axes)
    of_devices = [(printable(point.device, 60), point.caveats) for point in report.points]
    return Page(
        title=f"When does a GPU pay off for {printable(report.target, 120)}, by {words}?",
        answers=(headline(report),),
        warnings=sweep_warnings(report),
        facts=(
            *_sweep_facts(report),
            *side_effect_lines(report),
            *host_facts(report.host),
        ),
        sections=(
            *crossover_section(report, level=2),
            *sweep_sections(report, level=2),
            *caveat_section(grouped_caveats(report.caveats, of_devices)),
        ),
    )


def sweep_warnings(report: SweepReport) -> tuple[str, ...]:
    """Return what may turn the answer of a sweep."""
    return busy_warnings(caveat for held in (report, *report.points) for caveat in held.caveats)


def sweep_sections(report: SweepReport, *, level: int) -> tuple[PageSection, ...]:
    """Return the charts of a sweep, published figures beside them, and its failures."""
    every = report_charts(report)
    charts = tuple(svg_chart(chart) for chart in every[:_MAX_CHARTS])
    sections: list[PageSection] = []
    if charts:
        left_out = f"The first {len(charts)} of {len(every)} charts; every figure is in the JSON."
        sections.append(
            PageSection(
                title="Step time",
                level=level,
                paragraphs=(left_out,) if len(charts) < len(every) else (),
                charts=charts,
            )
        )
    marks = {mark: None for chart in every for mark in chart.published}
    if marks:
        sections.append(
            PageSection(
                title="Published figures",
                level=level,
                items=tuple(published_text(mark) for mark in marks),
            )
        )
    if report.failures:
        table = PageTable(
            caption="Points of the grid without an answer",
            headings=("settings", "reason"),
            are_numbers=(False, False),
            rows=tuple(
                (settings_text(failure.settings), printable(failure.message, 600))
                for failure in report.failures
            ),
        )
        sections.append(PageSection(title="Failures", level=level, tables=(table,)))
    return tuple(sections)


def crossover_section(report: SweepReport, *, level: int) -> tuple[PageSection, ...]:
    """Return what is known of each GPU against the CPU; nothing where that was not searched."""
    if not report.crossovers:
        return ()
    headings = ("GPU", "along", "from", "90 % interval", "searched", "against", "held", "remark")
    rows = [_crossover_cells(found) for found in report.crossovers]
    used = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    table = PageTable(
        caption="From where on each GPU is faster than the CPU, for all larger values searched",
        headings=tuple(headings[i] for i in used),
        are_numbers=tuple(headings[i] in ("from", "90 % interval", "searched") for i in used),
        rows=tuple(tuple(row[i] for i in used) for row in rows),
    )
    return (PageSection(title="Crossovers", level=level, tables=(table,)),)


def _crossover_cells(found: SweepCrossover) -> tuple[str, ...]:
    outcome = found.outcome
    searched = outcome.searched
    is_found = isinstance(outcome, Crossover)
    return (
        printable(found.device, 60),
        axis_word(outcome.axis),
        f"{outcome.value:,}" if is_found else _NEVER[outcome.faster],
        crossover_interval(outcome) if is_found else "",
        "" if searched is None else f"{searched[0]:,} to {searched[1]:,}",
        printable(found.cpu, 60),
        settings_text(found.held),
        "" if is_found else printable(outcome.none_because, 600),
    )


def _sweep_facts(report: SweepReport) -> Iterator[tuple[str, str]]:
    yield "target", printable(report.target)
    if report.arguments:
        yield "arguments", printable(" ".join(report.arguments), _MAX_CHARACTERS)
    for axis in report.axes:
        yield axis_word(axis.name), _values_text(axis.values)
    yield "step times", f"{len(report.points):,}"


def _values_text(values: Sequence[AxisValue]) -> str:
    if len(values) > _MAX_VALUES:
        return f"{len(values):,} values, {value_text(values[0])} to {value_text(values[-1])}"
    return shorten(", ".join(value_text(value) for value in values), _MAX_CHARACTERS)
