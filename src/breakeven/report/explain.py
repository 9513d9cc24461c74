"""The document of an explanation: timelines, causes, findings, plan and modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from breakeven.report.answer_text import (
    SOURCE_MARKS,
    device_label,
    sort_results,
    verdict_lines,
    verdict_sentence,
)
from breakeven.report.document import (
    TOO_BIG,
    AnyCell,
    Bar,
    Cell,
    Column,
    Document,
    Line,
    Medium,
    Section,
    Table,
    Timeline,
)
from breakeven.report.explain_report import ExplainReport, PlanStep
from breakeven.report.explain_shares import (
    cause_shares,
    frames_text,
    line_shares,
    module_shares,
    phase_shares,
    short_names,
)
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    caveats_of_results,
    fix_texts,
    run_facts,
)
from breakeven.report.speed_chart import device_chart
from breakeven.report.text import (
    duration_with_interval,
    place_text,
    plural,
    printable,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.report.timeline import CauseGroup
from breakeven.simulate import Bound, Finding, Severity, Side
from breakeven.timing import Source
from breakeven.units import format_digits, format_duration, format_percent
from breakeven.verdict import Choice, DeviceKind, DeviceResult

_BOUND_WORDS = {
    Bound.LAUNCH: "kernel launches",
    Bound.COMPUTE: "arithmetic",
    Bound.MEMORY: "memory bandwidth",
    Bound.LATENCY: "kernels that wait for each other",
    Bound.TRANSFER: "copies",
    Bound.SYNC: "waits for the GPU",
    Bound.HOST_DATA: "the host's own work",
    Bound.HOST_OPTIMIZER: "the optimizer on the host",
}
_SEVERITY_STYLES = {
    Severity.ERROR: "bold red",
    Severity.HIGH: "bold yellow",
    Severity.MEDIUM: "yellow",
    Severity.LOW: "cyan",
    Severity.INFO: "dim",
}
_CHOICE_WORDS = {
    Choice.CPU: "CPU",
    Choice.GPU: "GPU",
    Choice.TOO_CLOSE: "too close",
    Choice.UNDECIDED: "undecided",
}
_MAX_CAUSES = 9
_LEAST_FRACTION = 0.01
_MAX_LINES = 20
# Frames of a framework shown below one line.
_MAX_FRAMES = 6
# Number of rows in a terminal.
_MAX_LINE_ROWS = 9
_MAX_MODULE_ROWS = 14
_MAX_FINDINGS = 10
_MAX_NOTES = 6
# The explained device and the CPU.
_MAX_DEVICES = 2
# Levels of a tree: the style sheet has six, and a path with 10,000 dots must not add 10,000.
_MAX_DEPTH = 6
_MAX_NAME_CHARACTERS = 36
_MAX_CODE_CHARACTERS = 90
_MAX_PATH_CHARACTERS = 120
_INDENT = 8


def explain_document(report: ExplainReport, *, shows_evidence: bool = False) -> Document:
    """Return the document of an explanation.

    Args:
        report: The explanation.
        shows_evidence: Whether a terminal shows the evidence of each finding too.
    """
    target = shorten(printable(report.target, None), 60)
    step = duration_with_interval(report.step_ns, report.low_ns, report.high_ns)
    device_busy, host_busy = (
        # Busy time and step time are rounded separately; 100.3 % would puzzle a reader.
        format_percent(min(busy_ns / report.step_ns, 1.0) if report.step_ns > 0 else 0.0)
        for busy_ns in (report.device_busy_ns, report.host_busy_ns)
    )
    busy = (
        f"Limited by {_BOUND_WORDS[report.bound]}; the GPU is busy {device_busy} of the step, "
        f"the host {host_busy}."
    )
    hint = Line("Predicted. Point at a part to see what it is.", only=Medium.PAGE)
    timeline = Section("One step on both sides", (hint, Timeline(report.timeline, busy)))
    time = format_duration(report.attribution.step_ns)
    phases = [f"{name} {format_percent(share)}" for name, share in phase_shares(report.attribution)]
    causes = (
        *(_cause_table(report, medium) for medium in Medium),
        Line(f"phases: {' · '.join(phases)}", "dim"),
    )
    heading = f"Where the {time} on {report.device} go"
    chart = device_chart(report.results)
    charts = () if chart is None else (chart,)
    of_results = (caveat for result in report.results for caveat in result.caveats)
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
            Section("Speed of each device", charts, only=Medium.PAGE),
            *([timeline] if any(span.end_ns > 0 for span in report.timeline) else []),
            Section(f"Where the {time} go", causes, heading=heading),
            Section("The lines that take the most of it", (_line_table(report),)),
            Section(
                "What to change, by gain",
                tuple(_finding_lines(report, shows_evidence=shows_evidence)),
            ),
            *_plan_section(report),
            *_module_section(report),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
        charts=charts,
        command=report.command,
    )


def _cause_table(report: ExplainReport, medium: Medium) -> Table:
    """Return the causes, longest first; a terminal sums up the shortest."""
    shares = cause_shares(report.attribution)
    num_shown = min(sum(fraction >= _LEAST_FRACTION for _, _, fraction, _ in shares), _MAX_CAUSES)
    rest = shares[num_shown:]
    if medium is Medium.TERMINAL and len(rest) > 1:
        time_ns, fraction = sum(one[1] for one in rest), sum(one[2] for one in rest)
        shares[num_shown:] = [(f"{len(rest)} more causes", time_ns, fraction, None)]
    digits = 3 if medium is Medium.PAGE else 2
    longest = max((fraction for _, _, fraction, _ in shares), default=1.0)
    return Table(
        (
            Column("cause", [name for name, *_ in shares]),
            Column(
                "", [_bar(0.0, part / longest, group) for _, _, part, group in shares], optional=1
            ),
            Column("of the step", [format_percent(one[2]) for one in shares], is_number=True),
            Column(
                "time",
                [format_duration(time_ns, digits) for _, time_ns, _, _ in shares],
                is_number=True,
                style="dim",
            ),
        ),
        caption="By cause: each nanosecond is counted once, along the critical path",
        has_header=False,
        only=medium,
    )


def _bar(start: float, length: float, group: CauseGroup | None) -> Bar:
    # Shares are rounded separately, and a bar must end within its cell.
    start = min(max(start, 0.0), 1.0)
    length = round(min(max(length, 0.0), 1.0 - start), 4)
    style, css_class = ("dim", "c0") if group is None else (group.style, group.css_class)
    return Bar(round(start, 4), length, style, css_class)


def _line_table(report: ExplainReport) -> Table:
    """Return the lines that take the most time, with the framework frames below them."""
    every = line_shares(report.attribution, report.recording)
    shares = every[:_MAX_LINES]
    names = short_names(share.file for share in shares)
    rows: list[tuple[str, AnyCell, str, str, str]] = []
    num_long = 0
    for share in shares:
        place = "outside your code"
        if share.file is not None:
            place = place_text(names[share.file], share.line, 40)
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
    columns = [
        Column("of the step", percents, is_number=True, only=Medium.TERMINAL),
        Column("line", places, least=16),
        Column("of the step", percents, is_number=True, only=Medium.PAGE),
        Column("time", times, is_number=True, only=Medium.PAGE),
        Column("mostly", causes, only=Medium.PAGE),
        Column("text", texts, only=Medium.TERMINAL, style="dim", optional=1, least=16),
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


def _finding_lines(report: ExplainReport, *, shows_evidence: bool) -> Iterator[Line]:
    """Yield the findings in full; a terminal shows one line for each of little or unknown gain."""
    large = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO]
    if not report.findings:
        none = "of the rules asked for" if report.num_suppressed else "of any rule"
        yield Line(f"No finding {none}.", indent=2)
    ordered = [*large, *notes]
    for number, (finding, fix) in enumerate(zip(ordered, fix_texts(ordered), strict=True)):
        only = None if number < min(len(large), _MAX_FINDINGS) else Medium.PAGE
        severity, gain = finding.severity, gain_text(finding)
        head = (
            (severity.value.ljust(_INDENT), _SEVERITY_STYLES[severity]),
            (printable(finding.code, 20), "bold magenta"),
            (f"  {gain}" if gain else "", "green"),
        )
        yield Line(head, only=only)
        parts = (place_text(finding.file, finding.line, 60), printable(finding.title, 400))
        yield Line(" · ".join(filter(None, parts)), indent=_INDENT, only=only)
        if len(finding.frames) > 1:
            yield Line(f"below that line: {frames_text(finding.frames)}", "dim", _INDENT, only)
        yield Line((("fix: ", "green"), fix), indent=_INDENT, only=only)
        if finding.evidence:
            only = only if shows_evidence else Medium.PAGE
            yield Line(f"seen: {printable(finding.evidence, 600)}", "dim", _INDENT, only)
    if notes:
        seen = "Also seen, with a small or unknown gain"
        yield Line(seen, "dim", only=Medium.TERMINAL)
    for finding in notes[:_MAX_NOTES]:
        place = place_text(finding.file, finding.line, 40)
        code, title = printable(finding.code, 20), printable(finding.title, 200)
        phrase = ((code, "magenta"), f"  {title}", (f"  {place}" if place else "", "dim"))
        yield Line(phrase, indent=2, only=Medium.TERMINAL)
    num_hidden = len(large[_MAX_FINDINGS:]) + len(notes[_MAX_NOTES:])
    if num_hidden:
        yield Line(f"and {num_hidden} more in --json", "dim", 2, Medium.TERMINAL)
    if report.num_suppressed:
        yield Line(f"{report.num_suppressed} of other rules left out by --rule", "dim", 2)
    if report.findings:
        yield Line(
            "A gain is the predicted saving of one fix alone, with its 90 % interval; gains of "
            "several findings do not add up. Meaning of a code: breakeven rules CODE.",
            only=Medium.PAGE,
        )


def gain_text(finding: Finding) -> str:
    """Return ``saves 24 % (18–27 %)``, or the share of the step, or nothing if neither is known."""
    whose = " of the CPU's step" if finding.side is Side.CPU else ""
    gain = finding.gain_fraction
    if gain > 0:
        low, high = finding.gain_low_fraction, finding.gain_high_fraction
        ends = "" if low == high else f" ({format_digits(100 * low, 2)}–{format_percent(high)})"
        return f"saves {format_percent(gain)}{ends}{whose}"
    if finding.severity is not Severity.ERROR and finding.share_fraction > 0:
        return f"{format_percent(finding.share_fraction)}{whose or ' of the step'}"
    return ""


def _plan_section(report: ExplainReport) -> Iterator[Section]:
    """Yield the step on each device as fixes are added, in a sentence and a table."""
    plan = report.plan
    if not plan:
        return
    turns = [
        number > 0 and plan[number - 1].verdict.choice is not step.verdict.choice
        for number, step in enumerate(plan)
    ]
    fixes: list[Cell] = []
    for number, step in enumerate(plan):
        name = None if step.file is None else step.file.replace("\\", "/").rpartition("/")[2]
        text = f"{number} {printable(step.code, 20)} {place_text(name, step.line, 30)}".rstrip()
        fixes.append(Cell(text) if step.code else Cell("  as it is", page="as it is"))
    columns = [Column("one fix after another", fixes, page_header="fix", least=18)]
    # The explained device, the CPU, then the others by their last step. A device keeps its column
    # even if it is measured at first and predicted later.
    order = sorted(
        sort_results(plan[-1].results),
        key=lambda result: (result.device != report.device, result.kind is not DeviceKind.CPU),
    )
    devices = dict.fromkeys((one.kind, one.device) for one in (*order, *plan[0].results))
    for number, (kind, device) in enumerate(devices):
        results = [_result_of(step, kind, device) for step in plan]
        name = printable(device, 60)
        label = "" if results[0] is None else device_label(results[0])
        columns.append(
            Column(
                label if label.startswith("this CPU") else shorten(name, 16),
                [_result_cell(results[0], result) for result in results],
                page_header=name,
                is_number=True,
                only=None if number < _MAX_DEVICES else Medium.PAGE,
            )
        )
    verdicts: list[Cell] = []
    for step, is_turn in zip(plan, turns, strict=True):
        verdict = step.verdict
        word = page = _CHOICE_WORDS[verdict.choice]
        if verdict.is_settled:
            page = f"{word} {ratio_with_interval(verdict.speedup, verdict.low, verdict.high)}"
            word = f"{word} {ratio_alone(verdict.speedup)}"
        turn = (" (turns)", "bold green") if is_turn else ("", "")
        verdicts.append(Cell(word + turn[0], turn[1], page=page))
    columns.append(Column("verdict", verdicts))
    num_hidden = len(devices) - _MAX_DEVICES
    more = f"\n{plural(num_hidden, 'more device')} in --json" if num_hidden > 0 else ""
    table = Table(
        columns,
        caption="The step after each further fix, and where to train then",
        note="Times without a remark are predicted; × is the speed relative to the unchanged step.",
        legend=f"● measured   ○ predicted   × as fast as it is{more}",
        marks=["turns" if is_turn else "" for is_turn in turns],
    )
    if len(plan) > 1:
        yield Section("What the fixes come to", (Line(plan_sentence(plan)), table))
    else:
        yield Section("The step on each device", (table,))


def plan_sentence(plan: Sequence[PlanStep]) -> str:
    """Return a sentence with the number of fixes after which the verdict changes."""
    after = plan[-1].verdict.choice
    # Use the results of the first step: there the measured CPU is labelled "this CPU".
    end = verdict_sentence(plan[-1].verdict, plan[0].results)
    fixes = len(plan) - 1
    if plan[0].verdict.choice is after:
        few = {1: "The fix does", 2: "Both fixes together do"}
        return f"{few.get(fixes, f'All {fixes} fixes together do')} not turn the verdict. {end}"
    last_other = max(n for n, step in enumerate(plan) if step.verdict.choice is not after)
    first = "the first fix" if last_other == 0 else f"the first {last_other + 1} fixes"
    return f"After {first} the verdict turns. {end}"


def _result_of(step: PlanStep, kind: DeviceKind, device: str) -> DeviceResult | None:
    """Return a device's result; for a GPU, prefer the predicted one."""
    found = [one for one in step.results if one.kind is kind and one.device == device]
    if kind is DeviceKind.GPU:
        found.sort(key=lambda result: result.source is not Source.PREDICTED)
    return found[0] if found else None


