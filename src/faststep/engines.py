"""The compiled steps of a `fast_step`, stored by input shape, and the choice of their engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from faststep.batch import Batch, num_steps_of
from faststep.equivalence import StepCost, check_step_numbers
from faststep.errors import FastStepError
from faststep.generated_step import GeneratedStep
from faststep.guards import call_step_hooks
from faststep.inductor import CompiledStep, Mode
from faststep.params import Params
from faststep.stock_step import Snapshot, StockStep

Engine = Literal["auto", "generated", "inductor"]
AnyStep = CompiledStep | GeneratedStep
# Stock steps do the first 3 batches of each new shape, such as the last batch of three epochs;
# compiling for a rarer shape does not pay.
NUM_RARE = 3
# Stop a loop with a new shape in every batch from compiling forever.
MOST_COMPILED = 16


class CompiledSteps:
    """Compiled steps by input shape; compiles new ones.

    Args:
        engine: As for ``fast_step``.
        mode: As for ``fast_step``.
        checks_numbers: As for ``fast_step``.
    """

    def __init__(self, engine: Engine, mode: Mode, *, checks_numbers: bool) -> None:
        self.num_compiled = 0
        self.cost: StepCost | None = None
        # The reason that the last step is not generated code; None if it is.
        self.not_generated: str | None = None
        self._engine = engine
        self._mode: Mode = mode
        self._checks_numbers = checks_numbers
        self._steps: dict[Any, AnyStep] = {}
        self._all_steps: dict[Any, dict[Any, AnyStep]] = {}
        self._num_seen: dict[Any, int] = {}
        self._has_warned = False

    def turn_to(self, key: Any) -> None:
        """Select the steps compiled for this key of model and optimizer."""
        self._steps = self._all_steps.setdefault(key, {})

    @property
    def latest(self) -> AnyStep | None:
        """The last compiled step; None if there is none."""
        return next(reversed(self._steps.values()), None)

    def find(self, batch: Batch, indices: Tensor | None) -> AnyStep | None:
        """Return the compiled step for a call, or None."""
        key = batch.key
        if indices is None:
            return self._steps.get((key, None))
        # Generated code does any number of steps.
        return self._steps.get((key, indices.shape)) or self._steps.get((key, indices.shape[1:]))

    def is_rare(self, batch: Batch, indices: Tensor | None) -> bool:
        """Whether the stock step does a call that has no compiled step."""
        if self.num_compiled >= MOST_COMPILED:
            if not self._has_warned:
                warnings.warn(
                    f"{MOST_COMPILED} steps of different shapes were compiled: others stay "
                    "uncompiled",
                    stacklevel=4,
                )
            self._has_warned = True
            return True
        # Compile at once for the first shape of single-step calls and of several-step calls.
        is_single = indices is None
        if not any((shape is None) == is_single for _, shape in self._steps):
            return False
        key = (batch.key, None if indices is None else indices.shape)
        self._num_seen[key] = self._num_seen.get(key, 0) + 1
        return self._num_seen[key] <= NUM_RARE

    def compile(
        self,
        stock: StockStep,
        params: Params,
        batch: Batch,
        indices: Tensor | None,
        repeat: Callable[[], Any],
    ) -> tuple[Tensor, ...]:
        """Compile a step, check it on copies, and do the call.

        Try generated code first. If it fails, is wrong or is not faster than the stock step, then
        use torch's compiler.

        Args:
            stock: Does the call by the original code.
            params: The tensors of model and optimizer.
            batch: The batch, or the data set.
            indices: Samples of each step; None for a single step.
            repeat: Does the call again with the compiled step and all checks around it.

        Raises:
            FastStepError: No engine can compile the step; the state is as before the call.
        """
        recipe = stock.recipe
        before = Snapshot(recipe.model, recipe.loss_fn, stock.optimizer)
        on_cpu = all(tensor.device.type == "cpu" for tensor in params.arguments)
        may_generate = on_cpu and self._mode == "default" and recipe.autocast is None

        def undo() -> None:
            for shape in (None,) if indices is None else (indices.shape, indices.shape[1:]):
                self._steps.pop((batch.key, shape), None)
            before.restore()

        def use(step: AnyStep) -> tuple[Tensor, ...]:
            """Store a step for its shapes, do the call, and compare it with the stock step."""
            shape = None if indices is None else indices.shape
            if shape is not None and isinstance(step, GeneratedStep):
                shape = shape[1:]
            self._steps[batch.key, shape] = step
            if not self._checks_numbers:
                results = step(params, batch, indices)
                call_step_hooks(stock.optimizer, num_steps_of(indices))
            else:
                results, self.cost = check_step_numbers(
                    step, stock, params, before, batch, indices, repeat
                )
            self.num_compiled += 1
            return results

        def generate() -> tuple[Tensor, ...]:
            # Code for a single step also does several.
            single = batch if indices is None else batch.rows(indices[0]).contiguous()
            step = self.find(single, None)
            if not isinstance(step, GeneratedStep):
                step = GeneratedStep(recipe, params, single)
            return use(step)

        try:
            if self._engine == "generated":
                if not may_generate:
                    raise FastStepError(
                        "generated steps are for the CPU, without autocast and "
                        "mode='reduce-overhead'",
                        hint="Leave engine out, or name 'inductor'.",
                    )
                return generate()
            if self._engine == "auto" and may_generate:
                try:
                    results = generate()
                except FastStepError as error:
                    self.not_generated = error.message
                else:
                    if self.cost is None or self.cost.speedup >= 1:
                        self.not_generated = None
                        return results
                    self.not_generated = "generated code is slower here than the stock step"
                    self.num_compiled -= 1
                undo()
            if recipe.updating is not None:
                raise FastStepError(
                    "a step with several optimizers is generated code or none: "
                    f"{self.not_generated}",
                    hint="Keep the loop as it is, or make a step for each optimizer.",
                )
            return use(CompiledStep(recipe, params, batch, indices, self._mode))
        except BaseException:
            undo()
            raise
