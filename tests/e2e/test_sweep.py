"""Sweeps of real scripts, from recording to report, with every measurement real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from check_process import SCRIPTS, TAG_NAME, end_leftovers

from breakeven.capture import KEEP_NOTHING, Keep, Launcher, find_target
from breakeven.cost import reference_host
from breakeven.errors import ScriptError, UsageError
from breakeven.progress import SilentProgress
from breakeven.studies import Runner, assign_roles, parse_axis, sweep_target
from breakeven.studies.recorded_grid import RecordedGrid, _shapes
from breakeven.studies.sweep_axes import Grid
from breakeven.timing import Source
from breakeven.trace import StepTrace
from breakeven.verdict import DeviceKind, SweepPoint, SweepReport
from factories.sampled import sampled

KNOBS = SCRIPTS / "sweep_knobs.py"
# A host with a name needs no measurement of this one.
HOST = reference_host().id
_DRIVER = """
import sys
from breakeven.capture import Keep
from breakeven.studies import parse_axis, sweep_target
report = sweep_target(sys.argv[1], axes=[parse_axis(sys.argv[2])], arguments=sys.argv[4:],
    devices=["T4"], host=sys.argv[3], keep=Keep(writes=True))
print(sum(point.source == "measured" for point in report.points))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "cache"


class Rows(SilentProgress):
    """Keeps what a growing table would show."""

    def __init__(self) -> None:
        self.points: list[SweepPoint] = []
        self.counts: list[tuple[int, int]] = []
        self.stages: list[str] = []

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        self.stages.append(stage)

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        self.points += points
        self.counts.append((num_done, num_points))


def sweep(
    script: Path,
    *over: str,
    arguments: Sequence[str] = (),
    progress: Rows | None = None,
    keep: Keep = KEEP_NOTHING,
) -> SweepReport:
    return sweep_target(
        str(script),
        axes=[parse_axis(text) for text in over],
        arguments=arguments,
        devices=["T4", "H100 SXM"],
        host=HOST,
        keep=keep,
        progress=progress,
    )


def cpu_points(report: SweepReport) -> list[SweepPoint]:
    return [point for point in report.points if point.kind is DeviceKind.CPU]


@pytest.mark.slow
def test_told_steps_are_those_that_would_be_recorded() -> None:
    axes = assign_roles(
        [parse_axis("width=16..80+8"), parse_axis("batch=4..64")],
        arguments := ["--width={width}", "--batch-size", "{batch}"],
    )
    with Launcher() as launcher:
        runner = Runner(launcher, find_target(str(KNOBS)), 60.0, progress := Rows())
        grid = Grid(axes, tuple(arguments))
        told = RecordedGrid(runner, grid).record()
        assert len(told) == 9 * 5
        assert sum(stage.startswith("recording") for stage in progress.stages) == 9
        for width, batch in ((24, 8), (56, 16), (72, 32)):
            true = runner.record(grid.change_at({"width": width, "batch": batch}, None)).trace
            step = told[width, batch]
            assert isinstance(step, StepTrace)
            assert _shapes(step) == _shapes(true)
            assert step.num_parameters == true.num_parameters
            assert step.batch_size == true.batch_size == batch


@pytest.mark.slow
def test_sweep_of_an_option_and_of_threads() -> None:
    rows = Rows()
    report = sweep(KNOBS, "width=16,64", "threads=1,2", arguments=["--width={width}"],
                   progress=rows)  # fmt: skip
    assert report.failures == ()
    assert len(report.points) == 4 * 3
    assert all(point.source is Source.MEASURED for point in cpu_points(report))
    assert {point.device.rpartition("(")[2] for point in cpu_points(report)} == {
        "1 thread)", "2 threads)",
    }  # fmt: skip
    # Parameters: 8 w + w, w w + w, w + 1.
    assert {p.settings["width"]: p.num_parameters for p in report.points} == {
        16: 433, 64: 4_801,
    }  # fmt: skip
    assert {point.batch_size for point in report.points} == {16}
    # The GPUs do the same step whatever the threads.
    for device in ("T4", "H100 SXM5 80GB"):
        times = {
            p.step_ns for p in report.points if p.device == device and p.settings["width"] == 16
        }
        assert len(times) == 1
    assert "threads-of-the-cpu" in {caveat.code for caveat in report.caveats}
    assert {c.outcome.axis for c in report.crossovers} == {"width", "num_parameters"}
    assert all(c.held == {} for c in report.crossovers)
    assert sorted(map(str, rows.points)) == sorted(map(str, report.points))
    assert rows.counts == [(n, 4) for n in range(1, 5)]


@pytest.mark.full
def test_sweep_of_the_batch_size_of_a_data_loader() -> None:
    rows = Rows()
    report = sweep(SCRIPTS / "sweep_loader.py", "batch_size=8..512", progress=rows)
    assert report.failures == ()
    assert sum(stage.startswith("recording") for stage in rows.stages) == 2
    assert all(point.batch_size == point.settings["batch_size"] for point in report.points)
    measured = {p.settings["batch_size"] for p in cpu_points(report) if p.source is Source.MEASURED}
    assert {8, 32, 512} <= measured
    assert len(cpu_points(report)) == 7
    assert {point.num_parameters for point in report.points} == {641}
    assert {c.device for c in report.crossovers} == {"T4", "H100 SXM5 80GB"}


