"""Rows of a table whose device is a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven import measure
from breakeven.device import find_host_cpu
from breakeven.errors import WorkloadError
from breakeven.progress import SilentProgress
from breakeven.report import AccuracyReport, LeaveOut, RowPrediction, Unpredictable
from breakeven.simulate import CpuRates
from breakeven.timing import Estimate, Source
from breakeven.trace import StepCase
from breakeven.validate import MeasuredCpus, read_table, validate_table
from factories.accuracy import write_table

CORE = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=2e10)
ROW = {
    "workload": "breakeven:mlp?width=256", "device": "EPYC 7763", "precision": "fp32",
    "phase": "inference", "optimizer": "none", "h2d": "none", "value_ms": "1",
}  # fmt: skip


def ten_ms(case: StepCase, batch_size: int) -> Estimate:
    assert case.workload == ROW["workload"]
    assert batch_size == 32
    return Estimate(value_ns=1e7, low_ns=1e7, high_ns=1e7, source=Source.MEASURED)


class NoGpus:
    """Has no rows to predict."""

    def predict(self, rows: object, *, training: object = ()) -> tuple[RowPrediction, ...]:
        raise AssertionError(f"asked for {rows} by {training}")


def validated(
    path: Path, cpus: MeasuredCpus | None, protocol: LeaveOut = LeaveOut.NONE
) -> AccuracyReport:
    return validate_table(path, predictor=NoGpus(), protocol=protocol, cpus=cpus)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> MeasuredCpus:
    monkeypatch.setattr(measure, "measure_cpu_rates", lambda: CORE)
    return MeasuredCpus(progress=SilentProgress(), time_step=ten_ms)


def test_a_row_is_predicted_from_the_time_here(tmp_path: Path, measured: MeasuredCpus) -> None:
    (row,) = validated(write_table(tmp_path / "t.csv", ROW), measured).rows

    assert row.device == "EPYC 7763"
    assert row.architecture == "Zen 3"
    assert row.prediction is not None
    assert 1e5 < row.prediction.estimate.value_ns < 1e7
    assert not row.prediction.is_calibrated_on


def test_rows_of_the_cpu_that_decided_the_model_are_marked(
    tmp_path: Path, measured: MeasuredCpus
) -> None:
    path = write_table(tmp_path / "t.csv", {**ROW, "device": "CPU Core i9-10940X"})
    report = validated(path, measured)

    assert report.overall.num_calibrated_on == 1
    assert [row.split for row in report.rows] == ["calibrated-on"]


def test_equal_steps_are_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[StepCase] = []

    def note(case: StepCase, batch_size: int) -> Estimate:
        timed.append(case)
        return ten_ms(case, batch_size)

    monkeypatch.setattr(measure, "measure_cpu_rates", lambda: CORE)
    path = write_table(tmp_path / "t.csv", ROW, {**ROW, "device": "EPYC 7502"})
    report = validated(path, MeasuredCpus(progress=SilentProgress(), time_step=note))

    assert len(timed) == 1
    assert report.overall.num_unpredicted == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "EPYC 7313"}, "cannot predict a step for the CPU EPYC 7313"),
        ({"device": "CPU 2x EPYC 7763"}, "steps on several CPUs"),
        ({"num_devices": "2"}, "steps on several CPUs"),
        ({"precision": "amp-bf16"}, "known in fp32"),
        ({"workload": "breakeven:nothing"}, "nothing"),
    ],
)
def test_what_is_not_predicted_says_why(
    changes: dict[str, str], reason: str, tmp_path: Path, measured: MeasuredCpus
) -> None:
    (row,) = validated(write_table(tmp_path / "t.csv", {**ROW, **changes}), measured).rows

    assert isinstance(row.outcome, Unpredictable)
    assert reason in row.outcome.reason


def test_a_step_that_cannot_be_run_here_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: StepCase, batch_size: int) -> Estimate:
        raise WorkloadError("it brings its own loop")

    monkeypatch.setattr(measure, "measure_cpu_rates", lambda: CORE)
    cpus = MeasuredCpus(progress=SilentProgress(), time_step=fail)
    (row,) = validated(write_table(tmp_path / "t.csv", ROW), cpus).rows

    assert row.outcome == Unpredictable(code="not-timed", reason="it brings its own loop")


def test_a_compiled_row_says_what_was_timed(tmp_path: Path, measured: MeasuredCpus) -> None:
    path = tmp_path / "t.csv"
    write_table(path, ROW)
    header, row = path.read_text().splitlines()
    path.write_text(f"{header},compile\n{row},default\n")
    (found,) = validated(path, measured).rows

    assert found.prediction is not None
    assert [one.code for one in found.prediction.caveats] == ["timed-as-written"]


@pytest.mark.parametrize(
    ("protocol", "word"), [(LeaveOut.NONE, "--measure-cpus"), (LeaveOut.MODEL, "--leave-out")]
)
def test_without_being_asked_nothing_is_measured(
    protocol: LeaveOut, word: str, tmp_path: Path
) -> None:
    (row,) = validated(write_table(tmp_path / "t.csv", ROW), None, protocol).rows

    assert isinstance(row.outcome, Unpredictable)
    assert row.outcome.code == "cpu"
    assert word in row.outcome.reason


def test_the_step_of_a_row_runs_here(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {**ROW, "workload": "breakeven:mlp?width=16"})
    (row,) = read_table(path)
    cpu = find_host_cpu(row.device)
    (outcome,) = MeasuredCpus(progress=SilentProgress()).predict([row], [cpu])

    assert isinstance(outcome, RowPrediction)
    assert outcome.estimate.source is Source.PREDICTED
