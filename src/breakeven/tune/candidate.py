"""What every candidate knows of itself, so that the search need not know any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.tune.step_facts import StepFacts


class Candidate(Protocol):
    """One change of how a step is run that may make it faster."""

    @property
    def name(self) -> str:
        """Return its stable name, such as ``threads=1``."""
        ...

    @property
    def title(self) -> str:
        """Return what it changes, in a few words."""
        ...

    @property
    def numerics(self) -> Numerics:
        """Return what it may do to the numbers."""
        ...

    @property
    def family(self) -> str:
        """Return the name of the choice that it makes: of one family, one candidate is kept."""
        ...

    @property
    def undo(self) -> str:
        """Return how it is undone, in one sentence."""
        ...

    def why_not(self, facts: StepFacts, current: Configuration) -> str | None:
        """Return the precondition that does not hold; None where it may be tried.

        Args:
            facts: Of the step as the script does it.
            current: What is kept already.
        """
        ...

    def apply(self, current: Configuration) -> Configuration:
        """Return the configuration with it on top of what is kept already."""
        ...

    def expected_gain(self, facts: StepFacts) -> float:
        """Return which part of the step it is predicted to save, 0 to 1: it sets the order."""
        ...

    def expected_cost_s(self, facts: StepFacts) -> float:
        """Return by how many seconds it is predicted to make a run start later."""
        ...
