"""A report for a person at a terminal: the verdict first, then why, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.chart_build import axis_word
from breakeven.report.check_text import crossover_sentence, verdict_sentence
from breakeven.report.curve_table import curve_table
from breakeven.report.program_text import (
    program_lines,
    program_sentences,
    threads_sentences,
    training_times,
    training_title,
)
from breakeven.report.result_table import (
    CHOICE_STYLES,
    device_label,
    glyphs_for,
    result_table,
)
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.text import plural, printable, shorten
from breakeven.timing import BUSY_MACHINE, Source
from breakeven.units import format_bytes, format_count, format_duration, format_percent
from breakeven.verdict import (
    CheckReport,
    Crossover,
    DeviceKind,
    DeviceResult,
    Finding,
)

_MAX_FINDINGS = 8
# A fix that saves less than this part of the step is not worth the reader's time.
_LEAST_GAIN = 0.005


def render(report: CheckReport, console: Console, *, hints: Sequence[str] = ()) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven check`` found out.
        console: Where to; its width, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
    """
    _say(
        console,
        Text(
            verdict_sentence(report.verdict, report.results),
            style=CHOICE_STYLES[report.verdict.choice],
        ),
    )
    if report.verdict.because:
        _say(console, Text(printable(report.verdict.because, 600)))
    for sentence in (*threads_sentences(report), *program_sentences(report)):
        _say(console, Text(sentence))
    for warning in _warnings(report):
        _say(console, Text(printable(warning), style="yellow"))
    console.line()
    for fact in _facts(report):
        _say(console, Text(fact, style="dim"))
    console.line()
    console.print(result_table(report, console))
    _say(console, _legend(report, console))
    for result in report.results:
        if result.fits is False:
            _say(console, Text(_too_big_sentence(result), style="red"))
    console.line()
    _render_times(report, console)
    _say(console, _crossover_sentence(report))
    curves = curve_table(report, console)
    if curves is not None:
        console.print(Padding(curves, (0, 0, 0, 2), expand=False))
    _render_findings(report.findings, console)
    _render_caveats(report, console)
    if hints:
        console.line()
        for hint in hints:
            _say(console, Text(printable(hint), style="dim"))


