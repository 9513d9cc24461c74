"""The steps after a plain run that say what generated code would take."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from breakeven.capture import PlainRun
from breakeven.capture.sessions.in_process import _repeat, _request
from breakeven.capture.sessions.plain import PlainSession
from breakeven.units import NS_PER_S

Step = Callable[[], None]


def timed(step: Step) -> PlainRun:
    request = replace(_request("step", 0.05), tries_generated=True)
    run = _repeat(step, PlainSession, request)
    assert isinstance(run, PlainRun)
    return run


def kept_s(step: Step) -> float:
    """Return the time of the rest of the loop."""
    found = timed(step).generated
    assert found is not None
    assert found.kept is not None
    return found.kept.value_ns / NS_PER_S


def small_step(around: Step = lambda: None) -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(16, 8), torch.randn(16, 4)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        around()

    return step


def test_code_is_generated_and_faster_than_the_step() -> None:
    run = timed(small_step())
    found = run.generated
    assert found is not None
    assert found.because == ""
    assert found.code is not None
    assert found.kept is not None
    assert found.code.value_ns < run.measurement.median_ns / 4
    assert found.kept.value_ns < run.measurement.median_ns
    assert found.compile_ns > 0


def test_the_rest_of_the_loop_is_kept() -> None:
    assert kept_s(small_step(lambda: time.sleep(0.004))) >= 0.004


def test_updates_one_after_the_other_are_generated() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    slow: list[float] = []

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            begun_s = time.perf_counter()
            while time.perf_counter() - begun_s < 0.003:
                slow.append(begun_s)
            return super().step(closure)

    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = Slow(model[1].parameters(), lr=0.1)
    x = torch.randn(16, 8)

    def step() -> None:
        first.zero_grad()
        second.zero_grad()
        model(x).square().mean().backward()
        first.step()
        second.step()

    assert kept_s(step) < 0.002


def test_what_cannot_be_generated_has_its_reason() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        weight.sort().values.square().sum().backward()
        optimizer.step()

    found = timed(step).generated
    assert found is not None
    assert found.code is None
    assert "sort" in found.because


@pytest.mark.parametrize("parity", [0, 1])
def test_an_evaluation_between_two_steps_does_not_hide_the_others(parity: int) -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, numbers = torch.randn(16, 8), itertools.count(parity)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if next(numbers) % 2:
            with torch.no_grad():
                assert model(x).argmax(dim=1).sum().item() >= 0

    found = timed(step).generated
    assert found is not None
    assert (found.because, found.code is not None) == ("", True)


def test_long_steps_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakeven.capture.sessions.plain.LONGEST_STEP_NS", 1)
    assert timed(small_step()).generated is None


def test_torch_is_as_before() -> None:
    before = torch.Tensor.numpy, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad
    timed(small_step())
    assert (torch.Tensor.numpy, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad) == before
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.backends.mkldnn.enabled == torch.backends.mkldnn.is_available()
