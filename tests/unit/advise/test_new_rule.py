"""A new rule is a function and a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import breakeven

PACKAGE = Path(breakeven.__file__).parent
RULE = """\
from breakeven.advise.rule import Match, Matches, RuleInput, rule


@rule("SYNC999", "SLEPT")
def sleeps(case: RuleInput) -> Matches:
    for source, call in case.sources.calls("time.sleep"):
        yield Match(title="the step sleeps", fix="wake up", location=source.location(call))
"""
PAGE = """\
# SYNC999: the script says how long it slept

Cause: `SLEPT`

## What it does

Finds `time.sleep` in the script.
"""
ASKED = """
from breakeven.cli import main
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.advise import RuleInput, Sources, diagnose
from breakeven.trace import Op, SourceText, StepTrace

assert main(["rules", "SLEPT"]) == 0
script = SourceText(path="train.py", text="import time\\nfor step in range(9): time.sleep(1)")
trace = StepTrace(events=(Op(name="aten.relu.default", inputs=(), outputs=()),))
case = RuleInput.of(trace, find_device("A100"), reference_host(), sources=Sources.of((script,)))
for one in diagnose(case):
    print(one.finding.code, one.finding.file, one.finding.line, one.finding.title)
"""


def test_a_new_rule_is_listed_and_finds_what_it_is_about(tmp_path: Path) -> None:
    rules = Path("advise", "rules")
    copy_with_links(PACKAGE, tmp_path / "breakeven", but=rules.parts)
    (tmp_path / "breakeven" / rules / "sleep.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "breakeven" / rules / "SYNC999.md").write_text(PAGE, encoding="utf-8")

    done = subprocess.run(
        (sys.executable, "-c", ASKED),
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SYNC999  the script says how long it slept" in done.stdout
    assert "SYNC999 train.py 2 the step sleeps" in done.stdout


def copy_with_links(folder: Path, copy: Path, but: tuple[str, ...]) -> None:
    """Copy folders down to one, and put links in the place of all else."""
    copy.mkdir()
    for entry in folder.iterdir():
        if entry.name == "__pycache__":
            continue
        if but and entry.name == but[0]:
            copy_with_links(entry, copy / entry.name, but[1:])
        else:
            (copy / entry.name).symlink_to(entry)
