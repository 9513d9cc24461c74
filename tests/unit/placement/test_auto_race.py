"""The race between places: who wins, when it ends, and what it costs. No real clock is read."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from breakeven.placement import RaceResult, race

MS = 1_000_000


class FakeTime:
    """A clock that only fake steps move on."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class FakePlace:
    """Takes given times: to prepare, for the first step, for each later one."""

    def __init__(
        self,
        time: FakeTime,
        name: str,
        step_ns: float | Callable[[], float],
        *,
        first_ns: float = 0,
        prepare_ns: float = 0,
        one_off_ns: float = 0,
        starts_up: bool = False,
        fails_at: int | None = None,
    ) -> None:
        self.name, self.starts_up, self.one_off_ns = name, starts_up, one_off_ns
        self.num_steps = 0
        self.log: list[str] = []
        self._time, self._step_ns = time, step_ns
        self._first_ns, self._prepare_ns, self._fails_at = first_ns, prepare_ns, fails_at

    def prepare(self) -> None:
        self.log.append("prepare")
        self._time.ns += int(self._prepare_ns)

    def run_step(self) -> None:
        self.log.append("step")
        if self.num_steps == self._fails_at:
            raise RuntimeError("out of memory\nand much more text")
        step_ns = self._step_ns() if callable(self._step_ns) else self._step_ns
        self._time.ns += int(step_ns + (self._first_ns if self.num_steps == 0 else 0))
        self.num_steps += 1

    def synchronize(self) -> None:
        self.log.append("sync")


def run(time: FakeTime, *places: FakePlace, budget_ns: float = 1e9, **options: int) -> RaceResult:
    return race(places, budget_ns=budget_ns, now_ns=time, own_ns=time, **options)


def noisy(seed: int, median_ns: float, spread: float) -> Callable[[], float]:
    source = random.Random(seed)
    return lambda: median_ns * source.lognormvariate(0, spread)


def test_the_device_is_waited_for_before_and_after_the_steps_of_a_sample() -> None:
    time = FakeTime()
    place = FakePlace(time, "cpu", 20 * MS)
    run(time, place, FakePlace(time, "gpu", 2_000 * MS, starts_up=True))
    assert place.log[:6] == ["prepare", "sync", "step", "sync", "sync", "step"]


@pytest.mark.parametrize(("cpu_ns", "gpu_ns", "winner"), [(1, 3, "cpu"), (3, 1, "gpu")])
def test_the_faster_place_wins(cpu_ns: float, gpu_ns: float, winner: str) -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", gpu_ns * MS, first_ns=300 * MS, starts_up=True)
    assert run(time, FakePlace(time, "cpu", cpu_ns * MS), gpu).winner == winner


def test_a_clear_race_ends_long_before_the_budget() -> None:
    time = FakeTime()
    result = run(
        time, FakePlace(time, "cpu", 0.2 * MS), FakePlace(time, "gpu", 4 * MS, starts_up=True)
    )
    assert result.winner == "cpu"
    assert result.duration_ns < 0.1e9


def test_a_close_race_ends_with_the_budget() -> None:
    time = FakeTime()
    result = run(
        time,
        FakePlace(time, "cpu", noisy(1, 2 * MS, 0.5)),
        FakePlace(time, "gpu", noisy(2, 2 * MS, 0.5), starts_up=True),
    )
    assert 0.8e9 < result.duration_ns <= 1e9


def test_of_equals_the_first_is_taken_early() -> None:
    time = FakeTime()
    result = run(
        time, FakePlace(time, "cpu", 1.005 * MS), FakePlace(time, "gpu", 1.0 * MS, starts_up=True)
    )
    assert result.winner == "cpu"
    assert result.duration_ns < 0.5e9


def test_a_place_shown_to_be_slower_takes_no_more_of_the_time() -> None:
    time = FakeTime()
    slow = FakePlace(time, "1 thread", 30 * MS)
    close = FakePlace(time, "gpu", noisy(3, 1 * MS, 0.2), starts_up=True)
    result = run(time, FakePlace(time, "cpu", noisy(4, 1.02 * MS, 0.2)), slow, close)
    assert slow.num_steps <= 3
    assert close.num_steps > 100
    assert len(result.times) == 3, "what was measured of it is told all the same"


def test_the_start_of_a_gpu_is_not_taken_for_its_step() -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", 1 * MS, first_ns=4_000 * MS, prepare_ns=2_000 * MS, starts_up=True)
    assert run(time, FakePlace(time, "cpu", 20 * MS), gpu).winner == "gpu"


