"""Sum up the stages of a run and their tests; exit status 1 if any failed.

``python .ci/summary.py RESULTS JUNIT``: ``RESULTS`` has a line for each stage, with its ending, its
seconds and its name. ``JUNIT`` has a file of JUnit's XML for each stage that ran tests. A test
counts once: as failed if any stage saw it fail, as skipped if no stage ran it. A stage of tests
counts only if it failed and none of its tests did.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

# Of a test that several stages ran, the last of these counts.
_ORDER = ("skipped", "passed", "failed")


def main(results: Path, junit: Path) -> int:
    """Return the exit code."""
    stages = [tuple(line.split("\t")) for line in results.read_text("utf-8").splitlines()]
    sys.stdout.write("\nSeconds by stage:\n")
    for ending, seconds, name in sorted(stages, key=lambda stage: -int(stage[1])):
        sys.stdout.write(f"{seconds:>6}  {ending}  {name}\n")
    counts = dict.fromkeys(_ORDER, 0)
    tests: dict[str, str] = {}
    has_failed = False
    for ending, _, name in stages:
        is_ok = ending == "ok"
        outcomes = _outcomes(junit / f"{re.sub('[^A-Za-z0-9]', '-', name)}.xml")
        for test, outcome in outcomes.items():
            tests[test] = max(outcome, tests.get(test, outcome), key=_ORDER.index)
        if not outcomes or (not is_ok and "failed" not in outcomes.values()):
            counts["passed" if is_ok else "failed"] += 1
        if not is_ok:
            has_failed = True
            sys.stdout.write(f"FAILED: {name}\n")
    for test, outcome in tests.items():
        counts[outcome] += 1
        if outcome == "failed":
            has_failed = True
            sys.stdout.write(f"FAILED: {test}\n")
    # Tests and stages together; a skipped test needs a GPU, or says why.
    sys.stdout.write(", ".join(f"{counts[o]} {o}" for o in ("passed", "failed", "skipped")) + "\n")
    return int(has_failed)


def _outcomes(path: Path) -> dict[str, str]:
    """Return the outcome of each test of a stage; a test that fails twice is listed twice."""
    outcomes: dict[str, str] = {}
    if not path.exists():
        return outcomes
    for case in ElementTree.parse(path).iter("testcase"):
        test = f"{case.get('classname', '')}::{case.get('name', '')}"
        found = {part.tag for part in case}
        ended = "skipped" if "skipped" in found else "passed"
        if found & {"failure", "error"}:
            ended = "failed"
        outcomes[test] = max(ended, outcomes.get(test, ended), key=_ORDER.index)
    return outcomes


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
