"""The document of an explanation: both timelines, where the time goes, findings, plan, modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from breakeven.report.answer_text import verdict_lines
from breakeven.report.builders.explain_plan import plan_section
from breakeven.report.builders.explain_shares import (
    Share,
    cause_shares,
    frames_text,
    line_shares,
    module_shares,
    phase_shares,
    short_names,
)
from breakeven.report.charts.causes import CauseGroup
from breakeven.report.document import Document, Lines, Section, Timeline
from breakeven.report.phrase import Line, Medium, Place, place_of
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    caveats_of_results,
    fix_texts,
    run_facts,
)
from breakeven.report.table import AnyCell, Bar, Cell, Column, Table, columns_of
from breakeven.report.text import duration_with_interval, plural, printable, shorten
from breakeven.simulate import Bound, Finding, Severity, Side
from breakeven.units import format_digits, format_duration, format_percent
from breakeven.verdict import ExplainReport

_BOUND_WORDS = {
    Bound.LAUNCH: "kernel launches",
    Bound.COMPUTE: "arithmetic",
    Bound.MEMORY: "memory bandwidth",
    Bound.LATENCY: "kernels that wait for each other",
    Bound.TRANSFER: "copies",
    Bound.SYNC: "waits for the GPU",
    Bound.HOST_DATA: "data and other work of the host",
    Bound.HOST_OPTIMIZER: "the optimizer on the host",
}
_SEVERITY_STYLES = {
    Severity.ERROR: "bold red",
    Severity.HIGH: "bold yellow",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
_MAX_CAUSES = 9
_LEAST_FRACTION = 0.01
_MAX_LINES = 20
# Below one line, of what a framework does there.
_MAX_FRAMES = 6
_MAX_MODULES = 60
# Of these, a terminal shows the first.
_MAX_LINE_ROWS = 9
_MAX_MODULE_ROWS = 14
# Levels of a tree: the style sheet knows six, and a path of 10,000 dots must not become 10,000.
_MAX_DEPTH = 6
_MAX_NAME_CHARACTERS = 36
_MAX_PLACE_CHARACTERS = 40
_MAX_CODE_CHARACTERS = 90
_MAX_PATH_CHARACTERS = 120
_MAX_FINDINGS = 10
_MAX_NOTES = 6
_INDENT = 8


def explain_document(report: ExplainReport, *, shows_evidence: bool = False) -> Document:
    """Return the document of an explanation.

    Args:
        report: What was found out.
        shows_evidence: Say with each finding what shows it, at a terminal.
    """
    of_results = (caveat for result in report.results for caveat in result.caveats)
    time = format_duration(report.attribution.step_ns)
    step = duration_with_interval(report.step_ns, report.low_ns, report.high_ns)
    target = shorten(printable(report.target, None), 60)
    device_busy, host_busy = (
        # What is busy and what the step takes are rounded apart: 100.3 % would puzzle a reader.
        format_percent(min(busy_ns / report.step_ns, 1.0) if report.step_ns > 0 else 0.0)
        for busy_ns in (report.device_busy_ns, report.host_busy_ns)
    )
    busy = (
        f"Limited by {_BOUND_WORDS[report.bound]}; the GPU is busy {device_busy} of the step, "
        f"the host {host_busy}."
    )
    phases = [f"{name} {format_percent(share)}" for name, share in phase_shares(report.attribution)]
    causes = (
        Lines((Line(f"By phase: {', '.join(phases)}"),), only=Medium.PAGE),
        *(_cause_table(report, medium) for medium in Medium),
        Lines((Line(f"phases: {' · '.join(phases)}", "dim"),), only=Medium.TERMINAL),
    )
    title = f"Where the {time} go"
    causes_title = f"Where the {time} on {report.device} go"
    hint = Line("Predicted. Point at a part to see what it is.", only=Medium.PAGE)
    timeline = (Lines((hint,)), Timeline(report.timeline, busy))
    has_timeline = any(span.end_ns > 0 for span in report.timeline)
    return Document(
        title=f"Where does the time of {printable(report.target, 120)} go?",
        answers=(
            Line(f"{target} on {printable(report.device, 60)}: {step} a step, predicted.", "bold"),
            Line(busy),
            *verdict_lines(report),
        ),
        warnings=busy_warnings((*report.caveats, *of_results)),
        facts=tuple(run_facts(report)),
        blocks=(
            *([Section("One step on both sides", timeline)] if has_timeline else []),
            Section(title, causes, heading=causes_title),
            Section("The lines that take the most of it", (_line_table(report),), level=3),
            _finding_section(report, shows_evidence=shows_evidence),
            *plan_section(report),
            *_module_section(report),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
    )


def _cause_table(report: ExplainReport, medium: Medium) -> Table:
    """Return the causes, the longest first; at a terminal the shortest are summed up."""
    shares: Sequence[Share] = cause_shares(report.attribution)
    num_shown = min(sum(share.fraction >= _LEAST_FRACTION for share in shares), _MAX_CAUSES)
    rest = shares[num_shown:]
    if medium is Medium.TERMINAL and len(rest) > 1:
        others = Share(
            name=f"{len(rest)} more causes",
            time_ns=sum(share.time_ns for share in rest),
            fraction=sum(share.fraction for share in rest),
        )
        shares = (*shares[:num_shown], others)
    digits = 3 if medium is Medium.PAGE else 2
    longest = max((share.fraction for share in shares), default=1.0)
    bars = [_bar(0.0, share.fraction / longest, share.group) for share in shares]
    percents = [format_percent(share.fraction) for share in shares]
    times = [format_duration(share.time_ns, digits) for share in shares]
    return Table(
        (
            Column("cause", [share.name for share in shares]),
            Column("", bars, optional=1),
            Column("of the step", percents, is_number=True),
            Column("time", times, is_number=True, style="dim"),
        ),
        caption="By cause: each nanosecond is counted once, along the critical path",
        has_header=False,
        only=medium,
    )


def _bar(start: float, length: float, group: CauseGroup | None) -> Bar:
    # Shares are rounded apart, and a bar must end within its cell.
    start = min(max(start, 0.0), 1.0)
    return Bar(
        round(start, 4),
        round(min(max(length, 0.0), 1.0 - start), 4),
        "dim" if group is None else group.value.style,
        "c0" if group is None else group.value.css_class,
    )


def _line_table(report: ExplainReport) -> Table:
    """Return the lines that take the most time, with the parts of those left to a framework."""
    every = line_shares(report.attribution, report.recording)
    shares = every[:_MAX_LINES]
    names = short_names(share.file for share in shares)
    rows: list[tuple[str, AnyCell, str, str, str]] = []
    num_long = 0
    for share in shares:
        place = "outside your code"
        if share.file is not None:
            place = Place(file=names[share.file], line=share.line).text(_MAX_PLACE_CHARACTERS)
        time, source = format_duration(share.time_ns), share.source
        if len(source) > _MAX_CODE_CHARACTERS:
            source = source[:_MAX_CODE_CHARACTERS] + "…"
        rows.append((format_percent(share.fraction), place, time, share.cause, source))
        for frame in share.frames[:_MAX_FRAMES]:
            percent, time = format_percent(frame.fraction), format_duration(frame.time_ns)
            name = Cell(f"  → {shorten(frame.name, 50)}", page=f"→ {frame.name}")
            rows.append((percent, name, time, frame.cause, ""))
        if share.fraction >= _LEAST_FRACTION:
            num_long = len(rows)
    percents, places, times, causes, sources = zip(*rows, strict=True) if rows else ((),) * 5
    texts = [source or cause for source, cause in zip(sources, causes, strict=True)]
    where = {"folds": True, "least": 16}
    columns = [
        Column("of the step", percents, is_number=True, only=Medium.TERMINAL),
        Column("line", places, **where),
        Column("of the step", percents, is_number=True, only=Medium.PAGE),
        Column("time", times, is_number=True, only=Medium.PAGE),
        Column("mostly", causes, only=Medium.PAGE),
        Column("text", texts, only=Medium.TERMINAL, style="dim", optional=1, **where),
    ]
    if report.recording is not None:
        columns.append(Column("text", sources, only=Medium.PAGE))
    return Table(
        columns,
        caption="By line of your files",
        note=f"The {len(shares)} longest of {len(every)}." if len(every) > len(shares) else "",
        has_header=False,
        most=min(num_long, _MAX_LINE_ROWS),
    )


def _file_names(report: ExplainReport) -> Mapping[str, str]:
    """Return the user's files as a page names them: below the folder that they share."""
    parts, findings = report.attribution.parts, report.findings
    return short_names((*(part.file for part in parts), *(finding.file for finding in findings)))


