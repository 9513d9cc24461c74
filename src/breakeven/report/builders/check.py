"""The document of a check: the verdict, the curves, every device, every finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from breakeven.report.absent_cpu_text import absent_cpu_sentences
from breakeven.report.captured_text import captured_sentence
from breakeven.report.caveat_text import busy_warnings, caveat_section, caveats_of_results
from breakeven.report.charts.build import axis_word, report_charts
from breakeven.report.compiled_text import compiled_results, compiled_sentences
from breakeven.report.document import Document, Drawing, Lines, Section
from breakeven.report.generated_text import (
    generated_crossover_sentence,
    generated_result,
    generated_sentence,
)
from breakeven.report.phrase import Line, Medium, place_of
from breakeven.report.program_text import (
    program_facts,
    program_sentences,
    training_times,
    training_title,
)
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
    CHOICE_STYLES,
    crossover_sentence,
    emulation_sentences,
    fix_texts,
    run_facts,
    threads_sentences,
    verdict_sentence,
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
from breakeven.units import NS_PER_S, format_bytes, format_count, format_percent
from breakeven.verdict import (
    CheckReport,
    Choice,
    Crossover,
    Curve,
    CurvePoint,
    DeviceKind,
    DeviceResult,
    ExplainReport,
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
    return Document(
        title=f"Does a GPU pay off for {printable(report.target, 120)}?",
        answers=(*verdict_lines(report), *_crossover_lines(report)),
        warnings=busy_warnings(caveat for result in report.results for caveat in result.caveats),
        facts=tuple(run_facts(report, program_facts(report.program))),
        blocks=(
            Section("Step time", tuple(map(Drawing, charts)), only=Medium.PAGE),
            Section("Devices", heading="", blocks=tuple(_devices(report))),
            *_times_section(report),
            Section("", tuple(_crossover_blocks(report)), only=Medium.TERMINAL),
            *_finding_section(report),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
        charts=charts,
        heading=report.target,
    )


def _crossover_lines(report: CheckReport) -> Iterator[Line]:
    for sentence in (crossover_sentence(report), generated_crossover_sentence(report)):
        if sentence is not None:
            yield Line(sentence, only=Medium.PAGE)


def verdict_lines(report: CheckReport | ExplainReport) -> Iterator[Line]:
    """Yield where to train, why, and what becomes of the whole training."""
    verdict = report.verdict
    yield Line(verdict_sentence(verdict, report.results), CHOICE_STYLES[verdict.choice])
    if verdict.because:
        # An explanation says in full at a terminal what this sums up.
        only = Medium.PAGE if isinstance(report, ExplainReport) else None
        yield Line(printable(verdict.because, 600), only=only)
    for sentence in (
        *emulation_sentences(report),
        *threads_sentences(report),
        *program_sentences(report),
    ):
        yield Line(sentence)
    generated = generated_sentence(report) if isinstance(report, CheckReport) else None
    if generated is not None:
        yield Line(generated)
    if isinstance(report, CheckReport):
        yield from map(Line, filter(None, [captured_sentence(report)]))
        yield from map(Line, compiled_sentences(report))
        yield from map(Line, absent_cpu_sentences(report))


def log_axis(results: Sequence[DeviceResult]) -> tuple[float, float]:
    """Return the ends of an axis that holds every interval and is at least a decade long."""
    low = min(max(result.low_ns, 1.0) for result in results)
    high = max(max(result.high_ns, 1.0) for result in results)
    stretch = math.sqrt(max(_SHORTEST_AXIS / (high / low), 1.0))
    return low / stretch, high * stretch


def _devices(report: CheckReport) -> Iterator[Table | Lines]:
    yield _result_table(report)
    lines = [
        Line(f"The step does not fit {device_label(result)}{_needed(result)}.", "red")
        for result in report.results
        if result.fits is False
    ]
    yield Lines(tuple(lines), only=Medium.TERMINAL)


def _needed(result: DeviceResult) -> str:
    needed = result.peak_memory_bytes
    return "" if needed is None else f": it needs {format_bytes(needed, 2)}"


def _result_table(report: CheckReport) -> Table:
    best = (generated_result(report), report.captured and report.captured.result)
    others = (*compiled_results(report), *report.absent_cpus, *filter(None, best))
    results = sort_results((*report.results, *others))
    cpu = reference_cpu(report.results)
    chosen = report.verdict.device if report.verdict.is_settled else None
    # Generated and compiled steps are of the same devices, and not what the verdict is about.
    marks = ["chosen" if r.device == chosen and r not in others else "" for r in results]
    samples = [r.num_samples for r in report.results if r.source is Source.MEASURED]
    return Table(
        tuple(_columns(report, results, cpu)),
        caption="The step on each device, fastest first",
        note="A measured time is one of this machine, a predicted one is of a device that was "
        "not there.",
        legend=f"{sample_legend(samples)}   (low–high) 90 % interval",
        marks=tuple(marks),
        row_styles=tuple(
            "dim" if result.fits is False else "bold" if mark else ""
            for result, mark in zip(results, marks, strict=True)
        ),
        indent=0,
    )


def _columns(
    report: CheckReport, results: Sequence[DeviceResult], cpu: DeviceResult | None
) -> Iterator[Column]:
    batch_size = report.step.batch_size
    yield Column("  device", page_header="device", cells=tuple(map(_name_cell, results)))
    yield Column("source", tuple(map(_source, results)), only=Medium.PAGE)
    yield Column(
        "step time",
        page_header="step time (90 % interval)",
        cells=tuple(duration_with_interval(r.step_ns, r.low_ns, r.high_ns) for r in results),
    )
    yield Column(
        "faster|slower",
        tuple(map(_interval, results)),
        axis=(*log_axis(results), None if cpu is None else max(cpu.step_ns, 1.0)),
        only=Medium.TERMINAL,
        joins=2,
    )
    if batch_size is not None:
        yield Column(
            "samples/s",
            tuple(
                format_count(batch_size * NS_PER_S / result.step_ns, 2)
                if _is_usable(result)
                else ""
                for result in results
            ),
            is_number=True,
            joins=1,
        )
    if cpu is not None:
        yield Column(
            "vs CPU",
            page_header="speed against the CPU",
            cells=tuple(_ratio_cell(result, cpu, report.verdict) for result in results),
            is_number=True,
        )
    yield Column("bound", page_header="limited by", cells=tuple(map(_bound_cell, results)))
    if any(result.peak_memory_bytes is not None for result in results):
        yield Column(
            "memory",
            page_header="peak memory",
            cells=tuple(
                "" if r.peak_memory_bytes is None else format_bytes(r.peak_memory_bytes, 2)
                for r in results
            ),
            is_number=True,
            joins=3,
        )
    precisions = tuple(printable(result.precision, 40) for result in results)
    yield Column("precision", precisions, only=Medium.PAGE)


def _is_usable(result: DeviceResult) -> bool:
    return result.step_ns > 0 and result.fits is not False


def _name_cell(result: DeviceResult) -> Cell:
    name = shorten(device_label(result), 26)
    return Cell((SOURCE_MARKS[result.source], f" {name}"), page=result_name(result))


def _source(result: DeviceResult) -> str:
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


def _bound_cell(result: DeviceResult) -> Cell | str:
    if result.fits is False:
        return Cell("too big", style="red", page="too big for its memory")
    return "" if result.bound is None else result.bound.value


def _times_section(report: CheckReport) -> Iterator[Section]:
    times = tuple(training_times(report))
    if report.program is None or not times:
        return
    names, texts = zip(*times, strict=True)
    title = training_title(report.program)
    table = Table(
        (Column("device", names), Column("time (90 % interval)", texts)),
        caption=title,
        has_header=False,
    )
    yield Section("The whole training", heading=title, blocks=(table,))


def _crossover_blocks(report: CheckReport) -> Iterator[Lines | Table]:
    """Yield from where on a GPU wins, and how its speed against the CPU's changes on the way."""
    sentence, crossover = crossover_sentence(report), report.crossover
    place = ""
    if isinstance(crossover, Crossover):
        place = f"{axis_word(crossover.axis)} {crossover.value:,}"
    before, found, after = sentence.partition(place) if place else (sentence, "", "")
    yield Lines((Line((before, (found, "bold"), after)),))
    generated = generated_crossover_sentence(report)
    if generated is not None:
        yield Lines((Line(generated),))
    verdict = report.verdict
    if verdict.choice is Choice.UNDECIDED and not isinstance(crossover, Crossover):
        return  # ratios at each size, of times as uncertain
    # Of the GPU that the crossover, or else the verdict, is about.
    name = verdict.over if verdict.choice is Choice.CPU else verdict.device
    name = crossover.device if isinstance(crossover, Crossover) else name
    gpu, cpu = _curve(report, DeviceKind.GPU, name), _curve(report, DeviceKind.CPU, None)
    if gpu is None or cpu is None:
        return
    cpu_points = {point.size: point for point in cpu.points}
    pairs = [
        (cpu_points[point.size], point)
        for point in sorted(gpu.points, key=lambda point: point.size)
        if point.size in cpu_points and point.step_ns > 0
    ]
    if len(pairs) > 1:
        yield _curve_table(gpu, evenly_spread(pairs, _MAX_SIZES))


