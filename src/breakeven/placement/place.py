"""What a race is between, as the race sees it."""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """Somewhere a step can run: a device, or the CPU with a number of threads.

    Any method may raise; the place is then left out, and why is told.

    Attributes:
        name: Unlike that of all others.
        starts_up: Whether first steps take long for reasons of their own, as on a GPU: libraries
            are loaded, kernels chosen. Such a first step says nothing of later ones.
        one_off_ns: What moving there costs once, known after `prepare`.
    """

    name: str
    starts_up: bool
    one_off_ns: float

    def prepare(self) -> None:
        """Get ready for steps; the user's own model and batch stay as they are."""
        ...

    def enter(self) -> None:
        """Put settings into effect that hold for the following steps; called out of the time."""
        ...

    def run_step(self) -> None:
        """Issue one step."""
        ...

    def synchronize(self) -> None:
        """Wait until all that was issued is done."""
        ...
