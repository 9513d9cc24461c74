"""Compare a configuration with a base in pairs of runs, until the faster one is clear.

The two runs of a pair are interleaved, so changes of the machine affect both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import hypot, inf, log
from statistics import fmean, median

from msgspec.structs import replace

from breakeven.capture import RunFailure
from breakeven.settings import Candidate
from breakeven.timing import (
    BUSY_FRACTION,
    RunRatio,
    Speedup,
    TurnKind,
    compare_pairs,
    compare_runs,
    compare_turns,
)
from breakeven.trace import Configuration
from breakeven.tune.runs import RunResult, TrialRuns

# A smaller gain does not justify another setting; the confirmation requires it.
WORTHWHILE = 1.02
# Gain that a contender needs for the confirmation: several small gains may add up to a worthwhile
# one.
_FASTER = 1.005
# A single pair could be an outlier of the machine.
_FEWEST_PAIRS = 2
# Further pairs narrow the interval slowly, and each costs two runs. Load widens it.
_MOST_PAIRS = 6
_MOST_PAIRS_LOADED = 8
# Exception: one pair in turns proves a compiled step that is faster by this factor. Machine load
# cannot cause such a ratio, but it can when one thread is compared with several.
_OBVIOUS = 2.0
# Within this factor, two configurations count as equally fast. A contender that wins ties does so
# after this many pairs.
TIE = 1.02
_PAIRS_OF_TIE = 3
# Give a contender up when the upper end of its one-sided 80 % interval is not worthwhile. Dropping
# a good one costs speed, never correctness, and most contenders are not faster.
_GIVING_UP_CONFIDENCE = 0.60


class BaseFailedError(Exception):
    """The base configuration failed twice in a row.

    Args:
        failure: The second failure.
    """

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Decision(Enum):
    """Result of a comparison so far."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"


