from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import pytest
import torch

from breakeven.measure import GpuClock, PoolWaits, StepTimer, measure_step
from breakeven.timing import Measurement
from factories.scripted_clock import ScriptedClock

SECOND_NS = 1_000_000_000


def calls_until_enough(timer: StepTimer, calls: Iterable[int], limit: int = 10_000) -> int:
    """Mark calls until the timer has enough; return how many it took."""
    for number, optimizer in enumerate(itertools.islice(calls, limit), start=1):
        if timer.mark(optimizer):
            return number
    raise AssertionError(f"not enough after {limit} calls")


def steps_of(duration_ns: int) -> ScriptedClock:
    return ScriptedClock([0], then_every_ns=duration_ns)


def test_device_is_waited_for_before_each_reading() -> None:
    clock = ScriptedClock([0, 600, 1_200])

    def step() -> None:
        clock.log.append("step")

    measure_step(step, clock=clock, budget_s=500e-9)
    assert clock.log == ["sync", "now", "step", "sync", "now", "step", "sync", "now"]


def test_samples_lie_between_readings() -> None:
    clock = ScriptedClock([100, 1_100, 2_000, 2_700, 3_700, 4_600])
    timer = StepTimer(clock, budget_s=4_500e-9)
    assert calls_until_enough(timer, itertools.repeat(0)) == 6
    assert timer.samples_ns() == (1_000, 900, 700, 1_000, 900)
    assert timer.num_calls == 6


