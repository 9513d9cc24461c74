"""A whole configuration put into effect around code that does not know of it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Literal, Self

from breakeven.configure import Patches
from breakeven.settings import SETTINGS
from breakeven.settings.setting import Count
from breakeven.trace import Configuration


class configured(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, code runs under a configuration; leaving undoes it.

    What the code sets by itself wins. Three things stay when the context is left: weights that
    have got another memory layout keep it; the number of inter-op threads, which torch takes only
    once in a process; and that the process keeps memory which is freed.

    Args:
        configuration: The settings.
        device: Where the code computes. Settings for CUDA have no effect on ``cpu``.
        on_given_up: Told why, where a step cannot be one compiled call after all, and the loop goes
            on as it was; None for an error there.
        pays_after_s: What costs time once begins when steps have gone on for so long.
        pays_after_steps: And not before so many of them.
        now_s: Tells the time, in seconds.

    Raises:
        BreakevenError: Inter-op threads can no longer be set; raised where the code makes its
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
        """Whether steps have gone on for so long that what costs time once begins to pay.

        Who has waited until then loses at most about as much again, whenever the run ends: the
        length of a run need not be known. Time counts from when this is first asked, before the
        first step; it is asked once for each step. Where the machine is slower than it was, steps
        and compiling take longer alike, so that their number counts too.

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
        """How often each setting has taken hold so far, by its name.

        It is the number of optimizers, models, loaders or weights that a setting changed, and 1
        for one of torch as a whole; 0 says that there was nothing to change, or that the script
        has set it by itself.
        """
        counts = self._counts
        return {name: counts[name](name) if name in counts else 0 for name in self.wanted.changes}
