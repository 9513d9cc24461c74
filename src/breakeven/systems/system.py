"""What a system is: a network with published figures that can be run and set beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from breakeven.systems.bench import Bench
    from breakeven.verdict import SystemReport


class System(Protocol):
    """One of the systems that `breakeven workloads` runs."""

    @property
    def name(self) -> str:
        """Return what it is called on the command line: ``disc-mlp``."""
        ...

    @property
    def title(self) -> str:
        """Return what it is, in a line."""
        ...

    @property
    def published_in(self) -> str:
        """Return where its figures were published."""
        ...

    def run(self, bench: Bench) -> SystemReport:
        """Measure it here, predict it elsewhere, and set both beside what was published.

        Args:
            bench: Runs scripts on this machine and predicts their steps on others.

        Raises:
            BreakevenError: It could not be run.
        """
        ...
