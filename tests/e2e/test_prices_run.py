"""`breakeven prices` as a process: a price file goes out and comes back in, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ASK = """
import sys
from breakeven.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


def ask(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", ASK, "prices", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )


def test_an_edited_price_file_is_shown(tmp_path: Path) -> None:
    written = ask("h100", "--clouds", "aws", "--json", folder=tmp_path)
    assert (written.returncode, written.stderr) == (0, "")
    own = tmp_path / "mine.json"
    own.write_text(written.stdout.replace('"usd_per_hour": 6.88', '"usd_per_hour": 77'), "utf-8")
    shown = ask("--prices", "mine.json", "p5.4xlarge", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("p5.4xlarge")]
    assert "77.000" in row
    assert "AWS: 2026-07-20; us-east-1; billed in units of 1 s, at least 1 min" in shown.stdout
    own.write_text(own.read_text("utf-8").replace('"usd_per_hour": 77', '"usd_per_hour": -1'))
    refused = ask("--prices", "mine.json", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "usd_per_hour" in refused.stderr
    assert list(tmp_path.iterdir()) == [own]
