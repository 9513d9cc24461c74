"""``--fail-if`` of check and compare: exit codes, what is printed, and the devices compared."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.cli import main
from breakeven.device import default_devices
from breakeven.report import CheckReport, to_json
from breakeven.verdict import ProgramFacts, program_of
from factories import reports as made_up

CHECK = made_up.cpu_wins()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let a check return a made-up report, and return the options of each check."""
    calls: list[dict[str, Any]] = []

    def check_target(target: str, **options: Any) -> CheckReport:
        calls.append({"target": target, **options})
        num_steps = options["length"].num_steps
        program = program_of(CHECK.verdict, CHECK.results, ProgramFacts(), num_steps)
        return replace(CHECK, program=program)

    monkeypatch.setattr("breakeven.studies.check_target", check_target)
    monkeypatch.setattr("breakeven.capture.Launcher", lambda keep: nullcontext())
    return calls


Checked = Callable[..., tuple[int, str, str]]


@pytest.fixture
def checked(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> Checked:
    """Return a function that checks under conditions, and returns exit code and streams."""

    def run(*conditions: str, more: tuple[str, ...] = ()) -> tuple[int, str, str]:
        words = [word for text in conditions for word in ("--fail-if", text)]
        exit_code = main(["check", "train.py", "-q", *words, *more])
        return exit_code, *capsys.readouterr()

    return run


def test_conditions_that_do_not_hold_change_nothing(checked: Checked) -> None:
    bare = checked()
    assert bare[0] == 0
    assert checked("step > 5 ms on T4", "finding COPY001", "findings > 2")[:1] == (0,)
    assert checked("step > 5 ms on T4", more=("--device", "T4"))[2] == ""


def test_conditions_that_hold_are_a_block_at_the_end(
    checked: Checked, check_golden: Callable[[str, str], None]
) -> None:
    exit_code, out, err = checked(
        "step > 1 ms on T4", "step > 5 ms on T4", "finding SYNC001", "verdict is cpu"
    )
    assert exit_code == 1
    assert out.startswith("Train this on your CPU: 2.3×")
    check_golden("terminal_fail_if.txt", err)


def test_strict_conditions_hold_over_a_part_of_the_interval(checked: Checked) -> None:
    assert checked("step > 2 ms on T4")[0] == 0
    assert checked("step > 2 ms on T4", more=("--strict",))[0] == 1


def test_json_stays_one_document(checked: Checked) -> None:
    exit_code, out, err = checked("findings > 0", more=("--json",))
    assert exit_code == 1
    assert json.loads(out)["verdict"]["choice"] == "cpu"
    assert err == "breakeven: failed, because\n  findings > 0: 2 findings\n"


def test_the_run_is_written_before_it_fails(checked: Checked, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert checked("findings > 0", more=("-o", str(file)))[0] == 1
    assert json.loads(file.read_bytes())["target"] == CHECK.target


@pytest.mark.parametrize(
    ("conditions", "devices", "expected"),
    [
        (["findings > 3"], [], []),
        (["step > 1 s on cpu"], [], []),
        (["step > 1 s on L40S"], [], [*(spec.id for spec in default_devices()), "L40S"]),
        (["step > 1 s on nvidia l40s", "memory > 1 GB on T4"], ["A100"], ["A100", "L40S", "T4"]),
    ],
)
def test_devices_of_conditions_are_compared_too(
    conditions: list[str], devices: list[str], expected: list[str], asked: list[dict[str, Any]]
) -> None:
    words = [word for text in conditions for word in ("--fail-if", text)]
    words += [word for name in devices for word in ("--device", name)]
    main(["check", "train.py", "-q", *words])
    assert list(asked[0]["devices"]) == expected


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["--fail-if", "slow"], 2, "--fail-if does not understand 'slow'"),
        (["--fail-if"], 2, "expected one argument"),
        (["--strict"], 2, "--strict is about --fail-if"),
        (["--fail-if", "training > 1 h on T4"], 2, "needs --steps N or --epochs N"),
        (["--fail-if", "step > 1 ms on B9000"], 3, "No device called “B9000”"),
        (["--fail-if", "finding SYNK001"], 3, "did you mean SYNC001"),
    ],
)
def test_wrong_conditions_are_refused_before_any_work(
    words: list[str],
    exit_code: int,
    message: str,
    asked: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "train.py", *words]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert asked == []


def test_a_condition_on_the_training_needs_its_length(checked: Checked) -> None:
    exit_code, _, err = checked("training > 1 min on T4", more=("--steps", "1_000_000"))
    assert exit_code == 1
    assert "training > 1 min on T4: 35 min (26 min to 46 min)" in err


def test_what_cannot_be_judged_is_an_error_after_the_answer(checked: Checked) -> None:
    exit_code, out, err = checked("findings > 0", "step > 1 ms on L40S")
    assert exit_code == 3
    assert out.startswith("Train this on your CPU")
    assert err.startswith(
        "error: cannot judge --fail-if 'step > 1 ms on L40S': L40S is not among the devices"
    )


def test_in_a_log_of_both_streams_the_answer_comes_first(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.BytesIO()
    stdout = io.TextIOWrapper(log, encoding="utf-8")
    stderr = io.TextIOWrapper(log, encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert main(["check", "train.py", "-q", "--fail-if", "findings > 0"]) == 1
    lines = log.getvalue().decode().splitlines()
    assert lines[0].startswith("Train this on your CPU")
    assert lines[-2:] == ["breakeven: failed, because", "  findings > 0: 2 findings"]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in log.getvalue().decode()


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Return the files of two runs: the second has a finding more, and T4 takes 4 times as long."""
    results = tuple(
        replace(one, step_ns=4 * one.step_ns, low_ns=4 * one.low_ns, high_ns=4 * one.high_ns)
        if one.device == "T4"
        else one
        for one in CHECK.results
    )
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_bytes(to_json(replace(CHECK, findings=CHECK.findings[:1])))
    after.write_bytes(to_json(replace(CHECK, results=results)))
    return str(before), str(after)


@pytest.mark.parametrize(
    ("words", "exit_code", "messages"),
    [
        ([], 0, []),
        (
            ["--fail-if", "slower > 10 %", "-q"],
            1,
            ["slower > 10 %: 4.0× (2.7–5.9×) the time on T4"],
        ),
        (["--fail-if", "slower > 10 % on cpu"], 0, []),
        (["--fail-if", "new finding"], 1, ["new finding: OPT002 at examples/rnn_stream.py:38"]),
        (["--fail-if", "slower > 10 % on L4"], 3, ["no step time on L4 in common"]),
        (["--fail-if", "findings > 3"], 2, ["conditions are like 'slower > 10 %'"]),
        (["--strict"], 2, ["--strict is about --fail-if"]),
    ],
)
def test_comparisons_fail_by_conditions(
    words: list[str],
    exit_code: int,
    messages: list[str],
    runs: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", *runs, *words]) == exit_code
    captured = capsys.readouterr()
    assert ("The verdict is the same" in captured.out) == (exit_code != 2)
    assert bool(captured.err) == bool(messages)
    for message in messages:
        assert message in captured.err
