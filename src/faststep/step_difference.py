"""The first tensor in which the results of a compiled step and the stock step differ."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from faststep.tolerance import Tolerance, scale_of

# Limit of a move: in 16-bit formats a larger one is no longer rounding.
_MOST_MOVED = 2.0**-8


class Other(NamedTuple):
    """A tensor without a gradient: a buffer, or a state of an optimizer.

    Args:
        kind: Its kind; the tolerance scales with the largest tensor of the kind.
        name: Its name for messages.
        stock: Its value after the stock step.
        compiled: Its value after the compiled step.
    """

    kind: str
    name: str
    stock: Tensor
    compiled: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A parameter before a step, after the stock step, and after the compiled step.

    Args:
        name: Its name.
        before: Its value before.
        stock: Its value after the stock step.
        compiled: Its value after the compiled step.
        grad: Its gradient in the (last) stock step.
        states: Its optimizer state; empty if unknown.
    """

    name: str
    before: Tensor
    stock: Tensor
    compiled: Tensor
    grad: Tensor
    states: tuple[Other, ...] = ()


def find_difference(
    losses: tuple[Tensor, Tensor],
    trained: Sequence[Sequence[Change]],
    others: Sequence[Other],
    tolerance: Tolerance,
) -> str | None:
    """Name the first tensor that differs and its difference; return None if all agree.

    Weight a parameter's difference by its first-order effect on the loss. If a gradient is only
    rounding, then Adam moves the parameter by a whole learning rate to either side, and both sides
    are right. Elements with gradient zero must agree, unless all other gradients of their tensor
    are rounding, or at least as many as the elements that differ.

    Args:
        losses: The losses of the stock and of the compiled steps.
        trained: The parameters of each optimizer; each optimizer has its own scale of gradients.
        others: All other tensors.
        tolerance: The allowed differences.
    """
    stock, compiled = (loss.double() for loss in losses)
    rtol = tolerance.loss
    # Losses near zero are sums of larger terms: their rounding scales with those terms.
    if not torch.allclose(compiled, stock, rtol=rtol, atol=rtol * 1e-2, equal_nan=True):
        return f"the loss ({worst(stock, compiled)})"
    for changes in trained:
        if difference := _find_among(changes, tolerance):
            return difference
    return _find_apart(others, tolerance.tensor)


def _find_among(changes: Sequence[Change], tolerance: Tolerance) -> str | None:
    """Name the first parameter or state of one optimizer that differs."""
    rtol = tolerance.loss
    effects = [_effects(change) for change in changes]
    total = sum(moved for moved, _ in effects)
    steepest = max((_largest(change.grad) for change in changes), default=0.0)
    noise = rtol * steepest
    excused: set[str] = set()
    for change, (moved, missed) in zip(changes, effects, strict=True):
        is_rounding = _is_all_rounding(change, noise)
        allowed = math.inf if is_rounding else tolerance.tensor * scale_of(moved, total)
        if not torch.equal(change.stock.isfinite(), change.compiled.isfinite()) or missed > allowed:
            return f"the parameter {change.name} ({worst(change.stock, change.compiled)})"
        if is_rounding:
            apart = ((one.name, _largest(one.stock - one.compiled)) for one in change.states)
            excused |= {name for name, size in apart if size <= noise}
            continue
        still = change.grad == 0
        is_still = is_close(change.stock[still], change.compiled[still], rtol)
        if not is_still and not _is_rounding(change, still, noise):
            return f"the parameter {change.name}, where its gradient is zero"
    states = [state for change in changes for state in change.states]
    return _find_apart(states, tolerance.tensor, excused)


def _find_apart(
    others: Sequence[Other], allowed: float, excused: Collection[str] = ()
) -> str | None:
    """Name the first tensor that differs by more than a fraction of the largest of its kind."""
    scales: dict[str, float] = {}
    for one in others:
        scales[one.kind] = max(scales.get(one.kind, 0.0), norm(one.stock))
    for one in others:
        is_excused = one.name in excused
        if not is_excused and not is_close(one.stock, one.compiled, allowed, scales[one.kind]):
            return f"{one.name} ({worst(one.stock, one.compiled)})"
    return None


def _effects(change: Change) -> tuple[float, float]:
    """Return the first-order effects on the loss of the stock step and of the difference."""
    finite = change.stock.isfinite() & change.compiled.isfinite() & change.grad.isfinite()
    weight = change.grad[finite].double().abs()
    stock = change.stock[finite].double()
    moved = (weight * (stock - change.before[finite].double()).abs()).sum().item()
    missed = (weight * (stock - change.compiled[finite].double()).abs()).sum().item()
    return moved, missed


def _is_all_rounding(change: Change, largest_noise: float) -> bool:
    """Whether all gradients of a tensor are rounding, and its values differ by at most two moves.

    An example is the bias before a batch normalisation in a small network: Adam's steps along it
    exceed the tolerance to first order.
    """
    apart = _largest(change.stock.double() - change.compiled.double())
    moved = _largest(change.stock.double() - change.before.double())
    return 0 < _largest(change.grad) <= largest_noise and apart <= 2 * moved


def _is_rounding(change: Change, still: Tensor, largest_noise: float) -> bool:
    """Whether values with gradient zero differ only by rounding, like others of their tensor.

    An example is the bias of attention's keys, which shares a tensor with the queries' bias.

    Args:
        change: Their tensor.
        still: Mask of the values with gradient zero.
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


def norm(value: Tensor) -> float:
    return torch.linalg.vector_norm(value.double()).item() if value.numel() else 0.0


def is_close(stock: Tensor, compiled: Tensor, allowed: float, whole: float = 0.0) -> bool:
    if not stock.is_floating_point():
        return torch.equal(stock, compiled)
    if not torch.equal(stock.isfinite(), compiled.isfinite()):
        return False
    finite = stock.isfinite()
    value, found = stock[finite], compiled[finite]
    return norm(value.double() - found.double()) <= allowed * scale_of(norm(value), whole)


def worst(stock: Tensor, compiled: Tensor) -> str:
    """Return the two values with the largest difference, for a message."""
    if not stock.numel():
        return "empty"
    apart = (stock.double() - compiled.double()).abs().flatten()
    place = int(apart.nan_to_num(nan=torch.inf).argmax())
    return f"{compiled.flatten()[place].item():.6g}, not {stock.flatten()[place].item():.6g}"


def move_weights(parameters: Iterable[Tensor], roundoffs: float, signs: torch.Generator) -> None:
    """Move each weight up or down by the same fraction of itself, in place.

    Args:
        parameters: The weights; integer and lazy weights do not move.
        roundoffs: The fraction, in unit roundoffs of the weight's format.
        signs: Draws the directions; the function draws no other random numbers.
    """
    for parameter in parameters:
        if parameter.is_floating_point() and not is_lazy(parameter):
            # The unit roundoff is half of eps, the distance from 1 to the next number.
            fraction = min(roundoffs * torch.finfo(parameter.dtype).eps / 2, _MOST_MOVED)
            ups = torch.randint(0, 2, parameter.shape, generator=signs) * 2 - 1
            factors = 1 + fraction * ups.to(torch.float64)
            parameter.data.copy_(parameter.data * factors.to(parameter.device))
