"""Comparing candidates on one thread: in short turns, which show what noise would hide."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from breakeven.settings import Candidate
from breakeven.timing import TurnKind
from breakeven.trace import Configuration
from breakeven.tune.trial_runs import TrialRuns

# Where one thread is slower than several by more than this, a step on it is another one.
_LEAST_SPEED = 0.5


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
