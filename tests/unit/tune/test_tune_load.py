"""The interval of a gain while other processes load the machine in bursts, on imitated times."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.capture import PlainRun, RunRequest
from breakeven.timing import Measurement, Speedup, find_warmup
from breakeven.trace import Configuration
from breakeven.tune.comparison import Comparison
from breakeven.tune.runs import TrialRuns
from factories.runs import SCRIPT, ScriptedLauncher, plain_run

_FAST = Configuration(fast_step=True)
_BASE_NS = 9_000_000.0
_TURN_NS, _RUN_NS = 60_000_000.0, 1_200_000_000.0
_NUM_PAIRS = 4
# Duration and wait in nanoseconds, and turn.
_Step = tuple[int, int, int]


class BusyMachine:
    """A machine of which other processes take the processors, on and off for seconds each.

    In a burst, nearly each step of several threads takes 2 to 30 times as long: a thread waits for
    a processor, and the others for it. A step of one thread by its own clock loses caches alone.

    Args:
        seed: Seed of the bursts and of all noise.
        gain: The gain of the generated step on the quiet machine.
        off_s: Longest pause between two bursts, in seconds; 0 for load without a pause.
        num_steps: Steps of a run of the script.
        shows_waits: Whether the system counts how long threads waited for a processor.
    """

    def __init__(
        self, seed: int, *, gain: float = 9.0, off_s: float = 3.0, num_steps: int = 10_000,
        shows_waits: bool = True,
    ) -> None:  # fmt: skip
        self._random = random.Random(seed)
        self._gain = gain
        self._off_s, self._num_steps = off_s, num_steps
        self._shows_waits = shows_waits
        self._now_ns = self._next_ns = 0.0
        self._is_loaded, self._factor = False, 1.0

    def pair(self) -> tuple[PlainRun, PlainRun]:
        """Return runs of the unchanged script and of the generated step, which took turns."""
        steps: tuple[list[_Step], list[_Step]] = ([], [])
        step_ns = (_BASE_NS, _BASE_NS / self._gain)
        typical_ns = [ns * self._random.lognormvariate(0, 0.02) for ns in step_ns]
        spent_ns = [0.0, 0.0]
        for turn in range(1, 200):
            for side in (0, 1):
                is_over = spent_ns[side] >= _RUN_NS and len(steps[side]) >= 16
                if is_over or len(steps[side]) == self._num_steps:
                    continue
                begun_ns = self._now_ns
                while self._now_ns - begun_ns < _TURN_NS and len(steps[side]) < self._num_steps:
                    step_ns, waited_ns = self._step(typical_ns[side], is_pooled=side == 0)
                    self._now_ns += step_ns
                    steps[side].append((round(step_ns), round(waited_ns), turn))
                spent_ns[side] += self._now_ns - begun_ns
        return self._run(steps[0]), self._run(steps[1])

    def _step(self, typical_ns: float, *, is_pooled: bool) -> tuple[float, float]:
        if self._now_ns >= self._next_ns:
            self._is_loaded = not self._is_loaded or not self._off_s
            longest_s = 3.0 if self._is_loaded else self._off_s
            self._next_ns = self._now_ns + 1e9 * self._random.uniform(longest_s / 3, longest_s)
            self._factor = self._random.uniform(2, 30)
        own_ns = typical_ns * self._random.lognormvariate(0, 0.1)
        if not self._is_loaded:
            return own_ns, 0.0
        own_ns *= self._random.uniform(1.0, 1.1)
        if not is_pooled or self._random.random() < 0.05 * bool(self._off_s):
            return own_ns, 0.0
        waited_ns = own_ns * (self._factor - 1) * self._random.uniform(0.5, 1.5)
        # What is counted may miss some of the wait, or add that of a second thread.
        return own_ns + waited_ns, waited_ns * self._random.uniform(0.9, 1.2)

    def _run(self, steps: list[_Step]) -> PlainRun:
        samples_ns, waited_ns, turns = zip(*steps, strict=True)
        measurement = Measurement(
            samples_ns=samples_ns,
            num_warmup=find_warmup(samples_ns),
            waited_ns=waited_ns if self._shows_waits else (),
        )
        return replace(plain_run(), measurement=measurement, turns=turns, load_fraction=0.5)


def compared(machine: BusyMachine) -> Comparison:
    """Return a comparison of the generated step with the script, on a loaded machine."""
    pairs = [machine.pair() for _ in range(_NUM_PAIRS)]
    # The launchers change their roles from pair to pair.
    orders = [pair[:: -1 if number % 2 else 1] for number, pair in enumerate(pairs)]
    first, second = (ScriptedLauncher(answers) for answers in zip(*orders, strict=True))
    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=60.0)
    runs = TrialRuns(first, request, lambda *_: None, second=second, num_threads=2)  # type: ignore[arg-type]
    comparison = Comparison(base=Configuration(), configuration=Configuration(fast_step=True))
    for _ in pairs:
        comparison.run_pair(runs)
    return comparison


def intervals(gain: float, num_seeds: int = 20, **options: Any) -> list[Speedup]:
    """Return the 90 % intervals of many loaded machines."""
    machines = (BusyMachine(seed, gain=gain, **options) for seed in range(num_seeds))
    return [compared(machine).speedup(0.90) for machine in machines]


def coverage(found: list[Speedup], gain: float) -> float:
    return sum(each.low <= gain <= each.high for each in found) / len(found)


@pytest.mark.parametrize(("gain", "num_steps"), [(1.0, 10_000), (9.0, 10_000), (9.0, 400)])
def test_bursts_of_load_stay_out_of_the_gain(gain: float, num_steps: int) -> None:
    found = intervals(gain, off_s=3.0, num_steps=num_steps)
    assert coverage(found, gain) >= 0.85
    assert median(each.high / each.low for each in found) < 1.5


@pytest.mark.parametrize("gain", [1.0, 9.0])
def test_load_without_a_pause_gives_a_range_that_holds_the_gain(gain: float) -> None:
    found = intervals(gain, off_s=0.0)
    assert coverage(found, gain) >= 0.85
    # What the machine showed, 30 to 300 times, is within it.
    assert all(each.high > 4 * each.low for each in found)


def test_disturbed_runs_do_not_count_as_steps_of_the_script() -> None:
    loaded, quiet = BusyMachine(1, off_s=0.0), BusyMachine(1, off_s=3.0)
    assert compared(loaded).own_runs[0].bounds_ns is None
    assert all(run.bounds_ns is not None for run in compared(loaded).base_runs)
    assert compared(quiet).base_step_ns == pytest.approx(_BASE_NS, rel=0.1)
