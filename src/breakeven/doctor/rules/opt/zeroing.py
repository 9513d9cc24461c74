"""Operators that set gradients to zero."""

from __future__ import annotations

ZEROING = frozenset({"zero_", "_foreach_zero_"})
