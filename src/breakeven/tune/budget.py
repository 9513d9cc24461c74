"""The time that a tuning may take, and the number of steps in the run to tune for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from breakeven.capture import FailureKind, Launcher, RunRequest
from breakeven.units import NS_PER_S

# A script that trains for longer is long enough for a step that compiles in seconds. If compiling
# takes a minute, ``run`` decides during the run.
WATCHED_S = 8.0


class TimeBudget:
    """The time that all trials together may take, counted from creation.

    Args:
        total_s: The budget in seconds; at least 0.
        clock_s: Returns the time, in seconds.
    """

    def __init__(self, total_s: float, clock_s: Callable[[], float] = monotonic) -> None:
        if not total_s >= 0:
            raise ValueError(f"a budget of {total_s} s makes no sense")
        self.total_s = total_s
        self._clock_s = clock_s
        self._start_s = clock_s()

    @property
    def spent_s(self) -> float:
        """Seconds since creation."""
        return self._clock_s() - self._start_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.total_s - self.spent_s)

    def fits(self, needed_s: float) -> bool:
        """Whether a task of ``needed_s`` seconds fits into the time left."""
        return needed_s <= self.left_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Number of steps in a run.

    Args:
        num_steps: The number; a lower bound unless ``is_known``.
        is_known: Whether the number is exact.
    """

    num_steps: int
    is_known: bool = True

    def may_reach(self, after_steps: int | None) -> bool:
        """Whether a gain that needs ``after_steps`` steps to pay off may do so within the run."""
        return after_steps is not None and (after_steps <= self.num_steps or not self.is_known)


def watch_length(
    launcher: Launcher, request: RunRequest, *, startup_ns: float, updates_per_step: int
) -> RunLength:
    """Run a script to its end, or until it has trained for some seconds, and count its steps.

    Args:
        launcher: Starts the process.
        request: The run to make.
        startup_ns: Time from the start of the script to its first step.
        updates_per_step: Optimizers that update in each step.
    """
    limit_s = min(request.time_limit_s, startup_ns / NS_PER_S + WATCHED_S)
    ended = launcher.probe(replace(request, time_limit_s=limit_s))
    num_steps = ended.num_steps // max(1, updates_per_step)
    # The script came to its end, or called ``sys.exit()``.
    is_known = ended.kind is FailureKind.NO_STEP or (
        (ended.kind, ended.message) == (FailureKind.EXIT, "0")
    )
    return RunLength(num_steps=num_steps, is_known=is_known and num_steps > 0)
