"""The document of an explanation: both timelines, where the time goes, findings, plan, modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from breakeven.report.builders.check import verdict_lines
from breakeven.report.builders.explain_words import (
    CHOICE_WORDS,
    CauseGroup,
    CauseShare,
    LineShare,
    ModuleShare,
    busy_sentence,
    cause_shares,
    frames_text,
    gain_text,
    headline,
    line_shares,
    module_shares,
    phase_shares,
    plan_sentence,
    short_names,
)
from breakeven.report.caveat_text import busy_warnings, caveat_section, caveats_of_results
from breakeven.report.document import Beside, Document, Lines, Section, Timeline
from breakeven.report.phrase import Line, Medium, Place, place_of
from breakeven.report.program_text import program_facts
from breakeven.report.result_text import SOURCE_MARKS, device_label, sort_results
from breakeven.report.run_text import run_facts
from breakeven.report.table import AnyCell, Bar, Cell, Column, Table, columns_of
from breakeven.report.text import (
    duration_with_interval,
    printable,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.simulate import Finding, Severity
from breakeven.timing import Source
from breakeven.units import format_duration, format_percent
from breakeven.verdict import DeviceKind, DeviceResult, ExplainReport, PlanStep

_MAX_CAUSES = 9
_LEAST_FRACTION = 0.01
_MAX_LINES = {Medium.TERMINAL: 6, Medium.PAGE: 20}
# Below one line, of what a framework does there.
_MAX_FRAMES = 6
_MAX_MODULES = {Medium.TERMINAL: 14, Medium.PAGE: 60}
# A tree of many small modules would hide the large ones.
_LEAST_MODULE_FRACTION = {Medium.TERMINAL: 0.02, Medium.PAGE: 0.005}
# The style sheet knows so many levels of a tree.
_MAX_DEPTH = 6
_MAX_NAME_CHARACTERS = 40
_MAX_PATH_CHARACTERS = 120
_MAX_PLACE_CHARACTERS = 22
_MAX_DEVICE_CHARACTERS = 16
# Narrower, and the place of a fix would cut the figures.
_LEAST_PLACES_CHARACTERS = 72
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
            _cause_table(report),
            _all_causes_table(report),
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
            *_plan_section(report),
            *(section for medium in Medium for section in _module_section(report, medium)),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
    )


def _timeline_section(report: ExplainReport) -> Iterator[Section]:
    if any(span.end_ns > 0 for span in report.timeline):
        hint = Line("Predicted. Point at a part to see what it is.", only=Medium.PAGE)
        timeline = Timeline(report.timeline, busy_sentence(report))
        yield Section("One step on both sides", (Lines((hint,)), timeline))


def _cause_table(report: ExplainReport) -> Table:
    """Return the longest causes, and all others as one."""
    shares = cause_shares(report.attribution)
    num_shown = min(sum(share.fraction >= _LEAST_FRACTION for share in shares), _MAX_CAUSES)
    rest = shares[num_shown:]
    if len(rest) > 1:
        others = CauseShare(
            name=f"{len(rest)} more causes",
            group=None,
            time_ns=sum(share.time_ns for share in rest),
            fraction=sum(share.fraction for share in rest),
        )
        shares = (*shares[:num_shown], others)
    times = [format_duration(share.time_ns, 2) for share in shares]
    return _share_table(shares, times, "", Medium.TERMINAL)


def _all_causes_table(report: ExplainReport) -> Table:
    shares = cause_shares(report.attribution)
    times = [format_duration(share.time_ns) for share in shares]
    caption = "By cause: each nanosecond is counted once, along the critical path"
    return _share_table(shares, times, caption, Medium.PAGE)


def _share_table(
    shares: Sequence[CauseShare], times: Sequence[str], caption: str, medium: Medium
) -> Table:
    longest = max((share.fraction for share in shares), default=1.0)
    return Table(
        (
            Column("cause", [share.name for share in shares]),
            Column(
                "", [_bar(0.0, share.fraction / longest, share.group) for share in shares], joins=1
            ),
            Column(
                "of the step", [format_percent(share.fraction) for share in shares], is_number=True
            ),
            Column("time", times, is_number=True, style="dim"),
        ),
        caption=caption,
        has_header=False,
        indent=0,
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
    left_out = f"{suppressed} findings of other rules are left out."
    none = ["There is no finding."] if not report.findings else []
    page = [*none, *([left_out] if suppressed else [])]
    blocks = [terminal, Lines(tuple(map(Line, page)), only=Medium.PAGE)]
    if report.findings:
        return Section("What to change, by gain", (*blocks, _finding_table(report)))
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
    for finding in large[:_MAX_FINDINGS]:
        yield from _lines_of(finding, shows_evidence=shows_evidence)
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


def _lines_of(finding: Finding, *, shows_evidence: bool) -> Iterator[Line]:
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
    yield Line((("fix: ", "green"), printable(finding.fix, 600)), indent=_INDENT)
    if shows_evidence and finding.evidence:
        yield Line(f"seen: {printable(finding.evidence, 600)}", "dim", _INDENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanColumn:
    """One device along the plan, with its result after each step; None where there is none."""

    name: str
    results: tuple[DeviceResult | None, ...]

    @property
    def short_name(self) -> str:
        first = self.results[0]
        is_here = first is not None and device_label(first) == "this CPU"
        return "this CPU" if is_here else shorten(self.name, _MAX_DEVICE_CHARACTERS)

    def speedup(self, number: int) -> float | None:
        """Return how many times faster the step is than at first; None where it is the same."""
        first, now = self.results[0], self.results[number]
        if first is None or now is None or now.step_ns <= 0 or first.step_ns == now.step_ns:
            return None
        return first.step_ns / now.step_ns


def _plan_columns(report: ExplainReport) -> tuple[_PlanColumn, ...]:
    """Return the devices of a plan: the one that is explained, the CPU, then by their last step.

    A device keeps its column where it was measured at first and is predicted later, but a GPU
    that is here has two: its measured step, and the predictions.
    """
    order = sorted(
        sort_results(report.plan[-1].results),
        key=lambda result: (result.device != report.device, result.kind is not DeviceKind.CPU),
    )
    names = dict.fromkeys(
        (result.kind, result.device) for result in (*order, *report.plan[0].results)
    )
    return tuple(
        _PlanColumn(
            name=printable(device, 60),
            results=tuple(_result(step, kind, device) for step in report.plan),
        )
        for kind, device in names
    )


def _result(step: PlanStep, kind: DeviceKind, device: str) -> DeviceResult | None:
    """Return a device's result, the predicted one where a GPU is measured too."""
    found = [one for one in step.results if one.kind is kind and one.device == device]
    if kind is DeviceKind.GPU:
        found.sort(key=lambda result: result.source is not Source.PREDICTED)
    return found[0] if found else None


