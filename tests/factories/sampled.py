"""Sampling of a slow test's cases, so that `.ci/run` tries only a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *sample: Any) -> list[Any]:
    """Mark the cases that are not in the sample as ``full``.

    Args:
        cases: Cases for `pytest.mark.parametrize`; the first value of a tuple names it.
        sample: Names of the cases in the sample.

    Raises:
        ValueError: A name of the sample has no case.
    """
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    if absent := [name for name in sample if name not in [first for first, *_ in listed]]:
        raise ValueError(f"no case is named {absent}")
    return [
        pytest.param(*case, marks=() if case[0] in sample else pytest.mark.full) for case in listed
    ]