def _result_cell(first: DeviceResult | None, result: DeviceResult | None) -> AnyCell:
    """Return the step time, and its speed relative to the first step."""
    if result is None:
        return ""
    if result.fits is False:
        return TOO_BIG
    ratio, colour = "", ""
    if first is not None and first.step_ns != result.step_ns > 0:
        speedup = first.step_ns / result.step_ns
        ratio, colour = f" {ratio_alone(speedup)}", "green" if speedup > 1 else "yellow"
    time = format_duration(result.step_ns)
    interval = duration_with_interval(result.step_ns, result.low_ns, result.high_ns)
    measured = " measured" if result.source is Source.MEASURED else ""
    return Cell(
        (SOURCE_MARKS[result.source], f" {time}", (ratio, colour)),
        page=f"{interval}{ratio}{measured}",
    )


def _module_section(report: ExplainReport) -> Iterator[Section]:
    """Yield the module tree; each bar is below its parent's."""
    shares = module_shares(report.attribution, least_fraction=_LEAST_FRACTION, max_depth=_MAX_DEPTH)
    if not shares:
        return
    names = [
        Cell(
            shorten("  " * share.depth + share.name, _MAX_NAME_CHARACTERS),
            page=shorten(share.name, _MAX_PATH_CHARACTERS),
        )
        for share in shares
    ]
    bars = [_bar(one.start_fraction, one.fraction, CauseGroup.ARITHMETIC) for one in shares]
    percents = [format_percent(share.fraction) for share in shares]
    columns = [
        Column("module", names),
        Column("", bars, optional=2),
        Column("step", percents, page_header="of the step", is_number=True),
    ]
    for phase in ("forward", "backward"):
        fractions = [getattr(share, f"{phase}_fraction") for share in shares]
        texts = [format_percent(fraction) if fraction > 0 else "" for fraction in fractions]
        columns.append(Column(phase, texts, is_number=True, style="dim", optional=1))
    table = Table(
        columns,
        caption="A bar lies below that of the module around it",
        marks=[f"depth{share.depth}" if share.depth else "" for share in shares],
        most=_MAX_MODULE_ROWS,
    )
    yield Section("The step by module", (table,))
