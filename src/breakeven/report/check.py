"""The document of a check: the verdict, the curves, every device, every finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from breakeven.report.answer_text import (
    SOURCE_MARKS,
    device_label,
    named_label,
    reference_cpu,
    sample_legend,
    sort_results,
    speed_against,
    verdict_lines,
)
from breakeven.report.chart import Chart, axis_word, crossover_interval
from breakeven.report.check_report import CheckReport
from breakeven.report.document import TOO_BIG, Cell, Column, Document, Line, Medium, Section, Table
from breakeven.report.run_text import (
    busy_warnings,
    caveat_section,
    caveats_of_results,
    fix_texts,
    run_facts,
)
from breakeven.report.speed_chart import TimedLine, chosen_gpus, device_chart, speed_chart
from breakeven.report.text import (
    duration_with_interval,
    listed,
    place_text,
    plural,
    printable,
    ratio_alone,
    ratio_with_interval,
    shorten,
)
from breakeven.simulate import Finding
from breakeven.timing import Source
from breakeven.trace import is_notebook
from breakeven.units import (
    NS_PER_S,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_time,
)
from breakeven.verdict import (
    Choice,
    Crossover,
    DeviceKind,
    DeviceResult,
    NoCrossover,
    Timed,
    Verdict,
    cpu_result,
)

_MAX_FINDINGS = 8
# A fix that saves a smaller share of the step is not worth reading about.
_LEAST_GAIN = 0.005
_MOST_BREAKS = 3


def check_document(report: CheckReport) -> Document:
    """Return the document of a check."""
    charts = check_charts(report)
    crossovers = list(_crossover_sentences(report))
    too_big: list[Line] = []
    for result in report.results:
        if result.fits is False:
            peak = result.peak_memory_bytes
            needed = "" if peak is None else f": it needs {format_bytes(peak, 2)}"
            text = f"The step does not fit {device_label(result)}{needed}."
            too_big.append(Line(text, "red", only=Medium.TERMINAL))
    return Document(
        title=f"Does a GPU pay off for {printable(report.target, 120)}?",
        answers=(
            *verdict_lines(report),
            *map(Line, _at_best_sentences(report)),
            *map(Line, _compiled_sentences(report)),
            *map(Line, _absent_cpu_sentences(report)),
            *(Line(sentence, only=Medium.PAGE) for sentence in crossovers),
        ),
        warnings=busy_warnings(caveat for result in report.results for caveat in result.caveats),
        facts=tuple(run_facts(report)),
        blocks=(
            Section(
                "From which size on a GPU pays off" if report.curves else "Speed of each device",
                charts,
                only=Medium.PAGE,
            ),
            Section("Devices", (_result_table(report), *too_big), heading=""),
            *_times_section(report),
            _crossover_section(report, crossovers),
            *_finding_section(report),
            *caveat_section(caveats_of_results(report), most=len(report.results) + 20),
        ),
        charts=charts,
        command=report.command,
    )


def check_charts(report: CheckReport) -> tuple[Chart, ...]:
    """Return the chart along the sizes, or of the devices if there are no curves."""
    chart = _size_chart(report) or device_chart(report.results, other_forms(report))
    return () if chart is None else (chart,)


def _size_chart(report: CheckReport) -> Chart | None:
    """Return the speeds along the sizes; other forms of the recorded step are single points."""
    curves, own_size = [one for one in report.curves if one.points], report.step.batch_size
    cpu = next((curve for curve in curves if curve.kind is DeviceKind.CPU), None)
    here = reference_cpu(report.results)
    if cpu is None or here is None:
        return None
    forms = () if own_size is None else tuple(other_forms(report))
    sizes = sorted(
        {point.size for curve in curves for point in curve.points}
        | ({own_size} if forms and own_size is not None else set())
    )
    drawn = {curve.device for curve in curves}
    gpus = {
        one.device: math.inf if one.fits is False else one.step_ns
        for one in report.results
        if one.kind is DeviceKind.GPU and one.device in drawn
    }
    crossover = report.crossover if isinstance(report.crossover, Crossover) else None
    best = min(gpus, key=gpus.__getitem__, default="") if crossover is None else crossover.device
    lines = [
        TimedLine(
            name=curve.device if curve.kind is DeviceKind.GPU else device_label(here),
            kind=curve.kind,
            times={sizes.index(point.size): point for point in curve.points},
        )
        for curve in curves
    ]
    rivals: dict[int, Timed] = {sizes.index(point.size): point for point in cpu.points}
    if own_size in sizes:
        row = sizes.index(own_size)
        rivals.setdefault(row, here)
        lines += [
            TimedLine(name=device_label(one), device=one.device, kind=one.kind, times={row: one})
            for one in forms
        ]
    word = axis_word(cpu.axis)
    return speed_chart(
        title=f"Speed against {device_label(here)} along the {word}",
        word=word,
        places=[float(size) for size in sizes],
        x_labels=[f"{size:,}" for size in sizes],
        lines=lines,
        rival=device_label(here),
        rivals=rivals,
        chosen=chosen_gpus(gpus, best),
        crossovers=[] if crossover is None else [("", crossover)],
    )


def other_forms(report: CheckReport) -> Iterator[DeviceResult]:
    """Yield other forms of the step, and other CPUs, which the verdict does not compare."""
    yield from filter(None, (_generated_result(report), report.captured and report.captured.result))
    yield from _compiled_results(report)
    yield from report.absent_cpus


def _generated_result(report: CheckReport) -> DeviceResult | None:
    """Return this CPU's step as generated code; None if the gain is too small to show."""
    step, cpu = report.generated, reference_cpu(report.results)
    if step is None or cpu is None or not step.is_worth_it:
        return None
    return cpu_result(
        cpu.device, step.step, precision=cpu.precision, fits=True, setting="generated step"
    )


