"""An explanation for a person at a terminal: the step, where its time goes, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.check_text import busy_warnings, grouped_caveats, verdict_sentence
from breakeven.report.explain_bars import cause_bars, line_bars, module_bars, phase_line
from breakeven.report.explain_findings import findings_block
from breakeven.report.explain_plan import plan_block
from breakeven.report.explain_strip_text import strip_block
from breakeven.report.explain_text import busy_sentence, headline
from breakeven.report.program_text import program_sentences, threads_sentences
from breakeven.report.result_table import CHOICE_STYLES, device_label
from breakeven.report.side_effects_text import side_effect_lines
from breakeven.report.text import plural, printable
from breakeven.units import format_bytes, format_count
from breakeven.verdict import DeviceKind, ExplainReport

# From this width on, causes and lines fit side by side.
_TWO_COLUMNS_CHARACTERS = 130
_COLUMN_GAP = 4


def render_explanation(
    report: ExplainReport,
    console: Console,
    *,
    hints: Sequence[str] = (),
    shows_evidence: bool = False,
) -> None:
    """Write ``report`` to ``console``, as wide as the console is.

    Args:
        report: What ``breakeven explain`` found out.
        console: Where to; its width, colours and encoding are honoured.
        hints: Lines at the end that say what to do next.
        shows_evidence: Say with each finding what shows it.
    """
    for block in _blocks(report, console, shows_evidence=shows_evidence):
        console.print(block)
        console.line()
    for caveat in _caveats(report):
        console.print(_folded(caveat))
    for hint in hints:
        console.print(_folded(Text(printable(hint), style="dim")))


def _blocks(
    report: ExplainReport, console: Console, *, shows_evidence: bool
) -> Iterator[RenderableType]:
    yield Group(*map(_folded, _head(report)))
    strip = strip_block(report, console)
    if strip is not None:
        yield strip
    yield from _attribution(report, console)
    yield findings_block(report, console, shows_evidence=shows_evidence)
    if report.plan:
        yield plan_block(report, console)
    modules = module_bars(report, console)
    if modules is not None:
        yield modules


def _head(report: ExplainReport) -> Iterator[Text]:
    yield Text(headline(report), style="bold")
    yield Text(busy_sentence(report))
    verdict = report.verdict
    yield Text(verdict_sentence(verdict, report.results), style=CHOICE_STYLES[verdict.choice])
    for sentence in (*threads_sentences(report), *program_sentences(report)):
        yield Text(sentence)
    of_results = (caveat for result in report.results for caveat in result.caveats)
    for warning in busy_warnings((*report.caveats, *of_results)):
        yield Text(warning, style="yellow")
    yield Text(_facts(report), style="dim")
    for name, text in side_effect_lines(report):
        yield Text(f"{name}: {text}", style="dim")


def _facts(report: ExplainReport) -> str:
    step = report.step
    facts = [
        *([] if step.batch_size is None else [f"batch size {step.batch_size:,}"]),
        f"{format_count(step.num_parameters)} parameters",
        plural(step.num_ops, "op"),
        plural(step.num_kernels, "kernel"),
        plural(step.num_syncs, "sync"),
        *([f"{format_bytes(step.h2d_bytes, 2)} in"] if step.h2d_bytes else []),
        *([f"{format_bytes(step.d2h_bytes, 2)} out"] if step.d2h_bytes else []),
        f"host {printable(report.host.name, 60)}",
    ]
    return " · ".join(facts)


def _attribution(report: ExplainReport, console: Console) -> Iterator[RenderableType]:
    """Yield causes and lines, side by side where there is room."""
    width = console.width
    phases = _folded(phase_line(report))
    if width < _TWO_COLUMNS_CHARACTERS:
        yield Group(cause_bars(report, console, width), phases)
        yield line_bars(report, console, width)
        return
    half = (width - _COLUMN_GAP) // 2
    grid = Table.grid(padding=(0, _COLUMN_GAP, 0, 0))
    grid.add_column(width=half)
    grid.add_column(width=half)
    grid.add_row(cause_bars(report, console, half), line_bars(report, console, half))
    yield Group(grid, phases)


def _caveats(report: ExplainReport) -> Iterator[Text | Padding]:
    """Yield each caveat once, with the devices that it holds for unless it holds for all."""
    of_devices = [(device_label(result), result.caveats) for result in report.results]
    caveats = grouped_caveats(report.caveats, of_devices)
    if not caveats:
        return
    num_gpus = sum(result.kind is DeviceKind.GPU for result in report.results)
    yield Text("Caveats", style="bold")
    for caveat, names in caveats.items():
        text = Text.assemble(
            (printable(caveat.code, 40), "yellow"), "  ", printable(caveat.message, 600)
        )
        if 0 < len(names) < num_gpus:
            text.append(f" ({', '.join(names)})", style="dim")
        yield Padding(_folded(text), (0, 0, 0, 2), expand=False)
    yield Text("")


def _folded(text: Text | Padding) -> Text | Padding:
    # A path longer than the line is cut at the line's end, not dropped.
    if isinstance(text, Text):
        text.overflow = "fold"
    return text
