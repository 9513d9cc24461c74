"""The magics of a shell: options, errors as text, and reports as values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

import breakeven
from breakeven.cli.output import print_report
from breakeven.cli.progress import LineProgress
from breakeven.errors import UsageError
from breakeven.notebook import magics
from breakeven.notebook.cell import parse_options
from breakeven.notebook.magics import Interrupted, ShownError
from breakeven.studies import Report
from factories.reports import cpu_wins

Magic = Callable[..., Any]


def shell_with(lines: list[str] | None = None) -> tuple[SimpleNamespace, dict[str, Magic]]:
    """Return a shell of a terminal, and the magics that it has."""
    found: dict[str, Magic] = {}
    shell = SimpleNamespace(
        register_magic_function=lambda function, kind, name: found.update({name: function}),
        user_ns={},
        history_manager=SimpleNamespace(input_hist_raw=["", "a = 1", ""]),
        compile=SimpleNamespace(),
    )
    breakeven.load_ipython_extension(shell)
    return shell, found


@pytest.fixture
def magic() -> Magic:
    return shell_with()[1]["breakeven"]


def shown(error: BaseException) -> str:
    return "\n".join(error._render_traceback_())  # type: ignore[attr-defined]


def test_a_command_returns_its_report(magic: Magic, monkeypatch: pytest.MonkeyPatch) -> None:
    report = cpu_wins()

    def run(words: list[str]) -> int:
        assert words == ["check", "my train.py", "--device", "T4"]
        print_report(report, argparse.Namespace(json=False, command_line="breakeven check"))
        return 0

    monkeypatch.setattr(magics, "run_command", run)
    answer = magic("check 'my train.py' --device T4")
    assert isinstance(answer, Report)
    assert answer.value == replace(report, command="breakeven check")


def test_a_command_without_a_report_returns_nothing(
    magic: Magic, capsys: pytest.CaptureFixture[str]
) -> None:
    assert magic("devices T4") is None
    assert "Turing" in capsys.readouterr().out


def test_help_is_text(magic: Magic, capsys: pytest.CaptureFixture[str]) -> None:
    assert magic("check --help") is None
    assert "usage: breakeven check" in capsys.readouterr().out
    assert magic("--help", "x = 1") is None
    assert "usage: %%breakeven" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("check --frobnicate a.py", "error: unrecognized arguments: --frobnicate\nhint: arguments"),
        ("check 'a.py", "error: No closing quotation: check 'a.py"),
        ("check missing.py", "error: there is no file 'missing.py'\nhint:"),
        ("run a.py", "error: breakeven run would replace this kernel\nhint: run it"),
        ("mcp", "error: breakeven mcp would replace this kernel\nhint: run it"),
        ("frob", "error: there is no command 'frob'"),
    ],
)
def test_an_error_is_text_without_a_traceback(magic: Magic, line: str, text: str) -> None:
    with pytest.raises(ShownError) as raised:
        magic(line)
    assert shown(raised.value).startswith(text)


def test_an_interrupt_is_text_too(magic: Magic, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(magics, "run_command", run)
    with pytest.raises(Interrupted) as raised:
        magic("check a.py")
    assert shown(raised.value) == "interrupted"


def test_a_bug_keeps_its_traceback(magic: Magic, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(magics, "run_command", run)
    with pytest.raises(ZeroDivisionError):
        magic("check a.py")


@pytest.mark.parametrize(
    ("line", "cell", "text"),
    [
        ("--devices T4", "x = 1", "error: argument command: invalid choice: 'T4'"),
        ("check --steps 3", "x = 1", "error: unrecognized arguments: --steps 3"),
        ("", "x = (", "error: cell 2 is not a step in Python: '(' was never closed\n  at notebook"),
        ("", "!ls", "error: a step is Python alone, and this is not: cell 2, line 2: `!ls`"),
        ("", "await f()", "error: cell 2 is not a step in Python: 'await' outside function"),
        ("", "x = input()", "error: the cell asks for input in each run\nhint:"),
        ("", "x = 1", "error: cell 2 is no training step: it ran without a backward pass\nhint:"),
        (
            "",
            "x = y",
            "error: cell 2 raised NameError: name 'y' is not defined: `x = y`\n  at",
        ),
    ],
)
def test_a_cell_that_is_no_step_is_refused(magic: Magic, line: str, cell: str, text: str) -> None:
    with pytest.raises(ShownError) as raised:
        magic(line, cell)
    assert shown(raised.value).startswith(text)


def test_names_are_as_before_even_after_an_error() -> None:
    shell, magic = shell_with()
    shell.user_ns.update(x=1)
    with pytest.raises(ShownError, match="division by zero"):
        magic["breakeven"]("", "x = 2\ny = 3\nx / 0")
    assert shell.user_ns == {"x": 1}


def test_options_of_a_cell() -> None:
    found = parse_options(["explain", "--device", "T4", "--device", "A100", "--host", "colab"])
    assert (found.command, found.devices, found.host) == ("explain", ["T4", "A100"], "colab")
    assert parse_options([]).command == "check"
    with pytest.raises(UsageError):
        parse_options(["sweep"])


def test_progress_is_one_line_that_is_not_drawn_too_often() -> None:
    lines: list[str] = []
    times = iter([10.0, 10.1, 10.3])
    progress = LineProgress(lines.append, lambda: next(times))
    progress.begin("measuring", 2.0)
    for step in range(3):
        progress.detail(f"step {step}")
    progress.finished((), 3, 1200)
    progress.end()
    assert lines == [
        "breakeven: measuring (about 2.0 s)",
        "breakeven: measuring (about 2.0 s): step 0",
        "breakeven: measuring (about 2.0 s): step 2",
        "breakeven: measuring (about 2.0 s): 3 of 1,200 points",
    ]