def test_a_slow_cpu_is_judged_by_its_first_step() -> None:
    """Another one would take three times the budget, and would not change the answer."""
    time = FakeTime()
    cpu = FakePlace(time, "cpu", 3_000 * MS)
    gpu = FakePlace(time, "gpu", 20 * MS, first_ns=500 * MS, starts_up=True)
    result = run(time, cpu, gpu)
    assert result.winner == "gpu"
    assert cpu.num_steps == 1


def test_a_slow_start_leaves_time_to_tell_close_places_apart() -> None:
    time = FakeTime()
    gpu = FakePlace(
        time, "gpu", noisy(10, 1.6 * MS, 0.3), first_ns=4_000 * MS, prepare_ns=900 * MS,
        starts_up=True,
    )  # fmt: skip
    cpu = FakePlace(time, "cpu", noisy(11, 2 * MS, 0.3))
    result = run(time, cpu, gpu)
    assert result.winner == "gpu"
    assert len(result.times[1].step_ns.samples_ns) >= 5
    assert result.duration_ns < 4.9e9 + 0.6e9


def test_steps_of_a_gpu_run_back_to_back() -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", 1 * MS, starts_up=True)
    run(time, FakePlace(time, "cpu", noisy(5, 1 * MS, 0.1)), gpu)
    assert "step step step step" in " ".join(gpu.log)


def test_a_place_that_fails_is_left_out_with_the_reason() -> None:
    time = FakeTime()
    result = run(
        time, FakePlace(time, "cpu", 9 * MS), FakePlace(time, "gpu", 1, fails_at=0, starts_up=True)
    )
    assert result.winner == "cpu"
    assert [(left.name, left.reason) for left in result.left_out] == [
        ("gpu", "RuntimeError: out of memory")
    ]


def test_a_place_that_fails_later_does_not_win_by_what_it_did_before() -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", noisy(6, 1.9 * MS, 0.2), fails_at=200, starts_up=True)
    result = run(time, FakePlace(time, "cpu", noisy(7, 2 * MS, 0.2)), gpu)
    assert gpu.num_steps == 200
    assert result.winner == "cpu"
    assert [time.name for time in result.times] == ["cpu"]


def test_nobody_wins_where_all_fail() -> None:
    time = FakeTime()
    result = run(time, FakePlace(time, "cpu", 1, fails_at=0), FakePlace(time, "b", 1, fails_at=0))
    assert result.winner is None
    assert len(result.left_out) == 2


def test_a_short_run_starts_nothing_up() -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", 0.1 * MS, starts_up=True)
    result = run(time, FakePlace(time, "cpu", 1 * MS), gpu, num_steps=500)
    assert result.winner == "cpu"
    assert gpu.log == []
    assert result.left_out[0].error is None


def test_measuring_takes_at_most_one_percent_of_the_run() -> None:
    time = FakeTime()
    result = run(
        time,
        FakePlace(time, "cpu", noisy(8, 1 * MS, 0.3)),
        FakePlace(time, "gpu", noisy(9, 1 * MS, 0.3), starts_up=True),
        num_steps=10_000,
    )
    assert result.duration_ns <= 0.01 * 10_000 * 1.1 * MS


@pytest.mark.parametrize(("num_steps", "winner"), [(1_000, "cpu"), (1_000_000, "gpu")])
def test_moving_counts_by_its_share_of_the_run(num_steps: int, winner: str) -> None:
    time = FakeTime()
    gpu = FakePlace(time, "gpu", 1.5 * MS, one_off_ns=2_000 * MS, starts_up=True)
    assert run(time, FakePlace(time, "cpu", 2 * MS), gpu, num_steps=num_steps).winner == winner


def test_regret_stays_small_under_noise() -> None:
    """120 races between places 0 to 60 % apart whose times vary by a quarter."""
    source = random.Random(0)
    regrets = []
    for seed in range(120):
        time = FakeTime()
        truth = {name: 10 ** source.uniform(6, 7) for name in ("cpu", "half", "gpu")}
        low = min(truth.values())
        truth = {name: low * (1 + 0.6 * source.random() ** 2) for name in truth}
        places = [
            FakePlace(
                time, name, noisy(seed * 3 + i, step_ns, 0.25), first_ns=5 * MS, starts_up=i == 2
            )
            for i, (name, step_ns) in enumerate(truth.items())
        ]
        result = run(time, *places)
        assert result.duration_ns < 1.1e9
        assert result.winner is not None
        regrets.append(truth[result.winner] / min(truth.values()) - 1)
    assert sum(regrets) / len(regrets) < 0.01
    assert sorted(regrets)[114] < 0.05
