"""The interval of a gain while other processes load the machine in bursts, on imitated times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf

import pytest
from msgspec.structs import replace

from breakeven.capture import PlainRun, RunRequest
from breakeven.timing import Measurement, Speedup, find_warmup
from breakeven.trace import Configuration
from breakeven.tune.comparison import Comparison
from breakeven.tune.runs import TrialRuns
from factories.runs import SCRIPT, ScriptedLauncher, plain_run

_FAST = Configuration(fast_step=True)
# Steps of several threads, and of generated code on one: nine times as fast.
_BASE_NS, _OWN_NS = 4_500_000.0, 500_000.0
_TRUTH = _BASE_NS / _OWN_NS
_TURN_NS, _RUN_NS = 60_000_000.0, 1_200_000_000.0
_NUM_PAIRS = 4


class BusyMachine:
    """A machine of which other processes take the processors, on and off for seconds each.

    In a burst, nearly each step of several threads takes 2 to 30 times as long: a thread waits for
    a processor, and the others for it. A step of one thread by its own clock loses caches alone.

    Args:
        seed: Seed of the bursts and of all noise.
        off_s: Longest pause between two bursts, in seconds; 0 for load without a pause.
        shows_waits: Whether the system counts how long threads waited for a processor.
    """

    def __init__(self, seed: int, *, off_s: float = 3.0, shows_waits: bool = True) -> None:
        self._random = random.Random(seed)
        self._off_s = off_s
        self._shows_waits = shows_waits
        self._now_ns = self._next_ns = 0.0
        self._is_loaded, self._factor = False, 1.0

    def pair(self) -> tuple[PlainRun, PlainRun]:
        """Return runs of the unchanged script and of the generated step, which took turns."""
        steps = ([], [])
        typical_ns = [ns * self._random.lognormvariate(0, 0.02) for ns in (_BASE_NS, _OWN_NS)]
        spent_ns = [0.0, 0.0]
        for turn in range(1, 200):
            for side in (0, 1):
                if spent_ns[side] >= _RUN_NS and len(steps[side]) >= 16:
                    continue
                begun_ns = self._now_ns
                while self._now_ns - begun_ns < _TURN_NS:
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

    def _run(self, steps: list[tuple[int, int, int]]) -> PlainRun:
        samples_ns, waited_ns, turns = zip(*steps, strict=True)
        measurement = Measurement(
            samples_ns=samples_ns,
            num_warmup=find_warmup(samples_ns),
            waited_ns=waited_ns if self._shows_waits else (),
        )
        return replace(plain_run(), measurement=measurement, turns=turns, load_fraction=0.5)


def gain(machine: BusyMachine, num_pairs: int = _NUM_PAIRS) -> Speedup:
    """Return the gain of the generated step, with a 90 % interval, on a loaded machine."""
    pairs = [machine.pair() for _ in range(num_pairs)]
    # The launchers change their roles from pair to pair.
    orders = [pair[:: -1 if number % 2 else 1] for number, pair in enumerate(pairs)]
    first, second = (ScriptedLauncher(list(answers)) for answers in zip(*orders, strict=True))
    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=60.0)
    runs = TrialRuns(first, request, lambda *_: None, second=second, num_threads=2)
    comparison = Comparison(base=Configuration(), configuration=_FAST)
    for _ in pairs:
        comparison.run_pair(runs)
    return comparison.speedup(0.90)


def gains(num_seeds: int, **options: float | bool) -> Iterator[Speedup]:
    for seed in range(num_seeds):
        yield gain(BusyMachine(seed, **options))


def coverage(found: list[Speedup]) -> float:
    return sum(each.low <= _TRUTH <= each.high for each in found) / len(found)
