"""Ranges for a profiler are skipped while none runs, and seen while one does."""

from __future__ import annotations

import torch
from torch import nn

from breakeven.settings import configured
from breakeven.trace import Configuration


def _update() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()


def test_ranges_are_skipped_without_a_profiler() -> None:
    original = torch.autograd.profiler.record_function
    with configured(Configuration(skips_profiler_ranges=True)) as settings:
        _update()
        assert settings.effects()["skips_profiler_ranges"] >= 1
    assert torch.autograd.profiler.record_function is original


def test_a_profiler_sees_every_range() -> None:
    with configured(Configuration(skips_profiler_ranges=True)) as settings:
        with torch.autograd.profiler.profile() as profile:
            _update()
        assert settings.effects()["skips_profiler_ranges"] == 0
    assert any("Optimizer.step#SGD.step" in event.name for event in profile.function_events)
