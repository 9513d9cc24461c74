"""The check of a compiled step on copies against the stock step, and the times of both."""

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
        compile_ns: Time of tracing and compiling.
        stock_step_ns: Time of one stock step.
        fast_step_ns: Time of one step of a compiled call.
        steps_per_call: Number of steps of one compiled call.
    """

    compile_ns: int
    stock_step_ns: float
    fast_step_ns: float
    steps_per_call: int

    @property
    def speedup(self) -> float:
        """Return the stock step's time divided by the compiled step's time."""
        return self.stock_step_ns / self.fast_step_ns

    @property
    def pays_off_after_steps(self) -> int | None:
        """Return the number of steps that save the compile time; None if they never do."""
        saved_ns = self.stock_step_ns - self.fast_step_ns
        return math.ceil(self.compile_ns / saved_ns) if saved_ns > 0 else None


# Number of samples of a time, and the limit of their total time.
_NUM_TIMED = 9
_TIMED_NS = 200_000_000
# Repeat calls for this long per sample: on a busy machine other load disturbs long samples but
# misses short ones, so samples of different lengths do not compare.
_SAMPLE_NS = 4_000_000
# Allowed error as a fraction of the move of a parameter that no optimizer holds, such as a target
# network's towards the trained one: rounding may be a large part of a short move.
_MOVED_FRACTION = 0.1
# Factors on the tolerance if moved weights show that this step amplifies rounding. The last is the
# limit: a larger tolerance would hide mistakes.
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
    """Do the steps of one call by the stock code, compare, and time both.

    Afterwards the model is in the state after the stock steps of one call.

    Args:
        step: The compiled step.
        stock: The stock step.
        params: The tensors of model and optimizer.
        before: Their values, and the state of the random numbers.
        batch: The batch, or the data set.
        indices: Samples of each step; None for a single step.
        run_fast: Does a compiled call with all the checks around it; this call is timed.

    Returns:
        Losses and auxiliary tensors, and the times of both steps.

    Raises:
        FastStepError: The results differ by more than rounding; names the first tensor.
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
        """Do stock steps with weights moved by a layer's rounding error.

        Subtract the move itself from the results.
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
            after.restore()  # a thousand steps on one batch may have moved the weights far
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


# The results of a step, and the tensors of model and optimizer after it.
_Results = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class _Comparison:
    """Compares steps with the stock steps.

    Args:
        stock: The stock step, just after its steps.
        params: The tensors of model and optimizer after the stock steps.
        old: Their values before.
        wanted: The results of the stock steps.
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
        # Torch's names without the module, such as float32.
        formats = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype is not None]
        self._tolerance = step_tolerance(formats)

    def difference(
        self, found: tuple[Tensor, ...], results: tuple[Tensor, ...], factor: float = 1.0
    ) -> str | None:
        """Name the first tensor that differs; return None if all agree.

        Args:
            found: The results of other steps.
            results: The tensors of model and optimizer after them.
            factor: Factor on the usual tolerance.
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
            # Compare with the move of a parameter that no optimizer holds: the move is short, so a
            # comparison with its values would not notice a missing one.
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
            # Allow for values near zero that are differences of numbers around 1, such as a
            # divergence of policies.
            if not is_close(value, other, tolerance.tensor, math.sqrt(value.numel())):
                return f"tensor {number} of aux ({worst(value, other)})"
        return None

    def is_no_more(self, compiled: _Results, moved: _Results) -> bool:
        """Whether compiled steps differ no more than this network amplifies rounding.

        The limit is that of a comparison of runs: three times the difference of moved weights.

        Args:
            compiled: Results of the compiled steps, outside the usual tolerance.
            moved: Results of the stock steps with weights moved by rounding.
        """
        for factor in _FACTORS:
            if self.difference(*compiled, factor) is None:
                return self.difference(*moved, factor / SPREAD_FACTOR) is not None
        return False


def _time(run: Callable[[], Any]) -> float:
    """Return the median time of a call, in nanoseconds."""
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
