"""A compiled step is used only when it did, on copies, what the stock step did."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faststep.batch import Batch, num_steps_of
from faststep.errors import FastStepError
from faststep.generated_step import GeneratedStep
from faststep.guards import unwatched_steps
from faststep.inductor import CompiledStep
from faststep.params import Params, clone_all
from faststep.several import owners_of
from faststep.step_difference import (
    Change,
    Other,
    find_difference,
    is_close,
    move_weights,
    norm,
    worst,
)
from faststep.stock_step import Snapshot, StockStep
from faststep.tolerance import (
    LAYER_ROUNDOFFS,
    MOST_OWN_FACTOR,
    MOST_PERTURBED,
    SPREAD_FACTOR,
    step_tolerance,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Measured times of one compiled step and of the stock step that it replaces.

    Args:
        compile_ns: Tracing and compiling.
        stock_step_ns: One step as the loop did it before.
        fast_step_ns: One step of a compiled call.
        steps_per_call: Steps that one compiled call does.
    """

    compile_ns: int
    stock_step_ns: float
    fast_step_ns: float
    steps_per_call: int

    @property
    def speedup(self) -> float:
        """Return how many times faster the compiled step is."""
        return self.stock_step_ns / self.fast_step_ns

    @property
    def pays_off_after_steps(self) -> int | None:
        """Return the steps after which compiling is earned back; None if it never is."""
        saved_ns = self.stock_step_ns - self.fast_step_ns
        return math.ceil(self.compile_ns / saved_ns) if saved_ns > 0 else None


# Repetitions that the times come from, and how long they may take together.
_NUM_TIMED = 9
_TIMED_NS = 200_000_000
# A sample is as many calls as take this long: on a busy machine, short ones slip through
# undisturbed and long ones do not, and the two would not compare.
_SAMPLE_NS = 4_000_000
# Of the way that a parameter goes beside the optimizers, such as a target network's towards the
# trained one: rounding of what that moves may be a good part of a short way.
_MOVED_FRACTION = 0.1
# How many times more may differ than as a rule, where moved weights show that it may: at most so
# many times, since a mistake would hide in more.
_FACTORS = (SPREAD_FACTOR, 2 * SPREAD_FACTOR, MOST_OWN_FACTOR)


def check_step_numbers(
    step: CompiledStep | GeneratedStep,
    stock: StockStep,
    params: Params,
    before: Snapshot,
    batch: Batch,
    indices: Tensor | None,
    run_fast: Callable[[], Any],
) -> tuple[tuple[Tensor, ...], StepCost]:
    """Do the steps by the stock code, compare, and time both.

    The model has been trained by exactly the steps of one call afterwards, those of the stock code.

    Args:
        step: The compiled step.
        stock: The stock step.
        params: The tensors of model and optimizer.
        before: Their values, and the random numbers.
        batch: The batch, or the data set.
        indices: Samples of each step, if there are several.
        run_fast: Does a compiled call with all the checks around it: what is timed.

    Returns:
        Losses with what comes beside them, and what either step costs.

    Raises:
        FastStepError: They differ by more than rounding; names the first tensor.
    """
    old = clone_all(params.arguments)
    num_steps = num_steps_of(indices)
    compiled = step.on_copies(params, batch, indices)
    before.restore_random()
    wanted = stock.run(batch, indices)
    comparison = _Comparison(stock, params, old, wanted)
    difference = comparison.difference(*compiled)
    recipe = stock.recipe

    def run_moved(seed: int) -> _Results:
        """Do stock steps with weights that are moved by as much as a layer's rounding.

        The move of the weights itself is taken off again.
        """
        before.restore()
        trained = [one.param for one in params.trained]
        move_weights(trained, LAYER_ROUNDOFFS, torch.Generator().manual_seed(seed))
        moves = [new.detach() - value for new, value in zip(trained, old, strict=False)]
        returned = stock.run(batch, indices)
        arguments = clone_all(params.arguments)
        values = [value - move for value, move in zip(arguments, moves, strict=False)]
        return returned, (*values, *arguments[len(trained) :])

    after = Snapshot(recipe.model, recipe.loss_fn, stock.optimizer)
    try:
        with unwatched_steps():
            moved = map(run_moved, range(MOST_PERTURBED))
            if difference and not any(comparison.is_no_more(compiled, other) for other in moved):
                raise FastStepError(
                    f"the compiled step computes something else than the stock step: {difference}",
                    hint="Keep the loop as it is; checks_numbers=False would train with these "
                    "numbers.",
                )
            after.restore()
            fast_ns = _time(run_fast)
            after.restore()  # a thousand steps on one batch may have led far away
            stock_ns = _time(lambda: stock.run(batch, indices))
    finally:
        after.restore()
    cost = StepCost(
        compile_ns=step.compile_ns,
        stock_step_ns=stock_ns / num_steps,
        fast_step_ns=fast_ns / num_steps,
        steps_per_call=num_steps,
    )
    return wanted, cost


