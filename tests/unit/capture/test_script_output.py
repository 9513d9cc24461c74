from __future__ import annotations

import os

import pytest

from breakeven.capture.process.script_output import ScriptOutput


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        ("\x1b(B\x1b7saved\x1b8\x1b=", "saved"),
        ("12%\b\b\b13%\r14%", "12%13%\r14%"),
        ("é\x1b", "é\x1b"),
    ],
)
def test_what_steers_a_terminal_is_not_shown(printed: str, kept: str) -> None:
    reading, writing = os.pipe()
    tail = ScriptOutput(reading)
    os.write(writing, printed.encode())
    os.close(writing)
    try:
        assert tail.text() == kept
    finally:
        tail.close()


def test_whoever_keeps_the_output_open_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    tail = ScriptOutput(reading)
    os.write(writing, b"last words")
    tail.close()
    assert tail.text() == "last words"
    os.close(writing)
