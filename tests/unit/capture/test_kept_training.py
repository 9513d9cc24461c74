"""What training changes in a block is as before after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from breakeven.capture import FirstSteps, TrainingLoop, kept_training, time_step
from breakeven.errors import BreakevenError


def training(kind: Callable[..., torch.optim.Optimizer]) -> tuple[Any, Any, Callable[[], None]]:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = kind(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(6, 4) * random.random() + float(np.random.random())
        model(x).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def copied(value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value
    )


@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_weights_states_and_random_numbers_are_restored(
    kind: Callable[..., torch.optim.Optimizer], num_before: int
) -> None:
    model, optimizer, step = training(kind)
    for _ in range(num_before):
        step()
    before = copied((model.state_dict(), optimizer.state_dict()))
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with kept_training(step):
        for _ in range(3):
            step()
        optimizer.param_groups[0]["lr"] = 5.0
        assert not torch.equal(model[0].weight, before[0]["0.weight"])
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before)
    assert torch.equal(torch.get_rng_state(), numbers[0])
    assert random.getstate() == numbers[1]
    assert np.array_equal(np.random.get_state()[1], numbers[2])


def test_they_are_restored_after_an_error_of_the_step() -> None:
    model, _, step = training(torch.optim.Adam)
    before = copied(model.state_dict())

    def failing() -> None:
        step()
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"), kept_training(failing):
        raise AssertionError
    torch.testing.assert_close(model.state_dict(), before)


def test_no_hook_slows_the_steps_down() -> None:
    _, _, step = training(torch.optim.SGD)
    hooks = nn.modules.module._global_forward_pre_hooks
    with kept_training(step):
        assert not hooks


def test_a_loop_ends_when_its_steps_suffice() -> None:
    _, _, step = training(torch.optim.SGD)

    def run() -> None:
        while True:
            step()

    run_ = time_step(TrainingLoop(name="mine", run=run), budget_s=0.01)
    assert run_.measurement.samples_ns


def test_a_loop_without_steps_gives_no_answer() -> None:
    with pytest.raises(BreakevenError, match="mine ended before a whole training step"):
        time_step(TrainingLoop(name="mine", run=lambda: None))


def test_first_steps_are_timed_then_recorded_and_change_nothing() -> None:
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model, _, step = training(torch.optim.Adam)
    start = copied(model.state_dict())
    for _ in range(100):
        step()
    trained = copied(model.state_dict())
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model, _, step = training(torch.optim.Adam)
    torch.testing.assert_close(model.state_dict(), start)
    steps = FirstSteps("mine")
    found = []
    for _ in range(100):
        step()
        found.append(steps.end_step())
    (runs,) = filter(None, found)
    assert runs[0].measurement.samples_ns
    assert runs[1].trace.uses_device
    torch.testing.assert_close(model.state_dict(), trained, rtol=0, atol=0)
    assert not torch.cuda.is_available() or torch.version.cuda, "no pretended device is left"
