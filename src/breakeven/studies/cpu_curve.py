"""Which sizes along a curve are measured: a few far apart, and more where another curve is near."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from breakeven.studies.batch_sizes import (
    BEYOND_MEASURED,
    FARTHEST,
    LONGEST_STEP_NS,
    SkippedSize,
    why_not_measured,
)
from breakeven.timing import Estimate
from breakeven.verdict import AxisValue, SizeCurve

# Times along a batch size are straight lines with known departures; those along another knob grow
# faster than it, so that fewer follow from others.
_BATCH_FACTOR = 4.0
_OTHER_FACTOR = 2.0
# As many values of another knob are all measured: a depth of 2 to 12, for instance.
_MOST_MEASURED = 12
# A user who names a knob wants its large values too; a batch size goes on by itself.
_LONGEST_OTHER_NS = 10.0 * LONGEST_STEP_NS


class CpuCurve:
    """The sizes of one curve: asks for what to measure next, and interpolates all.

    Args:
        sizes: All sizes, each at least 1.
        is_batch_size: Whether they are batch sizes.
        held: Where it is in a grid.
        only: The one size that can be measured, if that is so.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        is_batch_size: bool,
        held: Mapping[str, AxisValue] | None = None,
        only: int | None = None,
    ) -> None:
        self.sizes = sorted(sizes)
        self.held = held or {}
        self.skipped: SkippedSize | None = None
        self._is_batch_size = is_batch_size
        self._times: dict[int, Estimate] = {}
        self._peaks_bytes: dict[int, int] = {}
        self._failed: set[int] = set()
        self._beyond = BEYOND_MEASURED if only is None else FARTHEST
        self._coarse = self._coarse_sizes() if only is None else [only]

    @property
    def measured(self) -> frozenset[int]:
        """Return the sizes that were measured."""
        return frozenset(self._times)

    def add(self, size: int, time: Estimate, peak_memory_bytes: int) -> None:
        """Take a measurement."""
        self._times[size] = time
        self._peaks_bytes[size] = peak_memory_bytes

    def fail(self, size: int) -> None:
        """Take note that a size cannot be measured."""
        self._failed.add(size)

    def next_coarse(self) -> list[int]:
        """Return the sizes to measure now; none when the curve is known from end to end."""
        todo = [
            size for size in self._coarse if size not in self._times and size not in self._failed
        ]
        if not self._times:
            return todo[:1]  # it shows what to expect of the others
        allowed = [size for size in todo if self._why_not(size) is None]
        if todo and not allowed:
            because = self._why_not(todo[0])
            assert because is not None
            self.skipped = SkippedSize(size=todo[0], because=because)
        return allowed

    def next_close(self, others: Sequence[Mapping[int, Estimate]]) -> list[int]:
        """Return the sizes to measure now so that it shows where other curves cross this one.

        Args:
            others: Times of other devices, each by size.
        """
        known = [size for size in self.sizes if self.is_known(size)]
        if len(self._times) < 2:
            return []
        curve = SizeCurve(self._times)
        wanted: list[int] = []
        for other in others:
            sizes = [size for size in known if size in other]
            ratios = [math.log(curve.at(size).value_ns / other[size].value_ns) for size in sizes]
            pair = _last_crossing(ratios) or _closest(
                ratios, [_width(curve.at(size), other[size]) for size in sizes]
            )
            for position in sorted(pair, key=lambda at, r=ratios: abs(r[at])):
                size = sizes[position]
                is_open = size not in self._times and size not in self._failed
                if is_open and self._why_not(size) is None:
                    wanted.append(size)
                    break
        return list(dict.fromkeys(wanted))

    def is_known(self, size: int) -> bool:
        """Return whether the time at a size is known."""
        if not self._times or size in self._failed:
            return False
        low, high = min(self._times), max(self._times)
        if any(high < failed <= size for failed in self._failed):
            return False  # what fails at one size most likely fails at larger ones
        if self._is_batch_size:
            return low // self._beyond <= size <= high * self._beyond
        return low <= size <= high

    def at(self, size: int) -> Estimate:
        """Return the time at a size that is known."""
        return SizeCurve(self._times).at(size)

    def _coarse_sizes(self) -> list[int]:
        if not self._is_batch_size and len(self.sizes) <= _MOST_MEASURED:
            return list(self.sizes)
        factor = _BATCH_FACTOR if self._is_batch_size else _OTHER_FACTOR
        last = self.sizes[-1]
        chosen = [self.sizes[0]]
        for size in self.sizes:
            # The end is measured too, so the one before it need not be next to it.
            is_next = size >= factor * chosen[-1] and size * math.sqrt(factor) <= last
            if is_next:
                chosen.append(size)
        return sorted({*chosen, last})

    def _why_not(self, size: int) -> str | None:
        """Return why a size is not measured, by what the nearest measured one needs."""
        below = [known for known in self._times if known < size]
        nearest = max(below) if below else min(self._times)
        growth = max(1.0, size / nearest)
        if not self._is_batch_size:
            growth **= 2  # a width enters the work twice
        return why_not_measured(
            self._times[nearest].value_ns * growth,
            self._peaks_bytes[nearest] * growth,
            longest_step_ns=LONGEST_STEP_NS if self._is_batch_size else _LONGEST_OTHER_NS,
        )


def _last_crossing(ratios: Sequence[float]) -> tuple[int, ...]:
    """Return the positions on both sides of the last change of sign; none where there is none."""
    for position in range(len(ratios) - 1, 0, -1):
        if (ratios[position] > 0) is not (ratios[position - 1] > 0):
            return (position - 1, position)
    return ()


def _closest(ratios: Sequence[float], widths: Sequence[float]) -> tuple[int, ...]:
    """Return the position at which the curves are nearest, if that is within the intervals."""
    if not ratios:
        return ()
    nearest = min(range(len(ratios)), key=lambda at: abs(ratios[at]))
    return (nearest,) if abs(ratios[nearest]) < widths[nearest] else ()


def _width(one: Estimate, other: Estimate) -> float:
    """Return the larger half of the interval of the logarithm of a ratio of two times."""
    return max(
        math.hypot(math.log(one.high_ns / one.value_ns), math.log(other.value_ns / other.low_ns)),
        math.hypot(math.log(one.value_ns / one.low_ns), math.log(other.high_ns / other.value_ns)),
    )
