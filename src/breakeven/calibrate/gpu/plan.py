"""What is measured of a GPU, in which order, within the time there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BAR_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to measure.

    Args:
        name: Unique.
        stage: What it is part of, for a person.
        measure: Does it, and keeps what came of it.
        about_s: How long it may take.
    """

    name: str
    stage: str
    measure: Callable[[], None]
    about_s: float


class Plan:
    """Measures items in turn until they are done or the time is over.

    Items of a stage are taken to be as slow as the slowest of them so far.

    Args:
        items: The most telling first.
        is_known: Whether an item was measured before.
        failed: Called with what did not run, and why.
        now_s: Clock, in seconds.
        until_s: When the time is over.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        is_known: Callable[[str], bool],
        failed: Callable[[str, Exception], None],
        now_s: Callable[[], float],
        until_s: float,
    ) -> None:
        self._items = items
        self._is_known = is_known
        self._failed = failed
        self._now_s = now_s
        self._until_s = until_s

    def run(
        self,
        begin: Callable[[str], None],
        detail: Callable[[str], None],
        before: Callable[[str], None],
    ) -> int:
        """Return how many items were left out since the time was over.

        Args:
            begin: Told of each stage.
            detail: Told of each item, with a bar.
            before: Called with each item's name before it is measured.
        """
        num_left, stage = 0, ""
        slowness: dict[str, float] = {}
        for number, item in enumerate(self._items):
            if self._is_known(item.name):
                continue
            begun_s = self._now_s()
            slowest = slowness.get(item.stage, 1.0)
            if begun_s + slowest * item.about_s > self._until_s:
                num_left += 1
                continue
            if item.stage != stage:
                stage = item.stage
                begin(stage)
            detail(f"{_bar(number, len(self._items))} {item.name}")
            before(item.name)
            try:
                item.measure()
            except Exception as error:
                # What the device or its library refuses is left out, naming it.
                self._failed(item.name, error)
            slowness[item.stage] = max(slowest, (self._now_s() - begun_s) / item.about_s)
        return num_left


def _bar(num_done: int, num_all: int) -> str:
    filled = round(_BAR_CHARACTERS * num_done / num_all)
    return f"{'█' * filled}{'░' * (_BAR_CHARACTERS - filled)} {num_done + 1} of {num_all}"
