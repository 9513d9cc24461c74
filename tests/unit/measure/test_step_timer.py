from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

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


def measured(times_ns: Iterable[int], budget_s: float, **options: Any) -> Measurement:
    """Return what a timer says that has seen steps between these times."""
    timer = StepTimer(ScriptedClock(times_ns), budget_s, **options)
    calls_until_enough(timer, itertools.repeat(0))
    measurement = timer.measurement()
    assert measurement is not None
    return measurement


def test_device_is_waited_for_before_each_reading() -> None:
    clock = ScriptedClock([0, 600, 1_200])
    measure_step(lambda: clock.log.append("step"), clock=clock, budget_s=500e-9)
    assert clock.log == ["sync", "now", "step", "sync", "now", "step", "sync", "now"]


def test_samples_lie_between_readings() -> None:
    clock = ScriptedClock([100, 1_100, 2_000, 2_700, 3_700, 4_600])
    timer = StepTimer(clock, budget_s=4_500e-9)
    assert calls_until_enough(timer, itertools.repeat(0)) == 6
    assert timer.samples_ns() == (1_000, 900, 700, 1_000, 900)
    assert timer.num_calls == 6


@pytest.mark.parametrize(
    ("step_ns", "options", "num_calls"),
    [
        # 100 steps of 10 ms make a second; the first call begins the first step.
        (SECOND_NS // 100, {}, 101),
        # Steps as long as the budget, or far longer, stop at two.
        (SECOND_NS, {}, 3),
        (30 * SECOND_NS, {}, 3),
        # Four samples of 0.3 s are 1.2 s; the fifth comes before twice the budget.
        (3 * SECOND_NS // 10, {}, 6),
        # More samples are waited for as long as patience lasts.
        (SECOND_NS // 10, {"least_samples": 40, "patience": 8.0}, 41),
        (SECOND_NS // 2, {"least_samples": 40, "patience": 8.0}, 17),
        # Tiny steps stop at the most samples, or with the budget.
        (1_000, {}, 2_000),
        (SECOND_NS // 8_192, {"most_samples": 50_000}, 8_194),
    ],
)
def test_enough_is_a_matter_of_time_and_samples(
    step_ns: int, options: dict[str, Any], num_calls: int
) -> None:
    timer = StepTimer(steps_of(step_ns), budget_s=1.0, **options)
    assert calls_until_enough(timer, itertools.repeat(0)) == num_calls


def test_steps_after_a_first_one_that_compiles_get_the_whole_budget() -> None:
    # The first sample takes 20 s, and those after it 10 ms.
    found = measured([0, *range(20 * SECOND_NS, 30 * SECOND_NS, SECOND_NS // 100)], 0.5)
    assert len(found.samples_ns) == 51
    assert found.num_warmup >= 1
    assert found.median_ns == SECOND_NS // 100


def test_end_of_the_first_step_is_the_end_of_the_first_round() -> None:
    timer = StepTimer(ScriptedClock([100, 130, 200, 230]), budget_s=1.0)
    assert timer.first_end_ns == 0
    for optimizer in [0, 1] * 2:
        timer.mark(optimizer)
    assert timer.first_end_ns == 130


def test_every_sample_knows_the_call_with_which_it_ends() -> None:
    timer = StepTimer(steps_of(SECOND_NS // 10), budget_s=1.0)
    # A discriminator's update, then the generator's: a step ends with the latter.
    calls_until_enough(timer, itertools.cycle((0, 1)))
    assert timer.end_calls()[1:] == tuple(range(3, timer.num_calls, 2))
    assert len(timer.end_calls()) - 1 == len(timer.samples_ns())


def test_several_calls_make_one_sample_of_one_step_each() -> None:
    clock = ScriptedClock([0, 4_000, 8_400])
    timer = StepTimer(clock, budget_s=3_000e-9, calls_per_mark=4)
    marks = [timer.mark(0) for _ in range(9)]
    # Readings at calls 1, 5 and 9, and a decision at no other.
    assert clock.log == ["sync", "now"] * 3
    assert marks == [False] * 8 + [True]
    assert timer.samples_ns() == (1_000, 1_100)


@pytest.mark.parametrize(
    ("times_ns", "optimizers", "samples_ns"),
    [
        # A GAN from one generator update to the next: 30 after the other, then 40.
        ([0, 30, 100, 130, 200, 240, 300, 340], [0, 1] * 4, (100, 110, 100)),
        # Five critics and a generator.
        (range(0, 180, 10), [0, 0, 0, 0, 0, 1] * 3, (60, 60)),
        # A single call is no step, and two are one.
        ([], [], ()),
        ([5], [0], ()),
        ([5, 25], [0, 0], (20,)),
    ],
)
def test_a_round_of_all_optimizers_is_a_sample(
    times_ns: Sequence[int], optimizers: Sequence[int], samples_ns: tuple[int, ...]
) -> None:
    timer = StepTimer(ScriptedClock(times_ns), budget_s=1.0)
    assert not any(timer.mark(optimizer) for optimizer in optimizers)
    assert timer.samples_ns() == samples_ns
    found = timer.measurement()
    # No warm-up takes the only one away.
    assert (found is not None and len(found.steady_ns) > 0) is bool(samples_ns)


@pytest.mark.parametrize(
    ("one_round", "step_ns"), [([0], 10), ([0, 1], 20), ([0, 1, 2], 30), ([0, 0, 0, 0, 0, 1], 60)]
)
@pytest.mark.parametrize("calls_per_mark", [1, 2, 3, 10])
def test_any_loop_is_timed_at_any_distance_of_readings(
    one_round: Sequence[int], step_ns: int, calls_per_mark: int
) -> None:
    """Ten calls to a reading must not miss the generator of a GAN each time."""
    num_calls = 0
    clock = SimpleNamespace(now_ns=lambda: 10 * num_calls, synchronize=lambda: None)
    timer = StepTimer(clock, budget_s=5_000e-9, calls_per_mark=calls_per_mark)
    for optimizer in itertools.islice(itertools.cycle(one_round), 3_000):
        num_calls += 1
        if timer.mark(optimizer):
            break
    assert set(timer.samples_ns()) == {step_ns}
    assert num_calls < 3_000


def test_function_is_called_as_often_as_its_time_needs() -> None:
    calls: list[int] = []
    # A slow first step, then 20 of 50 ms: 1.1 s are over before the last.
    times_ns = itertools.accumulate([0, 300_000_000, *[50_000_000] * 40])
    measurement = measure_step(lambda: calls.append(1), clock=ScriptedClock(times_ns))
    assert len(calls) == len(measurement.samples_ns) == 15
    assert measurement.num_warmup == 1
    assert measurement.median_ns == 50_000_000


def test_work_between_few_steps_is_waited_for_until_it_is_known_how_often_it_comes() -> None:
    # Steps of 1 ms, and 200 ms after each hundred of them; the budget is over after two of those.
    steps_ns = (200_000_000 if number % 100 == 99 else 1_000_000 for number in range(3_000))
    times_ns = list(itertools.accumulate(steps_ns, initial=0))
    assert measured(times_ns, 0.5, pool=PoolWaits()).has_rare_work
    patient = measured(times_ns, 0.5, pool=PoolWaits(), rare_patience=6.0)
    assert patient.other is not None
    assert patient.other.value_ns == pytest.approx(2_000_000, rel=0.3)


def test_more_samples_are_waited_for_if_the_first_differ_much() -> None:
    # Steps of 150 ms, every second one twice as long.
    times_ns = list(itertools.accumulate([0, *([150_000_000, 300_000_000] * 100)]))
    few, many = measured(times_ns, 1.0), measured(times_ns, 1.0, rare_patience=6.0)
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
        found = measured(times_ns, 0.5, rare_patience=20.0, expects_rare_work=is_expected)
        return sum(found.samples_ns[number] > 1e8 for number in found.longer)

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
