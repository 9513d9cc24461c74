"""The page of a check: the verdict, the curves, every device, every finding."""

from __future__ import annotations

from breakeven.report.chart_build import report_charts
from breakeven.report.chart_svg import svg_chart
from breakeven.report.check_text import (
    busy_warnings,
    crossover_sentence,
    grouped_caveats,
    host_facts,
    place_text,
    result_name,
    step_facts,
    verdict_sentence,
)
from breakeven.report.html_model import Page, PageSection, PageTable, caveat_section
from breakeven.report.program_text import (
    program_lines,
    program_sentences,
    threads_sentences,
    training_times,
    training_title,
)
from breakeven.report.result_table import reference_cpu, sort_results
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.text import duration_with_interval, printable, ratio_alone
from breakeven.timing import Source
from breakeven.units import NS_PER_S, format_bytes, format_count, format_percent
from breakeven.verdict import CheckReport, DeviceResult


def check_page(report: CheckReport) -> Page:
    """Return the page of a check."""
    of_devices = [(result_name(result), result.caveats) for result in report.results]
    return Page(
        title=f"Does a GPU pay off for {printable(report.target, 120)}?",
        answers=(
            verdict_sentence(report.verdict, report.results),
            *([printable(report.verdict.because, 600)] if report.verdict.because else []),
            *threads_sentences(report),
            *program_sentences(report),
            crossover_sentence(report),
        ),
        warnings=busy_warnings(caveat for result in report.results for caveat in result.caveats),
        facts=(
            *step_facts(report.target, report.step),
            *program_lines(report.program),
            *side_effect_lines(report),
            *host_facts(report.host),
        ),
        sections=(
            PageSection(
                title="Step time",
                charts=tuple(svg_chart(chart) for chart in report_charts(report)),
            ),
            PageSection(title="Devices", tables=(_result_table(report),)),
            *_times_section(report),
            *_finding_section(report),
            *caveat_section(grouped_caveats(report.caveats, of_devices)),
        ),
    )


def _times_section(report: CheckReport) -> tuple[PageSection, ...]:
    times = tuple(training_times(report))
    if report.program is None or not times:
        return ()
    table = PageTable(
        caption=training_title(report.program),
        headings=("device", "time (90 % interval)"),
        are_numbers=(False, True),
        rows=times,
    )
    return (PageSection(title="The whole training", tables=(table,)),)


def _result_table(report: CheckReport) -> PageTable:
    results = sort_results(report.results)
    cpu = reference_cpu(results)
    chosen = report.verdict.device if report.verdict.is_settled else None
    return PageTable(
        caption="The step on each device, fastest first",
        headings=(
            "device",
            "source",
            "step time (90 % interval)",
            "samples/s",
            "speed against the CPU",
            "limited by",
            "peak memory",
            "precision",
        ),
        are_numbers=(False, False, True, True, True, False, True, False),
        rows=tuple(_result_cells(result, cpu, report.step.batch_size) for result in results),
        marks=tuple("chosen" if result.device == chosen else "" for result in results),
        note="A measured time is one of this machine, a predicted one is of a device that was "
        "not there.",
    )


def _result_cells(
    result: DeviceResult, cpu: DeviceResult | None, batch_size: int | None
) -> tuple[str, ...]:
    is_usable = result.step_ns > 0 and result.fits is not False
    has_ratio = is_usable and cpu is not None
    memory = result.peak_memory_bytes
    steps = f" ({result.num_samples:,} steps)" if result.source is Source.MEASURED else ""
    return (
        result_name(result),
        f"{result.source}{steps}",
        duration_with_interval(result.step_ns, result.low_ns, result.high_ns),
        format_count(batch_size * NS_PER_S / result.step_ns, 2) if is_usable and batch_size else "",
        ratio_alone(cpu.step_ns / result.step_ns) if has_ratio and cpu is not None else "",
        "too big for its memory" if result.fits is False else (result.bound or ""),
        "" if memory is None else format_bytes(memory, 2),
        printable(result.precision, 40),
    )


def _finding_section(report: CheckReport) -> tuple[PageSection, ...]:
    if not report.findings:
        return ()
    table = PageTable(
        caption="Findings, those with the most to gain first",
        headings=("code", "what", "where", "share of the step", "the fix saves", "fix"),
        are_numbers=(False, False, False, True, True, False),
        rows=tuple(
            (
                printable(finding.code, 20),
                printable(finding.title),
                place_text(finding.file, finding.line),
                format_percent(finding.share_fraction) if finding.share_fraction else "",
                format_percent(finding.gain_fraction) if finding.gain_fraction else "",
                printable(finding.fix, 600),
            )
            for finding in report.findings
        ),
    )
    return (PageSection(title="What costs time on a GPU, and the fix", tables=(table,)),)
