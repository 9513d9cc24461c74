"""`breakeven prices`: what is listed, what goes where, exit codes."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import breakeven.cli.prices
from breakeven.cli import main


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be the day on which two of the shipped lists are old."""

    class Day(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:
            return datetime.date(2026, 10, 30)

    monkeypatch.setattr(breakeven.cli.prices, "date", Day)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("terminal_prices.txt", "prices"),
        ("terminal_prices_of_a_gpu.txt", "prices l4 a10"),
        ("prices_of_a_machine.json", "prices g6f.large --json"),
    ],
)
def test_golden_prices(
    name: str,
    command: str,
    check_golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command.split()) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    check_golden(name, captured.out)


def test_json_is_read_back_as_an_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", "h100", "cpu", "--clouds", "aws", "--json"]) == 0
    text = capsys.readouterr().out
    assert {one["provider"] for one in json.loads(text)["machines"]} == {"aws"}
    own = tmp_path / "mine.json"
    own.write_text(text, "utf-8")
    assert main(["prices", "--prices", str(own), "--json"]) == 0
    assert capsys.readouterr().out == text


def test_json_without_a_name_has_all_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["machines"]) > 200


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("rtx-4090", 2, "no machine or GPU “rtx-4090” has a price"),
        ("p5.48xlarg", 2, "did you mean p5.48xlarge"),
        ("--clouds amazon", 2, "providers: aws, azure, gcp, hf"),
        ("--refresh --prices mine.json", 2, "omit --prices"),
        ("--prices none.json", 3, "none.json holds no prices"),
    ],
)
def test_refusals(
    arguments: str, code: int, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", *arguments.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in " ".join(captured.err.split())


def test_hostile_names_of_an_own_file_are_made_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prices", "g6f.large", "--json"]) == 0
    own = tmp_path / "mine.json"
    own.write_text(capsys.readouterr().out.replace("g6f.large", r"\u001b[31m\u202e"), "utf-8")
    assert main(["prices", "--prices", str(own)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"\x1b[31m\u202e" in shown
