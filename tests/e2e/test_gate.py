"""A check as a gate of CI: conditions, comments that ignore findings, and SARIF of the run."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import BREAKEVEN, CheckRun, line_of

pytestmark = pytest.mark.slow

SCRIPT = """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64).to(device)
    total = 0.0
    while True:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()  # read here{ignored}
        total -= loss.item()  # read again
"""


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_finding_fails_the_check_unless_a_comment_ignores_it(
    is_ignored: bool, run_check: Callable[..., CheckRun], tmp_path: Path
) -> None:
    script, run_file = tmp_path / "gated.py", tmp_path / "run.json"
    text = textwrap.dedent(SCRIPT)
    comment = "  # breakeven: ignore[SYNC001]" if is_ignored else ""
    text = text.replace("# read again", f"# read again{comment}")
    script.write_text(text.format(ignored=comment))

    conditions = ("finding SYNC001", "memory > 1 TB on L40S", "step > 1 h on cpu")
    words = [word for condition in conditions for word in ("--fail-if", condition)]
    run = run_check(script, "-q", "--no-fast-step", "-o", str(run_file), *words)

    assert run.returncode == (0 if is_ignored else 1), run.stderr
    lines = [line_of(script, "# read here"), line_of(script, "# read again")]
    places = [f"  finding SYNC001: SYNC001 at {script.name}:{line}" for line in lines]
    assert sorted(run.stderr.splitlines()[1:]) == ([] if is_ignored else places)
    assert ("ignore-comment" in run.caveat_codes) == is_ignored
    assert "L40S" in [gpu["device"] for gpu in run.gpus]

    sarif = subprocess.run(
        [BREAKEVEN, "report", run_file, "--format", "sarif"],
        capture_output=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    results = json.loads(sarif.stdout)["runs"][0]["results"]
    found = [
        one["locations"][0]["physicalLocation"] for one in results if one["ruleId"] == "SYNC001"
    ]
    assert [place["region"]["startLine"] for place in found] == ([] if is_ignored else lines)
    assert {place["artifactLocation"]["uri"] for place in found} <= {script.name}

    explained = subprocess.run(
        [BREAKEVEN, "explain", run_file, "--json"], capture_output=True, check=True
    )
    report = json.loads(explained.stdout)
    codes = [finding["code"] for finding in report["findings"]]
    assert ("SYNC001" in codes) == (not is_ignored)
    counts = [one["message"] for one in report["caveats"] if one["code"] == "ignore-comment"]
    assert counts == (["2 findings are ignored by comments"] if is_ignored else [])
