"""The document of an explanation: both timelines, where the time goes, findings, plan, modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from breakeven.report.builders.check import verdict_lines
from breakeven.report.builders.explain_plan import plan_section
from breakeven.report.builders.explain_shares import (
    CauseShare,
    LineShare,
    ModuleShare,
    cause_shares,
    line_shares,
    module_shares,
    phase_shares,
)
from breakeven.report.builders.explain_words import (
    busy_sentence,
    frames_text,
    gain_text,
    headline,
    short_names,
)
from breakeven.report.cause_text import CauseGroup
from breakeven.report.caveat_text import busy_warnings, caveat_section, caveats_of_results
from breakeven.report.document import Beside, Document, Lines, Section, Timeline
from breakeven.report.phrase import Line, Medium, Place, place_of
from breakeven.report.program_text import program_facts
from breakeven.report.run_text import fix_texts, run_facts
from breakeven.report.table import AnyCell, Bar, Cell, Column, Table, columns_of
from breakeven.report.text import plural, printable, shorten
from breakeven.simulate import Finding, Severity
from breakeven.units import format_duration, format_percent
from breakeven.verdict import ExplainReport

_MAX_CAUSES = 9
_LEAST_FRACTION = 0.01
_MAX_LINES = {Medium.TERMINAL: 6, Medium.PAGE: 20}
# Below one line, of what a framework does there.
_MAX_FRAMES = 6
_MAX_MODULES = {Medium.TERMINAL: 14, Medium.PAGE: 60}
# A tree of many small modules would hide the large ones.
_LEAST_MODULE_FRACTION = {Medium.TERMINAL: 0.02, Medium.PAGE: 0.005}
# Levels of a tree: the style sheet knows six, and a path of 10,000 dots must not become 10,000.
_MAX_DEPTH = {Medium.TERMINAL: 12, Medium.PAGE: 6}
_MAX_NAME_CHARACTERS = 40
_MAX_PATH_CHARACTERS = 120
_MAX_FINDINGS = 10
_MAX_NOTES = 6
_SEVERITY_STYLES = {
    Severity.ERROR: "bold red",
    Severity.HIGH: "bold yellow",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
_INDENT = 8
_NOBODY = "outside your code"


def explain_document(report: ExplainReport, *, shows_evidence: bool = False) -> Document:
    """Return the document of an explanation.

    Args:
        report: What was found out.
        shows_evidence: Say with each finding what shows it, at a terminal.
    """
    of_results = (caveat for result in report.results for caveat in result.caveats)
    time = format_duration(report.attribution.step_ns)
    phases = [f"{name} {format_percent(share)}" for name, share in phase_shares(report.attribution)]
    causes = Section(
        f"Where the {time} go",
        heading=f"Where the {time} on {report.device} go",
        blocks=(
            Lines((Line(f"By phase: {', '.join(phases)}"),), only=Medium.PAGE),
            *(_cause_table(report, medium) for medium in Medium),
            Lines((Line(f"phases: {' · '.join(phases)}", "dim"),), only=Medium.TERMINAL),
        ),
    )
    lines = Section(
        "The lines that take the most of it",
        level=3,
        blocks=tuple(_line_table(report, medium) for medium in Medium),
    )
    return Document(
        title=f"Where does the time of {printable(report.target, 120)} go?",
        answers=(
            Line(headline(report), "bold"),
            Line(busy_sentence(report)),
            *verdict_lines(report),
        ),
        warnings=busy_warnings((*report.caveats, *of_results)),
        facts=tuple(run_facts(report, program_facts(report.program))),
        blocks=(
            *_timeline_section(report),
            Beside(causes, lines),
            _finding_section(report, shows_evidence=shows_evidence),
            *plan_section(report),
            *(section for medium in Medium for section in _module_section(report, medium)),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
    )


def _timeline_section(report: ExplainReport) -> Iterator[Section]:
    if any(span.end_ns > 0 for span in report.timeline):
        hint = Line("Predicted. Point at a part to see what it is.", only=Medium.PAGE)
        timeline = Timeline(report.timeline, busy_sentence(report))
        yield Section("One step on both sides", (Lines((hint,)), timeline))


def _cause_table(report: ExplainReport, medium: Medium) -> Table:
    """Return the causes, the longest first."""
    is_page = medium is Medium.PAGE
    every = cause_shares(report.attribution)
    shares = every if is_page else _summed_up(every)
    longest = max((share.fraction for share in shares), default=1.0)
    bars = [_bar(0.0, share.fraction / longest, share.group) for share in shares]
    percents = [format_percent(share.fraction) for share in shares]
    times = [format_duration(share.time_ns, 3 if is_page else 2) for share in shares]
    return Table(
        (
            Column("cause", [share.name for share in shares]),
            Column("", bars, joins=1),
            Column("of the step", percents, is_number=True),
            Column("time", times, is_number=True, style="dim"),
        ),
        caption="By cause: each nanosecond is counted once, along the critical path",
        has_header=False,
        indent=0,
        only=medium,
    )


def _summed_up(shares: Sequence[CauseShare]) -> Sequence[CauseShare]:
    """Return the longest causes, and all others as one."""
    num_shown = min(sum(share.fraction >= _LEAST_FRACTION for share in shares), _MAX_CAUSES)
    rest = shares[num_shown:]
    if len(rest) < 2:
        return shares
    others = CauseShare(
        name=f"{len(rest)} more causes",
        group=None,
        time_ns=sum(share.time_ns for share in rest),
        fraction=sum(share.fraction for share in rest),
    )
    return (*shares[:num_shown], others)


def _bar(start: float, length: float, group: CauseGroup | None) -> Bar:
    # Shares are rounded apart, and a bar must end within its cell.
    start = min(max(start, 0.0), 1.0)
    return Bar(
        round(start, 4),
        round(min(max(length, 0.0), 1.0 - start), 4),
        "dim" if group is None else group.value.style,
        "c0" if group is None else group.value.css_class,
    )


def _line_table(report: ExplainReport, medium: Medium) -> Table:
    """Return the lines that take the most time, with the parts of those left to a framework."""
    is_page = medium is Medium.PAGE
    every = line_shares(report.attribution, report.recording)
    shares = [share for share in every if is_page or share.fraction >= _LEAST_FRACTION]
    shares = shares[: _MAX_LINES[medium]]
    names = _file_names(report) if is_page else short_names(share.file for share in shares)
    rows: list[tuple[str, AnyCell, str, str, str]] = []
    for share in shares:
        place = None if share.file is None else Place(file=names[share.file], line=share.line)
        rows.append(
            (
                format_percent(share.fraction),
                _place_cell(place),
                format_duration(share.time_ns),
                share.cause,
                share.source,
            )
        )
        rows += _frame_rows(share, medium)
    fractions, places, times, causes, sources = zip(*rows, strict=True) if rows else ((),) * 5
    percents = Column("of the step", fractions, is_number=True, only=medium)
    where = Column("line", places, most=_MAX_NAME_CHARACTERS, least=16)
    if not is_page:
        texts = [source or cause for source, cause in zip(sources, causes, strict=True)]
        text = Column("text", texts, style="dim", least=24, joins=1, cuts_end=True)
        columns = [percents, where, text]
    else:
        columns = [where, percents, Column("time", times, is_number=True), Column("mostly", causes)]
        if report.recording is not None:
            columns.append(Column("text", sources))
    is_cut = is_page and len(every) > len(shares)
    return Table(
        columns,
        caption="By line of your files",
        note=f"The {len(shares)} longest of {len(every)}." if is_cut else "",
        has_header=False,
        indent=0,
        only=medium,
    )


def _frame_rows(share: LineShare, medium: Medium) -> Iterator[tuple[str, AnyCell, str, str, str]]:
    """Yield what a framework does below a line."""
    frames = share.frames
    if medium is Medium.TERMINAL:
        frames = [frame for frame in frames if frame.fraction >= _LEAST_FRACTION]
        frames = frames[:_MAX_FRAMES] if len(frames) > 1 else []
    for frame in frames:
        percent = format_percent(frame.fraction)
        if medium is Medium.PAGE:
            time = format_duration(frame.time_ns)
            yield percent, f"→ {frame.name}", time, frame.cause, ""
        else:
            yield "", _frame_cell(f"{percent:>6} → ", frame.name), "", frame.cause, ""


def _frame_cell(figure: str, name: str) -> Cell:
    """Return a cell that keeps its figure, and as many of the inner functions as have room."""

    def fit(room: int) -> str:
        inner = name
        while len(figure) + len(inner) > room and "→" in inner:
            inner = inner.partition(" → ")[2]
        return figure + shorten(inner, max(room - len(figure), 0))

    return Cell(figure + name, fit=fit)


def _place_cell(place: Place | None) -> AnyCell:
    if place is None:
        return _NOBODY
    return Cell(place.text(), fit=place.text, page=place.text(_MAX_PATH_CHARACTERS))


def _file_names(report: ExplainReport) -> Mapping[str, str]:
    """Return the user's files as a page names them: below the folder that they share."""
    parts, findings = report.attribution.parts, report.findings
    return short_names((*(part.file for part in parts), *(finding.file for finding in findings)))


