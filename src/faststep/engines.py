"""Which engine makes a compiled step: generated code first, then torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from faststep.batch import Batch, num_steps_of
from faststep.compiled_step import CompiledStep
from faststep.compiling import Mode
from faststep.errors import FastStepError
from faststep.gate import StepCost, check_step_numbers
from faststep.generated_step import GeneratedStep
from faststep.hooks import call_step_hooks
from faststep.step_table import AnyStep, StepTable
from faststep.stock_step import Snapshot, StockStep
from faststep.tensors import BoundTensors

Engine = Literal["auto", "generated", "inductor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """A call that a step is compiled for.

    Args:
        stock: Does it as the loop did it before.
        bound: The tensors of model and optimizer.
        before: Their values, and the random numbers.
        batch: The batch, or the data set.
        indices: Samples of each step, where there are several.
        repeat: Does the call once more, by what is in the table and with all checks around it.
    """

    stock: StockStep
    bound: BoundTensors
    before: Snapshot
    batch: Batch
    indices: Tensor | None
    repeat: Callable[[], Any]


class StepCompiler:
    """Makes the steps of a table.

    Args:
        table: Where they are kept.
        engine: As for ``fast_step``.
        mode: As for ``fast_step``.
        checks_numbers: As for ``fast_step``.
    """

    def __init__(
        self, table: StepTable, engine: Engine, mode: Mode, *, checks_numbers: bool
    ) -> None:
        self.cost: StepCost | None = None
        # Why the last step is not generated code; None where it is.
        self.not_generated: str | None = None
        self._table = table
        self._engine = engine
        self._mode: Mode = mode
        self._checks_numbers = checks_numbers

    def compile(self, call: FirstCall) -> tuple[Tensor, ...]:
        """Compile a step, check it on copies, and do the call.

        Generated code comes first; what it cannot do, does wrong or does no faster than the stock
        step is left to torch's compiler.

        Raises:
            FastStepError: No engine can; everything is as before the call.
        """
        try:
            results = self._try_engines(call)
        except BaseException:
            self._undo(call)
            raise
        self._table.num_compiled += 1
        return results

    def _try_engines(self, call: FirstCall) -> tuple[Tensor, ...]:
        if self._engine == "generated":
            if not self._may_generate(call):
                raise FastStepError(
                    "generated steps are for the CPU, without autocast and mode='reduce-overhead'",
                    hint="Leave engine out, or name 'inductor'.",
                )
            return self._use(self._generate(call), call)
        if self._engine == "auto" and self._may_generate(call):
            results = self._try_generated(call)
            if results is not None:
                return results
        recipe = call.stock.recipe
        if recipe.updating is not None:
            raise FastStepError(
                f"a step with several optimizers is generated code or none: {self.not_generated}",
                hint="Keep the loop as it is, or make a step for each optimizer.",
            )
        step = CompiledStep(recipe, call.bound, call.batch, call.indices, self._mode)
        return self._use(step, call)

    def _may_generate(self, call: FirstCall) -> bool:
        on_cpu = all(tensor.device.type == "cpu" for tensor in call.bound.arguments)
        return on_cpu and self._mode == "default" and call.stock.recipe.autocast is None

    def _try_generated(self, call: FirstCall) -> tuple[Tensor, ...] | None:
        """Do the call by generated code; None, with the reason kept, where that is no use."""
        try:
            results = self._use(self._generate(call), call)
        except FastStepError as error:
            self.not_generated = error.message
        else:
            if self.cost is None or self.cost.speedup >= 1:
                self.not_generated = None
                return results
            self.not_generated = "generated code is slower here than the stock step"
        self._undo(call)
        return None

    def _generate(self, call: FirstCall) -> GeneratedStep:
        """Return generated code of a step; that of single steps serves several as well."""
        batch, indices = call.batch, call.indices
        single = batch if indices is None else batch.rows(indices[0]).contiguous()
        found = self._table.find(single, None)
        if isinstance(found, GeneratedStep):
            return found
        return GeneratedStep(call.stock.recipe, call.bound, single)

    def _use(self, step: AnyStep, call: FirstCall) -> tuple[Tensor, ...]:
        """Keep a step for its shapes, and do it for the first time, compared with the stock one."""
        bound, batch, indices = call.bound, call.batch, call.indices
        self._table.keep(step, batch, indices)
        if not self._checks_numbers:
            results = step(bound, batch, indices)
            call_step_hooks(call.stock.optimizer, num_steps_of(indices))
            return results
        results, self.cost = check_step_numbers(
            step, call.stock, bound, call.before, batch, indices, call.repeat
        )
        return results

    def _undo(self, call: FirstCall) -> None:
        self._table.forget(call.batch, call.indices)
        call.before.restore()
