"""`breakeven sweep`: options, what goes where, exit codes, progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import breakeven.report
from breakeven.capture import KEEP_NOTHING, Keep
from breakeven.cli import main
from breakeven.errors import UsageError
from breakeven.report import to_json
from breakeven.simulate import Strategy
from factories import sweeps as made_up

SWEEP = ["sweep", "train.py", "--over", "batch_size=16..64"]


class FakeSweep:
    """Stands in for the driver: records its arguments, and returns or raises."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.outcome: object = made_up.batch_sizes()

    def __call__(self, target: str, **options: Any) -> object:
        self.calls.append({"target": target, **options})
        progress = options["progress"]
        progress.begin("measuring on this CPU", 5.0)
        progress.detail("step 17")
        points = made_up.batch_sizes().points
        progress.finished(points[:4], 1, 13)
        progress.finished((), 2, 13)
        progress.finished(points, 13, 13)
        progress.end()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class FakeEngine:
    """Stands in for the Ray cluster: records where it was asked for, and that it was left."""

    def __init__(self, *, address: str | None, machine: str, keep: Keep, progress: object) -> None:
        self.address, self.machine, self.keep = address, machine, keep
        self.is_closed = False

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


def fake_axis(text: str) -> str:
    if "=" not in text:
        raise UsageError(f"{text} is no axis")
    return f"axis {text}"


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> FakeSweep:
    fake = FakeSweep()
    monkeypatch.setattr("breakeven.studies.sweep_target", fake)
    monkeypatch.setattr("breakeven.studies.parse_axis", fake_axis)
    monkeypatch.setattr("breakeven.studies.RayEngine", FakeEngine)
    return fake


@pytest.fixture
def charts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Draw charts as their suffix alone, and return the suffixes that were asked for."""
    asked: list[str] = []

    def draw(report: object, suffix: str) -> bytes:
        asked.append(suffix)
        return suffix.encode()

    monkeypatch.setattr(breakeven.report, "chart_document", draw, raising=False)
    return asked


def test_defaults(sweep: FakeSweep) -> None:
    assert main(SWEEP) == 0
    (call,) = sweep.calls
    del call["progress"]
    assert call == {
        "target": "train.py",
        "axes": ("axis batch_size=16..64",),
        "arguments": (),
        "is_module": False,
        "devices": (),
        "host": "auto",
        "time_limit_s": 300.0,
        "keep": KEEP_NOTHING,
        "engine": None,
        "strategy": Strategy.DDP,
        "is_fresh": False,
    }


def test_options(sweep: FakeSweep) -> None:
    command = (
        "sweep -m pkg.train --over width=1..8 --over lr=-1,0.1 --device t4 --device h100 "
        "--host xeon --time-limit 2.5 --keep-writes --strategy data_parallel --fresh"
    )
    assert main([*command.split(), "--", "--width={width}", "--", "{lr}"]) == 0
    (call,) = sweep.calls
    del call["progress"]
    assert call == {
        "target": "pkg.train",
        "axes": ("axis width=1..8", "axis lr=-1,0.1"),
        "arguments": ("--width={width}", "--", "{lr}"),
        "is_module": True,
        "devices": ("t4", "h100"),
        "host": "xeon",
        "time_limit_s": 2.5,
        "keep": Keep(writes=True),
        "engine": None,
        "strategy": Strategy.DATA_PARALLEL,
        "is_fresh": True,
    }


def test_a_ray_cluster(sweep: FakeSweep) -> None:
    assert main([*SWEEP, "--engine", "ray", "--ray-address", "auto", "--machine", "T4"]) == 0
    assert main([*SWEEP, "--engine", "ray", "--keep-writes"]) == 0
    first, second = (call["engine"] for call in sweep.calls)
    assert (first.address, first.machine) == ("auto", "T4")
    assert (second.address, second.machine) == (None, "")
    assert (first.keep, second.keep) == (Keep(), Keep(writes=True))
    assert first.is_closed
    sweep.outcome = KeyboardInterrupt()
    assert main([*SWEEP, "--engine", "ray", "-q"]) == 130
    assert sweep.calls[-1]["engine"].is_closed


def test_answer_on_stdout_progress_on_stderr(
    sweep: FakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(SWEEP) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("A GPU pays off from batch size 413 on (294–586): RTX 4090.")
    assert captured.err.splitlines() == [
        "measuring on this CPU (about 5.0 s)",
        "[1/13] batch size 16: CPU 440 µs measured, RTX 4090 1.4 ms predicted",
        "[2/13] no answer",
        "[13/13] 13 points done",
    ]


def test_files(
    sweep: FakeSweep, charts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, chart = tmp_path / "sweep.json", tmp_path / "sweep.HTML"
    command = [*SWEEP, "-q", "-o", str(output), "--chart", str(chart)]
    assert main(command) == 0
    over = "breakeven sweep train.py --over batch_size=16..64"
    assert output.read_bytes() == to_json(replace(made_up.batch_sizes(), command=over))
    assert (chart.read_text(), charts) == (".HTML", [".HTML"])
    out = "".join(capsys.readouterr().out.split())
    assert "sweep.json" in out
    assert "sweep.HTML" in out
    assert main(command) == 3
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert len(sweep.calls) == 1, "refused before the work"
    assert main([*command, "--force"]) == 0


def test_a_sweep_without_any_answer_is_shown_and_no_success(
    sweep: FakeSweep, charts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.outcome = made_up.nothing()
    chart = tmp_path / "a.svg"
    assert main([*SWEEP, "-q", "--json", "--chart", str(chart)]) == 3
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["failures"]) == len(made_up.WIDTHS)
    assert captured.err.startswith("error: no point of the grid gave an answer\n")
    assert not chart.exists()
    assert main([*SWEEP, "-q"]) == 3
    assert "the script raised ValueError: width 16 (train.py:3)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "kept"),
    [([], "the same command continues"), (["--fresh"], "without --fresh continues")],
)
def test_ctrl_c_says_that_what_was_measured_is_kept(
    options: list[str], kept: str, sweep: FakeSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.outcome = KeyboardInterrupt()
    assert main([*SWEEP, "-q", *options]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    said, ended = captured.err.splitlines()
    assert said.startswith("Measurements are kept")
    assert kept in said
    assert ended == "interrupted"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("--over nonsense", "nonsense is no axis", None),
        ("--machine T4", "--machine is about a Ray cluster", "add --engine ray"),
        ("--ray-address auto", "--ray-address is about a Ray cluster", "add --engine ray"),
        ("--engine slurm", "invalid choice: 'slurm'", None),
        ("--strategy fsdp", "invalid choice: 'fsdp'", None),
        ("--force", "--force is about -o FILE and --chart FILE", None),
        ("--chart a.pdf", "no chart is written as .pdf", None),
        ("--chart a.svg -o a.svg", "-o and --chart name the same file", None),
        ("--time-limit 0", "is not a number of seconds above 0", None),
        (
            "--width 3",
            "unrecognized arguments: --width 3",
            "breakeven sweep train.py --over batch_size=16..64 -- --width 3",
        ),
    ],
)
def test_wrong_command_lines_exit_with_2(
    options: str,
    message: str,
    hint: str | None,
    sweep: FakeSweep,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SWEEP, *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert hint is None or hint in captured.err
    assert sweep.calls == []
