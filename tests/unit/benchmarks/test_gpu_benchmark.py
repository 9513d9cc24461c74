"""The command for a machine with a GPU, tried on the CPU with tiny sizes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from breakeven.calibrate.gpu import calibration_bytes
from breakeven.cost import read_calibration
from factories.calibrations import calibrated
from factories.loaded_scripts import load_script
from factories.processes import is_running, wait_until

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.py"


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, str(SCRIPT), "--out", str(out), "--device", "cpu", "--tiny", "--quick",
         *options),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_CACHE_HOME": str(out.parent / "cache"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_dry_run_lists_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    found = run(tmp_path / "out", "--dry-run", "--part", "calibrate", "steps")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "calibrate"
    assert len(lines) == 3
    assert all(line.startswith("steps ") for line in lines[1:])
    assert not list((tmp_path / "out").iterdir())


@pytest.fixture
def gpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the work of a call that has 2 s, with one command that starts another and waits."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    module = load_script(SCRIPT, "gpu_run")
    (tmp_path / "calibrations").mkdir()
    (tmp_path / "calibrations" / "t4.json").write_bytes(calibration_bytes(calibrated()))
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--tiny", "--part", "tests"]
    made = module.Run(module._parse(arguments))
    waiting = (
        "import subprocess; child = subprocess.Popen(('sleep', '60'));"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); child.wait()"
    )
    command = module.Command(
        part="tests", name="gpu", arguments=("-c", waiting), is_calibrated=False, about_s=1.0
    )
    monkeypatch.setattr(made, "_commands", lambda: [command])
    monkeypatch.setattr(made, "_left_s", lambda: 2.0)
    monkeypatch.setattr(module, "_LEAST_S", 1.0)
    monkeypatch.setattr(module, "_END_S", 1.0)
    return made


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux")
def test_what_does_not_end_is_ended_with_all_it_started_and_tried_twice(
    gpu_run: Any, tmp_path: Path
) -> None:
    for number in (1, 2):
        gpu_run.go()
        assert list(gpu_run.pending()) == (["tests gpu before"] if number == 1 else [])
    answers = gpu_run._answers()
    assert [answer["exit_code"] for answer in answers] == [None, None]
    assert all(answer["told"] == "no end within 2 s" for answer in answers)
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_running(child))


def test_steps_are_predicted_anew_where_the_calibration_is_another(
    gpu_run: Any, tmp_path: Path
) -> None:
    from whole_steps import digest, write_rows  # the script's folder is on the path

    (file,) = (tmp_path / "calibrations").iterdir()
    known = digest(file.read_bytes())
    steps = tmp_path / "steps.csv"
    for cells, is_needed in (
        ({"calibration": known}, False),
        ({"calibration": "another"}, True),
        ({}, True),
        ({"note": "refused"}, False),
    ):
        write_rows(steps, [{"case_id": "gpu-001", **cells}])
        # A copy has times of its own.
        os.utime(steps, (0, 0))
        assert gpu_run._needs_prediction() is is_needed, cells


def test_a_step_that_ended_the_process_is_tried_once_more_and_an_interrupted_one_always(
    gpu_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import whole_steps  # the script's folder is on the path

    steps, as_it_was = tmp_path / "steps.csv", []

    def aborts(*_: object) -> None:
        as_it_was.append(steps.read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_steps, "timed_cells", aborts)
    monkeypatch.setattr(gpu_run, "_left_s", lambda: 1e6)
    first, second = gpu_run._pending_steps()
    with pytest.raises(KeyboardInterrupt):
        gpu_run._measure_steps()
    assert list(gpu_run._pending_steps()) == [first, second]
    steps.write_bytes(as_it_was[0])
    assert list(gpu_run._pending_steps()) == [first, second]
    with pytest.raises(KeyboardInterrupt):
        gpu_run._measure_steps()
    steps.write_bytes(as_it_was[1])
    assert list(gpu_run._pending_steps()) == [second]
    (row,) = whole_steps.read_rows(steps)
    assert row["note"] == "the process was ended twice while it was measured"


def test_the_faults_that_come_first_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    first = load_script(SCRIPT, "gpu_run")._FAULTS_FIRST
    script = (ROOT / "tests" / "e2e" / "scripts" / "fixes.py").read_text()
    assert first
    assert all(f"\ndef {name}():" in script for name in first)


@pytest.mark.full
def test_the_whole_path_runs_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run(out, "--part", "calibrate")
    assert first.returncode == 0, first.stderr
    assert "measuring kernels" in first.stdout
    # As where it was broken off while it wrote.
    with (out / "reports.jsonl").open("a") as stream:
        stream.write('{"key": "tests gpu bef')
    second = run(out, "--seconds", "250", "--part", "calibrate", "steps", "tests")
    assert second.returncode == 0, second.stderr
    assert "nothing is left" in second.stdout
    assert "measuring kernels" not in second.stdout
    (file,) = (out / "calibrations").glob("*.json")
    calibration = read_calibration(file.read_bytes(), file.name)
    assert calibration.is_quick
    with (out / "steps.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    for row in rows:
        for column in ("value_ms", "before_ms", "after_ms", "after_low_ms", "after_high_ms"):
            assert float(row[column]) > 0, (column, row)
    done, _, tested = (out / "reports.jsonl").read_text().splitlines()
    assert json.loads(done)["answer"]["num_left"] == 0
    assert json.loads(tested)["key"] == "tests gpu before"
    summary = (out / "summary.md").read_text()
    assert "| eager, not fitted to | 2 |" in summary or "| eager, fitted to | 2 |" in summary
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) <= 8