def _compiled_results(report: CheckReport) -> Iterator[DeviceResult]:
    eager = {result.device: result for result in report.results if result.kind is DeviceKind.GPU}
    for one in report.compiled.results if report.compiled else ():
        if one.device in eager:
            found = {name: getattr(one, name) for name in ("step_ns", "low_ns", "high_ns", "bound")}
            predicted = replace(eager[one.device], source=Source.PREDICTED, num_samples=0)
            yield replace(predicted, setting="compiled", **found)


def _fastest_gpu(results: Sequence[DeviceResult]) -> DeviceResult | None:
    gpus = [one for one in results if one.kind is DeviceKind.GPU and one.fits is not False]
    return min(gpus, key=lambda one: one.step_ns, default=None)


def _speed_text(result: DeviceResult, other: DeviceResult) -> str:
    return f"{ratio_with_interval(*speed_against(result, other))} as fast as {device_label(other)}"


def _at_best_sentences(report: CheckReport) -> Iterator[str]:
    """Yield the sentences on the CPU's step as generated code and a GPU's as a CUDA graph."""
    step, cpu = report.generated, _generated_result(report)
    if step is not None and cpu is not None:
        gpu = _fastest_gpu(report.results)
        yield (
            f"With forward, backward and update as generated code, a step takes "
            f"{format_duration(step.step_ns, 2)} on this CPU, {format_duration(step.kept_ns, 2)} "
            f"of that for the rest of the loop: {ratio_alone(step.speedup)} as fast as now"
            f"{'' if gpu is None else f' and {_speed_text(cpu, gpu)}'}. To train so, "
            f"{'' if is_notebook(report.target) else 'use breakeven tune and breakeven run, or '}"
            "call breakeven.fast_step in the loop."
        )
    if report.captured is None:
        return
    gpu, because, way = report.captured.result, "", "a CUDA graph"
    if report.captured.because:
        because = f"One CUDA graph cannot replay this step: {printable(report.captured.because)}. "
        way = 'torch.compile(mode="reduce-overhead")'
    if gpu is None:
        if because:
            yield because.rstrip()
        return
    named = f"{printable(gpu.device)} with {way}"
    time = duration_with_interval(gpu.step_ns, gpu.low_ns, gpu.high_ns)
    if cpu is None:
        yield f"{because}{named} is predicted to take {time} for a step."
        return
    faster, slower = sorted((cpu, gpu), key=lambda result: result.step_ns)
    ratio = speed_against(faster, slower)
    is_open = " (too close to call)" if ratio[1] < 1 else ""
    yield (
        f"{because}At their best: a generated step takes this CPU "
        f"{format_duration(cpu.step_ns, 2)}, {named} {time}, predicted: the "
        f"{faster.kind.upper()} is {ratio_with_interval(*ratio)} as fast{is_open}."
    )


def _compiled_sentences(report: CheckReport) -> Iterator[str]:
    """Yield the compiled step's time and cost on the verdict's GPU."""
    steps = report.compiled
    if steps is None or not steps.results:
        return
    fastest = min(steps.results, key=lambda one: one.step_ns)
    one = next((one for one in steps.results if one.device in report.verdict.pair), fastest)
    mode = "" if steps.mode == "default" else f' in mode "{steps.mode}"'
    pays = "which it never makes up for"
    if one.pays_after_steps is not None:
        pays = f"paid for after {format_count(one.pays_after_steps, 2)} steps"
    # If the script compiles its model, the verdict is still about the step without compiling.
    compared = "without it, as the verdict takes it" if steps.is_asked_for_by_script else "written"
    yield (
        f"Compiled by torch.compile{mode}, a step on {printable(one.device)} is predicted to take "
        f"{format_duration(one.step_ns, 2)}: {ratio_alone(one.speedup)} as fast as {compared}. "
        f"Compiling takes about {format_duration(steps.compile_ns, 1)}, {pays}."
    )
    if steps.breaks:
        known = [at.location for at in steps.breaks if at.location is not None]
        lines = ", ".join(place_text(at.file, at.line, 80) for at in known[:_MOST_BREAKS])
        yield (
            f"The model waits for values, which breaks the compiled graph "
            f"{plural(len(steps.breaks), 'time')} per call{f': {lines}' if lines else ''}."
        )