# What a step returned, and the tensors of model and optimizer after it.
_Results = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class _Comparison:
    """Holds steps against the stock ones.

    Args:
        stock: Has just done them.
        params: The tensors of model and optimizer, as the stock steps left them.
        old: Their values before.
        wanted: What the stock steps returned.
    """

    def __init__(
        self, stock: StockStep, params: Params, old: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> None:
        self._wanted, self._old, self._grads = wanted, old, stock.grads
        self._trained, self._fixed_names = params.trained, params.fixed_names
        self._values = clone_all(params.arguments)
        self._params = dict(stock.recipe.model.named_parameters())
        rule, groups = stock.recipe.rule, stock.optimizer.param_groups
        self._states = [rule.state_names(group) for group in groups]
        self._owners = owners_of(stock.optimizer)
        dtypes = {one.param.dtype for one in self._trained} | {stock.recipe.autocast}
        # As torch names them, less the module: float32.
        formats = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype is not None]
        self._tolerance = step_tolerance(formats)

    def difference(
        self, found: tuple[Tensor, ...], results: tuple[Tensor, ...], factor: float = 1.0
    ) -> str | None:
        """Return which tensor differs first; None if all agree.

        Args:
            found: What other steps returned.
            results: The tensors of model and optimizer after them.
            factor: How many times more may differ than as a rule.
        """
        tolerance = self._tolerance.widened(factor)
        pairs = list(zip(self._values, results, strict=True))
        num_trained = len(self._trained)
        buffers: list[Other] = []
        for place, name in enumerate(self._fixed_names, num_trained):
            value, other = pairs[place]
            buffers.append(Other("buffer", f"buffer {name}", value, other))
            if name not in self._params:
                continue
            # The way of a parameter that no optimizer holds is short: beside its values a missing
            # one would not be seen.
            if not value.is_floating_point():
                is_alike = torch.equal(value, other)
            else:
                rounding = 4 * torch.finfo(value.dtype).eps * norm(value)
                moved = norm(value.double() - self._old[place].double())
                apart = norm(value.double() - other.double())
                is_alike = not math.isfinite(moved) or apart <= _MOVED_FRACTION * moved + rounding
            if not is_alike:
                return f"the parameter {name}, which no optimizer holds ({worst(value, other)})"
        states = iter(pairs[num_trained + len(buffers) :])
        trained: dict[int, list[Change]] = {}
        for one, old, (value, other) in zip(self._trained, self._old, pairs, strict=False):
            change = Change(
                name=one.name,
                before=old,
                stock=value,
                compiled=other,
                grad=self._grads.get(one.name, torch.zeros_like(old)),
                states=tuple(
                    Other(kind, f"{kind} of {one.name}", *next(states))
                    for kind in self._states[one.group]
                ),
            )
            trained.setdefault(self._owners[one.group], []).append(change)
        (loss, *beside), (other_loss, *others_beside) = self._wanted, found
        difference = find_difference((loss, other_loss), [*trained.values()], buffers, tolerance)
        if difference is not None:
            return difference
        for number, (value, other) in enumerate(zip(beside, others_beside, strict=True)):
            # Near zero it may be a difference of numbers around 1, as a divergence of policies is.
            if not is_close(value, other, tolerance.tensor, math.sqrt(value.numel())):
                return f"tensor {number} of aux ({worst(value, other)})"
        return None

    def is_no_more(self, compiled: _Results, moved: _Results) -> bool:
        """Whether compiled steps differ no more than is this network's nature.

        As in a comparison of runs: up to three times of what moved weights differ by.

        Args:
            compiled: Of compiled steps, that differ by more than as a rule.
            moved: Of the stock steps, with weights that are moved by rounding.
        """
        for factor in _FACTORS:
            if self.difference(*compiled, factor) is None:
                return self.difference(*moved, factor / SPREAD_FACTOR) is not None
        return False


def _time(run: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    samples: list[float] = []
    first_ns = time.perf_counter_ns()
    while len(samples) < _NUM_TIMED and time.perf_counter_ns() - first_ns < _TIMED_NS:
        synchronize()
        start_ns, num_calls = time.perf_counter_ns(), 0
        while time.perf_counter_ns() - start_ns < _SAMPLE_NS:
            run()
            num_calls += 1
        synchronize()
        samples.append((time.perf_counter_ns() - start_ns) / num_calls)
    return statistics.median(samples)
