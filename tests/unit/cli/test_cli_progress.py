"""Progress on stderr."""

from __future__ import annotations

import io

from rich.console import Console

from breakeven.cli.progress import LiveProgress, show_progress


class Clock:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def drawn(progress: LiveProgress, columns: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, record=True)
    console.print(progress.renderable())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_live_progress_shows_stage_elapsed_expected_and_detail() -> None:
    clock = Clock()
    progress = LiveProgress(clock)
    progress.begin("measuring the step on this CPU", 5.0)
    clock.now_s += 1.5
    progress.detail("step 17, 2.1 ms")
    (line,) = drawn(progress)
    assert line[2:] == "measuring the step on this CPU  1.5 s of about 5.0 s  step 17, 2.1 ms"


def test_live_progress_keeps_finished_stages() -> None:
    clock = Clock()
    progress = LiveProgress(clock)
    progress.begin("measuring")
    clock.now_s += 2.0
    progress.begin("tracing")
    clock.now_s += 13.0
    progress.end()
    progress.end()
    assert drawn(progress) == ["✓ measuring  2.0 s", "✓ tracing  13 s"]


def test_live_progress_is_one_line_per_stage_in_a_narrow_terminal() -> None:
    progress = LiveProgress(Clock())
    progress.begin("measuring the step on this CPU with \x1b[31m in it", 5.0)
    progress.detail("x" * 1_000)
    (line,) = drawn(progress, columns=40)
    assert len(line) <= 40
    assert "\x1b" not in line


def test_plain_stderr_gets_one_line_per_stage() -> None:
    stream = io.StringIO()
    with show_progress(stream, is_quiet=False) as progress:
        progress.begin("measuring", 5.0)
        progress.detail("step 17")
        progress.begin("tracing")
        progress.end()
    assert stream.getvalue() == "measuring (about 5.0 s)\ntracing\n"


def test_quiet_writes_nothing() -> None:
    stream = io.StringIO()
    with show_progress(stream, is_quiet=True) as progress:
        progress.begin("measuring", 5.0)
        progress.end()
    assert stream.getvalue() == ""
