"""A loop whose fast step fails goes on as it was, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from faststep import FallbackStep, FastStep, FastStepError
from faststep.generated_step import GeneratedStep
from faststep.inductor import CompiledStep

NUM_STEPS = 5


def _parts(kind: Any = torch.optim.Adam) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 1))
    return model, nn.MSELoss(), kind(model.parameters(), lr=0.01)


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(3, 4, generator=generator), torch.randn(3, 1, generator=generator))
        for _ in range(NUM_STEPS)
    ]


def _as_a_loop(kind: Any = torch.optim.Adam) -> tuple[list[float], nn.Module]:
    model, loss_fn, optimizer = _parts(kind)
    losses: list[float] = []
    for x, y in _batches():
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def _as_calls(kind: Any = torch.optim.Adam) -> tuple[list[float], nn.Module, list[str]]:
    told: list[str] = []
    model, loss_fn, optimizer = _parts(kind)
    step = FallbackStep(model, loss_fn, optimizer, max_grad_norm=0.5, on_given_up=told.append)
    losses = [step(x, y).item() for x, y in _batches()]
    assert step.is_fast == (not told)
    return losses, model, told


def _assert_same(kind: Any, reason: str) -> None:
    expected, model = _as_a_loop(kind)
    after = torch.get_rng_state()
    losses, other, told = _as_calls(kind)
    assert losses == expected
    assert torch.equal(torch.get_rng_state(), after)
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, another)
    (said,) = told
    assert reason in said


def test_an_optimizer_that_is_not_known_is_left_to_the_loop() -> None:
    _assert_same(torch.optim.Adadelta, "Adadelta")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(FastStepError("differs by 3"), "differs by 3"), (KeyError("node"), "KeyError: 'node'")],
)
def test_a_step_that_cannot_be_compiled_is_done_by_the_loop(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    for kind in (GeneratedStep, CompiledStep):
        monkeypatch.setattr(kind, "__init__", fail)
    _assert_same(torch.optim.Adam, reason)


def test_hooks_that_come_later_end_it() -> None:
    told: list[str] = []
    model, loss_fn, optimizer = _parts()
    step = FallbackStep(model, loss_fn, optimizer, on_given_up=told.append)
    (x, y), *_ = _batches()
    step(x, y)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    step(x, y)
    step(x, y)
    assert len(told) == 1
    assert len(calls) == 2


def test_an_error_of_the_script_is_its_own() -> None:
    told: list[str] = []
    model, loss_fn, optimizer = _parts()
    step: Callable[..., Any] = FallbackStep(model, loss_fn, optimizer, on_given_up=told.append)
    with pytest.raises(RuntimeError, match="shapes"):
        step(torch.randn(3, 5), torch.randn(3, 1))
    assert told == []


# Of the plain loop, to seven digits.
EXPECTED_OF_STATE = [0.033217, 0.616891, 1.994577, 4.103511, 6.885103, 10.264814]


def _refuse(*_: object, **__: object) -> None:
    raise FastStepError("not here")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["generated", "stock", "loop"])
def test_a_loss_that_calls_the_model_is_done_alike_by_all(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """A recurrent step: its state comes back beside the loss, and goes into the next one."""
    torch.manual_seed(0)
    model = nn.GRUCell(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told: list[str] = []

    def loss_of(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, tuple[Any]]:
        new = model(x, state)
        return (new - x.sum()).square().mean(), (new,)

    if engine == "stock":
        monkeypatch.setattr(FastStep, "compile", FastStep.do_stock)
    if engine == "loop":
        monkeypatch.setattr("faststep.fast.fast_step", _refuse)
    step = FallbackStep(
        model, loss_of, optimizer, has_aux=True, calls_model=True, on_given_up=told.append
    )
    state, losses = torch.zeros(2, 4), list[float]()
    for number in range(6):
        loss, (state,) = step((torch.full((2, 3), 0.1 * number), state))
        assert not loss.requires_grad
        assert not state.requires_grad
        losses.append(loss.item())
    assert bool(told) == (engine == "loop")
    assert losses == pytest.approx(EXPECTED_OF_STATE, rel=1e-4)


def test_loop_changes_over_once_that_pays() -> None:
    expected, model = _as_a_loop()
    answers = iter([False, False, False, True])
    asked: list[bool] = []

    def pays_now() -> bool:
        asked.append(next(answers))
        return asked[-1]

    other, loss_fn, optimizer = _parts()
    step = FallbackStep(
        other, loss_fn, optimizer, max_grad_norm=0.5, on_given_up=pytest.fail, pays_now=pays_now
    )
    losses: list[float] = []
    was_fast: list[bool] = []
    for x, y in _batches():
        losses.append(step(x, y).item())
        was_fast.append(step.is_fast)
    # Asked when it is made and before each step, until it pays.
    assert was_fast == [False, False, True, True, True]
    assert asked == [False, False, False, True]
    assert losses == pytest.approx(expected, rel=1e-4)
    for value, wanted in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.allclose(value, wanted, rtol=1e-4, atol=1e-6)
