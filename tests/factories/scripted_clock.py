"""A clock with scripted times, and a log of the order of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class ScriptedClock:
    """Returns scripted times in order; then counts on in equal steps."""

    def __init__(self, times_ns: Iterable[int] = (), *, then_every_ns: int = 0) -> None:
        self.log: list[str] = []
        self._times_ns = self._run(iter(times_ns), then_every_ns)

    @staticmethod
    def _run(times_ns: Iterator[int], every_ns: int) -> Iterator[int]:
        time_ns = 0
        for time_ns in times_ns:
            yield time_ns
        while every_ns:
            time_ns += every_ns
            yield time_ns

    def now_ns(self) -> int:
        self.log.append("now")
        return next(self._times_ns)

    def synchronize(self) -> None:
        self.log.append("sync")
