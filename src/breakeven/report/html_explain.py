"""The page of an explanation: both timelines, where the time goes, findings, plan, modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from breakeven.report.check_text import (
    busy_warnings,
    grouped_caveats,
    host_facts,
    place_text,
    result_name,
    step_facts,
    verdict_sentence,
)
from breakeven.report.explain_parts import (
    FrameShare,
    LineShare,
    cause_shares,
    line_shares,
    module_shares,
    phase_shares,
    short_names,
)
from breakeven.report.explain_plan import PlanColumn, plan_columns, plan_title, step_label
from breakeven.report.explain_svg import svg_timeline
from breakeven.report.explain_text import (
    CauseGroup,
    busy_sentence,
    choice_word,
    frames_text,
    gain_text,
    headline,
    plan_sentence,
)
from breakeven.report.html_model import Page, PageBar, PageSection, PageTable, caveat_section
from breakeven.report.program_text import program_lines, program_sentences, threads_sentences
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.text import (
    duration_with_interval,
    printable,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.simulate import Finding
from breakeven.timing import Source
from breakeven.units import format_duration, format_percent
from breakeven.verdict import ExplainReport, PlanStep

_MAX_LINES = 20
_MAX_MODULES = 60
_LEAST_MODULE_FRACTION = 0.005
# The style sheet knows so many levels of a tree.
_MAX_DEPTH = 6
_MAX_PATH_CHARACTERS = 120


def explain_page(report: ExplainReport) -> Page:
    """Return the page of an explanation."""
    of_devices = [(result_name(result), result.caveats) for result in report.results]
    of_results = (caveat for _, caveats in of_devices for caveat in caveats)
    return Page(
        title=f"Where does the time of {printable(report.target, 120)} go?",
        answers=(
            headline(report),
            busy_sentence(report),
            verdict_sentence(report.verdict, report.results),
            *([printable(report.verdict.because, 600)] if report.verdict.because else []),
            *threads_sentences(report),
            *program_sentences(report),
        ),
        warnings=busy_warnings((*report.caveats, *of_results)),
        facts=(
            *step_facts(report.target, report.step),
            *program_lines(report.program),
            *side_effect_lines(report),
            *host_facts(report.host),
        ),
        sections=(
            *_timeline_section(report),
            PageSection(
                title=f"Where the {format_duration(report.attribution.step_ns)} go",
                paragraphs=(_phases(report),),
                tables=(_cause_table(report), _line_table(report)),
            ),
            _finding_section(report),
            *_plan_section(report),
            *_module_section(report),
            *caveat_section(grouped_caveats(report.caveats, of_devices)),
        ),
    )


def _timeline_section(report: ExplainReport) -> Iterator[PageSection]:
    timeline = svg_timeline(report.timeline, busy_sentence(report))
    if timeline is not None:
        yield PageSection(
            title="One step on both sides",
            paragraphs=("Predicted. Point at a part to see what it is.",),
            timeline=timeline,
        )


def _phases(report: ExplainReport) -> str:
    phases = phase_shares(report.attribution)
    return "By phase: " + ", ".join(f"{name} {format_percent(share)}" for name, share in phases)


def _cause_table(report: ExplainReport) -> PageTable:
    shares = cause_shares(report.attribution)
    longest = max((share.fraction for share in shares), default=1.0)
    return PageTable(
        caption="By cause: each nanosecond is counted once, along the critical path",
        headings=("cause", "of the step", "time"),
        are_numbers=(False, True, True),
        rows=tuple(
            (share.name, format_percent(share.fraction), format_duration(share.time_ns))
            for share in shares
        ),
        bars=tuple(_bar(0.0, share.fraction / longest, share.group) for share in shares),
    )


def _bar(start: float, length: float, group: CauseGroup | None) -> PageBar:
    # Shares are rounded apart, and a bar must end within its cell.
    start = min(max(start, 0.0), 1.0)
    return PageBar(
        start=round(start, 4),
        length=round(min(max(length, 0.0), 1.0 - start), 4),
        css_class="c0" if group is None else group.value.css_class,
    )


def _line_table(report: ExplainReport) -> PageTable:
    shares = line_shares(report.attribution, report.recording)
    names = _file_names(report)
    has_texts = report.recording is not None
    return PageTable(
        caption="By line of your files",
        headings=("line", "of the step", "time", "mostly", *(["text"] if has_texts else [])),
        are_numbers=(False, True, True, False, *([False] if has_texts else [])),
        rows=tuple(
            (*cells, *([text] if has_texts else []))
            for share in shares[:_MAX_LINES]
            for cells, text in (
                (_line_cells(share, names), share.source),
                *((_frame_cells(frame), "") for frame in share.frames),
            )
        ),
        note="" if len(shares) <= _MAX_LINES else f"The {_MAX_LINES} longest of {len(shares)}.",
    )


def _line_cells(share: LineShare, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        _place(share.file, share.line, names) or "no line of yours",
        format_percent(share.fraction),
        format_duration(share.time_ns),
        share.cause,
    )


def _frame_cells(share: FrameShare) -> tuple[str, ...]:
    return (
        f"→ {share.name}",
        format_percent(share.fraction),
        format_duration(share.time_ns),
        share.cause,
    )


def _file_names(report: ExplainReport) -> Mapping[str, str]:
    """Return the user's files as the page names them: below the folder that they share."""
    parts, findings = report.attribution.parts, report.findings
    return short_names((*(part.file for part in parts), *(finding.file for finding in findings)))