def _finding_section(report: ExplainReport, *, shows_evidence: bool) -> Section:
    suppressed = report.num_suppressed
    verb = "is" if suppressed == 1 else "are"
    page = [] if report.findings else [Line("There is no finding.")]
    if suppressed:
        page.append(Line(f"{plural(suppressed, 'finding')} of other rules {verb} left out."))
    lines = tuple(_finding_lines(report, shows_evidence=shows_evidence))
    blocks = (Lines(lines, only=Medium.TERMINAL), Lines(tuple(page), only=Medium.PAGE))
    table = (_finding_table(report),) if report.findings else ()
    return Section("What to change, by gain", (*blocks, *table))


def _finding_table(report: ExplainReport) -> Table:
    names, findings = _file_names(report), report.findings
    rows: list[tuple[str, ...]] = []
    for finding in findings:
        where, gain = "", gain_text(finding)
        if finding.file is not None:
            place = Place(file=names[finding.file], line=finding.line)
            below = f" → {frames_text(finding.frames)}" if len(finding.frames) > 1 else ""
            where = place.text(_MAX_PATH_CHARACTERS) + below
        rows.append(
            (
                printable(finding.code, 20),
                printable(finding.title),
                where,
                f"{finding.severity.value}: {gain}" if gain else finding.severity.value,
                printable(finding.fix, 600),
                printable(finding.evidence, 600),
            )
        )
    return Table(
        columns_of(("code", "what", "where", "gain", "fix", "what shows it"), rows),
        "Findings: lines that raise first, then those with the most to gain",
        marks=[finding.severity.value for finding in findings],
        note="A gain is what the fix alone saves, predicted, with its 90 % interval; gains of "
        "several findings do not add up. What a code stands for: breakeven rules CODE.",
        only=Medium.PAGE,
    )


