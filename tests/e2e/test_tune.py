"""``breakeven tune`` on real scripts: what is kept, what is not and why, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from check_process import BREAKEVEN, SCRIPTS, TAG_NAME, end_leftovers

from breakeven.store import read_tuned
from breakeven.trace import Configuration
from breakeven.tune import tune_target
from breakeven.verdict import Numerics, Outcome, Trial, TuneReport
from factories.sampled import sampled

pytestmark = pytest.mark.slow

SMALL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(3_200, 4)
y = x.argmax(1)
for epoch in range(10_000):
    correct = 0
    for start in range(0, 3_200, 32):
        inputs, labels = x[start : start + 32], y[start : start + 32]
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        correct += (outputs.argmax(1) == labels).sum().item()
    print(epoch, correct)
"""
# Compiling does not pay off in so many steps of some milliseconds, and is not tried then.
FEW_STEPS = 100
Start = Callable[..., subprocess.Popen[str]]


def tune(name: str, **options: Any) -> tuple[TuneReport, dict[str, Trial]]:
    """Tune one of the scripts; return the report, and its trials by name."""
    options = {"device": "cpu", "num_steps": FEW_STEPS, "budget_s": 60.0, **options}
    report = tune_target(str(SCRIPTS / name), **options)
    assert_consistent(report)
    return report, {trial.candidate: trial for trial in report.trials}


def assert_consistent(report: TuneReport) -> None:
    """Assert what is true of every report."""
    if report.configuration.changes:
        assert 1.02 <= report.low <= report.speedup <= report.high
        assert report.tuned_step_ns < report.baseline_step_ns
    else:
        assert report.speedup == 1.0
        assert report.tuned_step_ns == report.baseline_step_ns
        assert report.numerics is Numerics.EXACT
    kept = {trial.candidate for trial in report.trials if trial.outcome is Outcome.KEPT}
    assert bool(kept) == bool(report.configuration.changes)
    assert (report.code_change is not None) == report.configuration.fast_step
    assert len({trial.candidate for trial in report.trials}) == len(report.trials)
    for trial in report.trials:
        assert trial.reason, trial.candidate
        assert (trial.speedup is None) == (trial.num_runs == 0), trial


