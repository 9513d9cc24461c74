"""Whether a measured speed is normal, and what explains it if not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.device import FOLDER_VARIABLE, find_device
from breakeven.errors import StoredDataError, UsageError
from breakeven.report import NormalReport, to_json
from breakeven.report.normal_report import Pace, SlowCause, SpeedJudgement
from breakeven.simulate import build_program, predict_steps
from breakeven.studies.normal import added_times, compared, judge, normal_run, with_suspects
from breakeven.timing import Source
from breakeven.trace import HostWork, StepTrace
from breakeven.units import NS_PER_MS
from breakeven.verdict import ProgramFacts, program_of
from factories import normals


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "calibrations"))


def judged(step: StepTrace, time_ms: float, device: str = "A100") -> SpeedJudgement:
    program = build_program(step)
    return judge(program, find_device(device), normals.machines(), normals.said(time_ms))


def expected_ms(step: StepTrace, device: str = "A100") -> float:
    return judged(step, 1.0, device).expected.value_ns / NS_PER_MS


SMALL, LARGE = normals.small_step(), normals.large_step()
SMALL_MS, LARGE_MS = expected_ms(SMALL), expected_ms(LARGE)


def first_cause(step: StepTrace, time_ms: float, device: str = "A100") -> SlowCause:
    found = judged(step, time_ms, device)
    assert found.pace is Pace.SLOW
    return found.suspects[0].cause


@settings(max_examples=20, deadline=None)
@given(st.floats(-6.0, 6.0))
def test_the_pace_follows_the_time(log_ratio: float) -> None:
    found = judged(LARGE, LARGE_MS * math.exp(log_ratio))
    expected = found.expected
    time_ns = found.measured.value_ns
    assert found.ratio_low <= found.ratio <= found.ratio_high
    if found.pace is Pace.SLOW:
        assert time_ns > expected.high_ns * 0.999
        assert sum(one.share for one in found.suspects) <= 1.0 + 1e-9
        assert all(
            0.05 <= one.explained_ns / (time_ns - expected.value_ns) <= 1.001
            for one in found.suspects
        )
    elif found.pace is Pace.FAST:
        assert time_ns < expected.low_ns
    else:
        assert not found.suspects


def test_the_interval_of_the_ratio_takes_opposite_ends() -> None:
    program, exact = build_program(LARGE), normals.said(1.0)
    (step,) = predict_steps(program, (find_device("A100"),), normals.machines())
    wide = replace(exact, value_ns=1.2e6, low_ns=0.6e6, high_ns=1.25e6)
    found = compared(replace(step, estimate=exact), wide)
    ends = (found.ratio_low, found.ratio, found.ratio_high)
    assert ends == pytest.approx((0.6, 1.2, 1.25))
    assert found.pace is Pace.NORMAL
    # The other way around, the expected step has the interval.
    found = compared(replace(step, estimate=wide), exact)
    assert (found.ratio_low, found.ratio_high) == pytest.approx((1 / 1.25, 1 / 0.6))


def test_what_is_predicted_is_normal() -> None:
    assert judged(LARGE, LARGE_MS).pace is Pace.NORMAL
    assert judged(SMALL, SMALL_MS).pace is Pace.NORMAL


def test_a_step_that_launches_decide_has_a_slow_host() -> None:
    assert first_cause(SMALL, 3 * SMALL_MS) is SlowCause.HOST
    assert SlowCause.DEVICE not in {one.cause for one in judged(SMALL, 3 * SMALL_MS).suspects}


def test_a_step_that_the_gpu_decides_has_a_slowed_gpu() -> None:
    found = judged(normals.large_step("float16"), 1.8 * expected_ms(normals.large_step("float16")))
    causes = {one.cause for one in found.suspects}
    assert SlowCause.DEVICE in causes
    assert SlowCause.HOST not in causes


def test_a_loader_whose_time_is_the_excess_comes_first() -> None:
    loader_ms = 0.9 * LARGE_MS
    step = normals.loading_step(loader_ms)
    assert first_cause(step, LARGE_MS + 1.1 * loader_ms) is SlowCause.LOADER


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_adds_only_what_the_expected_step_lacks(num_workers: int) -> None:
    work = HostWork(
        kind="data", duration_ns=round(0.9e6 * LARGE_MS) * max(1, num_workers),
        num_workers=num_workers,
    )  # fmt: skip
    program = build_program(replace(LARGE, events=(work, *LARGE.events)))
    device, host = find_device("A100"), normals.machines()
    (step,) = predict_steps(program, (device,), host)
    added_ns = dict(added_times(program, device, host, step))[SlowCause.LOADER]
    four_times_ns = 4 * 0.9e6 * LARGE_MS
    if num_workers:
        # Workers load while the step runs.
        assert added_ns.max() == pytest.approx(four_times_ns - step.estimate.value_ns)
    else:
        assert added_ns.max() == pytest.approx(0.75 * four_times_ns)
    assert added_ns.min() >= 0


@pytest.mark.parametrize(
    ("dtype", "cause"),
    [("float64", SlowCause.FLOAT64), ("float32", SlowCause.NO_TENSOR_CORES)],
)
def test_a_step_that_ran_in_another_precision(dtype: str, cause: SlowCause) -> None:
    step = normals.large_step("float16" if dtype == "float32" else "float32")
    other_ms = expected_ms(normals.large_step(dtype), "RTX 3090")
    assert first_cause(step, other_ms, "RTX 3090") is cause


def test_an_excess_beyond_all_causes_is_said_to_be_unexplained() -> None:
    assert judged(SMALL, 1.2 * SMALL_MS * 4).is_explained
    assert not judged(SMALL, 100 * SMALL_MS).is_explained


def test_a_cause_that_explains_little_of_the_excess_is_not_named() -> None:
    added = {SlowCause.SYNC: np.array([5e3, 19e3]), SlowCause.DEVICE: np.array([1e6, 2.9e6])}
    slow = with_suspects(judged(LARGE, LARGE_MS + 2.9), added)
    assert [one.cause for one in slow.suspects] == [SlowCause.DEVICE]
    assert slow.suspects[0].share == 1.0
    unknown = with_suspects(judged(LARGE, LARGE_MS + 2.9), {SlowCause.SYNC: np.array([19e3])})
    assert not unknown.is_explained


def stored(tmp_path: Path, step: StepTrace, steps_per_epoch: float | None = None) -> Path:
    path, run = tmp_path / "run.json", normals.stored_run(step)
    facts = ProgramFacts(steps_per_epoch=steps_per_epoch)
    run = replace(run, program=program_of(run.verdict, run.results, facts))
    path.write_bytes(to_json(run, with_recording=True))
    return path


def answered(path: Path, *measured: str) -> NormalReport:
    return normal_run(path, devices=("V100",), measured=measured)


def test_a_normal_speed_narrows_other_predictions(tmp_path: Path) -> None:
    path = stored(tmp_path, SMALL)
    slow = answered(path, f"A100: {40 * SMALL_MS} ms")
    normal = answered(path, f"A100: {1.1 * SMALL_MS} ms")
    assert [one.is_used for one in (slow.speeds[0], normal.speeds[0])] == [False, True]
    before, after = slow.others[0], normal.others[0]
    assert after.high_ns / after.low_ns < 0.8 * before.high_ns / before.low_ns
    assert any(one.code == "measured-speed" for one in normal.caveats)


def test_an_earlier_speed_of_the_script_does_not_hide_that_it_is_slow(tmp_path: Path) -> None:
    path = stored(tmp_path, SMALL)
    first = answered(path, f"A100: {1.4 * SMALL_MS} ms")
    again = answered(path, f"A100: {1.4 * SMALL_MS} ms")
    assert first.speeds[0].is_used
    assert again.speeds[0].expected == first.speeds[0].expected


def test_speeds_by_epoch_and_in_other_kinds_of_machines(tmp_path: Path) -> None:
    path = stored(tmp_path, normals.loading_step(0.1), steps_per_epoch=15.0)
    # Only the stored run knows its sampler: 20 steps would be 640 samples in batches of 32.
    report = answered(path, "colab T4: 1.5 s/epoch", "windows RTX 3060 12GB: 160 samples/s")
    assert [one.measured.value_ns for one in report.speeds] == [1e8, 2e8]
    assert [one.fed_by for one in report.speeds] == [
        "container of a hosted notebook", "Windows desktop or laptop, WSL2 included",
    ]  # fmt: skip


def test_a_gpu_of_the_stored_run_needs_no_speed(tmp_path: Path) -> None:
    run = normals.stored_run(LARGE)
    here = normals.reports.gpu("A100 SXM4 80GB", 1e6, 1e6, 1e6, normals.Bound.COMPUTE)
    here = normals.replace(here, source=Source.MEASURED)
    path = tmp_path / "run.json"
    path.write_bytes(
        to_json(normals.replace(run, results=(*run.results, here)), with_recording=True)
    )
    (found,) = normal_run(path).speeds
    assert (found.said, found.device) == ("", "A100 SXM4 80GB")


@pytest.mark.parametrize(
    ("measured", "message", "hint"),
    [
        ((), "no speed to judge", "--measured 'T4: 340 it/s'"),
        (("A100: 12 parsecs",), "no number above 0 with a unit", "it/s"),
        (("Foo 9: 12 ms",), "Foo 9", "KIND"),
        (("A100: 1 s/epoch",), "the steps per epoch are unknown", "it/s or ms"),
        ((f"A100: {LARGE_MS} s",), "is predicted", "did you mean"),
        ((f"A100: {LARGE_MS} us",), "is predicted", "did you mean"),
    ],
)
def test_speeds_that_are_refused(
    tmp_path: Path, measured: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        answered(stored(tmp_path, LARGE), *measured)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


def test_a_run_without_a_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(to_json(normals.stored_run(LARGE)))
    with pytest.raises(StoredDataError, match="holds no recorded step"):
        answered(path, "A100: 12 ms")
