"""Record the session that the home page shows: ``python docs/demo.py`` writes ``docs/demo.cast``.

The commands run in a terminal of their own, in an empty folder, on this machine. The recording is
an asciinema cast (version 2); ``python docs/generate.py`` draws it.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAST = ROOT / "docs" / "demo.cast"
# One thread: on a shared machine, two threads wait for each other, and time nothing but that.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
COMMANDS = (
    "breakeven tune examples/tabular_mlp.py",
    "breakeven run examples/tabular_mlp.py",
)
COLUMNS, ROWS = 80, 200
_PROMPT = "\x1b[32m$\x1b[0m "
_TYPING_S, _READING_S = 0.04, 1.0
# A command that takes longer is shown in this time.
_MAX_COMMAND_S = 8.0
# A spinner turns ten times a second; a picture needs fewer frames.
_FRAME_S = 0.3
# Before each drawing of the progress, the lines of the one before are erased.
_DRAWINGS = re.compile(r"(?=\r\x1b\[2K)")
_ERASE = re.compile(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")


def main() -> int:
    """Record the commands; return 1 if one of them failed."""
    now_s = 0.5
    events: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "examples").symlink_to(ROOT / "examples")
        own = {f"XDG_{kind}_HOME": f"{folder}/{kind}" for kind in ("CONFIG", "CACHE")}
        environment = {**os.environ, **own, **ENVIRONMENT}
        exports = (f"export {name}={value}" for name, value in ENVIRONMENT.items())
        for command in (*exports, *COMMANDS):
            events.append((now_s, _PROMPT))
            for letter in command:
                now_s += _TYPING_S
                events.append((now_s, letter))
            now_s += _READING_S
            events.append((now_s, "\r\n"))
            if not command.startswith("breakeven "):
                continue
            try:
                written = list(_output(shlex.split(command), folder, environment))
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            pace = min(1.0, _MAX_COMMAND_S / max(written[-1][0], _FRAME_S))
            events += _thinned([(now_s + pace * second, text) for second, text in written])
            now_s += pace * written[-1][0] + _READING_S
        events.append((now_s, _PROMPT))
    header = {"version": 2, "width": COLUMNS, "height": ROWS}
    lines = [header, *([round(second, 3), "o", text] for second, text in events)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    CAST.write_text(text.replace(f"{ROOT}/", "").replace(f"{folder}/", ""), "utf-8")
    return 0


def _output(
    words: list[str], folder: str, environment: dict[str, str]
) -> Iterator[tuple[float, str]]:
    """Yield what a command writes to its terminal, with the seconds since its start.

    Raises:
        CalledProcessError: The command failed.
    """
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=folder, env={**environment, **size},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    start_s = time.monotonic()
    pending = b""
    while True:
        try:
            read = os.read(ours, 65_536)
        except OSError:  # Linux ends a terminal so.
            break
        if not read:
            break
        pending += read
        # A control sequence or a letter may be cut in two.
        whole = re.match(rb"(?s).*[\n\r m\x20-\x7e](?!\[)", pending)
        if whole:
            yield time.monotonic() - start_s, whole[0].decode()
            pending = pending[whole.end() :]
    os.close(ours)
    yield time.monotonic() - start_s, pending.decode()
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, words)


def _thinned(events: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the events with those of one frame joined, without progress that nobody would see."""
    joined: list[tuple[float, str]] = []
    for second, text in events:
        if not joined or second - joined[-1][0] >= _FRAME_S:
            joined.append((second, text))
        else:
            joined[-1] = (joined[-1][0], joined[-1][1] + text)
    return [(second, _without_redrawn(text)) for second, text in joined]


def _without_redrawn(text: str) -> str:
    """Leave out each drawing of the progress that the next one replaces line by line."""
    kept: list[str] = []
    for drawn in _DRAWINGS.split(text):
        erased, before = _ERASE.match(drawn), _ERASE.match(kept[-1]) if kept else None
        if erased and before and erased[0] == before[0]:
            num_lines = kept[-1].count("\n")
            if num_lines == erased[0].count("\x1b[1A"):
                kept.pop()
        kept.append(drawn)
    return "".join(kept)


if __name__ == "__main__":
    sys.exit(main())