def _finding_section(report: ExplainReport, *, shows_evidence: bool) -> Section:
    suppressed = report.num_suppressed
    terminal = Lines(
        tuple(_finding_lines(report, shows_evidence=shows_evidence)), only=Medium.TERMINAL
    )
    verb = "is" if suppressed == 1 else "are"
    left_out = f"{plural(suppressed, 'finding')} of other rules {verb} left out."
    none = ["There is no finding."] if not report.findings else []
    page = [*none, *([left_out] if suppressed else [])]
    table = [_finding_table(report)] if report.findings else []
    blocks = (terminal, Lines(tuple(map(Line, page)), only=Medium.PAGE), *table)
    return Section("What to change, by gain", blocks)


def _finding_table(report: ExplainReport) -> Table:
    names, findings = _file_names(report), report.findings
    rows = [
        (
            printable(finding.code, 20),
            printable(finding.title),
            _where(finding, names),
            _gain(finding),
            printable(finding.fix, 600),
            printable(finding.evidence, 600),
        )
        for finding in findings
    ]
    return Table(
        columns_of(("code", "what", "where", "gain", "fix", "what shows it"), rows),
        "Findings: lines that raise first, then those with the most to gain",
        marks=[finding.severity.value for finding in findings],
        note="A gain is what the fix alone saves, predicted, with its 90 % interval; gains of "
        "several findings do not add up. What a code stands for: breakeven rules CODE.",
        only=Medium.PAGE,
    )


