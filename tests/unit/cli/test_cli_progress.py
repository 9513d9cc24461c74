"""Progress on stderr."""

from __future__ import annotations

import io

from rich.console import Console

from breakeven.cli.progress import LiveProgress, show_progress
from factories import sweeps as made_up


class Clock:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


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


def drawn(progress: LiveProgress, columns: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, record=True)
    console.print(progress.renderable())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_live_progress_shows_the_bar_the_time_left_and_the_points() -> None:
    clock = Clock()
    progress = LiveProgress(clock)
    progress.begin("measuring on this CPU")
    clock.now_s += 4.0
    progress.finished(made_up.batch_sizes().points[:8], 2, 10)
    stage, bar, *rows = drawn(progress)
    assert stage[2:] == "measuring on this CPU  4.0 s"
    assert bar.endswith("2 of 10 points, about 16 s left")
    assert rows == [
        "batch size 16: CPU 440 µs measured, RTX 4090 1.4 ms predicted",
        "batch size 32: CPU 480 µs predicted, RTX 4090 1.4 ms predicted",
    ]
    progress.finished((), 10, 10)
    assert drawn(progress)[1].endswith("10 of 10 points")


def test_live_progress_keeps_to_the_screen_and_lets_nothing_steer_it() -> None:
    progress = LiveProgress(Clock())
    for number in range(20):
        progress.begin(f"stage {number}")
    points = made_up.hostile().points
    progress.finished(points, 13, 26)
    progress.finished(points[:2], 14, 26)
    lines = drawn(progress)
    assert len(lines) <= 4 + 1 + 4
    assert lines[-1].startswith("n 16, "), "what finished last stands last"
    assert not any(character in "".join(lines) for character in "\x1b\u202e")


def test_a_quiet_sweep_writes_nothing() -> None:
    stream = io.StringIO()
    with show_progress(stream, is_quiet=True) as progress:
        progress.begin("measuring", 5.0)
        progress.finished(made_up.batch_sizes().points, 13, 13)
        progress.end()
    assert stream.getvalue() == ""


def test_a_terminal_gets_the_table_and_is_left_clean() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with show_progress(stream, is_quiet=False) as progress:
        progress.begin("measuring")
        progress.finished(made_up.batch_sizes().points[:4], 1, 13)
        assert isinstance(progress, LiveProgress)
    assert "\x1b[?25h" in stream.getvalue(), "the cursor is back"