def _render_times(report: CheckReport, console: Console) -> None:
    times = list(training_times(report))
    if report.program is None or not times:
        return
    _say(console, Text(training_title(report.program), style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for cells in times:
        table.add_row(*cells)
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    console.line()


def _warnings(report: CheckReport) -> Iterator[str]:
    """Yield what may turn the verdict itself, and so belongs beside it."""
    for result in report.results:
        for caveat in result.caveats:
            if caveat.code == BUSY_MACHINE:
                yield f"Careful: {caveat.message}. Run it again when the machine is quiet."


def _say(console: Console, text: Text, indent: int = 0) -> None:
    # A path longer than the line is cut at the line's end, not dropped.
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)


def _facts(report: CheckReport) -> Iterator[str]:
    step, host = report.step, report.host
    batch = [] if step.batch_size is None else [f"batch size {step.batch_size:,}"]
    copies = ", ".join(
        f"{format_bytes(num_bytes, 2)} {direction}"
        for num_bytes, direction in ((step.h2d_bytes, "in"), (step.d2h_bytes, "out"))
        if num_bytes > 0
    )
    yield " · ".join(
        [
            printable(report.target, 120),
            *batch,
            f"{format_count(step.num_parameters)} parameters",
        ]
    )
    yield "step: " + " · ".join(
        [
            plural(step.num_ops, "op"),
            plural(step.num_kernels, "kernel"),
            plural(step.num_syncs, "sync"),
            *([f"copies {copies}"] if copies else []),
            f"host {format_duration(step.host_ns, 2)}",
        ]
    )
    more = (*program_lines(report.program), *side_effect_lines(report))
    yield from (f"{name}: {text}" for name, text in more)
    yield "host: " + " · ".join(
        [
            printable(host.name, 80),
            plural(host.num_threads, "thread"),
            f"torch {printable(host.torch_version)}",
            # What was assumed beside is in the JSON report.
            printable(host.calibration, 120),
        ]
    )


def _legend(report: CheckReport, console: Console) -> Text:
    glyphs = glyphs_for(console)
    marks = [f"{glyphs.predicted} predicted", "(low–high) 90 % interval"]
    samples = [r.num_samples for r in report.results if r.source is Source.MEASURED]
    if samples:
        least = f"{min(samples):,} to " if min(samples) < max(samples) else ""
        marks.insert(0, f"{glyphs.measured} measured ({least}{plural(max(samples), 'step')})")
    return Text("   ".join(marks), style="dim")


def _too_big_sentence(result: DeviceResult) -> str:
    needed = result.peak_memory_bytes
    size = "" if needed is None else f": it needs {format_bytes(needed, 2)}"
    return f"The step does not fit {device_label(result)}{size}."


def _crossover_sentence(report: CheckReport) -> Text:
    sentence = Text(crossover_sentence(report))
    if isinstance(report.crossover, Crossover):
        place = f"{axis_word(report.crossover.axis)} {report.crossover.value:,}"
        sentence.highlight_words([place], "bold")
    return sentence


def _render_findings(findings: Sequence[Finding], console: Console) -> None:
    if not findings:
        return
    console.line()
    _say(console, Text("What costs time on a GPU, and the fix", style="bold"))
    shown = [finding for finding in findings if _is_worth_a_line(finding)][:_MAX_FINDINGS]
    for finding in shown:
        _render_finding(finding, console)
    num_hidden = len(findings) - len(shown)
    if num_hidden > 0:
        _say(console, Text(f"and {plural(num_hidden, 'more finding')}, listed by --json"), 2)


def _is_worth_a_line(finding: Finding) -> bool:
    """Return whether the fix gains something, or the finding is about more than time."""
    is_about_time = finding.share_fraction > 0 or finding.gain_fraction > 0
    return not is_about_time or finding.gain_fraction >= _LEAST_GAIN


def _render_finding(finding: Finding, console: Console) -> None:
    head = Text.assemble(
        (printable(finding.code, 20), "bold magenta"), "  ", printable(finding.title)
    )
    _say(console, head, 2)
    shares: list[str] = []
    if finding.share_fraction > 0:
        shares.append(f"{format_percent(finding.share_fraction)} of the step")
    if finding.gain_fraction > 0:
        shares.append(f"the fix saves {format_percent(finding.gain_fraction)}")
    place = ""
    if finding.file is not None:
        line = "" if finding.line is None else f":{finding.line}"
        # The line number must survive, and a terminal makes `path:line` a link in one piece.
        room = max(console.width - 6 - len(line), 8)
        place = shorten(printable(finding.file, None), room) + line
    beneath = " · ".join([*([place] if place else []), *shares])
    if beneath:
        _say(console, Text(beneath, style="dim"), 4)
    _say(console, Text.assemble(("fix: ", "green"), printable(finding.fix, 600)), 4)


def _render_caveats(report: CheckReport, console: Console) -> None:
    """Show each caveat once, with the devices it holds for unless it holds for all of them.

    That of a busy machine stands beside the verdict already.
    """
    devices_by_caveat: dict[tuple[str, str], list[str]] = {
        (caveat.code, caveat.message): []
        for caveat in report.caveats
        if caveat.code != BUSY_MACHINE
    }
    everywhere = set(devices_by_caveat)
    for result in report.results:
        for caveat in result.caveats:
            if caveat.code == BUSY_MACHINE:
                continue
            names = devices_by_caveat.setdefault((caveat.code, caveat.message), [])
            if device_label(result) not in names:
                names.append(device_label(result))
    if not devices_by_caveat:
        return
    num_gpus = sum(result.kind is DeviceKind.GPU for result in report.results)
    console.line()
    _say(console, Text("Caveats", style="bold"))
    for (code, message), names in devices_by_caveat.items():
        text = Text.assemble((printable(code, 40), "yellow"), "  ", printable(message, 600))
        if (code, message) not in everywhere and len(names) < num_gpus:
            text.append(f" ({', '.join(names)})", style="dim")
        _say(console, text, 2)
