"""A configuration and its rivals, run in turn until it is decided which is faster.

Taking turns, what changes meanwhile meets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
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
from breakeven.tune.trial_runs import RunResult, TrialRuns

# Less than this is not worth a setting that somebody must know of; the confirmation asks for it.
WORTHWHILE = 1.02
# What a rival must be faster by to be taken along to the confirmation: several small gains may
# add up to a worthwhile one.
_FASTER = 1.005
# One pair says nothing that one outlier of the machine would not say as well.
_FEWEST_PAIRS = 2
# More pairs narrow the interval slowly, and each costs two runs.
_MOST_PAIRS = 6
# But for a compiled step that is so many times as fast, by its interval, where runs take turns: no
# load of the machine looks like it, as it does where one thread is compared with several.
_OBVIOUS = 2.0
# Two that differ by no more than this factor are as fast; where a tie is to be won, after so many
# pairs.
_TIE = 1.02
_PAIRS_OF_TIE = 3
# On a loaded machine the interval is wider.
_MOST_PAIRS_LOADED = 8
# A rival is given up when the upper end of its one-sided 80 % interval is not worthwhile: to give
# up a good one costs speed, never correctness, and most rivals are not faster.
_GIVING_UP_CONFIDENCE = 0.60
# Where one thread is slower than several by more than this, a step on it is another one.
_LEAST_SPEED = 0.5


class BaseFailedError(Exception):
    """The configuration that rivals are compared with fails, twice in a row.

    Args:
        failure: The second time.
    """

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True, kw_only=True, eq=False)
class Rival:
    """A configuration that is compared with a base.

    Args:
        configuration: What it runs under.
        samples: Samples of a step, relative to the base's: 2 for twice its batch size.
        extra_s: By how many seconds it is predicted to start later.
        base_runs: Runs of the base, one for each of its own.
        own_runs: Its runs.
        failure: Why it cannot go on, once it has failed.
    """

    configuration: Configuration
    samples: float = 1.0
    extra_s: float = 0.0
    base_runs: list[RunResult] = field(default_factory=list)
    own_runs: list[RunResult] = field(default_factory=list)
    failure: RunFailure | None = None

    @property
    def num_pairs(self) -> int:
        """Return the number of complete pairs."""
        return len(self.base_runs)

    @property
    def step_ns(self) -> float | None:
        """Return its median step; None before it has run."""
        return median(run.step_ns for run in self.own_runs) if self.own_runs else None

    @property
    def load_fraction(self) -> float:
        """Return the share of the machine that other processes used during its runs."""
        runs = self.base_runs + self.own_runs
        return fmean(run.load_fraction for run in runs) if runs else 0.0

    @property
    def own_s(self) -> float:
        """Return how many seconds its quickest run took."""
        return min(run.wall_s for run in self.own_runs)

    @property
    def pair_s(self) -> float:
        """Return how many seconds one more pair will take; what a first run compiles stays."""
        return self.base_runs[-1].wall_s + self.own_s

    @property
    def new_warnings(self) -> tuple[str, ...]:
        """Return what Python warns of in its runs, and not in the base's."""
        known = {warning for run in self.base_runs for warning in run.warnings}
        found = (warning for run in self.own_runs for warning in run.warnings)
        return tuple(dict.fromkeys(warning for warning in found if warning not in known))

    def note(self, base: RunResult, own: RunResult | RunFailure) -> None:
        """Keep a pair of runs; one that fails keeps the pairs that it has."""
        if isinstance(own, RunFailure):
            self.failure = own
            return
        self.base_runs.append(base)
        self.own_runs.append(own)

    def finds_nothing(self, base: Configuration) -> bool:
        """Return whether none of the settings that it adds to ``base`` took hold."""
        changes = self.configuration.changes
        changed = [name for name, value in changes.items() if getattr(base, name) != value]
        effects = self.own_runs[-1].effects
        return bool(changed) and all(effects.get(name) == 0 for name in changed)

    def speedup(self, confidence: float = 0.95, *, num_looks: int = 1) -> Speedup:
        """Return how much faster than the base it is, per sample.

        Args:
            confidence: Probability that the interval holds the true ratio.
            num_looks: How often the interval may be looked at.
        """
        pairs = zip(self.base_runs, self.own_runs, strict=True)
        return compare_pairs(
            [_ratio(base, own, self.samples) for base, own in pairs],
            confidence,
            num_looks=num_looks,
            load_fraction=self.load_fraction,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class CandidateRival(Rival):
    """A candidate on top of what is kept, which is its base."""

    candidate: Candidate


def _ratio(base: RunResult, own: RunResult, samples: float) -> RunRatio:
    """Return how much longer the base takes for a sample."""
    own_turns_ns = {turn: step_ns / samples for turn, step_ns in own.turns_ns.items()}
    in_turns = compare_turns(base.turns_ns, own_turns_ns, own.turns)
    return in_turns or compare_runs(base.step_ns, own.step_ns / samples)


class PairedRuns:
    """Runs a base and its rivals in rounds: base first, base last, base first, ...

    Where runs can take turns, a rival and the base go on side by side, a few steps each.

    Args:
        runs: Makes the runs.
        base: What the rivals are compared with.
        last: The latest run of all, where it was one of the base: it serves as the first one.
        longest_s: Tells after how many seconds a rival's run is ended at the latest.
    """

    def __init__(
        self,
        runs: TrialRuns,
        base: Configuration,
        last: RunResult | None = None,
        longest_s: Callable[[], float] = lambda: inf,
    ) -> None:
        self._runs = runs
        self._base = base
        self._first = last
        self._longest_s = longest_s
        self._num_rounds = 0

    def round(self, rivals: Sequence[Rival]) -> RunResult | None:
        """Run the base and each rival once more; one that fails keeps the pairs that it has.

        Returns:
            The base's run where it was the last one, and may serve the next comparison.

        Raises:
            BaseFailedError: The base fails.
        """
        kinds = [self._runs.turns_with(self._base, each.configuration) for each in rivals]
        if TurnKind.NONE not in kinds:
            self._round_in_turns(rivals)
            return None
        is_base_last = self._num_rounds % 2 == 1
        self._num_rounds += 1
        if is_base_last:
            results = [self._run_rival(rival) for rival in reversed(rivals)][::-1]
            base = run_base(self._runs, self._base)
        else:
            base, self._first = self._first or run_base(self._runs, self._base), None
            results = [self._run_rival(rival) for rival in rivals]
        for rival, result in zip(rivals, results, strict=True):
            rival.note(base, result)
        return base if is_base_last else None

    def _round_in_turns(self, rivals: Sequence[Rival]) -> None:
        """Run each rival side by side with a run of the base of its own."""
        is_rival_first = self._num_rounds % 2 == 1
        self._num_rounds += 1
        for rival in rivals:
            base, own = self._pair(rival, is_rival_first=is_rival_first)
            if isinstance(base, RunFailure):
                base, own = self._pair(rival, is_rival_first=is_rival_first)
            if isinstance(base, RunFailure):
                raise BaseFailedError(base)
            rival.note(base, own)

    def _pair(
        self, rival: Rival, *, is_rival_first: bool
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        return self._runs.measure_in_turns(
            self._base,
            rival.configuration,
            is_rival_first=is_rival_first,
            extra_s=rival.extra_s,
            longest_s=self._longest_s(),
        )

    def _run_rival(self, rival: Rival) -> RunResult | RunFailure:
        return self._runs.measure(
            rival.configuration, extra_s=rival.extra_s, longest_s=self._longest_s()
        )


def run_base(runs: TrialRuns, base: Configuration) -> RunResult:
    """Run what others are compared with; a failure that does not repeat is passed over.

    Raises:
        BaseFailedError: It fails twice in a row.
    """
    result = runs.measure(base)
    if isinstance(result, RunFailure):
        result = runs.measure(base)
    if isinstance(result, RunFailure):
        raise BaseFailedError(result)
    return result


def samples_of(configuration: Configuration) -> float:
    """Return the samples of a step relative to those of the script as it is."""
    if not configuration.loader_batch_size or not configuration.new_batch_size:
        return 1.0
    return configuration.new_batch_size / configuration.loader_batch_size


class Decision(Enum):
    """What is known of a rival."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    UNDECIDED = "undecided"


def searched_speedup(rival: Rival) -> Speedup:
    """Return the speedup with an interval that may be looked at after each pair."""
    return rival.speedup(num_looks=_MOST_PAIRS_LOADED)


def is_hopeless(rival: Rival, needed: float = WORTHWHILE) -> bool:
    """Return whether a rival does not look as fast as ``needed`` any more."""
    return rival.speedup(_GIVING_UP_CONFIDENCE).high < needed


def is_promising(rival: Rival) -> bool:
    """Return whether a rival is faster so far, by what it takes to be worthwhile."""
    return rival.num_pairs > 0 and rival.speedup().value >= WORTHWHILE


def decide(rival: Rival, *, wins_ties: bool = False) -> Decision:
    """Return whether the runs so far show that a rival is faster than its base, or is not.

    Faster needs an interval above 1 that holds for all looks together, and two pairs or a large
    gain. Not faster is what does not look worthwhile any more, and what stays undecided after the
    last pair.

    Args:
        rival: What has run so far.
        wins_ties: It need only be as fast.
    """
    speedup = searched_speedup(rival)
    least = _FASTER
    if rival.num_pairs < _FEWEST_PAIRS:
        in_turns = rival.own_runs[-1].turns is not TurnKind.NONE
        least = _OBVIOUS if in_turns and rival.configuration.fast_step else inf
    if speedup.low > least:
        return Decision.FASTER
    if wins_ties and rival.num_pairs >= _PAIRS_OF_TIE and speedup.value * _TIE > 1.0:
        return Decision.FASTER
    needed = 1.0 / _TIE if wins_ties and rival.num_pairs < _PAIRS_OF_TIE else WORTHWHILE
    if is_hopeless(rival, needed):
        return Decision.NOT_FASTER
    is_loaded = rival.load_fraction >= BUSY_FRACTION
    most = _MOST_PAIRS_LOADED if is_loaded else _MOST_PAIRS
    return Decision.NOT_FASTER if rival.num_pairs >= most else Decision.UNDECIDED


def fastest_first(
    family: Sequence[Candidate], faster: Sequence[CandidateRival]
) -> list[CandidateRival]:
    """Return candidates by speed; of all as fast as the fastest, those listed first lead.

    Args:
        family: In the order that wins ties: the simpler first.
        faster: Those of them to return.
    """
    speeds = {each: searched_speedup(each).value for each in faster}
    best = max(speeds.values(), default=1.0)
    listed = sorted(faster, key=lambda each: family.index(each.candidate))
    return sorted(listed, key=lambda each: -min(speeds[each], best / _TIE))


class OneThread:
    """Whether candidates are compared on one thread, though the step may run on several.

    What a candidate brings is much the same on several. The confirmation runs on as many as the
    chosen configuration has.

    Args:
        runs: Tells which turns they can take.
    """

    def __init__(self, runs: TrialRuns) -> None:
        self._runs = runs
        self._is_fast_enough = False
        self.is_on = False

    def steadies(self, configuration: Configuration, base: Configuration) -> bool:
        """Return whether runs can take short turns under one of two alone: it wins ties.

        It has one thread in place of several, that is. Whether it is faster together with what is
        found on it, the confirmation tells.
        """
        return self._is_steady(configuration) and not self._is_steady(base)

    def note_speed(self, speed: float) -> None:
        """Note how fast the step is on one thread, beside what is kept."""
        self._is_fast_enough = speed >= _LEAST_SPEED

    def begin(self, family: Sequence[Candidate], base: Configuration) -> None:
        """Decide whether the candidates of a family are compared on one thread."""
        changed = [base, *(candidate.apply(base) for candidate in family)]
        self.is_on = (
            self._is_fast_enough
            and len({each.num_threads for each in changed}) == 1
            and not self._is_steady(base)
            and all(self._is_steady(replace(each, num_threads=1)) for each in changed)
        )

    def applied(self, configuration: Configuration) -> Configuration:
        """Return the configuration as it is compared."""
        return replace(configuration, num_threads=1) if self.is_on else configuration

    def _is_steady(self, configuration: Configuration) -> bool:
        return self._runs.turns_with(configuration, configuration) is TurnKind.SHORT
