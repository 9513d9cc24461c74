"""Findings as annotations of lines for code hosts: SARIF 2.1.0, and GitHub's commands."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from breakeven.errors import UsageError
from breakeven.report.check_report import CheckReport
from breakeven.report.explain_report import ExplainReport
from breakeven.report.kinds import kind_of
from breakeven.report.rules import all_rule_pages
from breakeven.report.shown import encode_document
from breakeven.report.text import printable
from breakeven.simulate import Finding, Severity
from breakeven.trace import is_notebook, line_words
from breakeven.units import format_percent

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# Other findings are notes in SARIF, notices on GitHub.
_LEVELS = {Severity.ERROR: "error", Severity.HIGH: "warning", Severity.MEDIUM: "warning"}


def finding_annotations(report: Any, form: str) -> bytes:
    """Return the findings of a run in a form that code hosts show at their lines.

    Paths are relative to the git repository around the current folder, else to that folder.

    Args:
        report: A run of check or explain.
        form: ``sarif`` or ``github``.

    Raises:
        UsageError: The run has no findings, since it is of another command.
    """
    if not isinstance(report, CheckReport | ExplainReport):
        raise UsageError(
            f"a run of breakeven {kind_of(report).command} has no findings",
            hint="give a run of breakeven check or explain",
        )
    here = Path.cwd()
    root = next((one for one in (here, *here.parents) if (one / ".git").exists()), here)
    files = [one.file or _script(report) for one in report.findings]
    paths = [Path(os.path.relpath(file, root)).as_posix() if file else "" for file in files]
    placed = list(zip(report.findings, paths, strict=True))
    if form == "sarif":
        return encode_document(_sarif(placed))
    return "".join(f"{_github_command(*one)}\n" for one in placed).encode(errors="replace")


def _github_command(finding: Finding, path: str) -> str:
    """Return the line of a log that GitHub shows at the finding's line.

    Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
    """
    properties = {"file": path, "line": _line(finding), "title": finding.code}
    texts = [f"{name}={_escaped(str(one), ':,')}" for name, one in properties.items() if one]
    level = _LEVELS.get(finding.severity, "notice")
    return f"::{level} {','.join(texts)}::{_escaped(_message(finding))}"


def _escaped(text: str, more: str = "") -> str:
    text = text.replace("%", "%25")
    for character in f"\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _sarif(placed: Sequence[tuple[Finding, str]]) -> dict[str, Any]:
    """Return a SARIF log with one run.

    Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    rules = [
        {
            "id": page.code,
            "name": page.cause,
            "shortDescription": {"text": page.plain_title},
            "fullDescription": {"text": dict(page.sections)["What it does"]},
            "help": {"text": page.page, "markdown": page.page},
        }
        for page in all_rule_pages()
        if page.code in {finding.code for finding, _ in placed}
    ]
    results = [
        {
            "ruleId": finding.code,
            "level": _LEVELS.get(finding.severity, "note"),
            "message": {"text": _message(finding)},
            "locations": [_sarif_location(path, _line(finding) or 1)] if path else [],
        }
        for finding, path in placed
    ]
    driver = {"name": "breakeven", "version": version("breakeven"), "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_location(path: str, line: int) -> dict[str, Any]:
    artifact = {"uri": quote(path, errors="surrogatepass"), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def _line(finding: Finding) -> int | None:
    """Return the line in the file; None for a notebook, whose file has no such line."""
    return None if is_notebook(finding.file or "") else finding.line


def _message(finding: Finding) -> str:
    gain = finding.gain_fraction
    saved = f"The fix saves {format_percent(gain)} of the step. " if gain > 0 else ""
    file, line = finding.file or "", finding.line
    cell = f"In {line_words(file, line)}: " if line and is_notebook(file) else ""
    return printable(f"{cell}{finding.title}. {saved}Fix: {finding.fix}", 1000)


def _script(report: CheckReport | ExplainReport) -> str:
    """Return the file of the target; empty for a module."""
    script = re.fullmatch(r"(.*\.(?:py|ipynb))(:\w+)?", report.target, re.DOTALL)
    return script[1] if script else ""