def _absent_cpu_sentences(report: CheckReport) -> Iterator[str]:
    """Yield each absent CPU's step time relative to this CPU and the fastest GPU."""
    others = [reference_cpu(report.results), _fastest_gpu(report.results)]
    for absent in report.absent_cpus:
        against = [_speed_text(absent, other) for other in others if other is not None]
        yield (
            f"On {device_label(absent)}, a step is predicted to take "
            f"{format_duration(absent.step_ns, 2)}: {' and '.join(against)}."
        )
    if report.absent_cpus:
        yield "The verdict compares GPUs with this CPU alone, which was measured."


def _crossover_sentences(report: CheckReport) -> Iterator[str]:
    """Yield the crossover or the reason for none, first for the step, then for generated code."""
    cpu = reference_cpu(report.results)
    for found, rival in (
        (report.crossover, "the CPU" if cpu is None else device_label(cpu)),
        (report.generated_crossover, "generated code on this CPU"),
    ):
        match found:
            case Crossover(searched=(first, last)):
                winner = named_label(report.results, found.device)
                yield (
                    f"Crossover: from {axis_word(found.axis)} {found.value:,} "
                    f"({crossover_interval(found)}) on, {winner} is faster than {rival} "
                    f"(searched {first:,} to {last:,})."
                )
            case NoCrossover():
                # A crossover may exist outside the searched range.
                what = "Crossover not known: " if found.searched is None else "No crossover: "
                is_first = found is report.crossover
                yield f"{what if is_first else ''}{printable(found.none_because, 600)}"
            case None:
                pass


def _result_table(report: CheckReport) -> Table:
    others = tuple(other_forms(report))
    results = sort_results((*report.results, *others))
    cpu = reference_cpu(report.results)
    chosen = report.verdict.device if report.verdict.is_settled else None
    names: list[Cell] = []
    bounds: list[Cell | str] = []
    marks: list[str] = []
    for one in results:
        label, device = device_label(one), printable(one.device)
        page = label if label == device else f"{label} ({device})"
        names.append(Cell((SOURCE_MARKS[one.source], f" {shorten(label, 32)}"), page=page))
        if one.fits is False:
            bounds.append(TOO_BIG)
            marks.append("out")
        else:
            bounds.append("" if one.bound is None else one.bound.word)
            marks.append("chosen" if one.device == chosen and one not in others else "")
    sources = [
        f"{one.source} ({one.num_samples:,} steps)" if one.num_samples else f"{one.source}"
        for one in results
    ]
    times = [duration_with_interval(one.step_ns, one.low_ns, one.high_ns) for one in results]
    columns = [
        Column("  device", names, page_header="device"),
        Column("source", sources, only=Medium.PAGE),
        Column("step time", times, page_header="step time (90 % interval)"),
    ]
    if report.step.batch_size is not None:
        per_s = report.step.batch_size * NS_PER_S
        rates = [format_count(per_s / one.step_ns, 2) if _is_usable(one) else "" for one in results]
        columns.append(Column("samples/s", rates, is_number=True, optional=1))
    if cpu is not None:
        ratios = [_ratio_cell(result, cpu, report.verdict) for result in results]
        columns.append(
            Column("vs CPU", ratios, page_header="speed against the CPU", is_number=True)
        )
    columns.append(Column("bound", bounds, page_header="limited by"))
    peaks = [result.peak_memory_bytes for result in results]
    if any(peak is not None for peak in peaks):
        texts = ["" if peak is None else format_bytes(peak, 2) for peak in peaks]
        columns.append(
            Column("memory", texts, page_header="peak memory", is_number=True, optional=3)
        )
    precisions = [printable(result.precision, 40) for result in results]
    columns.append(Column("precision", precisions, only=Medium.PAGE))
    samples = [one.num_samples for one in report.results if one.source is Source.MEASURED]
    return Table(
        columns,
        caption="The step on each device, fastest first",
        note="Measured times are of this machine; times of devices that it lacks are predicted.",
        legend=f"{sample_legend(samples)}   (low–high) 90 % interval",
        marks=marks,
    )


