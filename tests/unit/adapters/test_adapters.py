"""What the adapters make of a model, without the packages that they are for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from breakeven.adapters import accelerator, training_arguments
from breakeven.errors import BreakevenError
from breakeven.placement import automatic

X, Y = torch.ones(2, 4), torch.zeros(2, 1)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = (torch.device("cpu"), torch.device("meta"))
    monkeypatch.setattr(automatic, "devices_present", lambda: devices)


class LikeLightning(nn.Module):
    """What `accelerator` looks at of a LightningModule."""

    def __init__(self, configured: Callable[[Any], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.configured = configured
        self.batches: list[object] = []  # shared by nobody: copies have their own
        self.made: object = None

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        assert batch_idx == 0
        x, y = batch
        SEEN.append((type(batch), x.device.type))
        return (self.linear(x) - y).square().mean()

    def configure_optimizers(self) -> object:
        self.made = self.configured(self)
        return self.made


SEEN: list[tuple[type, str]] = []


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    "configured",
    [
        sgd,
        lambda model: [sgd(model)],
        lambda model: ([sgd(model)], []),
        lambda model: {"optimizer": sgd(model), "lr_scheduler": None},
        lambda model: None,
    ],
)
def test_training_step_is_what_is_measured(configured: Callable[[Any], object]) -> None:
    SEEN.clear()
    model = LikeLightning(configured)
    before = model.linear.weight.detach().clone()
    assert accelerator(model, [X, Y], budget_s=0.02) == "cpu"  # no accelerator is called meta
    assert {device for _, device in SEEN} == {"cpu", "meta"}
    assert {kind for kind, _ in SEEN} == {list}
    assert torch.equal(model.linear.weight, before)
    assert model.made is None, "configure_optimizers did not reach the user's module"


@pytest.mark.usefixtures("two_devices")
def test_an_optimizer_that_needs_its_trainer_is_left_out_with_a_warning() -> None:
    def fail(model: Any) -> object:
        raise RuntimeError("no trainer is attached")

    with pytest.warns(RuntimeWarning, match="without the optimizer.*no trainer") as caught:
        accelerator(LikeLightning(fail), [X, Y], budget_s=0.02)
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("two_devices")
def test_any_module_is_measured_by_its_forward() -> None:
    assert accelerator(nn.Linear(4, 1), (X, Y), loss_fn=nn.functional.mse_loss) == "cpu"


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", "cpu"), ("cuda:1", "gpu"), ("mps", "mps")]
)
def test_accelerators_by_device(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: str
) -> None:
    monkeypatch.setattr(automatic, "devices_present", lambda: (torch.device(device),))
    assert accelerator(nn.Linear(4, 1), X) == expected


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BreakevenError, match="transformers cannot be imported") as caught:
        training_arguments(nn.Linear(4, 1), {})
    assert caught.value.hint == "pip install transformers accelerate"
