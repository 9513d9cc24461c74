"""The command line: parsing, exit codes, what goes where."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven import __version__
from breakeven.capture import KEEP_NOTHING, Keep
from breakeven.cli import main
from breakeven.cli.dispatch import answer_command, build_parser
from breakeven.cost import reference_host
from breakeven.errors import BreakevenError, ScriptError, UsageError
from breakeven.report import read_report, record, to_json
from breakeven.simulate import CompileMode
from breakeven.studies import TrainingLength
from breakeven.trace import SourceText, StepTrace
from factories import reports as made_up


class FakeCheck:
    """Stands in for the driver: records its arguments, and returns or raises."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.outcome: object = made_up.cpu_wins()

    def __call__(self, target: str, **options: Any) -> object:
        self.calls.append({"target": target, **options})
        progress = options["progress"]
        progress.begin("measuring the step on this CPU", 5.0)
        progress.detail("step 17, 2.1 ms")
        progress.end()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> FakeCheck:
    fake = FakeCheck()
    monkeypatch.setattr("breakeven.studies.check_target", fake)
    monkeypatch.setattr("breakeven.capture.Launcher", lambda keep: nullcontext())
    return fake


@pytest.mark.parametrize(
    "command",
    ["", "calibrate", "check", "compare", "devices", "prices", "report", "sweep", "tune",
     "validate", "workloads"],
)  # fmt: skip
def test_golden_help(
    command: str,
    check_golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*command.split(), "--help"]) == 0
    check_golden(f"help{command and '_' + command}.txt", capsys.readouterr().out)


def test_golden_option_list(check_golden: Callable[[str, str], None]) -> None:
    lines: list[str] = []

    def list_options(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for subparser in action.choices.values():
                    list_options(subparser)
            else:
                names = ", ".join(action.option_strings) or str(action.metavar)
                lines.append(f"{parser.prog} {names} = {action.default!r}")

    list_options(build_parser())
    check_golden("options.txt", "\n".join(lines))


def test_version_names_torch_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"breakeven {__version__} (torch ")
    assert re.search(r"GPU calibrations up to 20\d\d-\d\d-\d\d\)\n$", said)


def test_defaults_of_check(check: FakeCheck) -> None:
    assert main(["check", "train.py"]) == 0
    (call,) = check.calls
    del call["progress"], call["launcher"]
    assert call == {
        "target": "train.py",
        "arguments": (),
        "is_module": False,
        "devices": (),
        "measured": (),
        "host": "auto",
        "time_limit_s": 300.0,
        "keep": KEEP_NOTHING,
        "tries_generated": True,
        "compile_mode": None,
        "knows_other_cpus": False,
        "length": TrainingLength(),
    }


def test_options_of_check(check: FakeCheck) -> None:
    command = (
        "check -m pkg.train --device t4 --device h100 --host xeon --time-limit 2.5 --keep-writes "
        "--keep-trackers --no-fast-step --compile reduce-overhead"
    )
    speeds = ("--measured", "T4: 340 it/s", "--measured", "colab l4: 2 ms")
    assert main([*command.split(), *speeds, "--", "--epochs", "3", "--", "--json"]) == 0
    (call,) = check.calls
    del call["progress"], call["launcher"]
    assert call == {
        "target": "pkg.train",
        "arguments": ("--epochs", "3", "--", "--json"),
        "is_module": True,
        "devices": ("t4", "h100"),
        "measured": ("T4: 340 it/s", "colab l4: 2 ms"),
        "host": "xeon",
        "time_limit_s": 2.5,
        "keep": Keep(writes=True, trackers=True),
        "tries_generated": False,
        "compile_mode": CompileMode.REDUCE_OVERHEAD,
        "knows_other_cpus": False,
        "length": TrainingLength(),
    }


def test_folders_in_which_writes_are_kept(
    check: FakeCheck, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "train.py", "--keep-writes-in", str(tmp_path)]) == 0
    assert check.calls[0]["keep"] == Keep(raw_folders=(bytes(tmp_path),))
    assert main(["check", "train.py", "--keep-writes-in", "nowhere"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ("--steps 10,000", TrainingLength(num_steps=10_000)),
        ("--epochs 30", TrainingLength(num_epochs=30)),
    ],
)
def test_the_length_of_a_training(options: str, length: TrainingLength, check: FakeCheck) -> None:
    assert main(["check", "train.py", *options.split()]) == 0
    assert check.calls[0]["length"] == length


