"""Systems with published figures for a person at a terminal: figures, curves, and claims."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from breakeven.report.sweep_terminal import render_sweep
from breakeven.report.systems_table import source_mark, sources_of, system_tables
from breakeven.report.text import printable
from breakeven.verdict import (
    Claim,
    ClaimOutcome,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
)

_MAX_CAVEATS = 8
_OUTCOME_STYLES = {
    ClaimOutcome.AGREES: "green",
    ClaimOutcome.DISAGREES: "red",
    ClaimOutcome.OPEN: "yellow",
}


def render_system(report: SystemReport, console: Console) -> None:
    """Write one system to ``console``, as wide as the console is.

    Args:
        report: What was found of it.
        console: Where to; its width, colours and encoding are honoured.
    """
    name = Text.assemble((printable(report.name), "bold"), f": {printable(report.title)}")
    _say(console, name)
    _say(console, Text(f"published in {printable(report.published_in)}", style="dim"))
    for fact in _facts(report):
        _say(console, Text(fact, style="dim"))
    for table in report.tables:
        console.line()
        _render_table(table, console)
    for sweep in report.sweeps:
        console.line()
        render_sweep(sweep, console)
    _render_caveats(report, console)
    if report.claims:
        console.line()
        title = "The claim" if len(report.claims) == 1 else "The claims"
        _say(console, Text(title, style="bold"))
        for claim in report.claims:
            _render_claim(claim, console)


def render_claims(report: SystemsReport, console: Console) -> None:
    """Write one table of all claims, and which systems were not run and why.

    Args:
        report: What was found of the systems.
        console: Where to; its width, colours and encoding are honoured.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("system", no_wrap=True, overflow="ellipsis")
    for header, ratio in (("published claim", 3), ("ours", 3), ("agrees or not, and why", 4)):
        table.add_column(header, overflow="fold", ratio=ratio)
    for system in report.systems:
        for number, claim in enumerate(system.claims):
            table.add_row(
                "" if number else printable(system.name, 20),
                Text(f"{printable(claim.claim)}; published: {printable(claim.published)}"),
                Text(printable(claim.ours)),
                Text.assemble(
                    (claim.outcome.value, _OUTCOME_STYLES[claim.outcome]),
                    f": {printable(claim.because, 600)}",
                ),
            )
    for name, reason in report.failures.items():
        table.add_row(printable(name, 20), "", "", Text(f"not run: {printable(reason, 600)}"))
    _say(console, Text("What was published, and what is found here", style="bold"))
    console.print(table)
    _say(console, Text(claim_counts(report), style="bold"))


def claim_counts(report: SystemsReport) -> str:
    """Return how many claims agree, disagree and are open, in a sentence."""
    claims = [claim for system in report.systems for claim in system.claims]
    counts = [sum(claim.outcome is outcome for claim in claims) for outcome in ClaimOutcome]
    agree, disagree, is_open = counts
    noun = "claim" if len(claims) == 1 else "claims"
    sentence = f"{len(claims)} {noun}: agreeing {agree}, disagreeing {disagree}, open {is_open}."
    if report.failures:
        plural = "system was" if len(report.failures) == 1 else "systems were"
        sentence += f" {len(report.failures)} {plural} not run."
    return sentence


def _say(console: Console, text: Text, indent: int = 0) -> None:
    text.overflow = "fold"
    console.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)


def _facts(report: SystemReport) -> list[str]:
    host = report.host
    threads = "1 thread" if host.num_threads == 1 else f"{host.num_threads:,} threads"
    facts = [printable(host.name, 80), threads, f"torch {printable(host.torch_version)}"]
    # What was assumed beside is in the JSON report.
    facts.append(printable(host.calibration, 120))
    lines = ["host: " + " · ".join(facts)]
    if report.script:
        lines.append(
            f"script: {printable(report.script)} "
            f"(a copy of yours: breakeven workloads {printable(report.name)} --write-script .)"
        )
    return lines


def _render_table(table: SystemTable, console: Console) -> None:
    _say(console, Text(printable(table.title), style="bold"))
    for number, part in enumerate(system_tables(table, console)):
        if number:
            console.line()
        console.print(Padding(part, (0, 0, 0, 2), expand=False))
    legend = Text("   ").join(
        Text.assemble(source_mark(source, console), f" {source.value}")
        for source in sources_of(table)
        if source is not RowSource.CHECKED
    )
    if legend:
        legend.style = "dim"
        _say(console, legend, 2)
    if table.note:
        _say(console, Text(printable(table.note, 1_000), style="dim"), 2)


def _render_claim(claim: Claim, console: Console) -> None:
    style = _OUTCOME_STYLES[claim.outcome]
    head = Text.assemble((claim.outcome.value, f"bold {style}"), f"  {printable(claim.claim)}")
    _say(console, head, 2)
    for label, text in (("published", claim.published), ("ours", claim.ours)):
        _say(console, Text.assemble((f"{label}: ", "dim"), printable(text)), 4)
    if claim.because:
        _say(console, Text(printable(claim.because, 600)), 4)


def _render_caveats(report: SystemReport, console: Console) -> None:
    caveats = tuple(dict.fromkeys(report.caveats))
    if not caveats:
        return
    console.line()
    _say(console, Text("Caveats", style="bold"))
    for caveat in caveats[:_MAX_CAVEATS]:
        text = Text.assemble(
            (printable(caveat.code, 40), "yellow"), "  ", printable(caveat.message, 600)
        )
        _say(console, text, 2)
    num_hidden = len(caveats) - _MAX_CAVEATS
    if num_hidden > 0:
        _say(console, Text(f"and {num_hidden} more, listed by --json", style="dim"), 2)