def _finding_lines(report: ExplainReport, *, shows_evidence: bool) -> Iterator[Line]:
    """Yield the findings in full, those of little or unknown gain in a line each."""
    large = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO]
    if not report.findings:
        none = "of the rules asked for" if report.num_suppressed else "of any rule"
        yield Line(f"No finding {none}.", indent=2)
    shown = large[:_MAX_FINDINGS]
    for finding, fix in zip(shown, fix_texts(shown), strict=True):
        severity, gain = finding.severity, gain_text(finding)
        yield Line(
            (
                (severity.value.ljust(_INDENT), _SEVERITY_STYLES[severity]),
                (printable(finding.code, 20), "bold magenta"),
                (f"  {gain}" if gain else "", "green"),
            )
        )
        place = place_of(finding.file, finding.line)
        where = "" if place is None else f"{place.text(60)} · "
        yield Line(f"{where}{printable(finding.title, 400)}", indent=_INDENT)
        if len(finding.frames) > 1:
            yield Line(f"below that line: {frames_text(finding.frames)}", "dim", _INDENT)
        yield Line((("fix: ", "green"), fix), indent=_INDENT)
        if shows_evidence and finding.evidence:
            yield Line(f"seen: {printable(finding.evidence, 600)}", "dim", _INDENT)
    if notes:
        yield Line("Also seen, with little gain or one that nothing here can tell", "dim")
    for finding in notes[:_MAX_NOTES]:
        place = place_of(finding.file, finding.line)
        where = "" if place is None else f"  {place.text(40)}"
        code, title = printable(finding.code, 20), printable(finding.title, 200)
        yield Line(((code, "magenta"), f"  {title}", (where, "dim")), indent=2)
    num_hidden = len(large[_MAX_FINDINGS:]) + len(notes[_MAX_NOTES:])
    if num_hidden:
        yield Line(f"and {num_hidden} more in --json", "dim", 2)
    if report.num_suppressed:
        yield Line(f"{report.num_suppressed} of other rules left out by --rule", "dim", 2)


def gain_text(finding: Finding) -> str:
    """Return ``saves 24 % (18–27 %)``, or the share of the step, or nothing if none is known."""
    whose = " of the CPU's step" if finding.side is Side.CPU else ""
    gain = finding.gain_fraction
    if gain > 0:
        low, high = finding.gain_low_fraction, finding.gain_high_fraction
        ends = "" if low == high else f" ({format_digits(100 * low, 2)}–{format_percent(high)})"
        return f"saves {format_percent(gain)}{ends}{whose}"
    if finding.severity is not Severity.ERROR and finding.share_fraction > 0:
        return f"{format_percent(finding.share_fraction)}{whose or ' of the step'}"
    return ""


def _module_section(report: ExplainReport) -> Iterator[Section]:
    """Yield the modules as a tree, each with its bar below its parent's."""
    shares = module_shares(report.attribution, least_fraction=_LEAST_FRACTION, max_depth=_MAX_DEPTH)
    if not shares:
        return
    shown = shares[:_MAX_MODULES]
    names = [
        Cell(
            shorten("  " * share.depth + share.name, _MAX_NAME_CHARACTERS),
            page=shorten(share.name, _MAX_PATH_CHARACTERS),
        )
        for share in shown
    ]
    bars = [_bar(one.start_fraction, one.fraction, CauseGroup.ARITHMETIC) for one in shown]
    percents = [format_percent(share.fraction) for share in shown]
    columns = [
        Column("module", names),
        Column("", bars, optional=2),
        Column("step", percents, page_header="of the step", is_number=True),
    ]
    forward = [one.forward_fraction for one in shown]
    backward = [one.backward_fraction for one in shown]
    for phase, fractions in (("forward", forward), ("backward", backward)):
        texts = [format_percent(fraction) if fraction > 0 else "" for fraction in fractions]
        columns.append(Column(phase, texts, is_number=True, style="dim", optional=1))
    table = Table(
        columns,
        caption="A bar lies below that of the module around it",
        marks=[f"depth{share.depth}" if share.depth else "" for share in shown],
        note=f"The first {len(shown)} of {len(shares)}." if len(shown) < len(shares) else "",
        most=_MAX_MODULE_ROWS,
    )
    yield Section("The step by module", (table,))
