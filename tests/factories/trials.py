"""Made-up candidates and runs for the tests of a search: a world with known speeds and noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, inf
from typing import Any

from msgspec.structs import replace

from breakeven.capture import FailureKind, RunFailure
from breakeven.timing import TurnKind
from breakeven.trace import Configuration
from breakeven.tune.budget import TimeBudget
from breakeven.tune.runs import RunResult
from breakeven.verdict import Numerics

STEP_NS = 300_000.0
RUN_S = 0.6
# No made-up candidate reads the facts of a step.
FACTS: Any = None


@dataclass(frozen=True)
class MadeUp:
    """A candidate that changes one setting."""

    name: str
    changes: dict[str, Any]
    gain: float = 0.1
    cost_s: float = 0.0
    numerics: Numerics = Numerics.REORDERED
    family: str = ""
    needs: str = ""
    title: str = "made up"
    undo: str = "nothing to undo"

    def why_not(self, facts: object, current: Configuration) -> str | None:
        if self.needs and self.needs not in current.changes:
            return f"{self.needs} is not set"
        return None

    def apply(self, current: Configuration) -> Configuration:
        return replace(current, **self.changes)

    def expected_gain(self, facts: object) -> float:
        return self.gain

    def expected_cost_s(self, facts: object) -> float:
        return self.cost_s


def made_up(name: str, family: str = "", **settings: Any) -> MadeUp:
    """Return a candidate; keywords are its own fields, or settings that it changes."""
    own = {key: settings.pop(key) for key in tuple(settings) if key in MadeUp.__annotations__}
    return MadeUp(name, settings, family=family or name, **own)


THREADS_1 = made_up("threads=1", "threads", num_threads=1, gain=0.3)
THREADS_2 = made_up("threads=2", "threads", num_threads=2, gain=0.2)
FUSED = made_up("fused-optimizer", optimizer="fused", gain=0.5)
CHANNELS = made_up("channels-last", channels_last=True, gain=0.15)
DENORMAL = made_up("flush-denormal", flushes_denormals=True, gain=0.05)
GATHER = made_up("gather-batches", gathers_batches=True, gain=0.4, numerics=Numerics.EXACT)
BF16 = made_up("bf16", autocast="bfloat16", gain=0.25, numerics=Numerics.LOWER_PRECISION)
COMPILE = made_up("compile", compile_mode="default", gain=0.35, cost_s=12.0)
CUDNN = made_up("cudnn-benchmark", benchmarks_cudnn=True, gain=0.9, needs="compile_mode")
ALL = (GATHER, FUSED, THREADS_1, THREADS_2, DENORMAL, CHANNELS, BF16, COMPILE, CUDNN)

Speeds = Callable[[Configuration], float | RunFailure | str]


def speeds(**factors: float) -> Speeds:
    """Return a world in which each setting speeds up steps by its factor."""

    def speed(configuration: Configuration) -> float:
        result = 1.0
        for name in configuration.changes:
            result *= factors.get(name, 1.0)
        return result

    return speed


def failed(
    kind: FailureKind = FailureKind.EXCEPTION,
    message: str = "made up",
    exception: str = "RuntimeError",
) -> RunFailure:
    return RunFailure(kind=kind, message=message, exception=exception)


@dataclass
class MadeUpRuns:
    """Runs in a made-up world with simulated time.

    Args:
        speed: Returns a configuration's speedup over the baseline, or its failure.
        noise: Standard deviation of the logarithm of a run's median.
        drift: Slowdown of all steps from run to run.
        wrong: Settings that make the numbers wrong.
        startup_s: Startup time that a setting adds to its first run, by name; later a tenth.
        extras: Further fields of the result under a setting.
        hiccups: Slowdown factors of disturbed runs, by the run's number.
        takes_turns: Runs of one thread take turns; they then vary by a tenth of ``noise``.
        takes_long_turns: Runs of several threads also take turns.
    """

    speed: Speeds
    noise: float = 0.01
    drift: float = 0.0
    seed: int = 0
    wrong: tuple[str, ...] = ()
    startup_s: dict[str, float] = field(default_factory=dict)
    extras: dict[str, dict[str, Any]] = field(default_factory=dict)
    hiccups: dict[int, float] = field(default_factory=dict)
    load_fraction: float = 0.0
    takes_turns: bool = False
    takes_long_turns: bool = False
    now_s: float = 0.0
    asked: list[Configuration] = field(default_factory=list)
    gated: list[tuple[Configuration, Numerics]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._latest: RunResult | None = None

    def budget(self, total_s: float = 300.0) -> TimeBudget:
        return TimeBudget(total_s, lambda: self.now_s)

    def turns_with(self, first: Configuration, second: Configuration) -> TurnKind:
        if self.takes_turns and first.num_threads == second.num_threads == 1:
            return TurnKind.SHORT
        return TurnKind.LONG if self.takes_long_turns else TurnKind.NONE

    def pair(
        self,
        base: Configuration,
        contender: Configuration,
        *,
        is_contender_first: bool,
        is_new: bool,
        **limits: Any,
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        if self.turns_with(base, contender) is not TurnKind.NONE:
            noise, self.noise = self.noise, self.noise / 10
            pair = self.measure(base), self.measure(contender, **limits)
            self.noise = noise
            return pair
        if is_contender_first:
            own = self.measure(contender, **limits)
            return self.measure(base), own
        known = self._latest if is_new and self.asked[-1:] == [base] else None
        return known or self.measure(base), self.measure(contender, **limits)

    def measure(
        self, configuration: Configuration, *, extra_s: float = 0.0, longest_s: float = inf
    ) -> RunResult | RunFailure:
        is_first = configuration not in self.asked
        self.asked.append(configuration)
        speed = self.speed(configuration)
        late_s = sum(self.startup_s.get(name, 0.0) for name in configuration.changes)
        late_s *= 1.0 if is_first else 0.1
        if isinstance(speed, RunFailure):
            hangs_s = max(10.0, min(longest_s, 10.0 + 3.0 * extra_s))
            self.now_s += hangs_s if speed.kind is FailureKind.TIME_LIMIT else RUN_S
            return speed
        assert not isinstance(speed, str)
        self.now_s += RUN_S + late_s
        step_ns = STEP_NS / speed * exp(self._random.gauss(0.0, self.noise))
        step_ns *= exp(self.drift * len(self.asked)) * self.hiccups.get(len(self.asked), 1.0)
        values: dict[str, Any] = {
            "step_ns": step_ns,
            "startup_ns": (0.1 + late_s) * 1e9,
            "wall_s": RUN_S + late_s,
            "load_fraction": self.load_fraction,
            "peak_memory_bytes": 400_000_000,
        }
        kind = self.turns_with(configuration, configuration)
        if kind is not TurnKind.NONE:
            values["turns"] = kind
            values["turns_ns"] = dict.fromkeys(range(20), step_ns)
        for name in configuration.changes:
            values |= self.extras.get(name, {})
        self._latest = RunResult(**values)
        return self._latest

    def check_numbers(self, configuration: Configuration, numerics: Numerics) -> str | None:
        self.now_s += RUN_S
        self._latest = None
        self.gated.append((configuration, numerics))
        if any(name in configuration.changes for name in self.wrong):
            return "at step 2 the gradient of layers.0.weight differs by 3.1 %"
        return None