def test_answer_on_stdout_progress_on_stderr(
    check: FakeCheck, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "train.py"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Train this on your CPU: 2.3×")
    assert captured.err == "measuring the step on this CPU (about 5.0 s)\n"


def test_json_is_one_document_on_stdout(
    check: FakeCheck, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["check", "train.py", "--json"]) == 0
    report = replace(made_up.cpu_wins(), command="breakeven check train.py")
    assert capsysbinary.readouterr().out == to_json(report)


def test_json_is_utf_8_on_an_ascii_terminal(
    check: FakeCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["check", "train.py", "--json"]) == 0
    assert json.loads(raw.getvalue())["verdict"]["because"].count("µs") == 1


def test_output_file_holds_the_same_document(
    check: FakeCheck, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert main(["check", "train.py", "-o", str(path)]) == 0
    report = replace(made_up.cpu_wins(), command="breakeven check train.py")
    assert path.read_bytes() == to_json(report)
    out = capsys.readouterr().out
    assert out.startswith("Train this")
    assert "report.json" in "".join(out.split()[-2:])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("check train.py", "check train.py"),
        ("check -q train.py --json -o run.json --force --no-source", "check train.py"),
        ("check --output=run.json -orun.json train.py --quiet", "check train.py"),
        ("check -qo run.json train.py -qoreport.html", "check train.py"),
        ("explain train.py --trace step.json --rule SYNC001", "explain train.py --rule SYNC001"),
        ("sweep train.py --over width=1..8 --chart=a.html", "sweep train.py --over width=1..8"),
        ("tune -m pkg --write-patch a.diff --exact", "tune -m pkg --exact"),
        ("check train.py -- -o out --json", "check train.py -- -o out --json"),
        ("check 'my net.py' --device 'A 1' -- ''", "check 'my net.py' --device 'A 1' -- ''"),
    ],
)  # fmt: skip
def test_the_stored_command_has_all_but_options_of_output(given: str, kept: str) -> None:
    assert answer_command(shlex.split(given)) == f"breakeven {kept}"


@given(st.lists(st.text()))
def test_the_stored_command_holds_any_argument_of_the_script(arguments: list[str]) -> None:
    stored = answer_command(["check", "-q", "train.py", "--", *arguments])
    assert shlex.split(stored) == ["breakeven", "check", "train.py", "--", *arguments]


def test_output_file_may_leave_the_source_out(check: FakeCheck, tmp_path: Path) -> None:
    source = SourceText(path="/lab/train.py", text="import secrets\n")
    recording = record(StepTrace(events=()), reference_host(), sources=(source,))
    check.outcome = replace(made_up.cpu_wins(), recording=recording)
    whole, bare = tmp_path / "whole.json", tmp_path / "bare.json"
    assert main(["check", "train.py", "-o", str(whole)]) == 0
    assert main(["check", "train.py", "-o", str(bare), "--no-source"]) == 0
    assert b"import secrets" in whole.read_bytes()
    assert b"import secrets" not in bare.read_bytes()
    assert (read_report(whole).command, read_report(bare).command) == (
        "breakeven check train.py",
        "",
    )
    assert read_report(bare).findings == made_up.cpu_wins().findings


