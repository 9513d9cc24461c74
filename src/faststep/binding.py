"""The tensors and options that compiled steps are called with, read anew when they change."""

from __future__ import annotations

from dataclasses import replace

from faststep.hooks import refuse_hooks
from faststep.joint_optimizer import AnyOptimizer
from faststep.recipe import Recipe
from faststep.situation import Situation
from faststep.step_table import StepTable
from faststep.tensors import BoundTensors, check_tensors, read_tensors
from faststep.update_rules import rule_and_options


class Binding:
    """What model and optimizer are like now.

    Args:
        recipe: What a step computes.
        optimizer: The optimizer.
        table: Turned to the steps that were compiled for what is bound.
    """

    def __init__(self, recipe: Recipe, optimizer: AnyOptimizer, table: StepTable) -> None:
        self.recipe = recipe
        # None until the optimizer has state, or where it is not known what is trained.
        self.tensors: BoundTensors | None = None
        self.situation: Situation | None = None
        self._optimizer = optimizer
        self._table = table
        # Unknown until a backward pass has shown which parameters get gradients.
        self._trained_names: frozenset[str] | None = None

    @property
    def knows_trained(self) -> bool:
        """Return whether it is known which parameters get gradients."""
        return self._trained_names is not None

    def is_current(self) -> bool:
        """Return whether nothing has changed that a compiled step depends on."""
        tensors, situation = self.tensors, self.situation
        return (
            tensors is not None
            and situation is not None
            and situation.is_same()
            and tensors.is_current()
        )

    def refresh(self) -> None:
        """Bind tensors and options anew, after something has changed.

        Raises:
            FastStepError: What is new cannot be compiled.
        """
        recipe, optimizer = self.recipe, self._optimizer
        if self.situation is None or not self.situation.is_same():
            rule, groups = rule_and_options(optimizer)
            self.recipe = replace(recipe, groups=groups)
            self.situation = Situation(recipe.model, recipe.loss_fn, optimizer, rule)
            self._trained_names = None
        refuse_hooks(self.situation.modules, optimizer)
        check_tensors(recipe.model, optimizer)
        self._read()

    def learn(self, trained_names: frozenset[str]) -> None:
        """Bind the tensors, now that it is known which parameters get gradients."""
        self._trained_names = trained_names
        self._read()

    def _read(self) -> None:
        self.tensors = None
        if self._trained_names is None:
            return
        recipe = self.recipe
        tensors = read_tensors(
            recipe.model, recipe.loss_fn, self._optimizer, recipe.rule, self._trained_names
        )
        if tensors is not None:
            assert self.situation is not None
            self.tensors = BoundTensors(tensors, self._optimizer, recipe.rule)
            self._table.turn_to((self.tensors.key, self.situation.key))