def _where(finding: Finding, names: Mapping[str, str]) -> str:
    if finding.file is None:
        return ""
    place = Place(file=names[finding.file], line=finding.line).text(_MAX_PATH_CHARACTERS)
    return f"{place} → {frames_text(finding.frames)}" if len(finding.frames) > 1 else place


def _gain(finding: Finding) -> str:
    gain = gain_text(finding)
    return f"{finding.severity.value}: {gain}" if gain else finding.severity.value


def _finding_lines(report: ExplainReport, *, shows_evidence: bool) -> Iterator[Line]:
    """Yield the findings in full, those of little or unknown gain in a line each."""
    large = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO]
    if not report.findings:
        none = "of the rules asked for" if report.num_suppressed else "of any rule"
        yield Line(f"No finding {none}.", indent=2)
    shown = large[:_MAX_FINDINGS]
    for finding, fix in zip(shown, fix_texts(shown), strict=True):
        yield from _lines_of(finding, fix, shows_evidence=shows_evidence)
    if notes:
        yield Line("Also seen, with little gain or one that nothing here can tell", "dim")
    for finding in notes[:_MAX_NOTES]:
        place = place_of(finding.file, finding.line)
        where = "" if place is None else f"  {place.text(_MAX_NAME_CHARACTERS)}"
        code, title = printable(finding.code, 20), printable(finding.title, 200)
        yield Line(((code, "magenta"), f"  {title}", (where, "dim")), indent=2)
    num_hidden = len(large[_MAX_FINDINGS:]) + len(notes[_MAX_NOTES:])
    if num_hidden:
        yield Line(f"and {num_hidden} more in --json", "dim", 2)
    if report.num_suppressed:
        yield Line(f"{report.num_suppressed} of other rules left out by --rule", "dim", 2)


def _lines_of(finding: Finding, fix: str, *, shows_evidence: bool) -> Iterator[Line]:
    severity, gain = finding.severity, gain_text(finding)
    head = (
        (severity.value.ljust(_INDENT), _SEVERITY_STYLES[severity]),
        (printable(finding.code, 20), "bold magenta"),
        (f"  {gain}" if gain else "", "green"),
    )
    yield Line(head, place=place_of(finding.file, finding.line), beneath=_INDENT)
    yield Line(printable(finding.title, 400), indent=_INDENT)
    if len(finding.frames) > 1:
        yield Line(f"below that line: {frames_text(finding.frames)}", "dim", _INDENT)
    yield Line((("fix: ", "green"), fix), indent=_INDENT)
    if shows_evidence and finding.evidence:
        yield Line(f"seen: {printable(finding.evidence, 600)}", "dim", _INDENT)


def _module_section(report: ExplainReport, medium: Medium) -> Iterator[Section]:
    """Yield the modules as a tree, each with its bar below its parent's."""
    shares = module_shares(
        report.attribution,
        least_fraction=_LEAST_MODULE_FRACTION[medium],
        max_depth=_MAX_DEPTH[medium],
    )
    if not shares:
        return
    shown = shares[: _MAX_MODULES[medium]]
    num_hidden = len(shares) - len(shown)
    bars = [_bar(one.start_fraction, one.fraction, CauseGroup.ARITHMETIC) for one in shown]
    forward = [one.forward_fraction for one in shown]
    backward = [one.backward_fraction for one in shown]
    table = Table(
        (
            Column("module", [_module_name(share, medium) for share in shown]),
            Column("", bars, joins=2),
            Column(
                "step",
                page_header="of the step",
                cells=[format_percent(share.fraction) for share in shown],
                is_number=True,
            ),
            *(
                Column(
                    phase,
                    [format_percent(fraction) if fraction > 0 else "" for fraction in fractions],
                    is_number=True,
                    style="dim",
                    joins=1,
                )
                for phase, fractions in (("forward", forward), ("backward", backward))
            ),
        ),
        caption="A bar lies below that of the module around it",
        marks=[f"depth{share.depth}" if share.depth else "" for share in shown],
        note=f"The first {len(shown)} of {len(shares)}." if num_hidden else "",
        legend=f"and {num_hidden} more in --json" if num_hidden else "",
        indent=0,
    )
    yield Section("The step by module", (table,), only=medium)


def _module_name(share: ModuleShare, medium: Medium) -> str:
    if medium is Medium.PAGE:
        return shorten(share.name, _MAX_PATH_CHARACTERS)
    return shorten("  " * share.depth + share.name, _MAX_NAME_CHARACTERS)
