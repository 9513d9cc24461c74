"""Which quick call there is, and when another one is worth its making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faststep.generated_step import GeneratedStep
from faststep.quick_call import QuickCall

# A quick call holds Python's lock: no longer than Python itself lets other threads wait for it.
LONGEST_QUICK_NS = 5_000_000
# Calls from one making of a quick call to the next, which takes as long as some twenty of them.
QUICK_EVERY = 256


@dataclass(slots=True)
class QuickSlot:
    """The quick call of single steps, or of several: for what was called with last.

    Args:
        call: It; none where there is none, or none yet.
        step: What it is a call of.
        num_steps: How many steps it does, where it is one of several.
        calls_until_next: Calls by another way before another one is made.
    """

    call: QuickCall | None = None
    step: GeneratedStep | None = None
    num_steps: int | None = None
    calls_until_next: int = 0

    def prepare(
        self,
        step: GeneratedStep,
        make: Callable[[], QuickCall | None],
        *,
        num_steps: int | None,
        step_ns: float,
    ) -> None:
        """Let the next call be a quick one, after one that was not.

        It has run out of tensors for losses; or it was for another batch or other options: then a
        new one is made, but not at every call.

        Args:
            step: What was called.
            make: Returns a quick call of it, if it can be one.
            num_steps: How many steps that does; none for a single one.
            step_ns: What a step takes.
        """
        if self.call is not None and self.call.is_empty and self.step is step:
            self.call.refill(step.make_losses(self.num_steps))
        elif self.calls_until_next > 0:
            self.calls_until_next -= 1
        elif (num_steps or 1) * step_ns < LONGEST_QUICK_NS:
            self.call, self.step, self.calls_until_next = make(), step, QUICK_EVERY
            self.num_steps = num_steps
            if self.call is not None:
                self.call.refill(step.make_losses(num_steps))
