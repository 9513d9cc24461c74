"""A compiled step is used only when it did, on copies, what the stock step did."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from breakeven.errors import BreakevenError
from breakeven.whole_step.batch import Batch
from breakeven.whole_step.bound_tensors import BoundTensors
from breakeven.whole_step.compiled_step import CompiledStep
from breakeven.whole_step.hooks import unwatched_steps
from breakeven.whole_step.numbers import Change, find_difference, tolerance_of
from breakeven.whole_step.snapshot import Snapshot
from breakeven.whole_step.step_cost import StepCost
from breakeven.whole_step.stock_step import StockStep
from breakeven.whole_step.tensors import clone_all

# Repetitions that the times come from, and how long they may take together.
_NUM_TIMED = 9
_TIMED_NS = 200_000_000
# A sample is as many calls as take this long: on a busy machine, short ones slip through
# undisturbed and long ones do not, and the two would not compare.
_SAMPLE_NS = 4_000_000


def check_step_numbers(
    step: CompiledStep,
    stock: StockStep,
    bound: BoundTensors,
    before: Snapshot,
    batch: Batch,
    indices: Tensor | None,
    run_fast: Callable[[], Any],
) -> tuple[Tensor, StepCost]:
    """Do the steps by the stock code, compare, and time both.

    The model has been trained by exactly the steps of one call afterwards, those of the stock code.

    Args:
        step: The compiled step.
        stock: The stock step.
        bound: The tensors of model and optimizer.
        before: Their values, and the random numbers.
        batch: The batch, or the data set.
        indices: Samples of each step, where there are several.
        run_fast: Does a compiled call with all the checks around it: what is timed.

    Returns:
        Losses, and what either step costs.

    Raises:
        BreakevenError: They differ by more than rounding; names the first tensor.
    """
    old = clone_all(bound.arguments)
    losses, results = step.on_copies(bound, batch, indices)
    before.restore_random()
    wanted = stock.run(batch, indices)
    difference = _compare(stock, bound, old, (wanted, losses), results)
    if difference is not None:
        raise BreakevenError(
            f"the compiled step computes something else than the stock step: {difference}",
            hint="Keep the loop as it is; checks_numbers=False would train with these numbers.",
        )
    recipe = stock.recipe
    after = Snapshot(recipe.model, recipe.loss_fn, stock.optimizer)
    try:
        with unwatched_steps():
            fast_ns, stock_ns = _time(run_fast), _time(lambda: stock.run(batch, indices))
    finally:
        after.restore()
    cost = StepCost(
        compile_ns=step.compile_ns,
        stock_step_ns=stock_ns / step.num_steps,
        fast_step_ns=fast_ns / step.num_steps,
        steps_per_call=step.num_steps,
    )
    return wanted, cost


def _compare(
    stock: StockStep,
    bound: BoundTensors,
    old: tuple[Tensor, ...],
    losses: tuple[Tensor, Tensor],
    results: tuple[Tensor, ...],
) -> str | None:
    tensors = bound.tensors
    num_trained = len(tensors.trained)
    changes = [
        Change(
            name=one.name,
            before=old[place],
            stock=bound.arguments[place],
            compiled=results[place],
            grad=stock.grads.get(one.name, torch.zeros_like(old[place])),
        )
        for place, one in enumerate(tensors.trained)
    ]
    rule, groups = stock.recipe.rule, stock.optimizer.param_groups
    names = [f"buffer {name}" for name in tensors.fixed_names]
    for one in tensors.trained:
        names += [f"{state} of {one.name}" for state in rule.state_names(groups[one.group])]
    others = list(zip(names, bound.arguments[num_trained:], results[num_trained:], strict=True))
    dtypes = [one.param.dtype for one in tensors.trained]
    dtypes += [stock.recipe.autocast] if stock.recipe.autocast else []
    return find_difference(losses, changes, others, max(map(tolerance_of, dtypes)))


def _time(run: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    samples: list[float] = []
    first_ns = time.perf_counter_ns()
    while len(samples) < _NUM_TIMED and time.perf_counter_ns() - first_ns < _TIMED_NS:
        _synchronize()
        start_ns, num_calls = time.perf_counter_ns(), 0
        while time.perf_counter_ns() - start_ns < _SAMPLE_NS:
            run()
            num_calls += 1
        _synchronize()
        samples.append((time.perf_counter_ns() - start_ns) / num_calls)
    return statistics.median(samples)


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
