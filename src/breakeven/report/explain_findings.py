"""Findings of an explanation at a terminal, in the order of what their fixes gain."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from breakeven.report.explain_text import frames_text, gain_text
from breakeven.report.text import printable, shorten
from breakeven.simulate import Finding, Severity
from breakeven.verdict import ExplainReport

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
_MIN_PLACE_CHARACTERS = 12
_NOTE_PLACE_CHARACTERS = 40


def findings_block(
    report: ExplainReport, console: Console, *, shows_evidence: bool
) -> RenderableType:
    """Return the findings in full, those of little or unknown gain in a line each.

    Args:
        report: The explanation.
        console: Its width.
        shows_evidence: Say with each finding what shows it.
    """
    return Group(*_findings(report, console, shows_evidence=shows_evidence))


def _findings(
    report: ExplainReport, console: Console, *, shows_evidence: bool
) -> Iterator[RenderableType]:
    large = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    notes = [finding for finding in report.findings if finding.severity is Severity.INFO]
    yield Text("What to change, by gain", style="bold")
    if not report.findings:
        none = "of the rules asked for" if report.num_suppressed else "of any rule"
        yield _indented(Text(f"No finding {none}."), 2)
    for finding in large[:_MAX_FINDINGS]:
        yield from _finding(finding, console, shows_evidence=shows_evidence)
    if notes:
        yield Text("Also seen, with little gain or one that nothing here can tell", style="dim")
    for finding in notes[:_MAX_NOTES]:
        yield _note(finding)
    num_hidden = len(large[_MAX_FINDINGS:]) + len(notes[_MAX_NOTES:])
    if num_hidden:
        yield _indented(Text(f"and {num_hidden} more in --json", style="dim"), 2)
    if report.num_suppressed:
        left_out = f"{report.num_suppressed} of other rules left out by --rule"
        yield _indented(Text(left_out, style="dim"), 2)


def _finding(
    finding: Finding, console: Console, *, shows_evidence: bool
) -> Iterator[RenderableType]:
    head = Text.assemble(
        (finding.severity.value.ljust(_INDENT), _SEVERITY_STYLES[finding.severity]),
        (printable(finding.code, 20), "bold magenta"),
    )
    gain = gain_text(finding)
    if gain:
        head.append("  ")
        head.append(gain, style="green")
    place = _place(finding, console.width - head.cell_len - 2)
    beneath = _place(finding, console.width - _INDENT)
    if place:
        head.append(f"  {place}")
    yield head
    if beneath and not place:
        yield _indented(Text(beneath), _INDENT)
    yield _indented(Text(printable(finding.title, 400)), _INDENT)
    if len(finding.frames) > 1:
        arrow = "->" if console.options.ascii_only else "→"
        below = f"below that line: {frames_text(finding.frames)}".replace("→", arrow)
        yield _indented(Text(below, style="dim"), _INDENT)
    fix = Text.assemble(("fix: ", "green"), printable(finding.fix, 600))
    yield _indented(fix, _INDENT)
    if shows_evidence and finding.evidence:
        evidence = Text(f"seen: {printable(finding.evidence, 600)}", style="dim")
        yield _indented(evidence, _INDENT)


def _place(finding: Finding, room: int) -> str:
    """Return ``file:line``, shortened within the path, or nothing where there is too little room.

    A terminal makes ``path:line`` a link in one piece.
    """
    if finding.file is None:
        return ""
    line = "" if finding.line is None else f":{finding.line}"
    path = printable(finding.file, None)
    if room < len(line) + min(len(path), _MIN_PLACE_CHARACTERS):
        return ""
    return shorten(path, room - len(line)) + line


def _note(finding: Finding) -> RenderableType:
    text = Text.assemble(
        (printable(finding.code, 20), "magenta"), "  ", printable(finding.title, 200)
    )
    place = _place(finding, _NOTE_PLACE_CHARACTERS)
    if place:
        text.append(f"  {place}", style="dim")
    return _indented(text, 2)


def _indented(text: Text, num_characters: int) -> Padding:
    text.overflow = "fold"
    return Padding(text, (0, 0, 0, num_characters), expand=False)
