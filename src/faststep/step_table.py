"""Which shapes of a batch have a compiled step, and which are worth one."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from faststep.batch import Batch
from faststep.compiled_step import CompiledStep
from faststep.generated_step import GeneratedStep

AnyStep = CompiledStep | GeneratedStep
# Batches of another shape than the first: this many are done by stock steps, such as the last
# batch of each of three epochs, before one is thought worth compiling for.
NUM_RARE = 3
# A loop in which every batch has another shape would compile for ever.
MOST_COMPILED = 16


class StepTable:
    """Compiled steps by the shapes that they are for."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self._steps: dict[Any, AnyStep] = {}
        self._all_steps: dict[Any, dict[Any, AnyStep]] = {}
        self._num_seen: dict[Any, int] = {}
        self._has_warned = False

    def turn_to(self, key: Any) -> None:
        """Go on with the steps that were compiled for a model and an optimizer like these."""
        self._steps = self._all_steps.setdefault(key, {})

    def find(self, batch: Batch, indices: Tensor | None) -> AnyStep | None:
        """Return the step for a call, if there is one."""
        key = batch.key
        if indices is None:
            return self._steps.get((key, None))
        # Generated code does any number of steps.
        return self._steps.get((key, indices.shape)) or self._steps.get((key, indices.shape[1:]))

    def keep(self, step: AnyStep, batch: Batch, indices: Tensor | None) -> None:
        """Do calls like this one by a step."""
        shape = None if indices is None else indices.shape
        if shape is not None and isinstance(step, GeneratedStep):
            shape = shape[1:]
        self._steps[batch.key, shape] = step

    def forget(self, batch: Batch, indices: Tensor | None) -> None:
        """Drop what was kept for calls like this one."""
        for shape in (None,) if indices is None else (indices.shape, indices.shape[1:]):
            self._steps.pop((batch.key, shape), None)

    def is_rare(self, batch: Batch, indices: Tensor | None) -> bool:
        """Return whether a call for which there is no step is left to the stock step."""
        if self.num_compiled >= MOST_COMPILED:
            if not self._has_warned:
                warnings.warn(
                    f"{MOST_COMPILED} steps of different shapes were compiled: others stay "
                    "uncompiled",
                    stacklevel=4,
                )
            self._has_warned = True
            return True
        # The first shape of either kind, single steps or several in a call, is the usual one.
        is_single = indices is None
        if not any((shape is None) == is_single for _, shape in self._steps):
            return False
        key = (batch.key, None if indices is None else indices.shape)
        self._num_seen[key] = self._num_seen.get(key, 0) + 1
        return self._num_seen[key] <= NUM_RARE

    @property
    def latest(self) -> AnyStep | None:
        """Return the step that was compiled last."""
        return next(reversed(self._steps.values()), None)