def _is_usable(result: DeviceResult) -> bool:
    return result.step_ns > 0 and result.fits is not False


def _ratio_cell(result: DeviceResult, cpu: DeviceResult, verdict: Verdict) -> Cell | str:
    if not _is_usable(result):
        return ""
    if verdict.choice is Choice.UNDECIDED and result is not cpu:
        # The CPU's time may be anywhere in its interval.
        _, low, high = speed_against(result, cpu)
        return _styled(f"{ratio_alone(low).removesuffix('×')}–{ratio_alone(high)}", low, high)
    ratio = cpu.step_ns / result.step_ns
    return ratio_alone(ratio) if result is cpu else _styled(ratio_alone(ratio), ratio, ratio)


def _styled(text: str, low: float, high: float) -> Cell:
    return Cell(text, style="green" if low > 1 else "yellow" if high <= 1 else "")


def _times_section(report: CheckReport) -> Iterator[Section]:
    """Yield the time of the whole training by device, fastest first, if its length is known."""
    program = report.program
    if program is None or not program.times:
        return
    labels = {one.device: device_label(one) for one in (*report.results, *report.absent_cpus)}
    times = sorted(program.times, key=lambda each: each.total_ns)
    texts = [
        f"{format_time(each.total_ns)} ({format_time(each.low_ns)}–{format_time(each.high_ns)})"
        for each in times
    ]
    unknown = "" if program.other_ns is not None else ", without the work between steps"
    title = f"The whole training: {plural(program.num_steps or 0, 'step')} and start-up{unknown}"
    columns = (
        Column("device", [labels[each.device] for each in times]),
        Column("time (90 % interval)", texts),
    )
    table = Table(columns, caption=title, has_header=False)
    yield Section("The whole training", (table,), heading=title)


def _crossover_section(report: CheckReport, sentences: Sequence[str]) -> Section:
    """Return the crossover, and the speed of GPUs along the sizes."""
    # An open verdict has times that are too uncertain for a curve.
    is_undecided = report.verdict.choice is Choice.UNDECIDED
    is_open = is_undecided and not isinstance(report.crossover, Crossover)
    chart = None if is_open else _size_chart(report)
    blocks = (*map(Line, sentences), *([] if chart is None else [chart]))
    return Section("", blocks, only=Medium.TERMINAL)


def is_small(finding: Finding) -> bool:
    """Return whether a fix saves too little to be read; a fault without a time is never small."""
    is_timed = max(finding.share_fraction, finding.gain_fraction) > 0
    return is_timed and finding.gain_fraction < _LEAST_GAIN


def _finding_section(report: CheckReport) -> Iterator[Section]:
    """Yield the findings; a terminal shows those whose fix saves a noticeable amount."""
    # The same fault on several lines is one finding.
    lines_of: dict[tuple[str, str, str], list[Finding]] = {}
    for one in report.findings:
        lines_of.setdefault((one.code, one.title, one.fix), []).append(one)
    findings = [max(own, key=lambda one: one.gain_fraction) for own in lines_of.values()]
    if not findings:
        return
    findings.sort(key=is_small)
    num_small = sum(map(is_small, findings))
    num_shown = min(len(findings) - num_small, _MAX_FINDINGS)
    lines: list[Line] = []
    for number, (finding, fix) in enumerate(zip(findings, fix_texts(findings), strict=True)):
        only = Medium.PAGE if number >= num_shown else None
        own = lines_of[finding.code, finding.title, finding.fix]
        places = list(filter(None, dict.fromkeys(place_text(f.file, f.line, 72) for f in own)))
        share, gain = (
            format_percent(part) if part > 0 else ""
            for part in (finding.share_fraction, finding.gain_fraction)
        )
        where = f"{plural(len(places), 'line')}: " if len(places) > 1 else ""
        each = "of one saves up to" if where else "saves"
        facts = (
            where + listed(places, 3),
            f"{share} of the step" if share and not where else "",
            f"the fix {each} {gain}" if gain else "",
        )
        head = ((printable(finding.code, 20), "bold magenta"), f"  {printable(finding.title)}")
        lines.append(Line(head, indent=2, only=only))
        if any(facts):
            lines.append(Line(" · ".join(filter(None, facts)), "dim", 4, only))
        lines.append(Line((("fix: ", "green"), fix), indent=4, only=only))
    num_hidden = len(findings) - num_shown
    if num_hidden:
        more = f"and {plural(num_hidden, 'more finding')}, listed by --json"
        if not num_shown:
            more = f"no known fix saves much; {plural(num_hidden, 'finding')} listed by --json"
        lines.append(Line(more, indent=2, only=Medium.TERMINAL))
    yield Section("What costs time on a GPU, and the fix", lines)