def test_short_steps_stop_when_the_budget_is_spent() -> None:
    # 100 steps of 10 ms make a second; the first call begins the first step.
    timer = StepTimer(steps_of(SECOND_NS // 100), budget_s=1.0)
    assert calls_until_enough(timer, itertools.repeat(0)) == 101


def test_steps_as_long_as_the_budget_stop_at_two() -> None:
    timer = StepTimer(steps_of(SECOND_NS), budget_s=1.0)
    assert calls_until_enough(timer, itertools.repeat(0)) == 3


def test_steps_far_longer_than_the_budget_stop_at_two() -> None:
    timer = StepTimer(steps_of(30 * SECOND_NS), budget_s=1.0)
    assert calls_until_enough(timer, itertools.repeat(0)) == 3
    assert len(timer.samples_ns()) == 2


def test_steps_after_a_first_one_that_compiles_get_the_whole_budget() -> None:
    # The first sample takes 20 s, and those after it 10 ms.
    readings = [0, *range(20 * SECOND_NS, 30 * SECOND_NS, SECOND_NS // 100)]
    timer = StepTimer(ScriptedClock(readings), budget_s=0.5)
    assert calls_until_enough(timer, itertools.repeat(0)) == 52
    measurement = timer.measurement()
    assert measurement is not None
    assert measurement.num_warmup >= 1
    assert measurement.median_ns == SECOND_NS // 100


def test_end_of_the_first_step_is_the_end_of_the_first_round() -> None:
    timer = StepTimer(ScriptedClock([100, 130, 200, 230]), budget_s=1.0)
    assert timer.first_end_ns == 0
    for optimizer in [0, 1] * 2:
        timer.mark(optimizer)
    assert timer.first_end_ns == 130


def test_budget_spent_with_fewer_than_five_samples_is_not_enough() -> None:
    # Four samples of 0.3 s are 1.2 s; the fifth comes before twice the budget.
    timer = StepTimer(steps_of(3 * SECOND_NS // 10), budget_s=1.0)
    assert calls_until_enough(timer, itertools.repeat(0)) == 6


def test_more_samples_are_waited_for_as_long_as_patience_lasts() -> None:
    short = StepTimer(steps_of(SECOND_NS // 10), budget_s=1.0, least_samples=40, patience=8.0)
    assert calls_until_enough(short, itertools.repeat(0)) == 41
    long = StepTimer(steps_of(SECOND_NS // 2), budget_s=1.0, least_samples=40, patience=8.0)
    assert calls_until_enough(long, itertools.repeat(0)) == 17


def test_every_sample_knows_the_call_with_which_it_ends() -> None:
    timer = StepTimer(steps_of(SECOND_NS // 10), budget_s=1.0)
    # A discriminator's update, then the generator's: a step ends with the latter.
    calls_until_enough(timer, itertools.cycle((0, 1)))
    assert timer.end_calls()[1:] == tuple(range(3, timer.num_calls, 2))
    assert len(timer.end_calls()) - 1 == len(timer.samples_ns())


def test_tiny_steps_stop_at_the_most_samples() -> None:
    timer = StepTimer(steps_of(1_000), budget_s=1.0)
    assert calls_until_enough(timer, itertools.repeat(0)) == 2_000


def test_several_calls_make_one_sample_of_one_step_each() -> None:
    clock = ScriptedClock([0, 4_000, 8_400])
    timer = StepTimer(clock, budget_s=3_000e-9, calls_per_mark=4)
    marks = [timer.mark(0) for _ in range(9)]
    # Readings at calls 1, 5 and 9, and a decision at no other.
    assert clock.log == ["sync", "now"] * 3
    assert marks == [False] * 8 + [True]
    assert timer.samples_ns() == (1_000, 1_100)


def test_gan_is_timed_from_one_generator_update_to_the_next() -> None:
    # Discriminator at 0, 100, 200, ...; generator 30 later, 40 from the third round on.
    clock = ScriptedClock([0, 30, 100, 130, 200, 240, 300, 340])
    timer = StepTimer(clock, budget_s=1.0)
    for optimizer in [0, 1] * 4:
        assert not timer.mark(optimizer)
    assert timer.samples_ns() == (100, 110, 100)


def test_round_of_five_critics_and_a_generator_is_one_sample() -> None:
    timer = StepTimer(steps_of(10), budget_s=1.0)
    for optimizer in [0, 0, 0, 0, 0, 1] * 3:
        timer.mark(optimizer)
    assert timer.samples_ns() == (60, 60)


@pytest.mark.parametrize(
    ("one_round", "step_ns"), [([0], 10), ([0, 1], 20), ([0, 1, 2], 30), ([0, 0, 0, 0, 0, 1], 60)]
)
@pytest.mark.parametrize("calls_per_mark", [1, 2, 3, 10])
def test_any_loop_is_timed_at_any_distance_of_readings(
    one_round: Sequence[int], step_ns: int, calls_per_mark: int
) -> None:
    """Ten calls to a reading must not miss the generator of a GAN each time."""
    clock = ClockOfCalls(10)
    timer = StepTimer(clock, budget_s=5_000e-9, calls_per_mark=calls_per_mark)
    for optimizer in itertools.islice(itertools.cycle(one_round), 3_000):
        clock.calls += 1
        if timer.mark(optimizer):
            break
    measurement = timer.measurement()
    assert measurement is not None
    assert set(measurement.samples_ns) == {step_ns}
    assert clock.calls < 3_000


class ClockOfCalls:
    """Every optimizer call takes the same time."""

    def __init__(self, call_ns: int) -> None:
        self.calls = 0
        self._call_ns = call_ns

    def now_ns(self) -> int:
        return self.calls * self._call_ns

    def synchronize(self) -> None:
        pass


def test_single_call_is_no_step() -> None:
    timer = StepTimer(ScriptedClock([5]), budget_s=1.0)
    assert timer.measurement() is None
    assert not timer.mark(0)
    assert timer.samples_ns() == ()
    assert timer.measurement() is None


def test_two_calls_are_a_step_that_no_warmup_takes_away() -> None:
    timer = StepTimer(ScriptedClock([5, 25]), budget_s=1.0)
    timer.mark(0)
    timer.mark(0)
    measurement = timer.measurement()
    assert measurement is not None
    assert measurement.steady_ns == (20,)


def test_function_is_called_as_often_as_its_time_needs() -> None:
    calls: list[int] = []
    # A slow first step, then 20 of 50 ms: 1.1 s are over before the last.
    times_ns = itertools.accumulate([0, 300_000_000, *[50_000_000] * 40])
    measurement = measure_step(lambda: calls.append(1), clock=ScriptedClock(times_ns))
    assert len(calls) == len(measurement.samples_ns) == 15
    assert measurement.num_warmup == 1
    assert measurement.median_ns == 50_000_000


@pytest.mark.parametrize(("most_samples", "num_samples"), [(2_000, 1_999), (50_000, 10_000)])
def test_short_steps_end_with_the_samples_or_the_budget(
    most_samples: int, num_samples: int
) -> None:
    step_ns = 100_000
    clock = ScriptedClock([step_ns * number for number in range(20_000)])
    timer = StepTimer(clock, budget_s=1.0, most_samples=most_samples)
    while not timer.mark(0):
        pass
    assert len(timer.samples_ns()) == num_samples


def test_work_between_few_steps_is_waited_for_until_it_is_known_how_often_it_comes() -> None:
    # Steps of 1 ms, and 200 ms after each hundred of them; the budget is over after two of those.
    times_ns = [0]
    for number in range(3_000):
        times_ns.append(times_ns[-1] + (200_000_000 if number % 100 == 99 else 1_000_000))

    def found(rare_patience: float) -> Measurement:
        timer = StepTimer(
            ScriptedClock(times_ns), 0.5, pool=PoolWaits(), rare_patience=rare_patience
        )
        calls_until_enough(timer, itertools.repeat(0))
        measurement = timer.measurement()
        assert measurement is not None
        return measurement

    assert found(0.0).has_rare_work
    patient = found(6.0)
    assert patient.other is not None
    assert patient.other.value_ns == pytest.approx(2_000_000, rel=0.3)


def test_more_samples_are_waited_for_where_the_first_differ_much() -> None:
    # Steps of 150 ms, every second one twice as long.
    times_ns = list(itertools.accumulate([0, *([150_000_000, 300_000_000] * 100)]))

    def found(rare_patience: float) -> Measurement:
        timer = StepTimer(ScriptedClock(times_ns), 1.0, rare_patience=rare_patience)
        calls_until_enough(timer, itertools.repeat(0))
        measurement = timer.measurement()
        assert measurement is not None
        return measurement

    few, many = found(0.0), found(6.0)
    assert few.estimate.high_ns > 3 * few.estimate.low_ns
    assert len(many.samples_ns) > 4 * len(few.samples_ns)
    assert many.estimate.high_ns < 1.5 * many.estimate.low_ns
    assert many.estimate.value_ns == pytest.approx(225_000_000, rel=0.05)


@pytest.mark.parametrize("is_kept", [False, True])
def test_every_update_of_clients_trained_one_after_another_is_a_step(is_kept: bool) -> None:
    # Eight clients of twenty updates each, with an optimizer that it keeps or that is made anew.
    turns = (client % 8 if is_kept else client for client in itertools.count())
    calls = (optimizer for optimizer in turns for _ in range(20))
    timer = StepTimer(steps_of(SECOND_NS // 165), budget_s=1.0)
    calls_until_enough(timer, calls)
    assert len(timer.samples_ns()) > 100


@pytest.mark.parametrize(("held_up_every", "num_seen"), [(10_000, 2), (100, 1)])
def test_work_seen_before_the_first_step_is_waited_for(held_up_every: int, num_seen: int) -> None:
    # A rollout of a second after every 300 steps of 5 ms: none within the first half second.
    times_ns = [0]
    for number in range(3_000):
        # Now and then a step takes twice as long, or is held up for more: that is none.
        step_ns = 10_000_000 if number % 50 == 40 else 5_000_000
        step_ns = 25_000_000 if number % held_up_every == 60 else step_ns
        times_ns.append(times_ns[-1] + (1_000_000_000 if number % 300 == 299 else step_ns))

    def num_longer(*, is_expected: bool) -> int:
        timer = StepTimer(ScriptedClock(times_ns), 0.5, rare_patience=20.0)
        timer.expects_rare_work = is_expected
        calls_until_enough(timer, itertools.repeat(0))
        measurement = timer.measurement()
        assert measurement is not None
        return sum(measurement.samples_ns[number] > 1e8 for number in measurement.longer)

    assert num_longer(is_expected=False) == 0
    assert num_longer(is_expected=True) >= num_seen


def test_every_gpu_that_a_script_uses_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int | None] = []
    backend = SimpleNamespace(
        synchronize=lambda index=None: waits.append(index),
        current_device=lambda: 0,
        device_count=lambda: 4,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index < 2, raising=False)
    GpuClock().synchronize()
    assert waits == [None, 1]
