"""The document of a validation: the answer, errors by group, what failed, and the peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from breakeven.report.builders.validate_words import (
    GROUPING_TITLES,
    HEADERS,
    OTHER_SETS,
    PROTOCOL_SENTENCES,
    PROTOCOL_TITLES,
    SHOWN_GROUPINGS,
    OwnFigure,
    beside_published,
    headline,
    p90_percent,
    percent,
    signed_percent,
    summary_cells,
    unpredicted_reasons,
    unread_reasons,
    warnings,
    worst_rows,
)
from breakeven.report.document import (
    Block,
    Document,
    Image,
    Lines,
    Markdown,
    Section,
)
from breakeven.report.phrase import Fact, Line, Medium
from breakeven.report.table import Cell, Column, Table, columns_of
from breakeven.report.text import plural, printable, shorten
from breakeven.units import format_duration
from breakeven.verdict import AccuracyReport, LeaveOut, RowResult, compare_compiled

_PLOT = "Predicted against measured time of each row, both axes logarithmic, with a band of ±20 %"
_PAGE_GROUPINGS = (
    *SHOWN_GROUPINGS, "memory_format", "phase", "architecture", "device", "family", "workload",
)  # fmt: skip
_MAX_REASONS = 12
# What a narrow terminal can do without, the first of them longest.
_JOINS = {"bias": 1, "mean": 2, "right GPU": 3}
_LEGEND = (
    "error: |predicted / measured - 1|   bias: + is too slow   in 90 %: rows that the interval "
    "holds, those not predicted counted as missed   right GPU: of two devices that differ by "
    "more than 20 %, the faster one is predicted to be faster"
)

_HOW_TO_READ = """\
Predicted times of whole steps, beside measured ones that others published. **Error** is
|predicted / measured - 1|; **bias** is the geometric mean of predicted / measured, minus 1: `+` is
too slow. **In 90 %** is the share of rows whose 90 % interval holds the measured time; a row that
could not be predicted counts as missed. **Right GPU** is the share of pairs of rows, equal in all
but the device and more than 20 % apart, of which the faster device is predicted to be faster.
Fewer than ten rows have no P90.

