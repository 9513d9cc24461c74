"""The code of docs/fast-step-recipes.md runs, and its steps are generated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from breakeven.whole_step import FastStep

PAGE = Path(__file__).parents[3] / "docs" / "fast-step-recipes.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def name_of(block: str) -> str:
    found = re.search(r"^(?:class|def) (\w+)|from (\w+) import", block, re.MULTILINE)
    assert found is not None
    return found[1] or found[2]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_the_code_of_the_page_runs(block: str) -> None:
    for name in ("stable_baselines3", "skorch", "lightning"):
        if f"import {name}" in block or f"from {name}" in block:
            pytest.importorskip(name)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block.replace("100_000", "5_000"), str(PAGE), "exec"), names)
    steps = [one for one in names.values() if isinstance(one, FastStep)]
    assert all(step.engine == "generated C" for step in steps)
