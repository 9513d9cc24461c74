"""Which tensor a step left otherwise than the stock step did."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from faststep.tolerance import Tolerance, scale_of

# Of a format of 16 bits, more roundoffs than this are a change that nobody calls rounding.
_MOST_MOVED = 2.0**-8


class Other(NamedTuple):
    """A tensor that is not trained: a buffer, or what an optimizer keeps.

    Args:
        kind: It is held against the largest of its kind.
        name: For a person.
        stock: After the stock step.
        compiled: After the compiled one.
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
        stock: After the stock step.
        compiled: After the compiled one.
        grad: Its gradient in the (last) stock step.
        states: What its optimizer keeps of it, where that is told.
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
    """Return which tensor differs first and by how much, or None if all agree.

    A parameter's difference counts as much as it changes the loss, to first order: Adam moves a
    parameter whose gradient is zero but for rounding by a whole learning rate to either side, and
    both sides are right. What has no gradient at all must agree by itself, unless it moves as those
    beside it whose gradients are rounding: all of them, or as many as it is one of.

    Args:
        losses: Of the stock and of the compiled steps.
        trained: The parameters of each optimizer: what is small beside the gradients of one loss
            need not be so beside those of another.
        others: Everything else.
        tolerance: What may differ.
    """
    stock, compiled = (loss.double() for loss in losses)
    rtol = tolerance.loss
    # Losses near zero are sums of larger terms: their rounding is of the order of those.
    if not torch.allclose(compiled, stock, rtol=rtol, atol=rtol * 1e-2, equal_nan=True):
        return f"the loss ({worst(stock, compiled)})"
    for changes in trained:
        if difference := _find_among(changes, tolerance):
            return difference
    return _find_apart(others, tolerance.tensor)


def _find_among(changes: Sequence[Change], tolerance: Tolerance) -> str | None:
    """Return which parameter of one optimizer differs first, or what it keeps of which."""
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
    """Return which tensor differs by more than a part of the largest of its kind."""
    scales: dict[str, float] = {}
    for one in others:
        scales[one.kind] = max(scales.get(one.kind, 0.0), norm(one.stock))
    for one in others:
        is_excused = one.name in excused
        if not is_excused and not is_close(one.stock, one.compiled, allowed, scales[one.kind]):
            return f"{one.name} ({worst(one.stock, one.compiled)})"
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
    """Whether a tensor's gradients are rounding, every one, and it moves as they let it.

    So it is with a bias before a batch normalisation, of a small network: to first order, Adam's
    steps along it are then more of a change than the tolerance allows.
    """
    apart = _largest(change.stock.double() - change.compiled.double())
    moved = _largest(change.stock.double() - change.before.double())
    return 0 < _largest(change.grad) <= largest_noise and apart <= 2 * moved


def _is_rounding(change: Change, still: Tensor, largest_noise: float) -> bool:
    """Whether values without a gradient have one but for rounding, as those beside them.

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
    """Return the two values that are furthest apart, for a person."""
    if not stock.numel():
        return "empty"
    apart = (stock.double() - compiled.double()).abs().flatten()
    place = int(apart.nan_to_num(nan=torch.inf).argmax())
    return f"{compiled.flatten()[place].item():.6g}, not {stock.flatten()[place].item():.6g}"


def move_weights(parameters: Iterable[Tensor], roundoffs: float, signs: torch.Generator) -> None:
    """Move each weight up or down by the same fraction of itself, in place.

    Args:
        parameters: The weights; those that are not floating-point numbers stay.
        roundoffs: The fraction, in roundoffs of the weight's own format.
        signs: Decides which go up; no other random numbers are drawn.
    """
    for parameter in parameters:
        if parameter.is_floating_point() and not is_lazy(parameter):
            # Half of eps, the distance from 1 to the next number.
            fraction = min(roundoffs * torch.finfo(parameter.dtype).eps / 2, _MOST_MOVED)
            ups = torch.randint(0, 2, parameter.shape, generator=signs) * 2 - 1
            factors = 1 + fraction * ups.to(torch.float64)
            parameter.data.copy_(parameter.data * factors.to(parameter.device))