def _place(file: str | None, line: int | None, names: Mapping[str, str]) -> str:
    name = None if file is None else names[file]
    return shorten(place_text(name, line), _MAX_PATH_CHARACTERS)


def _finding_section(report: ExplainReport) -> PageSection:
    title = "What to change, by gain"
    suppressed = report.num_suppressed
    left_out = (f"{suppressed} findings of other rules are left out.",) if suppressed else ()
    if not report.findings:
        return PageSection(title=title, paragraphs=("There is no finding.", *left_out))
    names = _file_names(report)
    table = PageTable(
        caption="Findings: lines that raise first, then those with the most to gain",
        headings=("code", "what", "where", "gain", "fix", "what shows it"),
        are_numbers=(False, False, False, False, False, False),
        rows=tuple(_finding_cells(finding, names) for finding in report.findings),
        marks=tuple(finding.severity.value for finding in report.findings),
        note="A gain is what the fix alone saves, predicted, with its 90 % interval; gains of "
        "several findings do not add up. What a code stands for: breakeven rules CODE.",
    )
    return PageSection(title=title, paragraphs=left_out, tables=(table,))


def _finding_cells(finding: Finding, names: Mapping[str, str]) -> tuple[str, ...]:
    gain = gain_text(finding)
    return (
        printable(finding.code, 20),
        printable(finding.title),
        _place_of(finding, names),
        f"{finding.severity.value}: {gain}" if gain else finding.severity.value,
        printable(finding.fix, 600),
        printable(finding.evidence, 600),
    )


def _place_of(finding: Finding, names: Mapping[str, str]) -> str:
    place = _place(finding.file, finding.line, names)
    return f"{place} → {frames_text(finding.frames)}" if len(finding.frames) > 1 else place


def _plan_section(report: ExplainReport) -> Iterator[PageSection]:
    plan = report.plan
    if not plan:
        return
    columns = plan_columns(report)
    table = PageTable(
        caption="The step after one fix after another, and where to train then",
        headings=("fix", *(column.name for column in columns), "verdict"),
        are_numbers=(False, *(True for _ in columns), True),
        rows=tuple(
            (
                step_label(step, number).strip(),
                *(_plan_cell(column, number) for column in columns),
                _verdict_text(step),
            )
            for number, step in enumerate(plan)
        ),
        marks=tuple(
            "turns" if number and plan[number - 1].verdict.choice is not step.verdict.choice else ""
            for number, step in enumerate(plan)
        ),
        note="Times without a remark are predicted; × is the speed against the step as it is.",
    )
    sentences = (plan_sentence(plan),) if len(plan) > 1 else ()
    yield PageSection(title=plan_title(plan), paragraphs=sentences, tables=(table,))


def _plan_cell(column: PlanColumn, number: int) -> str:
    result = column.results[number]
    if result is None:
        return ""
    if result.fits is False:
        return "too big for its memory"
    speedup = column.speedup(number)
    parts = [
        duration_with_interval(result.step_ns, result.low_ns, result.high_ns),
        "" if speedup is None else ratio_alone(speedup),
        "measured" if result.source is Source.MEASURED else "",
    ]
    return " ".join(part for part in parts if part)


def _verdict_text(step: PlanStep) -> str:
    verdict = step.verdict
    if not verdict.is_settled:
        return choice_word(verdict.choice)
    ratio = ratio_with_interval(verdict.speedup, verdict.low, verdict.high)
    return f"{choice_word(verdict.choice)} {ratio}"


def _module_section(report: ExplainReport) -> Iterator[PageSection]:
    shares = module_shares(
        report.attribution, least_fraction=_LEAST_MODULE_FRACTION, max_depth=_MAX_DEPTH
    )
    if not shares:
        return
    shown = shares[:_MAX_MODULES]
    table = PageTable(
        caption="A bar lies below that of the module around it",
        headings=("module", "of the step", "forward", "backward"),
        are_numbers=(False, True, True, True),
        rows=tuple(
            (
                shorten(share.name, _MAX_PATH_CHARACTERS),
                format_percent(share.fraction),
                *(
                    format_percent(fraction) if fraction > 0 else ""
                    for fraction in (share.forward_fraction, share.backward_fraction)
                ),
            )
            for share in shown
        ),
        marks=tuple(f"depth{share.depth}" if share.depth else "" for share in shown),
        bars=tuple(
            _bar(share.start_fraction, share.fraction, CauseGroup.ARITHMETIC) for share in shown
        ),
        note="" if len(shares) == len(shown) else f"The first {len(shown)} of {len(shares)}.",
    )
    yield PageSection(title="The step by module", tables=(table,))
