"""Whether a compiled step computes what the stock step computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Relative difference that another order of the same sums may make. float32 rounds by 6e-8; sums
# of some thousand terms, a few layers one after the other, and a few steps make it 1e-4 at worst.
# Half formats round by 4e-3 (bfloat16) in each of several layers.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_HALF_TOLERANCE = 3e-2
# Of what all parameters together change: below it a change of one tensor is rounding noise.
_NOISE_FRACTION = 1e-3
# Gradients are differences of larger numbers, and some updates divide by their size: what a
# parameter moves by is less sure than the parameter itself.
_UPDATE_FACTOR = 10


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


def tolerance_of(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding in this format excuses."""
    return _TOLERANCES.get(dtype, _HALF_TOLERANCE)


def find_difference(
    losses: tuple[Tensor, Tensor],
    changes: Sequence[Change],
    others: Sequence[tuple[str, Tensor, Tensor]],
    tolerance: float,
) -> str | None:
    """Return which tensor differs first and by how much, or None where all agree.

    A parameter's difference counts as much as it changes the loss, to first order: Adam moves a
    parameter whose gradient is zero but for rounding by a whole learning rate to either side, and
    both sides are right. What has no gradient at all must agree by itself, unless it is one of
    few in a tensor whose other gradients are rounding as well, and moves as they do.

    Args:
        losses: Of the stock and of the compiled steps.
        changes: Trained parameters.
        others: Names of buffers and state, after the stock and after the compiled steps.
        tolerance: Relative difference allowed.
    """
    stock, compiled = (loss.double() for loss in losses)
    # Losses near zero are sums of larger terms: their rounding is of the order of those.
    if not torch.allclose(compiled, stock, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True):
        return f"the loss ({_worst(stock, compiled)})"
    effects = [_effects(change) for change in changes]
    total = sum(moved for moved, _ in effects)
    steepest = max((_largest(change.grad) for change in changes), default=0.0)
    for change, (moved, missed) in zip(changes, effects, strict=True):
        allowed = _UPDATE_FACTOR * tolerance * (moved + _NOISE_FRACTION * total)
        if not torch.equal(change.stock.isfinite(), change.compiled.isfinite()) or missed > allowed:
            return f"the parameter {change.name} ({_worst(change.stock, change.compiled)})"
        still = change.grad == 0
        is_still = _is_close(change.stock[still], change.compiled[still], tolerance, 0.0)
        if not is_still and not _is_rounding(change, still, tolerance * steepest):
            return f"the parameter {change.name}, where its gradient is zero"
    scales: dict[str, float] = {}
    for name, value, _ in others:
        kind = name.rsplit(" ", 1)[0]
        scales[kind] = max(scales.get(kind, 0.0), _norm(value))
    for name, value, found in others:
        slack = _NOISE_FRACTION * scales[name.rsplit(" ", 1)[0]]
        if not _is_close(
            value, found, _UPDATE_FACTOR * tolerance, _UPDATE_FACTOR * tolerance * slack
        ):
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


def _is_rounding(change: Change, still: Tensor, largest_noise: float) -> bool:
    """Return whether values without a gradient have one but for rounding, as those beside them.

    Args:
        change: Their tensor.
        still: Where they are in it.
        largest_noise: Gradients up to this size may be rounding.
    """
    are_few = 2 * int(still.sum()) < still.numel()
    apart = _largest(change.stock[still].double() - change.compiled[still].double())
    moved = _largest(change.stock.double() - change.before.double())
    return are_few and _largest(change.grad) <= largest_noise and apart <= 2 * moved


def _largest(value: Tensor) -> float:
    return value.abs().max().item() if value.numel() else 0.0


def _norm(value: Tensor) -> float:
    return torch.linalg.vector_norm(value.double()).item() if value.numel() else 0.0


def _is_close(stock: Tensor, compiled: Tensor, tolerance: float, slack: float) -> bool:
    if not stock.is_floating_point():
        return torch.equal(stock, compiled)
    if not torch.equal(stock.isfinite(), compiled.isfinite()):
        return False
    finite = stock.isfinite()
    value, found = stock[finite], compiled[finite]
    return _norm(value.double() - found.double()) <= tolerance * _norm(value) + slack


def _worst(stock: Tensor, compiled: Tensor) -> str:
    """Return the two values that are furthest apart, for a person."""
    if not stock.numel():
        return "empty"
    apart = (stock.double() - compiled.double()).abs().flatten()
    place = int(apart.nan_to_num(nan=torch.inf).argmax())
    return f"{compiled.flatten()[place].item():.6g}, not {stock.flatten()[place].item():.6g}"
