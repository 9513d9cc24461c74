"""`breakeven workloads`: options, what goes where, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import breakeven.systems
from breakeven.cli import main
from breakeven.errors import BreakevenError
from breakeven.systems import SYSTEMS, SystemEntry
from factories import systems as made_up


class FakeRun:
    """Stands in for what runs a system: fails where it was told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, float]] = []
        self.failures: dict[str, BaseException] = {}

    def __call__(
        self, entry: SystemEntry, *, host: str, time_limit_s: float, progress: Any
    ) -> object:
        self.calls.append((entry.name, host, time_limit_s))
        progress.detail(f"{entry.name}.py: measuring")
        if entry.name in self.failures:
            raise self.failures[entry.name]
        return made_up.system(entry.name)

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    fake = FakeRun()
    monkeypatch.setattr(breakeven.systems, "run_system", fake)
    return fake


def test_without_a_name_they_are_listed_and_none_is_run(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workloads"]) == 0
    text = capsys.readouterr().out
    for entry in SYSTEMS:
        assert entry.name in text
        assert entry.published in text
    assert run.calls == []


def test_a_system_is_run_with_the_options_given(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["workloads", "disc-mlp", "--host", "reference", "--time-limit", "7"]
    assert main(command) == 0
    assert run.calls == [("disc-mlp", "reference", 7.0)]
    out, err = capsys.readouterr()
    assert out.startswith("disc-mlp: ")
    assert "What was published" not in out  # one system needs no table of all
    assert err == "disc-mlp (about 120 s)\n"


def test_all_runs_the_six_and_ends_with_the_table(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workloads", "--all", "-q"]) == 0
    assert run.names == [entry.name for entry in SYSTEMS]
    out, err = capsys.readouterr()
    assert "6 claims: agreeing 6" in out.partition("What was published")[2]
    assert err == ""


def test_one_that_fails_does_not_stop_the_others(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.failures["neural-ode"] = BreakevenError("it took too long", hint="wait longer")
    assert main(["workloads", "--all"]) == 0
    assert len(run.calls) == 6
    text = " ".join(capsys.readouterr().out.split())
    assert "not run: it took too long; wait longer" in text
    assert "1 system was not run" in text


def test_json_is_one_document_and_the_file_holds_the_same(
    run: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.failures["disc-mlp"] = BreakevenError("it failed")
    file = tmp_path / "systems.json"
    assert main(["workloads", "rnn-stream", "disc-mlp", "--json", "-o", str(file)]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert [system["name"] for system in document["systems"]] == ["rnn-stream"]
    assert document["failures"] == {"disc-mlp": "it failed"}
    assert file.read_text("utf-8") == out


def test_an_interrupt_keeps_what_was_shown(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.failures["rnn-stream"] = KeyboardInterrupt()
    assert main(["workloads", "disc-mlp", "rnn-stream", "-q"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("disc-mlp: ")
    assert err == "interrupted\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nope", "there is no system 'nope'"),
        ("--json", "--json needs a system"),
        ("-o x.json", "-o needs a system"),
        ("--write-script .", "--write-script needs a system"),
        ("disc-mlp --force", "--force is about"),
        ("disc-mlp --write-script . --json", "there is no report"),
        ("disc-mlp --time-limit 0", "'0' is not a number of seconds above 0"),
        ("disc-mlp --time-limit nan", "'nan' is not a number of seconds above 0"),
        ("disc-mlp --time-limit inf", "'inf' is not a number of seconds above 0"),
        ("disc-mlp --time-limit soon", "'soon' is not a number of seconds above 0"),
        ("disc-mlp -- --depth 3", "takes nothing after --"),
        ("--all --host no-such-cpu", "no-such-cpu"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: FakeRun, command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workloads", *command.split()]) == 2
    assert message in capsys.readouterr().err
    assert run.calls == []


def test_a_file_is_not_replaced_without_force(
    run: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "systems.json"
    file.write_text("mine")
    assert main(["workloads", "disc-mlp", "-o", str(file)]) == 3
    assert file.read_text() == "mine"
    assert run.calls == []
    assert main(["workloads", "disc-mlp", "-o", str(file), "--force", "-q"]) == 0
    assert json.loads(file.read_text("utf-8"))["systems"]
    assert str(file) in capsys.readouterr().out


def test_the_script_of_a_system_is_written_and_nothing_run(
    run: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workloads", "disc-mlp", "weight-update", "--write-script", str(tmp_path)]) == 0
    shipped = breakeven.systems.script_path
    for script in ("disc_mlp.py", "mnist_mlp.py"):
        assert (tmp_path / script).read_bytes() == shipped(script).read_bytes()
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "disc_mlp.py"), str(tmp_path / "mnist_mlp.py")
    ]  # fmt: skip
    assert run.calls == []


def test_a_script_of_the_user_is_not_replaced(run: FakeRun, tmp_path: Path) -> None:
    mine = tmp_path / "mnist_mlp.py"
    mine.write_text("mine")
    command = ["workloads", "disc-mlp", "weight-update", "--write-script", str(tmp_path)]
    assert main(command) == 3
    assert mine.read_text() == "mine"
    assert not (tmp_path / "disc_mlp.py").exists()  # refused before any is written
    assert main([*command, "--force"]) == 0
    assert "argparse" in mine.read_text()


def test_where_none_can_be_run_there_is_no_answer(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("disc-mlp", "rnn-stream"):
        run.failures[name] = BreakevenError(f"{name} failed")
    assert main(["workloads", "disc-mlp", "rnn-stream"]) == 3
    out, err = capsys.readouterr()
    assert "not run: disc-mlp failed" in out
    assert "no system could be run" in err


def test_the_failure_of_the_only_one_is_its_error(
    run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.failures["neural-ode"] = BreakevenError("it took too long", hint="wait longer")
    assert main(["workloads", "neural-ode"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: it took too long" in err
    assert "hint: wait longer" in err
