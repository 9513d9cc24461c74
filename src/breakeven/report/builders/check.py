"""The document of a check: the verdict, the curves, every device, every finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from breakeven.report.answer_text import (
    compiled_results,
    crossover_sentences,
    generated_result,
    verdict_lines,
)
from breakeven.report.charts.build import axis_word, report_charts
from breakeven.report.document import Document, Drawing, Lines, Section
from breakeven.report.phrase import Line, Medium, place_of
from breakeven.report.result_text import (
    SOURCE_MARKS,
    device_label,
    reference_cpu,
    result_name,
    sample_legend,
    sort_results,
    speed_against,
)
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    caveats_of_results,
    fix_texts,
    run_facts,
)
from breakeven.report.table import Cell, Column, Interval, Table, columns_of, evenly_spread
from breakeven.report.text import (
    duration_with_interval,
    plural,
    printable,
    ratio_alone,
    ratio_range,
    shorten,
)
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_bytes, format_count, format_percent, format_time
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    Finding,
    Verdict,
)

# An axis shorter than a decade would show a difference of 5 % as wide as one of 500 %.
_SHORTEST_AXIS = 10.0
_MAX_FINDINGS = 8
# A fix that saves less than this part of the step is not worth the reader's time.
_LEAST_GAIN = 0.005
_MAX_SIZES = 9


def check_document(report: CheckReport) -> Document:
    """Return the document of a check."""
    charts = report_charts(report)
    crossovers = (Line(text, only=Medium.PAGE) for text in crossover_sentences(report))
    too_big = Lines(
        tuple(
            Line(f"The step does not fit {device_label(result)}{_needed(result)}.", "red")
            for result in report.results
            if result.fits is False
        ),
        only=Medium.TERMINAL,
    )
    return Document(
        title=f"Does a GPU pay off for {printable(report.target, 120)}?",
        answers=(*verdict_lines(report), *crossovers),
        warnings=busy_warnings(caveat for result in report.results for caveat in result.caveats),
        facts=tuple(run_facts(report)),
        blocks=(
            Section("Step time", tuple(map(Drawing, charts)), only=Medium.PAGE),
            Section("Devices", heading="", blocks=(_result_table(report), too_big)),
            *_times_section(report),
            Section("", tuple(_crossover_blocks(report)), only=Medium.TERMINAL),
            *_finding_section(report),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
        charts=charts,
        heading=report.target,
    )


def _needed(result: DeviceResult) -> str:
    needed = result.peak_memory_bytes
    return "" if needed is None else f": it needs {format_bytes(needed, 2)}"


def log_axis(results: Sequence[DeviceResult]) -> tuple[float, float]:
    """Return the ends of an axis that holds every interval and is at least a decade long."""
    low = min(max(result.low_ns, 1.0) for result in results)
    high = max(max(result.high_ns, 1.0) for result in results)
    stretch = math.sqrt(max(_SHORTEST_AXIS / (high / low), 1.0))
    return low / stretch, high * stretch


def _result_table(report: CheckReport) -> Table:
    best = (generated_result(report), report.captured and report.captured.result)
    others = (*compiled_results(report), *report.absent_cpus, *filter(None, best))
    results = sort_results((*report.results, *others))
    cpu = reference_cpu(report.results)
    chosen = report.verdict.device if report.verdict.is_settled else None
    samples = [r.num_samples for r in report.results if r.source is Source.MEASURED]
    batch_size = report.step.batch_size
    columns = [
        Column("  device", list(map(_name_cell, results)), page_header="device"),
        Column("source", list(map(_source_text, results)), only=Medium.PAGE),
        Column(
            "step time",
            [duration_with_interval(r.step_ns, r.low_ns, r.high_ns) for r in results],
            page_header="step time (90 % interval)",
        ),
        Column(
            "faster → slower",
            list(map(_interval, results)),
            axis=(*log_axis(results), None if cpu is None else max(cpu.step_ns, 1.0)),
            only=Medium.TERMINAL,
            optional=2,
        ),
    ]
    if batch_size is not None:
        rates = [
            format_count(batch_size * NS_PER_S / one.step_ns, 2) if _is_usable(one) else ""
            for one in results
        ]
        columns.append(Column("samples/s", rates, is_number=True, optional=1))
    if cpu is not None:
        ratios = [_ratio_cell(result, cpu, report.verdict) for result in results]
        columns.append(
            Column("vs CPU", ratios, page_header="speed against the CPU", is_number=True)
        )
    bounds = [
        Cell("too big", style="red", page="too big for its memory")
        if result.fits is False
        else ("" if result.bound is None else result.bound.value)
        for result in results
    ]
    columns.append(Column("bound", bounds, page_header="limited by"))
    peaks = [result.peak_memory_bytes for result in results]
    if any(peak is not None for peak in peaks):
        texts = ["" if peak is None else format_bytes(peak, 2) for peak in peaks]
        columns.append(
            Column("memory", texts, page_header="peak memory", is_number=True, optional=3)
        )
    precisions = [printable(result.precision, 40) for result in results]
    columns.append(Column("precision", precisions, only=Medium.PAGE))
    return Table(
        columns,
        caption="The step on each device, fastest first",
        note="A measured time is one of this machine, a predicted one is of a device that was "
        "not there.",
        legend=f"{sample_legend(samples)}   (low–high) 90 % interval",
        # Generated and compiled steps are of the same devices, and not what the verdict is about.
        marks=[
            "out"
            if result.fits is False
            else ("chosen" if result.device == chosen and result not in others else "")
            for result in results
        ],
    )


def _is_usable(result: DeviceResult) -> bool:
    return result.step_ns > 0 and result.fits is not False


def _name_cell(result: DeviceResult) -> Cell:
    name = shorten(device_label(result), 32)
    return Cell((SOURCE_MARKS[result.source], f" {name}"), page=result_name(result))


def _source_text(result: DeviceResult) -> str:
    steps = f" ({result.num_samples:,} steps)" if result.num_samples else ""
    return f"{result.source}{steps}"


def _interval(result: DeviceResult) -> Interval:
    low, value, high = (max(ns, 1.0) for ns in (result.low_ns, result.step_ns, result.high_ns))
    return Interval(low, value, high, *SOURCE_MARKS[result.source])


def _ratio_cell(result: DeviceResult, cpu: DeviceResult, verdict: Verdict) -> Cell | str:
    if not _is_usable(result):
        return ""
    if verdict.choice is Choice.UNDECIDED and result is not cpu:
        # Nobody knows where in its interval the CPU's time is.
        _, low, high = speed_against(result, cpu)
        return Cell(ratio_range(low, high), style=_ratio_style(low, high))
    ratio = cpu.step_ns / result.step_ns
    return Cell(ratio_alone(ratio), style="" if result is cpu else _ratio_style(ratio, ratio))


def _ratio_style(low: float, high: float) -> str:
    if low > 1:
        return "green"
    return "yellow" if high <= 1 else ""


def _times_section(report: CheckReport) -> Iterator[Section]:
    """Yield the time of the whole training by device, the fastest first, if its length is known."""
    program = report.program
    if program is None or not program.times:
        return
    labels = {one.device: device_label(one) for one in (*report.results, *report.absent_cpus)}
    times = sorted(program.times, key=lambda each: each.total_ns)
    texts = [
        f"{format_time(each.total_ns)} ({format_time(each.low_ns)}–{format_time(each.high_ns)})"
        for each in times
    ]
    unknown = "" if program.other_ns is not None else ", without what is done between them"
    title = f"The whole training: {plural(program.num_steps or 0, 'step')} and start-up{unknown}"
    columns = (
        Column("device", [labels[each.device] for each in times]),
        Column("time (90 % interval)", texts),
    )
    table = Table(columns, caption=title, has_header=False)
    yield Section("The whole training", heading=title, blocks=(table,))


def _crossover_blocks(report: CheckReport) -> Iterator[Lines | Table]:
    """Yield from where on a GPU wins, and how its speed against the CPU's changes on the way."""
    sentence, *others = crossover_sentences(report)
    crossover = report.crossover
    found = crossover if isinstance(crossover, Crossover) else None
    place = f"{axis_word(found.axis)} {found.value:,}" if found else sentence[:0]
    before, bold, after = sentence.partition(place) if found else (sentence, "", "")
    yield Lines((Line((before, (bold, "bold"), after)), *map(Line, others)))
    verdict = report.verdict
    if verdict.choice is Choice.UNDECIDED and found is None:
        return  # ratios at each size, of times as uncertain
    # Of the GPU that the crossover, or else the verdict, is about.
    name = verdict.over if verdict.choice is Choice.CPU else verdict.device
    name = found.device if found else name
    gpus = [c for c in report.curves if c.kind is DeviceKind.GPU and c.device == name]
    cpus = [curve for curve in report.curves if curve.kind is DeviceKind.CPU]
    if not gpus or not cpus:
        return
    cpu_times_ns = {point.size: point.step_ns for point in cpus[0].points}
    ratios = [
        (point.size, cpu_times_ns[point.size] / point.step_ns)
        for point in sorted(gpus[0].points, key=lambda point: point.size)
        if point.size in cpu_times_ns and point.step_ns > 0
    ]
    if len(ratios) < 2:
        return
    label = shorten(printable(gpus[0].device), 18) + " vs CPU"
    columns = [Column(printable(gpus[0].axis.replace("_", " ")), (label,))]
    shown = evenly_spread(ratios, _MAX_SIZES)
    for number, (size, ratio) in enumerate(shown):
        cell = Cell(ratio_alone(ratio), style=_ratio_style(ratio, ratio))
        is_end = number in (0, len(shown) - 1)
        # Both ends always, then halves, then what lies between them.
        optional = 0 if is_end else len(shown) - (number & -number)
        columns.append(Column(f"{size:,}", (cell,), is_number=True, optional=optional))
    yield Table(columns)


