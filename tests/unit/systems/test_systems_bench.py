"""The bench: what it runs, what it remembers, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest

import breakeven.studies
from breakeven.errors import BreakevenError
from breakeven.progress import SilentProgress
from breakeven.systems.bench import Bench, BenchProgress
from breakeven.trace import Configuration, HostWork
from breakeven.verdict import AxisRole, PublishedPoint, SweepAxis
from factories.runs import ScriptedLauncher, device_op, plain_run, traced_run
from factories.sweeps import batch_sizes


class Spy(SilentProgress):
    """Keeps the details that it is told."""

    def __init__(self) -> None:
        self.details: list[str] = []

    def detail(self, text: str) -> None:
        self.details.append(text)


def bench_with(*answers: Any, progress: Any = None) -> tuple[Bench, ScriptedLauncher]:
    bench = Bench(host="reference", progress=progress)
    launcher = ScriptedLauncher(answers)
    bench.__dict__["launcher"] = launcher  # in place of one that starts a process
    return bench, launcher


def test_what_was_measured_is_not_measured_again() -> None:
    bench, launcher = bench_with(plain_run(), plain_run(2_000_000))
    first = bench.measure("disc_mlp.py", "--depth", "3")
    assert bench.measure("disc_mlp.py", "--depth", "3") is first
    assert bench.measure("disc_mlp.py", "--depth", "4") is not first
    assert [request.target.arguments for request in launcher.requests] == [
        ("--depth", "3"), ("--depth", "4")
    ]  # fmt: skip


def test_threads_and_budget_reach_the_run() -> None:
    bench, launcher = bench_with(plain_run())
    bench.measure("disc_mlp.py", num_threads=1, budget_s=3.0)
    (request,) = launcher.requests
    assert request.configuration == Configuration(num_threads=1)
    assert (request.budget_s, request.is_traced) == (3.0, False)
    assert request.target.label == "disc_mlp.py"


def test_the_step_takes_the_time_of_the_plain_run() -> None:
    script = HostWork(kind="script", duration_ns=5_000_000)
    traced = traced_run(device_op(), script)
    bench, _ = bench_with(plain_run(1_000_000), traced)
    step = bench.step("disc_mlp.py")
    (work,) = [event for event in step.events if isinstance(event, HostWork)]
    assert work.duration_ns == 1_000_000


def test_an_unknown_host_is_refused_at_once() -> None:
    with pytest.raises(BreakevenError, match="no-such-cpu"):
        Bench(host="no-such-cpu")


def test_predictions_may_be_fed_by_another_host() -> None:
    bench, _ = bench_with()
    step = traced_run(*[device_op()] * 20).trace
    (slow,) = bench.predict(step, ["T4"], host="Xeon CPU @ 2.30GHz")
    (fast,) = bench.predict(step, ["T4"], host="Core i9-14900K")
    assert slow.estimate.value_ns > fast.estimate.value_ns


def test_a_sweep_has_the_published_points_and_the_name_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def fake_sweep(target: str, **options: Any) -> object:
        asked.update(options, target=target)
        return batch_sizes()

    monkeypatch.setattr(breakeven.studies, "sweep_target", fake_sweep)
    bench, _ = bench_with()
    point = PublishedPoint(label="theirs", axis="depth", size=10, step_ns=None, source="a post")
    axis = SweepAxis(name="depth", role=AxisRole.ARGUMENT, values=(2, 3))
    found = bench.sweep(
        "disc_mlp.py", "--depth", "{depth}", axes=(axis,), devices=("T4",), published=(point,)
    )
    assert found.target == "disc_mlp.py"
    assert found.published == (point,)
    assert asked["target"].endswith("examples/disc_mlp.py")
    assert asked["host"] == "reference"


def test_many_runs_are_details_of_one_stage() -> None:
    spy = Spy()
    progress = BenchProgress(spy, "disc_mlp.py --depth 3")
    progress.begin("measuring the step on this CPU", 2.0)
    progress.detail("step 7")
    progress.finished((), 3, 11)
    assert spy.details == [
        "disc_mlp.py --depth 3: measuring the step on this CPU",
        "disc_mlp.py --depth 3: measuring the step on this CPU, step 7",
        "disc_mlp.py --depth 3: 3 of 11 points",
    ]


def test_of_a_long_command_the_end_is_told() -> None:
    spy = Spy()
    BenchProgress(spy, "mnist_mlp.py --batch-size 20 --update host").begin("measuring")
    assert spy.details == ["…tch-size 20 --update host: measuring"]


def test_a_longer_time_limit_holds_for_long_runs_too() -> None:
    with Bench(host="reference", time_limit_s=500.0) as bench:
        assert bench.time_limit_s(400.0) == 500.0
        assert bench.time_limit_s(600.0) == 600.0
