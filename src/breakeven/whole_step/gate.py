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

from breakeven.configure import unwatched_steps
from breakeven.errors import BreakevenError
from breakeven.verdict import Compared, Numerics, Tolerance, scale_of, tolerance_of
from breakeven.whole_step.compiled_step import CompiledStep
from breakeven.whole_step.generated_step import GeneratedStep
from breakeven.whole_step.step_function import Batch, num_steps_of
from breakeven.whole_step.stock_step import Snapshot, StockStep
from breakeven.whole_step.tensors import BoundTensors, clone_all


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
        """Return the steps after which compiling is earned back; None where it never is."""
        saved_ns = self.stock_step_ns - self.fast_step_ns
        return math.ceil(self.compile_ns / saved_ns) if saved_ns > 0 else None


# Repetitions that the times come from, and how long they may take together.
_NUM_TIMED = 9
_TIMED_NS = 200_000_000
# A sample is as many calls as take this long: on a busy machine, short ones slip through
# undisturbed and long ones do not, and the two would not compare.
_SAMPLE_NS = 4_000_000


def check_step_numbers(
    step: CompiledStep | GeneratedStep,
    stock: StockStep,
    bound: BoundTensors,
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
        bound: The tensors of model and optimizer.
        before: Their values, and the random numbers.
        batch: The batch, or the data set.
        indices: Samples of each step, where there are several.
        run_fast: Does a compiled call with all the checks around it: what is timed.

    Returns:
        Losses with what comes beside them, and what either step costs.

    Raises:
        BreakevenError: They differ by more than rounding; names the first tensor.
    """
    old = clone_all(bound.arguments)
    num_steps = num_steps_of(indices)
    (losses, *beside), results = step.on_copies(bound, batch, indices)
    before.restore_random()
    wanted = stock.run(batch, indices)
    difference = _compare(stock, bound, old, (wanted[0], losses), results)
    difference = difference or _compare_beside(wanted[1:], beside, _tolerance(stock, bound))
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
        stock_step_ns=stock_ns / num_steps,
        fast_step_ns=fast_ns / num_steps,
        steps_per_call=num_steps,
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
    return find_difference(losses, changes, others, _tolerance(stock, bound))


def _tolerance(stock: StockStep, bound: BoundTensors) -> Tolerance:
    dtypes = [one.param.dtype for one in bound.tensors.trained]
    dtypes += [stock.recipe.autocast] if stock.recipe.autocast else []
    # As torch names them, less the module: float32.
    formats = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return tolerance_of(Compared.STEP, Numerics.REORDERED, *formats)


def _compare_beside(
    wanted: Sequence[Tensor], found: Sequence[Tensor], tolerance: Tolerance
) -> str | None:
    """Return which tensor beside the loss differs, or None where all agree."""
    for number, (value, other) in enumerate(zip(wanted, found, strict=True)):
        # Near zero it may be a difference of numbers around 1, as a divergence of two policies is.
        ones = math.sqrt(value.numel())
        if not _is_close(value, other, tolerance.tensor, ones):
            return f"tensor {number} beside the loss ({_worst(value, other)})"
    return None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A parameter before a step, after the stock step, and after the compiled step.

    Args:
        name: Its name.
        before: Its value before.
        stock: After the stock step.
        compiled: After the compiled one.
        grad: Its gradient in the (last) stock step.
    """

    name: str
    before: Tensor
    stock: Tensor
    compiled: Tensor
    grad: Tensor


def find_difference(
    losses: tuple[Tensor, Tensor],
    changes: Sequence[Change],
    others: Sequence[tuple[str, Tensor, Tensor]],
    tolerance: Tolerance,
) -> str | None:
    """Return which tensor differs first and by how much, or None where all agree.

    A parameter's difference counts as much as it changes the loss, to first order: Adam moves a
    parameter whose gradient is zero but for rounding by a whole learning rate to either side, and
    both sides are right. What has no gradient at all must agree by itself, unless it moves as those
    beside it whose gradients are rounding: all of them, or as many as it is one of.

    Args:
        losses: Of the stock and of the compiled steps.
        changes: Trained parameters.
        others: Names of buffers and state, after the stock and after the compiled steps.
        tolerance: What may differ.
    """
    stock, compiled = (loss.double() for loss in losses)
    rtol = tolerance.loss
    # Losses near zero are sums of larger terms: their rounding is of the order of those.
    if not torch.allclose(compiled, stock, rtol=rtol, atol=rtol * 1e-2, equal_nan=True):
        return f"the loss ({_worst(stock, compiled)})"
    effects = [_effects(change) for change in changes]
    total = sum(moved for moved, _ in effects)
    steepest = max((_largest(change.grad) for change in changes), default=0.0)
    noise = rtol * steepest
    rounding: set[str] = set()
    for change, (moved, missed) in zip(changes, effects, strict=True):
        is_rounding = _is_all_rounding(change, noise)
        allowed = math.inf if is_rounding else tolerance.tensor * scale_of(moved, total)
        if not torch.equal(change.stock.isfinite(), change.compiled.isfinite()) or missed > allowed:
            return f"the parameter {change.name} ({_worst(change.stock, change.compiled)})"
        if is_rounding:
            rounding.add(change.name)
            continue
        still = change.grad == 0
        is_still = _is_close(change.stock[still], change.compiled[still], rtol)
        if not is_still and not _is_rounding(change, still, noise):
            return f"the parameter {change.name}, where its gradient is zero"
    scales: dict[str, float] = {}
    for name, value, _ in others:
        kind = name.rsplit(" ", 1)[0]
        scales[kind] = max(scales.get(kind, 0.0), _norm(value))
    for name, value, found in others:
        if name.rpartition(" of ")[2] in rounding and _largest(value - found) <= noise:
            continue
        if not _is_close(value, found, tolerance.tensor, scales[name.rsplit(" ", 1)[0]]):
            return f"{name} ({_worst(value, found)})"
    return None


def _effects(change: Change) -> tuple[float, float]:
    """Return what the stock step changes the loss by, and what of that the compiled one misses."""
    finite = change.stock.isfinite() & change.compiled.isfinite() & change.grad.isfinite()
    weight = change.grad[finite].double().abs()
    stock = change.stock[finite].double()
    moved = (weight * (stock - change.before[finite].double()).abs()).sum().item()
    missed = (weight * (stock - change.compiled[finite].double()).abs()).sum().item()
    return moved, missed


def _is_all_rounding(change: Change, largest_noise: float) -> bool:
    """Return whether a tensor's gradients are rounding, every one, and it moves as they let it.

    So it is with a bias before a batch normalisation, of a small network: to first order, Adam's
    steps along it are then more of a change than the tolerance allows.
    """
    apart = _largest(change.stock.double() - change.compiled.double())
    moved = _largest(change.stock.double() - change.before.double())
    return 0 < _largest(change.grad) <= largest_noise and apart <= 2 * moved


def _is_rounding(change: Change, still: Tensor, largest_noise: float) -> bool:
    """Return whether values without a gradient have one but for rounding, as those beside them.

    So it is with the bias of attention's keys, which lies in one tensor with the queries'.

    Args:
        change: Their tensor.
        still: Where they are in it.
        largest_noise: Gradients up to this size may be rounding.
    """
    noise = (change.grad != 0) & (change.grad.abs() <= largest_noise)
    differ = still & (change.stock != change.compiled)
    are_few = 2 * still.sum() < still.numel() and differ.sum() <= noise.sum()
    apart = _largest(change.stock[still].double() - change.compiled[still].double())
    moved = _largest(change.stock.double() - change.before.double())
    return bool(are_few) and apart <= 2 * moved


def _largest(value: Tensor) -> float:
    return value.abs().max().item() if value.numel() else 0.0


def _norm(value: Tensor) -> float:
    return torch.linalg.vector_norm(value.double()).item() if value.numel() else 0.0


def _is_close(stock: Tensor, compiled: Tensor, allowed: float, whole: float = 0.0) -> bool:
    if not stock.is_floating_point():
        return torch.equal(stock, compiled)
    if not torch.equal(stock.isfinite(), compiled.isfinite()):
        return False
    finite = stock.isfinite()
    value, found = stock[finite], compiled[finite]
    return _norm(value.double() - found.double()) <= allowed * scale_of(_norm(value), whole)


def _worst(stock: Tensor, compiled: Tensor) -> str:
    """Return the two values that are furthest apart, for a person."""
    if not stock.numel():
        return "empty"
    apart = (stock.double() - compiled.double()).abs().flatten()
    place = int(apart.nan_to_num(nan=torch.inf).argmax())
    return f"{compiled.flatten()[place].item():.6g}, not {stock.flatten()[place].item():.6g}"