@pytest.fixture
def start(tmp_path: Path, cache_folder: Path) -> Start:
    """Return a function that starts a command of breakeven in a folder of its own."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        folder = tmp_path / "work"
        temp_folder = tmp_path / "t"
        folder.mkdir(exist_ok=True)
        temp_folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [str(BREAKEVEN), *arguments],
            cwd=folder,
            env={
                **os.environ, "TMPDIR": str(temp_folder), "XDG_CACHE_HOME": str(cache_folder),
                "TORCHINDUCTOR_CACHE_DIR": str(cache_folder / "inductor"),
                "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", TAG_NAME: str(tmp_path),
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    return start


def finish(process: subprocess.Popen[str], timeout_s: float = 120.0) -> tuple[str, str]:
    """Return what a command that succeeds writes to stdout and stderr."""
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    return stdout, stderr


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.usefixtures("slow_subnormals")
def test_flushing_is_kept_where_weights_are_subnormal() -> None:
    report, trials = tune("tune_subnormal.py")
    assert trials["flush-denormal"].outcome is Outcome.KEPT, trials["flush-denormal"]
    assert report.configuration.flushes_denormals
    assert report.low > 1.02
    assert report.numerics is not Numerics.EXACT


@pytest.mark.full
@pytest.mark.timing
def test_a_small_network_gets_its_step_as_one_call(tmp_path: Path) -> None:
    """It reads its output for an accuracy, as most loops do."""
    path = tmp_path / "train.py"
    path.write_text(SMALL)
    report, trials = tune(str(path), budget_s=240.0, num_steps=1_000_000)
    assert path.read_text() == SMALL
    outcome = trials["fast-step"].outcome
    if any(caveat.code == "busy-machine" for caveat in report.caveats):
        assert outcome in (Outcome.KEPT, Outcome.NOT_CONFIRMED, Outcome.OUT_OF_BUDGET), trials
    else:
        assert outcome is Outcome.KEPT, trials["fast-step"]
    if report.configuration.fast_step:
        assert report.low > 1.5
        assert report.code_change is not None
        assert "loss, (outputs,) = step((inputs, labels))" in report.code_change.diff


@pytest.mark.full
@pytest.mark.timing
def test_what_goes_wrong_with_a_candidate_is_told_and_the_search_goes_on() -> None:
    report, trials = tune("tune_troubles.py")
    outcomes = {name: trial.outcome for name, trial in trials.items()}
    assert outcomes["fused-optimizer"] is Outcome.CRASHED
    assert "this update cannot be fused" in trials["fused-optimizer"].reason
    assert "tune_troubles.py:" in trials["fused-optimizer"].reason
    assert outcomes["flush-denormal"] is Outcome.WRONG_NUMBERS
    assert re.search(r"step 1\b.*loss|loss.*step 1\b", trials["flush-denormal"].reason)
    assert outcomes["gather-batches"] is Outcome.KEPT, trials["gather-batches"]
    assert outcomes["compile"] is Outcome.NOT_WORTH_IT
    assert report.configuration == Configuration(gathers_batches=True)
    assert report.numerics is Numerics.EXACT


@pytest.mark.full
@pytest.mark.timing
def test_nothing_is_kept_that_is_not_faster() -> None:
    report, trials = tune("tune_nothing.py", budget_s=10.0)
    # On a machine that others use as well, only what is much faster could be kept by chance.
    assert not report.configuration.changes or report.low >= 1.02
    for name in ("threads=1", "autocast=bfloat16", "gather-batches"):
        assert trials[name].outcome is Outcome.NOT_APPLICABLE


def test_what_a_script_sets_by_itself_is_left_to_it() -> None:
    report, trials = tune("tune_own_settings.py", budget_s=1.0)
    own = {
        "threads=2": "sets its threads itself",
        "flush-denormal": "sets it itself",
        "autocast=bfloat16": "has an autocast region itself",
        "fused-optimizer": "chooses the implementation itself",
        "compile": "calls torch.compile itself",
        "fast-step": "compiles by itself",
    }
    for name, reason in own.items():
        if name in trials:  # threads: those that the machine has
            assert trials[name].outcome is Outcome.NOT_APPLICABLE, trials[name]
            assert reason in trials[name].reason
    assert not {"num_threads", "compile_mode", "autocast"} & set(report.configuration.changes)


@pytest.mark.timing
def test_tuned_exactly_and_run_with_it_to_the_same_bit(start: Start, tmp_path: Path) -> None:
    script, file = str(SCRIPTS / "tune_loader.py"), tmp_path / "work" / "breakeven.toml"
    stdout, _ = finish(start("tune", script, "--exact", "--budget", "30s", "--json"))
    report = msgspec.json.decode(stdout, type=TuneReport)
    assert_consistent(report)
    assert report.configuration.gathers_batches
    assert report.numerics is Numerics.EXACT
    assert report.speedup > 1.5
    assert all(trial.numerics is Numerics.EXACT for trial in report.trials if trial.num_runs)
    assert read_tuned(file).configuration == report.configuration

    stdout, stderr = finish(start("run", script, "--exact"))
    plain = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert stdout == plain.stdout
    assert "from breakeven.toml" in stderr
    assert "tuned first" not in stderr

    machine = report.machine.processor
    file.write_text(file.read_text().replace(machine, "Another Processor 9000"))
    refused = start("run", script)
    stdout, stderr = refused.communicate(timeout=60)
    assert refused.returncode == 3, stderr
    assert stdout == ""
    assert "is out of date" in stderr
    assert "Another Processor 9000" in stderr

    refused = start("tune", script, "-o", "/proc/breakeven.toml")
    stdout, stderr = refused.communicate(timeout=60)
    assert (refused.returncode, stdout) == (3, ""), stderr
    assert "cannot write /proc/breakeven.toml" in stderr
    assert "starting torch" not in stderr


@pytest.mark.parametrize("moment", sampled(["starting torch", "trying "], "trying "))
def test_interrupted_tuning_leaves_nothing(moment: str, start: Start, tmp_path: Path) -> None:
    process = start("tune", str(SCRIPTS / "tune_subnormal.py"))
    assert process.stderr is not None
    told = ""
    try:
        while moment not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        left = end_leftovers(str(tmp_path))
    assert process.returncode == 130, told + stderr
    assert left == []
    assert stdout == ""
    assert "Traceback" not in stderr
    assert [*(tmp_path / "work").iterdir()] == []
    assert [*(tmp_path / "t").iterdir()] == []


@pytest.mark.full
def test_of_two_tunings_the_second_says_that_it_waits(start: Start, tmp_path: Path) -> None:
    script = str(SCRIPTS / "tune_subnormal.py")
    first = start("tune", script, "--budget", "1s", "-o", "first.toml")
    assert first.stderr is not None
    told = first.stderr.readline()
    assert "busy" not in told
    second = start("tune", script, "--budget", "1s", "-o", "second.toml")
    _, told_by_first = finish(first)
    _, told_by_second = finish(second)
    assert "another breakeven" not in told_by_first
    assert "the machine is busy: waiting for another breakeven" in told_by_second
    files = {path.name for path in (tmp_path / "work").iterdir()}
    assert files == {"first.toml", "second.toml"}