@dataclass(slots=True, kw_only=True, eq=False)
class Comparison:
    """A comparison of a configuration with a base.

    Args:
        base: The configuration to compare with.
        configuration: The configuration under test.
        extra_s: Predicted delay of its start, in seconds.
        wins_ties: Whether it wins if it is as fast as the base.
        on_one_thread: Whether both run on one thread, though the step may run on several.
        base_runs: Runs of the base, one for each run of the configuration.
        own_runs: Runs of the configuration.
        failure: The failure that ended the comparison, if any.
    """

    base: Configuration
    configuration: Configuration
    extra_s: float = 0.0
    wins_ties: bool = False
    on_one_thread: bool = False
    base_runs: list[RunResult] = field(default_factory=list)
    own_runs: list[RunResult] = field(default_factory=list)
    failure: RunFailure | None = None

    def run_pair(self, runs: TrialRuns, longest_s: float = inf) -> None:
        """Run both once more. If the configuration fails, its earlier pairs remain.

        Raises:
            BaseFailedError: If the base fails twice in a row.
        """
        pair = partial(
            runs.pair,
            self.base,
            self.configuration,
            is_contender_first=self.num_pairs % 2 == 1,
            is_new=not self.num_pairs,
            extra_s=self.extra_s,
            longest_s=longest_s,
        )
        base, own = pair()
        if isinstance(base, RunFailure):
            base, own = pair()
        if isinstance(base, RunFailure):
            raise BaseFailedError(base)
        if isinstance(own, RunFailure):
            self.failure = own
            return
        self.base_runs.append(base)
        self.own_runs.append(own)

    @property
    def num_pairs(self) -> int:
        """Number of complete pairs."""
        return len(self.base_runs)

    @property
    def samples(self) -> float:
        """Samples per step relative to the base; 2 for twice its batch size."""
        return _samples_of(self.configuration) / _samples_of(self.base)

    @property
    def load_fraction(self) -> float:
        """Share of the machine that other processes used during the runs."""
        runs = self.base_runs + self.own_runs
        return fmean(run.load_fraction for run in runs) if runs else 0.0

    @property
    def base_step_ns(self) -> float:
        """Median step of the base, in its undisturbed runs if there are any."""
        runs = [run for run in self.base_runs if run.bounds_ns is None] or self.base_runs
        return median(run.step_ns for run in runs)

    @property
    def later_ns(self) -> float:
        """Difference between the configuration's start-up time and the base's."""
        own, base = (
            median(run.startup_ns for run in runs) for runs in (self.own_runs, self.base_runs)
        )
        return own - base

    @property
    def own_s(self) -> float:
        """Duration of the configuration's shortest run, in seconds."""
        return min(run.wall_s for run in self.own_runs)

    @property
    def pair_s(self) -> float:
        """Expected duration of another pair, in seconds; compiled code is cached by now."""
        return self.base_runs[-1].wall_s + self.own_s

    @property
    def new_warnings(self) -> tuple[str, ...]:
        """Python warnings that only the configuration's runs emit."""
        known = {warning for run in self.base_runs for warning in run.warnings}
        found = (warning for run in self.own_runs for warning in run.warnings)
        return tuple(dict.fromkeys(warning for warning in found if warning not in known))

    @property
    def finds_nothing(self) -> bool:
        """Whether none of the settings that it adds to the base took effect."""
        changes = self.configuration.changes
        changed = [name for name, value in changes.items() if getattr(self.base, name) != value]
        effects = self.own_runs[-1].effects
        return bool(changed) and all(effects.get(name) == 0 for name in changed)

    @property
    def looks(self) -> Speedup:
        """The speedup, with an interval that stays valid when checked after each pair."""
        return self.speedup(num_looks=_MOST_PAIRS_LOADED)

    def is_hopeless(self, needed: float = WORTHWHILE) -> bool:
        """Whether it can hardly be as fast as ``needed`` any more."""
        return self.speedup(_GIVING_UP_CONFIDENCE).high < needed

    def speedup(self, confidence: float = 0.95, *, num_looks: int = 1) -> Speedup:
        """Return the speedup over the base, per sample.

        Args:
            confidence: Probability that the interval holds the true ratio.
            num_looks: How often the interval is checked.
        """
        ratios: list[RunRatio] = []
        for base, own in zip(self.base_runs, self.own_runs, strict=True):
            own_turns_ns = {turn: ns / self.samples for turn, ns in own.turns_ns.items()}
            ratio = compare_turns(base.turns_ns, own_turns_ns, own.turns) or compare_runs(
                base.step_ns, own.step_ns / self.samples
            )
            if ratio.turns is TurnKind.NONE and base.turns_ns and own.turns_ns:
                # Load or the end of the script left few turns in common: compare all their steps.
                ratio = replace(ratio, turns=own.turns, error=hypot(base.error, own.error))
            if base.bounds_ns or own.bounds_ns:
                base_low, base_high = base.bounds_ns or (base.step_ns, base.step_ns)
                own_low, own_high = own.bounds_ns or (own.step_ns, own.step_ns)
                least, most = self.samples * base_low / own_high, self.samples * base_high / own_low
                ratio = replace(ratio, bounds=(log(least), log(most)))
            ratios.append(ratio)
        return compare_pairs(
            ratios, confidence, num_looks=num_looks, load_fraction=self.load_fraction
        )

    def decide(self) -> Decision:
        """Decide whether the runs so far show that it is faster, or that it is not.

        Faster needs an interval above 1 that holds for all checks together, and two pairs or a
        large gain. Not faster means that it no longer looks worthwhile, or is undecided after the
        last pair.
        """
        least = _FASTER
        if self.num_pairs < _FEWEST_PAIRS:
            in_turns = self.own_runs[-1].turns is not TurnKind.NONE
            least = _OBVIOUS if in_turns and self.configuration.fast_step else inf
        if self.looks.low > least:
            return Decision.FASTER
        needed = WORTHWHILE
        if self.wins_ties and self.num_pairs >= _PAIRS_OF_TIE and self.looks.value * TIE > 1.0:
            return Decision.FASTER
        if self.wins_ties and self.num_pairs < _PAIRS_OF_TIE:
            needed = 1.0 / TIE
        most = _MOST_PAIRS_LOADED if self.load_fraction >= BUSY_FRACTION else _MOST_PAIRS
        if self.is_hopeless(needed) or self.num_pairs >= most:
            return Decision.NOT_FASTER
        return Decision.UNDECIDED


@dataclass(slots=True, kw_only=True, eq=False)
class CandidateComparison(Comparison):
    """A comparison of a candidate, added to the kept configuration, with that configuration."""

    candidate: Candidate


def run_base(runs: TrialRuns, base: Configuration) -> RunResult:
    """Run the base of the comparisons; a failure that does not repeat is ignored.

    Raises:
        BaseFailedError: If it fails twice in a row.
    """
    result = runs.measure(base)
    if isinstance(result, RunFailure):
        result = runs.measure(base)
    if isinstance(result, RunFailure):
        raise BaseFailedError(result)
    return result


def _samples_of(configuration: Configuration) -> float:
    """Return the samples per step relative to the unchanged script's."""
    if not configuration.loader_batch_size or not configuration.new_batch_size:
        return 1.0
    return configuration.new_batch_size / configuration.loader_batch_size
