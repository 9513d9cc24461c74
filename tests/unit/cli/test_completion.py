"""A shell completes the command line by argcomplete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("argcomplete")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("breakeven ex", {"explain"}),
        ("breakeven check --devi", {"--device"}),
        ("breakeven check --device h200-s", {"h200-sxm-141gb"}),
        ("breakeven devices t4", {"t4"}),
    ],
)
def test_commands_options_and_devices_complete(line: str, wanted: set[str], tmp_path: Path) -> None:
    found = tmp_path / "found"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(found),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    program = "from breakeven.cli import entry_point; entry_point()"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert wanted == {one.strip() for one in found.read_text().splitlines()}
