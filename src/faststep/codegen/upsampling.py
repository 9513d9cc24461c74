"""Gradients of upsampling, which torch's tables do not decompose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def upsampling_gradients() -> dict[Any, Callable[..., Tensor]]:
    """Return what the gradients of nearest and linear upsampling are traced as, by operator."""
    aten = torch.ops.aten
    return {
        aten.upsample_nearest1d_backward.default: _nearest,
        aten.upsample_nearest2d_backward.default: _nearest,
        aten._upsample_nearest_exact1d_backward.default: _nearest_exact,
        aten._upsample_nearest_exact2d_backward.default: _nearest_exact,
        aten.upsample_linear1d_backward.default: _linear,
        aten.upsample_bilinear2d_backward.default: _linear,
    }


def _nearest(
    gradient: Tensor,
    target: Sequence[int],
    shape: Sequence[int],
    *scales: float | None,
    offset: float = 0.0,
) -> Tensor:
    result = gradient
    for dim, (large, size) in enumerate(zip(target, shape[2:], strict=True), start=2):
        scale = _scale(large, size, scales, dim)
        if large % size == 0 and scale == size / large:
            result = result.unflatten(dim, (size, large // size)).sum(dim + 1)
            continue
        places = torch.arange(large, dtype=torch.float32, device=gradient.device)
        sources = ((places + offset) * scale).floor().clamp(max=size - 1)
        result = _gathered(result, dim, _is_at(sources, size).to(gradient.dtype))
    return result


def _nearest_exact(
    gradient: Tensor, target: Sequence[int], shape: Sequence[int], *scales: float | None
) -> Tensor:
    return _nearest(gradient, target, shape, *scales, offset=0.5)


def _linear(
    gradient: Tensor,
    target: Sequence[int],
    shape: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    result = gradient
    for dim, (large, size) in enumerate(zip(target, shape[2:], strict=True), start=2):
        places = torch.arange(large, dtype=gradient.dtype, device=gradient.device)
        if align_corners:
            sources = places * ((size - 1) / (large - 1) if large > 1 else 0.0)
        else:
            sources = ((places + 0.5) * _scale(large, size, scales, dim) - 0.5).clamp(min=0)
        before = sources.floor().clamp(max=size - 1)
        after = (before + 1).clamp(max=size - 1)
        share = (sources - before).clamp(0, 1)[:, None]
        weights = _is_at(before, size) * (1 - share) + _is_at(after, size) * share
        result = _gathered(result, dim, weights)
    return result


def _scale(large: int, size: int, scales: Sequence[float | None], dim: int) -> float:
    """Return how far apart in the input two neighbours of the result are."""
    given = scales[dim - 2] if len(scales) > dim - 2 else None
    return 1 / given if given else size / large


def _is_at(sources: Tensor, size: int) -> Tensor:
    """Return for each place of the result, and of the input, whether the one reads the other."""
    return sources[:, None] == torch.arange(size, dtype=sources.dtype, device=sources.device)


def _gathered(gradient: Tensor, dim: int, weights: Tensor) -> Tensor:
    """Return the sums of a gradient along a dimension, by the weights of places."""
    return (gradient.movedim(dim, -1) @ weights).movedim(-1, dim)