What these figures do not show: a GPU that is left out may have relatives with its chip that are
not (an RTX 2080 Ti teaches a TITAN RTX); the eight figures that scale the intervals (kernels
bound by arithmetic, by memory and in fp64, and hosts; each seen and unseen), and the prior widths
of the effects, were chosen on the very errors of leaving out GPUs and model families; and the
prediction of a row knows its host, framework and kind of copy, as the table tells them."""


def plot_name(protocol: LeaveOut) -> str:
    """Return the file name of the plot of a protocol."""
    return f"accuracy-{protocol}.svg"


def validation_document(report: AccuracyReport) -> Document:
    """Return the document of a validation."""
    sentence = PROTOCOL_SENTENCES[report.protocol]
    protocol = sentence[0].lower() + sentence[1:]
    return Document(
        title=f"How far off are predictions of {printable(report.table, 120)}?",
        answers=(Line(headline(report), "bold"),),
        warnings=tuple(f"Careful: {warning}" for warning in warnings(report)),
        facts=(Fact("table", f"{printable(report.table, 200)} · {protocol}", is_bare=True),),
        blocks=tuple(_sections(report)),
    )


def validation_page(
    reports: Sequence[AccuracyReport], *, plots: Mapping[LeaveOut, str]
) -> Document:
    """Return the page about one or more validations, one section for each.

    Args:
        reports: Each with a protocol of its own.
        plots: Address of the plot of each protocol that has one, relative to the page.

    Raises:
        ValueError: There is no report, or two have the same protocol.
    """
    protocols = [report.protocol for report in reports]
    if not reports or len(set(protocols)) < len(protocols):
        raise ValueError(f"one report per protocol is needed, not {protocols}")
    sections: list[Section] = []
    for report in reports:
        blocks: list[Block] = [
            Lines((Line(f"{PROTOCOL_SENTENCES[report.protocol]} {headline(report)}"),)),
            *(Lines((Line(f"**{warning}**"),)) for warning in warnings(report)),
        ]
        if report.protocol in plots:
            blocks.append(Image(plots[report.protocol], _PLOT))
        title = PROTOCOL_TITLES[report.protocol]
        sections += (Section(title, blocks), *_sections(report))
    return Document(title="Accuracy", before=(Markdown(_HOW_TO_READ),), blocks=sections)


def _sections(report: AccuracyReport) -> Iterator[Section]:
    yield Section("", tuple(_summary_tables(report)))
    yield from _compiled_section(report)
    yield from _worst_section(report)
    yield from _reason_section(report)
    yield from _unread_section(report)
    if report.overall.num_unpredicted < report.overall.num_rows:
        own = tuple(beside_published(report))
        lines = [line for one in own for line in _own_lines(one)]
        blocks = (
            Lines(tuple(lines), only=Medium.TERMINAL),
            Lines((Line(OTHER_SETS, "dim", 2),)),
            _published_table(own),
        )
        yield Section("What others publish", level=3, blocks=blocks)


def _is_shown(report: AccuracyReport, by: str) -> bool:
    """Return whether a grouping says more than the line of all rows."""
    # A run that was stored earlier has fewer groupings.
    return by == "split" or len(report.summary.get(by, ())) > 1


def _summary_tables(report: AccuracyReport) -> Iterator[Table]:
    """Yield errors by group: one table at a terminal, one for each grouping in a page."""
    rows: list[tuple[str, tuple[str, ...]]] = [("all rows", summary_cells(report.overall))]
    for by in SHOWN_GROUPINGS:
        if _is_shown(report, by):
            rows.append((f"by {GROUPING_TITLES[by]}", ("",) * len(HEADERS)))
            rows += [
                (f"  {printable(group)}", summary_cells(summary))
                for group, summary in report.summary[by].items()
            ]
    yield _summary_table(rows, "", Medium.TERMINAL)
    yield _summary_table(rows[:1], "Errors of all rows", Medium.PAGE)
    for by in _PAGE_GROUPINGS:
        if _is_shown(report, by):
            groups = [(group, summary_cells(one)) for group, one in report.summary[by].items()]
            yield _summary_table(groups, f"by {GROUPING_TITLES[by]}", Medium.PAGE)


def _summary_table(
    rows: Sequence[tuple[str, tuple[str, ...]]], title: str, medium: Medium
) -> Table:
    names, cells = zip(*rows, strict=True)
    is_page = medium is Medium.PAGE
    return Table(
        (
            Column(title if title.startswith("by ") else "", cells=names, folds=True, least=16),
            *(
                Column(header, column, is_number=True, optional=_JOINS.get(header, 0))
                for header, column in zip(HEADERS, zip(*cells, strict=True), strict=True)
            ),
        ),
        caption=title,
        legend="" if is_page else _LEGEND,
        marks=["" if any(row) else "out" for row in cells],
        only=medium,
    )


def _compiled_section(report: AccuracyReport) -> Iterator[Section]:
    found = compare_compiled(report.rows)
    if not found:
        return
    headings = ("mode", "pairs", "within 15 %", "right side of 1", "median error")
    rows = [
        (
            printable(each.mode),
            f"{each.num_pairs:,}/{each.num_pairs + each.num_pairs_unpredicted:,}",
            percent(each.close_fraction),
            percent(each.right_side_fraction),
            percent(each.median_error_fraction),
        )
        for each in found
    ]
    table = Table(
        columns_of(headings, rows, numbers=" nnnn"),
        "Time compiled over time eager, predicted against measured, pairs of the same step",
    )
    yield Section("Compiled beside eager", level=3, blocks=(table,))


def _published_table(own: Sequence[OwnFigure]) -> Table:
    headings = ("predictor", "published", "measured on", "nearest rows here", "mean", "median")
    rows = [
        (
            f"{peer.name} ({peer.source})",
            peer.figure,
            peer.measured_on,
            f"{peer.nearest_rows}, n = {one.num_rows:,}",
            percent(one.mean_error_fraction),
            percent(one.median_error_fraction),
        )
        for one in own
        for peer in (one.published,)
    ]
    return Table(
        columns_of(headings, rows, numbers="    nn"),
        "Errors that others publish, beside those of the nearest rows here",
        only=Medium.PAGE,
    )


def _own_lines(own: OwnFigure) -> Iterator[Line]:
    peer = own.published
    yield Line(((peer.name, "magenta"), f"  {peer.figure}"), indent=2)
    yield Line(f"on {peer.measured_on} ({peer.source})", "dim", 4)
    figures = "no such rows"
    if own.num_rows:
        figures = (
            f"{percent(own.mean_error_fraction)} mean, "
            f"{percent(own.median_error_fraction)} median, "
            f"{p90_percent(own.p90_error_fraction, own.num_rows)} P90 (n = {own.num_rows:,})"
        )
    yield Line(f"here: {peer.nearest_rows}: {figures}", indent=4)


def _worst_section(report: AccuracyReport) -> Iterator[Section]:
    rows = worst_rows(report)
    if not rows:
        return
    errors = [signed_percent(row.error_fraction) for row in rows]
    width = max(map(len, errors))
    lines = [
        line
        for row, error in zip(rows, errors, strict=True)
        for line in _worst_lines(row, error.rjust(width))
    ]
    headings = ("case", "workload", "phase", "device", "precision", "measured", "error")
    cells = [
        (
            row.case_id,
            Cell(row.workload, page=f"`{row.workload}`"),
            row.phase,
            row.device,
            row.precision,
            format_duration(row.value_ns),
            signed_percent(row.error_fraction),
        )
        for row in rows
    ]
    table = Table(
        columns_of(headings, cells, numbers="     nn"),
        "Rows with the largest errors, by factor",
        only=Medium.PAGE,
    )
    yield Section(
        f"The {plural(len(rows), 'row')} furthest off",
        level=3,
        blocks=(Lines(tuple(lines), only=Medium.TERMINAL), table),
    )


def _worst_lines(row: RowResult, error: str) -> Iterator[Line]:
    assert row.prediction is not None
    measured = format_duration(row.value_ns)
    predicted = format_duration(row.prediction.estimate.value_ns)
    times = f"{measured} measured, {predicted} predicted"
    yield Line(f"{error}  {printable(row.case_id, 40)}  {times}", indent=2)
    workload = shorten(printable(row.workload, None), 40)
    facts = (row.device, row.precision, row.phase, f"batch {row.batch_size:,}")
    beneath = " · ".join((workload, *map(printable, facts)))
    yield Line(beneath, "dim", len(error) + 4)


def _reason_section(report: AccuracyReport) -> Iterator[Section]:
    reasons = unpredicted_reasons(report.rows)
    if not reasons:
        return
    notes = _reason_notes(
        [(printable(code, 40), reason, count) for code, reason, count in reasons],
        caption="Why rows are not predicted",
        headings=("rows", "code", "reason"),
        others="for other reasons",
    )
    rows = plural(report.overall.num_unpredicted, "row")
    yield Section(f"{rows} not predicted", level=3, blocks=notes)


def _unread_section(report: AccuracyReport) -> Iterator[Section]:
    reasons = unread_reasons(report)
    if not reasons:
        return
    notes = _reason_notes(
        [(printable(rows, 120), reason, count) for rows, reason, count in reasons],
        caption="Why rows are not read",
        headings=("rows", "case", "cell"),
        others="with other cells",
    )
    yield Section(f"{plural(len(report.unread), 'row')} not read", level=3, blocks=notes)


def _reason_notes(
    reasons: Sequence[tuple[str, str, int]],
    *,
    caption: str,
    headings: tuple[str, str, str],
    others: str,
) -> tuple[Block, ...]:
    """Return what was met how often, the most frequent first; ``others`` says what is left out."""
    rest = sum(count for _, _, count in reasons[_MAX_REASONS:])
    lines = [
        Line((f"{count:,}× ", (name, "yellow"), f"  {printable(reason, 300)}"), indent=2)
        for name, reason, count in reasons[:_MAX_REASONS]
    ]
    if rest:
        lines.append(Line(f"and {plural(rest, 'row')} {others}, listed by --json", "dim", 2))
    rows = [(f"{count:,}", name, printable(reason, 300)) for name, reason, count in reasons]
    table = Table(columns_of(headings, rows, numbers="n"), caption, only=Medium.PAGE)
    return Lines(tuple(lines), only=Medium.TERMINAL), table