def test_existing_output_is_refused_before_any_work(
    check: FakeCheck, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text("mine")
    assert main(["check", "train.py", "-o", str(path)]) == 3
    assert check.calls == []
    assert path.read_text() == "mine"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "exists and is not overwritten" in captured.err
    assert "hint: add --force" in captured.err
    assert main(["check", "train.py", "-o", str(path), "--force"]) == 0
    assert json.loads(path.read_bytes())["schema_version"] == 3


def test_a_file_that_cannot_be_written_does_not_lose_the_answer(
    check: FakeCheck,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise BreakevenError("cannot write: No space left on device")

    monkeypatch.setattr("breakeven.store.write_document", full_disk)
    assert main(["check", "train.py", "-o", str(tmp_path / "r.json")]) == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("Train this on your CPU")
    assert "No space left" in captured.err


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("--frobnicate", "arguments are required: COMMAND", "breakeven --help"),
        ("frobnicate", "there is no command 'frobnicate'", "commands: check, calibrate, compare"),
        ("chek t.py", "there is no command 'chek'", "did you mean breakeven check?"),
        ("run.py --lr 3", "there is no command 'run.py'", "breakeven check run.py"),
        ("check t.py --devices T4", "unrecognized arguments", "did you mean --device? arguments"),
        ("devices --vendr x", "unrecognized arguments", "did you mean --vendor? see: breakeven"),
        ("check", "arguments are required: TARGET", "breakeven check --help"),
        ("check t.py --time-limit 0", "is not a number of seconds above 0", "--help"),
        ("check t.py --time-limit nan", "is not a number of seconds above 0", "--help"),
        ("check t.py --time-limit soon", "is not a number of seconds above 0", "--help"),
        (
            "check t.py --lr 3",
            "unrecognized arguments: --lr 3",
            "after --: breakeven check t.py -- --lr 3",
        ),
        ("check t.py --steps 0", "'0' is not a whole number above 0", None),
        ("check t.py --epochs many", "'many' is not a whole number above 0", None),
        ("check t.py --steps 9 --epochs 3", "not allowed with argument --steps", None),
        ("check t.py extra", "unrecognized arguments: extra", "breakeven check t.py -- extra"),
        ("check t.py --force", "--force is about -o FILE", None),
        ("check t.py --no-source", "--no-source is about -o FILE", None),
        ("explain t.py --no-source", "--no-source is about -o FILE", None),
        (
            "explain r.json --measured T4:2ms",
            "r.json is a stored run",
            "script itself with --measured",
        ),
        ("check t.py --dev a", "unrecognized arguments: --dev a", None),
        ("devices -- a100", "devices takes nothing after --", None),
        ("devices a b", "unrecognized arguments: b", "breakeven devices --help"),
    ],
)
def test_wrong_command_lines_exit_with_2(
    command: str,
    message: str,
    hint: str | None,
    check: FakeCheck,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert hint is None or hint in captured.err
    assert check.calls == []


def test_script_errors_show_place_and_the_last_output(
    check: FakeCheck, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "".join(f"line {number}\n" for number in range(100)) + "\x1b[2Jboom"
    check.outcome = ScriptError(
        "the script raised ValueError: bad",
        hint="run it alone: python train.py",
        file="train.py",
        line=17,
        output=output,
    )
    assert main(["check", "train.py", "-q"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["error: the script raised ValueError: bad", "  at train.py:17"]
    assert lines[2:5] == ["  the script's last output:", "  | line 81", "  | line 82"]
    assert lines[-2:] == ["  | \\x1b[2Jboom", "hint: run it alone: python train.py"]


def test_messages_are_no_markup(check: FakeCheck, capsys: pytest.CaptureFixture[str]) -> None:
    check.outcome = BreakevenError("no [bold]x[/bold] \x1b]0;y\x07 in [/]")
    assert main(["check", "train.py", "-q"]) == 3
    assert capsys.readouterr().err == "error: no [bold]x[/bold] \\x1b]0;y\\x07 in [/]\n"


def test_ctrl_c_is_one_line_and_130(check: FakeCheck, capsys: pytest.CaptureFixture[str]) -> None:
    check.outcome = KeyboardInterrupt()
    assert main(["check", "train.py", "-q"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bugs_are_not_swallowed(check: FakeCheck, capsys: pytest.CaptureFixture[str]) -> None:
    check.outcome = ZeroDivisionError("float division")
    assert main(["check", "train.py", "-q"]) == 3
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("error: this is a bug in breakeven")


def test_hints_fit_the_flags_in_use(check: FakeCheck, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "train.py", "-q"])
    assert "Other GPUs: --device NAME" in capsys.readouterr().out
    main(["check", "train.py", "-q", "--device", "t4"])
    assert "Other GPUs" not in capsys.readouterr().out
    check.outcome = made_up.too_close()
    main(["check", "train.py", "-q"])
    assert "on a machine with the T4" in capsys.readouterr().out


def test_one_device_in_full_names_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "a100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("A100 SXM4 80GB\n")
    assert "312 TFLOP/s dense" in out
    assert "sources\n" in out


def test_devices_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "a100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    (device,) = document["devices"]
    assert device["id"] == "a100-sxm4-80gb"
    assert device["peak_flop_per_s"]["fp16"] == 312e12
    assert main(["devices", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["devices"]) >= 60


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    captured = capsys.readouterr()
    assert "commands:" in captured.out
    assert captured.err == ""


def test_lines_that_go_to_a_pipe_end_where_their_text_does(
    check: FakeCheck, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "train.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    "outcome", [ScriptError("train.py raised ValueError"), FileNotFoundError(2, "ValueError")]
)
def test_a_current_folder_that_is_gone_is_the_cause(
    outcome: Exception,
    check: FakeCheck,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    check.outcome = outcome
    assert main(["check", "train.py", "--quiet"]) == 3
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: the current folder is gone: it was deleted or moved; then: ")
    assert "ValueError" in error
    assert "change to a folder that exists" in hint
    check.outcome = UsageError("--device is missing")
    assert main(["check", "train.py", "--quiet"]) == 2
    assert "gone" not in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_an_error_of_one_line(options: list[str]) -> None:
    command = [sys.executable, "-m", "breakeven", "devices", "a100", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "error: cannot write the answer to stdout: No space left on device\n"
