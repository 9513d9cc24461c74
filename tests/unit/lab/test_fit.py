"""`python -m lab.fit`: which file is written from what, and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from breakeven.cost import KernelSpread, Spread, StepEffect, StepEffects
from breakeven.simulate import MultiGpuTable, load_multi_gpu_table
from factories.accuracy import write_table
from lab import fit
from lab.fit import main


def effects(num_effects: int = 6) -> StepEffects:
    return StepEffects(
        version=2,
        provenance="made up",
        spread=Spread(
            calibrated=KernelSpread(compute=0.5, memory=0.75, fp64=1.0),
            unseen=KernelSpread.uniform(1.25),
            known_host_log_sigma=0.1,
            unknown_host_log_sigma=0.4,
        ),
        effects=(
            StepEffect(kind="floor", of=(), log_factor=math.log(2)),
            *(
                StepEffect(kind="chip", of=(f"GA10{i}",), log_factor=math.log(1 - i / 10))
                for i in range(num_effects - 1)
            ),
        ),
        calibrated_on=tuple(f"{i:010x}" for i in range(9)),
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, int]]:
    """Return the list of commands that a calibration on steps was told, and its rows."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "steps.csv", {}, {"num_devices": "2"})
    calls: list[tuple[str, int]] = []

    def calibrate_on_steps(rows, own_rows, *, command, progress):
        calls.append((command, len(rows) + 10 * len(own_rows)))
        return effects()

    def calibrate_on_shared_steps(rows, *, command, progress):
        calls.append((command, len(rows)))
        return msgspec.structs.replace(load_multi_gpu_table(), calibrated_on=("00", "01"))

    monkeypatch.setattr(fit, "calibrate_on_steps", calibrate_on_steps)
    monkeypatch.setattr(fit, "calibrate_on_shared_steps", calibrate_on_shared_steps)
    return calls


def test_effects_of_steps_are_written_and_the_largest_shown(
    asked: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["steps", "steps.csv", "-o", "effects.json", "-q"]
    assert main(command) == 0
    assert asked == [("python -m lab.fit steps", 2)]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "9 steps, 6 effects"
    start = shown.index("  chip: 5 effects")
    # The four that are farthest from 1.
    assert shown[start + 1 : start + 5] == [
        "     0.600  GA104",
        "     0.700  GA103",
        "     0.800  GA102",
        "     0.900  GA101",
    ]
    assert shown[start + 5 :] == ["  floor: 1 effect", "     2.000  all"]
    document = Path("effects.json").read_bytes()
    assert msgspec.json.decode(document, type=StepEffects) == effects()
    lines = document.decode().splitlines()
    assert '  {"kind":"chip","of":["GA100"],"log_factor":0.0},' in lines
    assert max(len(line) for line in lines) < 200
    assert main(command) == 3  # it is there
    assert "effects.json" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert len(asked) == 2


def test_rows_of_few_gpus_go_beside_those_of_many(
    asked: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["steps", "steps.csv", "--own", "steps.csv", "-o", "effects.json", "-q"]
    assert main(command) == 0
    assert asked == [("python -m lab.fit steps", 22)]
    assert capsys.readouterr().err == ""


def test_costs_of_several_gpus_are_written_and_shown(
    asked: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["multi-gpu", "steps.csv", "-o", "multi.json", "-q"]
    assert main(command) == 0
    assert asked == [("python -m lab.fit multi-gpu", 2)]
    shown = capsys.readouterr().out
    assert shown.startswith("2 steps on several GPUs\nnn.DataParallel\n  step_dispatches: ")
    assert "ddp, device" in shown
    table = msgspec.json.decode(Path("multi.json").read_bytes(), type=MultiGpuTable)
    assert table.data_parallel == load_multi_gpu_table().data_parallel
    assert table.calibrated_on == ("00", "01")


@pytest.mark.parametrize("options", [[], ["steps", "steps.csv"], ["steps", "-o", "x.json"]])
def test_what_is_missing_is_a_wrong_command_line(
    options: list[str], asked: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(options)
    assert caught.value.code == 2
    assert "required" in capsys.readouterr().err
    assert asked == []


def test_a_table_that_is_not_there(
    asked: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["steps", "none.csv", "-o", "x.json", "-q"]) == 3
    assert "none.csv" in capsys.readouterr().err
    assert asked == []