def _plan_section(report: ExplainReport) -> Iterator[Section]:
    plan = report.plan
    if not plan:
        return
    turns = [
        number > 0 and plan[number - 1].verdict.choice is not step.verdict.choice
        for number, step in enumerate(plan)
    ]
    table = Table(
        (
            Column(
                "one fix after another",
                brief_header="fixes",
                page_header="fix",
                cells=[_step_cell(step, number) for number, step in enumerate(plan)],
            ),
            *(
                Column(
                    column.short_name,
                    page_header=column.name,
                    cells=[_plan_cell(column, number) for number in range(len(plan))],
                    is_number=True,
                    is_across=True,
                )
                for column in _plan_columns(report)
            ),
            Column("verdict", [_verdict_cell(*pair) for pair in zip(plan, turns, strict=True)]),
        ),
        caption="The step after one fix after another, and where to train then",
        note="Times without a remark are predicted; × is the speed against the step as it is.",
        legend="● measured   ○ predicted   × as fast as it is",
        marks=["turns" if is_turn else "" for is_turn in turns],
        indent=0,
        brief_below=_LEAST_PLACES_CHARACTERS,
        left_out=_left_out,
    )
    sentences = (Line(plan_sentence(plan)),) if len(plan) > 1 else ()
    title = "What the fixes come to" if len(plan) > 1 else "The step on each device"
    yield Section(title, (Lines(sentences), table))


def _left_out(_shown: int, _rows: int, hidden: Sequence[str]) -> str:
    devices = "device" if len(hidden) == 1 else "devices"
    return f"{len(hidden)} more {devices} in --json" if hidden else ""


def _step_cell(step: PlanStep, number: int) -> Cell:
    """Return ``2 SYNC001 train.py:61``, or in brief without the place."""
    if not step.code:
        return Cell("  as it is", page="as it is")
    label, place = f"{number} {printable(step.code, 20)}", ""
    if step.file is not None:
        name = step.file.replace("\\", "/").rpartition("/")[2]
        place = " " + Place(file=name, line=step.line).text(_MAX_PLACE_CHARACTERS)
    return Cell(label + place, brief=label)


def _plan_cell(column: _PlanColumn, number: int) -> AnyCell:
    result = column.results[number]
    if result is None:
        return ""
    if result.fits is False:
        return Cell("too big", style="red", page="too big for its memory")
    speedup = column.speedup(number)
    ratio = "" if speedup is None else f" {ratio_alone(speedup)}"
    colour = "green" if speedup is not None and speedup > 1 else "yellow"
    time = (SOURCE_MARKS[result.source], f" {format_duration(result.step_ns)}")
    interval = duration_with_interval(result.step_ns, result.low_ns, result.high_ns)
    measured = " measured" if result.source is Source.MEASURED else ""
    return Cell((*time, (ratio, colour)), brief=time, page=f"{interval}{ratio}{measured}")


def _verdict_cell(step: PlanStep, is_turn: bool) -> Cell:
    verdict = step.verdict
    word = page = CHOICE_WORDS[verdict.choice]
    if verdict.is_settled:
        page = f"{word} {ratio_with_interval(verdict.speedup, verdict.low, verdict.high)}"
        word = f"{word} {ratio_alone(verdict.speedup)}"
    phrase = f"{word} (turns)" if is_turn else word
    return Cell(phrase, style="bold green" if is_turn else "", brief=word, page=page)


def _module_section(report: ExplainReport, medium: Medium) -> Iterator[Section]:
    """Yield the modules as a tree, each with its bar below its parent's."""
    is_page = medium is Medium.PAGE
    shares = module_shares(
        report.attribution,
        least_fraction=_LEAST_MODULE_FRACTION[medium],
        max_depth=_MAX_DEPTH if is_page else 2 * _MAX_DEPTH,
    )
    if not shares:
        return
    shown = shares[: _MAX_MODULES[medium]]
    num_hidden = len(shares) - len(shown)
    table = Table(
        (
            Column("module", [_module_name(share, medium) for share in shown]),
            Column(
                "",
                [
                    _bar(share.start_fraction, share.fraction, CauseGroup.ARITHMETIC)
                    for share in shown
                ],
                joins=2,
            ),
            Column(
                "step",
                page_header="of the step",
                cells=[format_percent(share.fraction) for share in shown],
                is_number=True,
            ),
            *(
                Column(
                    phase,
                    [
                        format_percent(fraction) if fraction > 0 else ""
                        for fraction in (getattr(share, f"{phase}_fraction") for share in shown)
                    ],
                    is_number=True,
                    style="dim",
                    joins=1,
                )
                for phase in ("forward", "backward")
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
