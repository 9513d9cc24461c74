"""The command line as a process of its own: imports, pipes, signals, encodings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BREAKEVEN = [sys.executable, "-m", "breakeven"]


def modules_after(*arguments: str) -> set[str]:
    program = (
        "import sys\n"
        "from breakeven.cli import main\n"
        f"main({list(arguments)!r})\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["--version"]])
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert "breakeven.cli" in loaded
    assert not {"torch", "numpy", "rich", "lightning", "transformers"} & loaded


def test_devices_and_reports_need_no_torch() -> None:
    loaded = modules_after("devices", "a100")
    assert "rich" in loaded
    assert "torch" not in loaded
    program = "import sys, breakeven.report, breakeven.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_reader_that_goes_away() -> None:
    # `head -1` leaves before the table is written; an unread pipe holds 64 kB, so close it first.
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*BREAKEVEN, "devices"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert ended.returncode == 141
    assert ended.stderr == b""


def test_terminal_without_unicode() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([*BREAKEVEN, "devices", "a100"], capture_output=True, env=environment)
    assert ended.returncode == 0
    assert ended.stderr == b""
    assert ended.stdout.isascii()


def test_usage_error_of_the_process() -> None:
    ended = subprocess.run([*BREAKEVEN, "check"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: ")