@pytest.mark.full
def test_points_at_which_the_script_fails_are_told_with_the_line() -> None:
    report = sweep(KNOBS, "width=8..64", arguments=["--width", "{width}", "--fails-from", "33"])
    assert [failure.settings for failure in report.failures] == [{"width": 64}]
    assert re.search(r"sweep_knobs\.py:\d+: .*too much", report.failures[0].message)
    assert {point.settings["width"] for point in report.points} == {8, 16, 32}


def test_first_point_that_cannot_be_timed_ends_no_sweep(tmp_path: Path) -> None:
    # It is recorded first, and timed then.
    arguments = ["--width={width}", "--once", "8", "--starts", str(tmp_path / "starts")]
    report = sweep(KNOBS, "width=8,16,32", arguments=arguments, keep=Keep(writes=True))
    (failure,) = report.failures
    assert failure.settings == {"width": 8}
    assert "for a second time" in failure.message
    measured = {p.settings["width"] for p in cpu_points(report) if p.source is Source.MEASURED}
    assert measured == {16, 32}


def test_script_that_fails_everywhere_and_axis_that_does_not_enter_it_are_errors() -> None:
    with pytest.raises(ScriptError, match="too much") as caught:
        sweep(KNOBS, "width=8,16", arguments=["--width", "{width}", "--fails-from", "1"])
    assert caught.value.exit_code == 3
    with pytest.raises(UsageError, match="changes nothing"):
        sweep(KNOBS, "width=8,16")


@pytest.mark.slow
def test_batch_sizes_of_a_script_that_feeds_them_by_hand_are_predicted() -> None:
    report = sweep(KNOBS, "batch_size=8,64,2000")

    cpu = cpu_points(report)
    assert [point.batch_size for point in cpu] == [8, 64]  # 2,000 is too far from 16
    assert {point.source for point in cpu} == {Source.PREDICTED}
    assert {p.batch_size for p in report.points if p.kind is DeviceKind.GPU} == {8, 64, 2000}
    assert "batch-sizes-predicted" in {caveat.code for caveat in report.caveats}


@pytest.mark.slow
def test_batch_sizes_that_cannot_be_told_are_refused_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(ScriptError, match="as large as a dimension of the model") as caught:
        sweep(SCRIPTS / "hand_fed.py", "batch_size=8,16", arguments=["128"])
    assert "{batch_size}" in (caught.value.hint or "")


@pytest.fixture
def start_driver(
    tmp_path: Path, own_cache: Path, request: pytest.FixtureRequest
) -> Callable[[], subprocess.Popen[str]]:
    """Return a function that starts a sweep of four widths in a process of its own."""
    tag = f"sweep-{time.monotonic_ns()}"
    request.addfinalizer(lambda: end_leftovers(tag))  # noqa: PT021 - beside its making
    # What several starts share are the arguments alone, so that they are one sweep.
    arguments = ["--width", "{width}", "--starts", str(tmp_path / "starts")]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _DRIVER, str(KNOBS), "width=16..64+16", HOST, *arguments],
            env={**os.environ, "XDG_CACHE_HOME": str(own_cache), TAG_NAME: tag},
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )

    return start


def plain_starts(tmp_path: Path) -> list[str]:
    """Return the width of each measurement that was started."""
    try:
        lines = (tmp_path / "starts").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.split()[1] for line in lines if line.startswith("plain")]


def kept_widths(cache: Path) -> set[str]:
    """Return the widths whose measurements are on disk."""
    # Arguments are bytes, in base64: "--width", then its value.
    texts = [file.read_text() for file in (cache / "breakeven" / "runs").glob("*.json")]
    encoded = {"16": "MTY=", "32": "MzI=", "48": "NDg=", "64": "NjQ="}
    return {width for width, code in encoded.items() if any(code in text for text in texts)}


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled([signal.SIGKILL, signal.SIGINT], signal.SIGKILL))
def test_broken_off_sweep_measures_nothing_twice(
    tmp_path: Path,
    own_cache: Path,
    start_driver: Callable[[], subprocess.Popen[str]],
    number: signal.Signals,
) -> None:
    with start_driver() as first:
        deadline = time.monotonic() + 120
        while len(kept_widths(own_cache)) < 2 and time.monotonic() < deadline:
            assert first.poll() is None, "it ended before it was broken off"
            time.sleep(0.01)
        first.send_signal(number)
        first.communicate(timeout=60)
    assert first.returncode not in (0, None)
    time.sleep(1.0)  # the server of the killed process ends what still runs
    kept, before = kept_widths(own_cache), Counter(plain_starts(tmp_path))
    assert len(kept) >= 2

    with start_driver() as second:
        output, _ = second.communicate(timeout=200)
    assert second.returncode == 0
    assert output.strip() == "4"
    again = Counter(plain_starts(tmp_path)) - before
    assert again.keys() == {"16", "32", "48", "64"} - kept