def _finding_section(report: CheckReport) -> Iterator[Section]:
    findings = report.findings
    if not findings:
        return
    shown = [finding for finding in findings if _is_worth_a_line(finding)][:_MAX_FINDINGS]
    lines: list[Line] = []
    for finding, fix in zip(shown, fix_texts(shown), strict=True):
        code, title = printable(finding.code, 20), printable(finding.title)
        place = place_of(finding.file, finding.line)
        facts = [] if place is None else [place.text(72)]
        if finding.share_fraction > 0:
            facts.append(f"{format_percent(finding.share_fraction)} of the step")
        if finding.gain_fraction > 0:
            facts.append(f"the fix saves {format_percent(finding.gain_fraction)}")
        lines.append(Line(((code, "bold magenta"), f"  {title}"), indent=2))
        if facts:
            lines.append(Line(" · ".join(facts), "dim", 4))
        lines.append(Line((("fix: ", "green"), fix), indent=4))
    num_hidden = len(findings) - len(shown)
    if num_hidden > 0:
        more = f"and {plural(num_hidden, 'more finding')}, listed by --json"
        if not shown:
            more = f"no fix is known to save much; {plural(num_hidden, 'finding')} listed by --json"
        lines.append(Line(more, indent=2))
    headings = ("code", "what", "where", "share of the step", "the fix saves", "fix")
    table = Table(
        columns_of(headings, map(_finding_cells, findings), numbers="   nn"),
        "Findings, those with the most to gain first",
        only=Medium.PAGE,
    )
    yield Section(
        "What costs time on a GPU, and the fix", (Lines(tuple(lines), only=Medium.TERMINAL), table)
    )


def _is_worth_a_line(finding: Finding) -> bool:
    """Return whether the fix gains something, or the finding is about more than time."""
    is_about_time = finding.share_fraction > 0 or finding.gain_fraction > 0
    return not is_about_time or finding.gain_fraction >= _LEAST_GAIN


def _finding_cells(finding: Finding) -> tuple[str, ...]:
    place = place_of(finding.file, finding.line)
    share, gain = (
        format_percent(fraction) if fraction else ""
        for fraction in (finding.share_fraction, finding.gain_fraction)
    )
    return (
        printable(finding.code, 20),
        printable(finding.title),
        "" if place is None else place.text(300),
        share,
        gain,
        printable(finding.fix, 600),
    )
