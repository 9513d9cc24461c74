"""A configuration and its rivals, run in turn, so that what changes meanwhile meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, median

from breakeven.capture import RunFailure
from breakeven.timing import (
    RunRatio,
    Speedup,
    TurnKind,
    compare_pairs,
    compare_runs,
    compare_turns,
)
from breakeven.trace import Configuration
from breakeven.tune.trial_runs import RunResult, TrialRuns


class BaseFailedError(Exception):
    """The configuration that rivals are compared with fails, twice in a row.

    Args:
        failure: The second time.
    """

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True, kw_only=True)
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
            base = self._run_base()
        else:
            base, self._first = self._first or self._run_base(), None
            results = [self._run_rival(rival) for rival in rivals]
        for rival, result in zip(rivals, results, strict=True):
            if isinstance(result, RunFailure):
                rival.failure = result
            else:
                rival.base_runs.append(base)
                rival.own_runs.append(result)
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
            if isinstance(own, RunFailure):
                rival.failure = own
            else:
                rival.base_runs.append(base)
                rival.own_runs.append(own)

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

    def _run_base(self) -> RunResult:
        return run_base(self._runs, self._base)

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
