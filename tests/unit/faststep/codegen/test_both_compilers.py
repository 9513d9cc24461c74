"""Generated steps under gcc and under clang."""

from __future__ import annotations

import shutil
import time

import pytest
import torch
from torch import nn

from breakeven import fast_step

pytestmark = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("clang")), reason="needs gcc and clang"
)


def test_products_are_as_fast_under_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own way to be told to unroll a loop, without which sums stay in memory."""
    x, y = torch.randn(64, 64), torch.randn(64, 8)
    steps = []
    for compiler in ("gcc", "clang"):
        monkeypatch.setenv("CC", compiler)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        step = fast_step(model, nn.MSELoss(), optimizer, engine="generated")
        for _ in range(3):
            step(x, y)
        steps.append(step)
    least = [float("inf")] * 2
    for _ in range(2_000):
        for number, step in enumerate(steps):
            begun = time.perf_counter()
            step(x, y)
            least[number] = min(least[number], time.perf_counter() - begun)
    assert max(least) < 1.8 * min(least)