def _curve(report: CheckReport, kind: DeviceKind, device: str | None) -> Curve | None:
    for curve in report.curves:
        if curve.kind is kind and device in (None, curve.device):
            return curve
    return None


def _curve_table(gpu: Curve, pairs: Sequence[tuple[CurvePoint, CurvePoint]]) -> Table:
    """Return one row of ratios; of the sizes between, as many join as there is room for."""
    label = shorten(printable(gpu.device), 18) + " vs CPU"
    columns = [Column(printable(gpu.axis.replace("_", " ")), (label,))]
    for number, (cpu_point, gpu_point) in enumerate(pairs):
        ratio = cpu_point.step_ns / gpu_point.step_ns
        cell = Cell(ratio_alone(ratio), style=_ratio_style(ratio, ratio))
        is_end = number in (0, len(pairs) - 1)
        # Halves first, then what lies between them.
        joins = 0 if is_end else len(pairs) - (number & -number)
        header = f"{cpu_point.size:,}"
        columns.append(Column(header, (cell,), is_number=True, joins=joins))
    return Table(columns)


def _finding_section(report: CheckReport) -> Iterator[Section]:
    findings = report.findings
    if not findings:
        return
    shown = [finding for finding in findings if _is_worth_a_line(finding)][:_MAX_FINDINGS]
    lines = [
        line
        for finding, fix in zip(shown, fix_texts(shown), strict=True)
        for line in _finding_lines(finding, fix)
    ]
    num_hidden = len(findings) - len(shown)
    if num_hidden > 0:
        more = f"and {plural(num_hidden, 'more finding')}, listed by --json"
        if not shown:
            more = f"no fix is known to save much; {plural(num_hidden, 'finding')} listed by --json"
        lines.append(Line(more, indent=2))
    headings = ("code", "what", "where", "share of the step", "the fix saves", "fix")
    rows = map(_finding_cells, findings)
    table = Table(
        columns_of(headings, rows, numbers="   nn"),
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


def _finding_lines(finding: Finding, fix: str) -> Iterator[Line]:
    code, title = printable(finding.code, 20), printable(finding.title)
    yield Line(((code, "bold magenta"), f"  {title}"), indent=2)
    shares: list[str] = []
    if finding.share_fraction > 0:
        shares.append(f"{format_percent(finding.share_fraction)} of the step")
    if finding.gain_fraction > 0:
        shares.append(f"the fix saves {format_percent(finding.gain_fraction)}")
    place = place_of(finding.file, finding.line)
    if place is not None or shares:
        yield Line(" · ".join(shares), "dim", 4, place)
    yield Line((("fix: ", "green"), fix), indent=4)


def _finding_cells(finding: Finding) -> tuple[str, ...]:
    place = place_of(finding.file, finding.line)
    return (
        printable(finding.code, 20),
        printable(finding.title),
        "" if place is None else place.text(300),
        _percent(finding.share_fraction),
        _percent(finding.gain_fraction),
        printable(finding.fix, 600),
    )


def _percent(fraction: float) -> str:
    return format_percent(fraction) if fraction else ""
