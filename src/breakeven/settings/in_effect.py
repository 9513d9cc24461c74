"""A context manager that applies a whole configuration to unmodified code."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Literal, Self

from breakeven.configure import Patches
from breakeven.settings import SETTINGS
from breakeven.settings.setting import Count
from breakeven.trace import Configuration


class configured(Patches):  # noqa: N801 - a context manager reads as a verb
    """Apply a configuration to the code inside; leaving the context undoes it.

    Settings that the code makes itself win. Three changes outlast the context: weights keep a
    changed memory layout; torch sets the number of inter-op threads only once per process; and the
    process continues to keep freed memory.

    Args:
        configuration: The settings.
        device: Device that the code computes on. CUDA settings have no effect on ``cpu``.
        on_given_up: Called with the reason if a step cannot be one compiled call and the original
            loop continues; None to raise an error instead.
        pays_after_s: Seconds of steps before a setting with a one-time cost starts.
        pays_after_steps: Minimum number of steps before such a setting starts.
        now_s: Returns the time, in seconds.

    Raises:
        BreakevenError: If inter-op threads can no longer be set; raised when the code makes its
            first optimizer.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        device: Literal["cpu", "cuda"] = "cpu",
        on_given_up: Callable[[str], None] | None = None,
        pays_after_s: float = 0.0,
        pays_after_steps: int = 0,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self.on_given_up = on_given_up
        self.wanted = configuration
        self.device = device
        self.pays_after_s, self._now_s = pays_after_s, now_s
        self._pays_after_steps, self._num_asked = pays_after_steps, 0
        self._first_s: float | None = None
        self._counts: dict[str, Count] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        applied: dict[Any, Count] = {}
        for name in self.wanted.changes:
            setting = SETTINGS[name]
            if setting.only_on == "cuda" and self.device == "cpu":
                continue
            if setting.apply not in applied:
                applied[setting.apply] = setting.apply(self)
            self._counts[name] = applied[setting.apply]
        return self

    def pays_now(self) -> bool:
        """Whether steps have run long enough that a one-time cost begins to pay.

        Waiting this long bounds the loss to about the same amount again, whenever the run ends;
        the length of the run need not be known. Time counts from the first call, before the first
        step; call it once per step. If the machine has become slower, steps and compiling slow
        down alike, so the number of steps counts too.

        Source: the ski rental problem; Karlin, Manasse, Rudolph, Sleator, "Competitive Snoopy
        Caching", Algorithmica 3, 1988.
        """
        if self.pays_after_s:
            now_s, self._num_asked = self._now_s(), self._num_asked + 1
            self._first_s = now_s if self._first_s is None else self._first_s
            if now_s - self._first_s < self.pays_after_s:
                return False
            if self._num_asked <= self._pays_after_steps:
                return False
            self.pays_after_s = 0.0
        return True

    def effects(self) -> dict[str, int]:
        """Return how often each setting has taken effect so far, by its name.

        The count is the number of optimizers, models, loaders or weights that a setting changed,
        and 1 for a global setting of torch. 0 means that there was nothing to change, or that the
        script sets it itself.
        """
        counts = self._counts
        return {name: counts[name](name) if name in counts else 0 for name in self.wanted.changes}
