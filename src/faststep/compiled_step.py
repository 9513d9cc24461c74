"""A compiled call that does one or several training steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from faststep.batch import Batch, num_steps_of
from faststep.compiling import Mode, compile_tensors
from faststep.recipe import Recipe
from faststep.step_function import make_step
from faststep.tensors import BoundTensors, clone_all


class CompiledStep:
    """A compiled call that does a number of steps.

    Args:
        recipe: What a step computes.
        bound: The tensors that it is made for.
        batch: A batch, or a data set, of the shapes that it is made for.
        indices: Indices of the samples of each step, where there are several steps.
        mode: How it is compiled.
    """

    engine = "Inductor"

    def __init__(
        self,
        recipe: Recipe,
        bound: BoundTensors,
        batch: Batch,
        indices: Tensor | None,
        mode: Mode,
    ) -> None:
        self.num_steps = num_steps_of(indices)
        start_ns = time.perf_counter_ns()
        function = make_step(recipe, bound.tensors, bound.packs, batch, self.num_steps)
        examples = self._arguments(bound, bound.arguments, batch, indices)
        self._call = compile_tensors(function, examples, mode)
        self.compile_ns = time.perf_counter_ns() - start_ns

    def _arguments(
        self,
        bound: BoundTensors,
        written: Sequence[Tensor],
        batch: Batch,
        indices: Tensor | None,
    ) -> tuple[Tensor, ...]:
        numbers = bound.numbers(self.num_steps)
        if indices is None:
            return (*written, numbers, *batch.tensors)
        return (*written, numbers, *batch.tensors, indices)

    def __call__(
        self, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Do the steps; return their losses, and what comes beside them."""
        results = self._call(*self._arguments(bound, bound.arguments, batch, indices))
        bound.count(self.num_steps)
        return tuple(results)

    def on_copies(
        self, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Do the steps on copies of the tensors.

        Returns:
            The losses with what comes beside them, and the copies in the order of
            ``bound.arguments``.
        """
        copies = clone_all(bound.arguments)
        arguments = self._arguments(bound, copies, batch, indices)
        return clone_all(self._call(*arguments)), copies
