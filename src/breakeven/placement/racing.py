"""Race places against each other within a time budget, until the fastest is clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

from breakeven.measure import own_time_ns
from breakeven.timing import Measurement


class Place(Protocol):
    """A device to run a step on.

    Any method may raise; the place is then left out, with the reason.

    Attributes:
        name: A unique name.
        starts_up: Whether first steps are slow for one-time reasons, as on a GPU, which loads
            libraries and chooses kernels. Its first step then does not predict later ones.
        one_off_ns: One-time cost of moving there, known after `prepare`.
    """

    name: str
    starts_up: bool
    one_off_ns: float

    def prepare(self) -> None:
        """Prepare for steps; the user's model and batch do not change."""
        ...

    def run_step(self) -> None:
        """Issue one step."""
        ...

    def synchronize(self) -> None:
        """Wait until all issued work is done."""
        ...


# Places within this fraction of each other are equal: the first one listed, the simplest, wins.
TIE_FRACTION = 0.01

# Share of the budget for one sample, or one step if that is longer: short enough for a hundred
# samples, and long enough for a GPU to run ahead of its host as in training.
_SAMPLE_FRACTION = 0.01
_MAX_STEPS_PER_SAMPLE = 1_000
# A first step below this share of the budget is repeated at once, for a better first guess.
_SHORT_FRACTION = 0.05
# Share of the following run that the race may take.
_RUN_FRACTION = 0.01
# Share of the budget reserved for timed steps, even after a long warm-up: the first use of a GPU
# takes seconds, which training pays as well, and a single timed step decides nothing.
_TIMED_FRACTION = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTime:
    """The measurement of one place.

    Args:
        name: Name of the place.
        step_ns: Samples; each is the mean step time of a back-to-back series.
        one_off_ns: One-time cost of moving there.
    """

    name: str
    step_ns: Measurement
    one_off_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A place that did not start or finish the race.

    Args:
        name: Name of the place.
        reason: The reason in one sentence.
        error: The exception; None if the place was not tried.
    """

    name: str
    reason: str
    error: Exception | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """The result of a race.

    Args:
        winner: Name of the fastest place; None if all failed.
        times: The measurements, in the order of the places. A place that has no competitor after
            the warm-up has no time.
        left_out: The places without a time, and why.
        duration_ns: Duration of the race.
    """

    winner: str | None
    times: tuple[PlaceTime, ...]
    left_out: tuple[LeftOut, ...]
    duration_ns: int


def race(
    places: Sequence[Place],
    *,
    budget_ns: float,
    num_steps: int | None = None,
    now_ns: Callable[[], int] = perf_counter_ns,
    own_ns: Callable[[], int] = own_time_ns,
) -> RaceResult:
    """Find the place that runs a step fastest.

    Places take turns, so that a disturbance affects all of them alike. A place that is shown to be
    slower drops out. The race ends when one place is left, when all that are left are equal, or
    with the budget.

    Slow steps and slow starts exceed the budget. No step is interrupted, and every place is warmed
    up and timed at least once. Half of the budget is reserved for the time after the warm-up.

    Args:
        places: In order of preference among equals; those that start up come last.
        budget_ns: Time for the race, warm-up included.
        num_steps: Steps of the run that follows. The race then takes at most 1 % of it, and each
            step carries its share of a one-off cost. If the whole run would end within the budget,
            then no place is started up.
        now_ns: Returns wall time.
        own_ns: Returns the time for timing steps, which excludes other processes' work.
    """
    race = _Race(budget_ns, num_steps, now_ns, own_ns)
    for place in places:
        race.start(place)
    race.warm_ns = now_ns()
    racing = list(race.runners)
    while len(racing) > 1:
        round_ns = now_ns()
        # Sample places that start up first, since their first steps cannot be used.
        for runner in sorted(racing, key=lambda runner: not runner.place.starts_up):
            race.sample(runner)
        racing = _undecided([runner for runner in racing if runner in race.runners])
        if now_ns() - round_ns > race.left_ns():
            break
    timed = [runner for runner in race.runners if runner.samples_ns]
    most_ns = min((runner.cost_ns for runner in timed), default=0.0) * (1 + TIE_FRACTION)
    fastest = (runner for runner in timed if runner.cost_ns <= most_ns)
    winner = next(fastest, next(iter(race.runners), None))
    return RaceResult(
        winner=winner.place.name if winner is not None else None,
        times=tuple(
            PlaceTime(
                name=runner.place.name, step_ns=runner.measured, one_off_ns=runner.place.one_off_ns
            )
            for runner in timed
        ),
        left_out=tuple(race.left_out),
        duration_ns=now_ns() - race.started_ns,
    )


@dataclass(slots=True)
class _Runner:
    place: Place
    first_ns: int
    samples_ns: list[int] = field(default_factory=lambda: [])
    shares_ns: float = 0.0  # share of the one-off cost in each step

    @property
    def guess_ns(self) -> int:
        return max(1, min([self.first_ns, *self.samples_ns]))

    @property
    def measured(self) -> Measurement:
        return Measurement(samples_ns=tuple(self.samples_ns))

    @property
    def cost_ns(self) -> float:
        return self.measured.median_ns + self.shares_ns


class _Race:
    """The places that still work, and the time left."""

    def __init__(
        self,
        budget_ns: float,
        num_steps: int | None,
        now_ns: Callable[[], int],
        own_ns: Callable[[], int],
    ) -> None:
        self._budget_ns, self._num_steps = budget_ns, num_steps
        self._now_ns, self._own_ns = now_ns, own_ns
        self.started_ns = self.warm_ns = now_ns()  # the warm-up ends later
        self.runners: list[_Runner] = []
        self.left_out: list[LeftOut] = []

    def start(self, place: Place) -> None:
        """Prepare a place and warm it up."""
        step_ns = min((each.guess_ns for each in self.runners), default=self._budget_ns)
        if place.starts_up and self._num_steps and self._num_steps * step_ns < self._budget_ns:
            reason = "the whole run ends on the CPU before another device is tried"
            self.left_out.append(LeftOut(name=place.name, reason=reason, error=None))
            return
        try:
            place.prepare()
            runner = _Runner(place, self._time(place, 1))
            if runner.first_ns < _SHORT_FRACTION * self._budget_ns:
                runner.first_ns = min(runner.first_ns, self._time(place, 1))
        except Exception as error:
            self._leave_out(place, error)
            return
        if self._num_steps is not None:
            runner.shares_ns = place.one_off_ns / self._num_steps
        self.runners.append(runner)

    def sample(self, runner: _Runner) -> None:
        """Take one sample; reuse the first step if another one would exceed the budget."""
        if (
            not runner.place.starts_up
            and not runner.samples_ns
            and runner.first_ns > self.left_ns()
            and any(other.samples_ns for other in self.runners if other is not runner)
        ):
            runner.samples_ns.append(runner.first_ns)
            return
        wanted_ns = min(self._budget_ns, self._limit_ns()) * _SAMPLE_FRACTION
        num_steps = max(1, min(_MAX_STEPS_PER_SAMPLE, int(wanted_ns / runner.guess_ns)))
        try:
            runner.samples_ns.append(self._time(runner.place, num_steps))
        except Exception as error:
            self._leave_out(runner.place, error)
            self.runners.remove(runner)

    def _time(self, place: Place, num_steps: int) -> int:
        """Return the mean time per step of a back-to-back series, in nanoseconds."""
        place.synchronize()
        started_ns = self._own_ns()
        for _ in range(num_steps):
            place.run_step()
        place.synchronize()
        return max(1, (self._own_ns() - started_ns) // num_steps)

    def _limit_ns(self) -> float:
        """Return the time limit of the race, from the run's length if it is known by now."""
        if self._num_steps is None or not self.runners:
            return self._budget_ns
        fastest_ns = min(runner.guess_ns for runner in self.runners)
        return min(self._budget_ns, _RUN_FRACTION * self._num_steps * fastest_ns)

    def left_ns(self) -> float:
        """Return the time left for timed steps."""
        limit_ns = self._limit_ns()
        warm_up_ns = self.warm_ns - self.started_ns
        timed_ns = max(limit_ns - warm_up_ns, _TIMED_FRACTION * limit_ns)
        return timed_ns - (self._now_ns() - self.warm_ns)

    def _leave_out(self, place: Place, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        self.left_out.append(LeftOut(name=place.name, reason=reason, error=error))


def _undecided(left: Sequence[_Runner]) -> list[_Runner]:
    """Return the runners that may still be the fastest; only one if that is decided."""
    if not left:
        return []
    leader = min(left, key=lambda runner: runner.cost_ns)
    high_ns = leader.measured.estimate.high_ns + leader.shares_ns
    lows_ns = [(each, each.measured.estimate.low_ns + each.shares_ns) for each in left]
    close = [(each, ns) for each, ns in lows_ns if each is leader or ns < high_ns]
    are_equal = all(high_ns <= ns * (1 + TIE_FRACTION) for each, ns in close if each is not leader)
    return [leader] if are_equal else [each for each, _ in close]
