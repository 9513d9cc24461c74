"""``breakeven calibrate`` and ``breakeven devices --hosts`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from breakeven.calibrate.gpu.calibrating import GpuResult
from breakeven.calibrate.here import HereCalibration
from breakeven.cli.dispatch import main
from breakeven.cost import read_calibration, read_calibrations_again, shipped_costs
from breakeven.device import find_device
from factories.calibrations import calibrated
from factories.hosts import calibration


class FakeLauncher:
    """Starts nothing."""

    def __enter__(self) -> FakeLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def ready(self) -> SimpleNamespace:
        return SimpleNamespace(gpu="")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the list of whether a measurement was forced, one entry a call."""
    calls: list[bool] = []

    def calibrate_here(_: FakeLauncher, *, is_forced: bool) -> HereCalibration:
        calls.append(is_forced)
        return HereCalibration(
            calibration=calibration(),
            is_remembered=not is_forced,
            other_load_fraction=0.6 if is_forced else 0.0,
        )

    monkeypatch.setattr("breakeven.calibrate.calibrate_here", calibrate_here)
    monkeypatch.setattr("breakeven.capture.Launcher", FakeLauncher)
    return calls


def test_remembered_figures_are_shown_as_such(
    forced: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate"]) == 0
    shown = capsys.readouterr()
    assert "Made-up CPU" in shown.out
    assert "Remembered; measure again with --force." in shown.out
    assert "measuring" in shown.err
    assert forced == [False]


def test_force_measures_again_and_a_busy_machine_is_said(
    forced: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--force", "-q"]) == 0
    shown = capsys.readouterr()
    assert "Other processes used 60 %" in shown.out
    assert "Remembered" not in shown.out
    assert shown.err == ""
    assert forced == [True]


def test_hosts_are_listed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--hosts"]) == 0
    assert "EPYC 7763" in capsys.readouterr().out
    assert main(["devices", "--hosts", "AMD EPYC 7763 64-Core Processor", "--json"]) == 0
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert host["id"] == "epyc-7763"
    assert main(["devices", "--hosts", "no such"]) == 3
    assert "there is no host 'no such'" in capsys.readouterr().err


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """Yield the list of what was asked of the GPU's calibration."""
    asked: list[Any] = []

    def calibrate_gpu(request, progress, *, host, begun_s):
        asked.append(request)
        return GpuResult(calibration=calibrated(), num_new=0, num_left=3)

    monkeypatch.setenv("BREAKEVEN_CALIBRATIONS", str(tmp_path / "own"))
    monkeypatch.setattr("breakeven.calibrate.gpu.calibrate_gpu", calibrate_gpu)
    monkeypatch.setattr("breakeven.calibrate.gpu.find_gpu", torch.device)
    yield asked
    monkeypatch.undo()
    read_calibrations_again()


@pytest.mark.usefixtures("forced")
def test_a_gpu_is_calibrated_and_its_file_written(
    gpu: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--device", "cuda:0", "--quick", "--share", "-q"]) == 0
    (request,) = gpu
    assert request.device == torch.device("cuda", 0)
    assert (request.is_quick, request.is_forced) == (True, False)
    shown = capsys.readouterr().out
    assert "calibrated on this GPU on 2026-11-25" in shown
    assert "Remembered; measure again with --force." in shown
    assert "No time for 3 measurements: the same command continues." in shown
    assert "/issues/new?title=Calibration%20of" in shown
    file = tmp_path / "own" / "t4.json"
    assert read_calibration(file.read_bytes(), "t4") == calibrated()
    # From now on predictions of this process use it.
    found = shipped_costs().calibration(find_device("t4"))
    assert found == calibrated()
    assert main(["calibrate", "--device", "cuda", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu_calibration"] == str(file)


@pytest.mark.usefixtures("forced")
def test_without_a_gpu_the_host_alone_is_measured(
    gpu: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--device", "none"]):
        assert main(["calibrate", "-q", "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["gpu_calibration"] == ""
    assert gpu == []
    assert main(["calibrate", "-q"]) == 0
    assert "torch sees no GPU here. If there is one, see whether" in capsys.readouterr().out
    assert main(["calibrate", "-q", "--device", "none"]) == 0
    assert "torch sees no GPU" not in capsys.readouterr().out


def test_what_is_no_gpu_is_said_before_the_host_is_measured(
    forced: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "-q", "--share"]) == 3
    said = capsys.readouterr().err
    assert "there is no GPU here to share" in said
    assert "torch.utils.collect_env" in said
    assert main(["calibrate", "-q", "--device", "tpu"]) == 2
    assert "'tpu' is no GPU" in capsys.readouterr().err
    assert forced == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--device", "none", "--quick"],
            "--quick is about a GPU, and --device none measures none",
        ),
        (["--device", "cpu"], "--device 'cpu' is no GPU"),
    ],
)
def test_options_of_a_gpu_go_with_measuring_one(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *options]) == 2
    assert message in capsys.readouterr().err
