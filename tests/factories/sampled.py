"""Cases of a slow test of which `.ci/run` tries a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *sample: Any) -> list[Any]:
    """Mark the cases that are not in the sample as ``full``.

    Args:
        cases: As `pytest.mark.parametrize` takes them; a tuple goes by its first value.
        sample: The cases that stay.

    Raises:
        ValueError: No case is named so.
    """
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    if absent := [name for name in sample if name not in [first for first, *_ in listed]]:
        raise ValueError(f"no case is named {absent}")
    return [
        pytest.param(*case, marks=() if case[0] in sample else pytest.mark.full) for case in listed
    ]
