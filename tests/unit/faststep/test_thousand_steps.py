"""A thousand generated steps end where a thousand stock steps end, but for rounding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from factories.sampled import sampled
from faststep import fast_step

NUM_STEPS = 1000
# Losses of a thousand steps are sums of many rounding errors: two ways of summing are the same when
# one is not further from exact numbers than a few times the other.
FEW_TIMES = 5


@dataclass(frozen=True)
class Case:
    """A network, its loss, its optimizer and its data."""

    create: Callable[[], nn.Module]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    inputs: Callable[[], Tensor]
    targets: Callable[[Tensor], Tensor]


def regression(x: Tensor) -> Tensor:
    return torch.tanh(4 * x.flatten(1).mean(1, keepdim=True))


CASES = {
    "tanh, Adam": Case(
        create=lambda: nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)),
        loss_fn=nn.functional.mse_loss,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        inputs=lambda: torch.randn(256, 4),
        targets=regression,
    ),
    "convolution, AdamW": Case(
        create=lambda: nn.Sequential(
            nn.Conv1d(1, 8, 5), nn.SiLU(), nn.AvgPool1d(4), nn.Flatten(), nn.Linear(56, 1)
        ),
        loss_fn=nn.functional.smooth_l1_loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        inputs=lambda: torch.randn(256, 1, 32),
        targets=regression,
    ),
}


def stock_losses(case: Case, model: nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    optimizer = case.optimizer(model)
    losses: list[Tensor] = []
    for row in rows:
        optimizer.zero_grad()
        loss = case.loss_fn(model(x[row]), y[row])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(CASES, "convolution, AdamW"))
def test_losses_are_as_close_to_exact_ones_as_those_of_stock_steps(name: str) -> None:
    case = CASES[name]
    model = case.create()
    x = case.inputs()
    y = case.targets(x)
    rows = torch.randint(0, len(x), (NUM_STEPS, 32))
    wide = y.double() if y.is_floating_point() else y
    exact = stock_losses(case, copy.deepcopy(model).double(), x.double(), wide, rows)
    spread = torch.zeros(())
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        stock = stock_losses(case, copy.deepcopy(model), x, y, rows)
        spread = torch.maximum(spread, (stock - exact).abs().max())
    step = fast_step(model, case.loss_fn, case.optimizer(model), engine="generated")
    losses = torch.stack([step(x[row], y[row]) for row in rows]).double()
    assert step.engine == "generated C"
    assert losses[-100:].mean() < 0.8 * losses[:100].mean()  # it learns
    assert (losses - exact).abs().max() <= FEW_TIMES * spread
