"""Attention as a table says it was computed: one operator at a time, or by a fused kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom

from breakeven.trace import Attention


def attention_as(attention: Attention) -> AbstractContextManager[None]:
    """Compute attention operator by operator where a case says so.

    Whatever calls torch's function then gets the operators by which models computed attention
    before torch had one.
    """
    return _operator_by_operator() if attention is Attention.EAGER else nullcontext()


@contextmanager
def _operator_by_operator() -> Iterator[None]:
    with patch.object(F, "scaled_dot_product_attention", _attend):
        yield


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Take the arguments of torch's function, and compute what it defines."""
    if enable_gqa:
        num_shared = query.size(-3) // key.size(-3)
        key, value = (part.repeat_interleave(num_shared, -3) for part in (key, value))
    factor = query.size(-1) ** -0.5 if scale is None else scale
    scores: Any
    if is_causal:
        # Language models scale the scores, of which there are more; others the queries before.
        scores = query @ key.transpose(-2, -1) * factor
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    else:
        scores = (query * factor) @ key.transpose(-2, -1)
    if attn_mask is not None:
        is_bool = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
    weights = scores.softmax(dim=-1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights @ value
