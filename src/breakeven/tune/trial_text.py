"""Why a candidate was kept or not, in the words and figures that people get to read."""

from __future__ import annotations

from breakeven.timing import Speedup
from breakeven.units import NS_PER_S, format_bytes, format_digits, format_duration

# An interval wider than this says nothing that its ends would add to.
_TELLING_RANGE = 10.0


def ratio_text(speedup: Speedup) -> str:
    """Return ``1.31× [1.22, 1.41] after 2 pairs of runs``."""
    plural = "" if speedup.num_pairs == 1 else "s"
    after = f"after {speedup.num_pairs} pair{plural} of runs"
    if speedup.high > _TELLING_RANGE * speedup.low:
        return f"{short_text(speedup)} {after}, which differ too much to say more"
    low, high = format_digits(speedup.low), format_digits(speedup.high)
    return f"{short_text(speedup)} [{low}, {high}] {after}"


def short_text(speedup: Speedup) -> str:
    """Return ``1.31×``."""
    return f"{format_digits(speedup.value)}×"


def never_pays(extra_s: float, num_steps: int, run_s: float) -> str:
    """Return why what it might save would not pay for starting later."""
    return (
        f"would start about {_seconds(extra_s)} later, and all {num_steps:,} steps of this run "
        f"take {_seconds(run_s)}, of which it would have to save too much"
    )


def starts_too_late(
    speedup: Speedup, startup_ns: float, after_steps: int | None, num_steps: int
) -> str:
    """Return after how many steps a later start pays off."""
    pays = f"pays off after {after_steps:,} steps" if after_steps is not None else "never pays off"
    return (
        f"{short_text(speedup)}, but starts {format_duration(max(0.0, startup_ns), 2)} later: "
        f"{pays}; this run has {num_steps:,}"
    )


def does_not_fit(needed_s: float, left_s: float, total_s: float) -> str:
    """Return why a candidate was not tried in the time that is left."""
    return (
        f"not tried: trial and confirmation need about {_seconds(needed_s)}, and "
        f"{_seconds(left_s)} of the budget of {_seconds(total_s)} are left for it"
    )


def may_bring_nothing(needed_s: float, left_s: float, total_s: float) -> str:
    """Return why nothing more is tried, though there is time."""
    return (
        f"one more pair of runs takes about {_seconds(needed_s)}; of the half of the budget of "
        f"{_seconds(total_s)} that trials without a gain may take, {_seconds(left_s)} are left"
    )


def not_in_time(speedup: Speedup) -> str:
    """Return how far a candidate came until the budget was used up."""
    return f"{ratio_text(speedup)}: not decided within the budget"


def not_promising_in_time(speedup: Speedup, needed_s: float, left_s: float, total_s: float) -> str:
    """Return how far a candidate came that did not look faster."""
    why = may_bring_nothing(needed_s, left_s, total_s)
    return f"{ratio_text(speedup)}: not decided; {why}"


def not_checked_in_time(speedup: Speedup) -> str:
    """Return why a candidate that is faster is not kept all the same."""
    return f"{ratio_text(speedup)}, but no time is left to compare its losses and gradients"


def slower_than(speedup: Speedup, winner: str, other: Speedup) -> str:
    """Return why a candidate that is faster is not kept beside one of its family."""
    return f"{short_text(speedup)}: not as fast as {winner} ({short_text(other)})"


def memory_grew(bytes_now: int, bytes_before: int) -> str:
    """Return how much more memory a candidate takes."""
    return (
        f"takes {format_bytes(bytes_now)} of memory, where the script as it is takes "
        f"{format_bytes(bytes_before)}"
    )


def _seconds(seconds: float) -> str:
    return format_duration(seconds * NS_PER_S, 2)
