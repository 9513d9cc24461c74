"""`auto`: what it measures, what it says, and that it leaves no trace."""

from __future__ import annotations

import gc
import logging
import random
import warnings
from collections import UserDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from breakeven.errors import BreakevenError, UsageError
from breakeven.placement import auto, automatic, choose_device
from breakeven.placement.training_place import copy_model

# A second device that every machine has: it computes shapes only, but copies go to it, steps run
# on it and operators that need values fail on it, as on a device that lacks them.
CPU, OTHER = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "devices_present", lambda: (CPU, OTHER))


class Network(nn.Module):
    """Has all that a step might change: dropout, running statistics, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        random.random()
        np.random.rand()
        return self.last(nn.functional.dropout(self.norm(self.first(x)), 0.5, self.training))


def state_of(model: nn.Module) -> list[tuple[object, ...]]:
    return [
        (name, id(tensor), tensor.device, tensor.data_ptr(), tensor.detach().clone(), tensor.grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]


def assert_same_state(before: list[tuple[object, ...]], model: nn.Module) -> None:
    for old, new in zip(before, state_of(model), strict=True):
        assert old[:4] == new[:4]
        assert torch.equal(old[4], new[4])  # pyright: ignore[reportArgumentType]
        assert old[5] is new[5]


def test_one_device_is_returned_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "devices_present", lambda: (CPU,))

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("measured")

    assert auto(Fails(), torch.ones(1)) == CPU


@pytest.mark.usefixtures("two_devices")
def test_both_devices_are_measured() -> None:
    choice = choose_device(nn.Linear(4, 4), torch.ones(2, 4), budget_s=0.05)
    assert [time.name for time in choice.times] == ["cpu", "meta"]
    assert choice.device in (CPU, OTHER)
    assert "cpu: " in choice.reason


@pytest.mark.timing
@pytest.mark.usefixtures("two_devices")
def test_much_arithmetic_goes_to_the_device_that_skips_it() -> None:
    model = nn.Sequential(*(nn.Linear(1_024, 1_024) for _ in range(4)))
    assert auto(model, torch.ones(512, 1_024)) == OTHER


@pytest.mark.timing
@pytest.mark.usefixtures("two_devices")
def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="breakeven"):
        device = auto(nn.Linear(4, 4), torch.ones(2, 4), budget_s=0.05)
    assert f"trains on {device}" in caplog.text


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("is_training", [True, False])
def test_model_and_optimizer_stay_as_they_are(is_training: bool) -> None:
    model = Network().train(is_training)
    model(torch.ones(4, 8)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.step()
    before, steps = state_of(model), [dict(optimizer.state[p]) for p in model.parameters()]
    moments = [state["exp_avg"].clone() for state in steps]
    auto(model, torch.ones(4, 8), optimizer=optimizer, budget_s=0.05)
    assert_same_state(before, model)
    assert model.training is is_training
    assert optimizer.param_groups[0]["lr"] == 0.1
    for parameter, state, moment in zip(model.parameters(), steps, moments, strict=True):
        assert optimizer.state[parameter]["step"].item() == 1
        assert optimizer.state[parameter]["exp_avg"] is state["exp_avg"]
        assert torch.equal(state["exp_avg"], moment)


@pytest.mark.usefixtures("two_devices")
def test_random_numbers_stay_as_they_are() -> None:
    def draw() -> tuple[float, ...]:
        return (random.random(), float(np.random.rand()), float(torch.rand(())))

    model = Network()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = draw()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    auto(model, torch.ones(4, 8), budget_s=0.05)
    assert draw() == expected


@pytest.mark.usefixtures("two_devices")
def test_no_copy_outlives_the_measurement() -> None:
    class Unique(Network):
        pass

    model = Unique()
    choice = choose_device(model, torch.ones(4, 8), optimizer=torch.optim.Adam, budget_s=0.05)
    gc.collect()
    assert choice.times
    assert [item for item in gc.get_objects() if type(item) is Unique] == [model]


@pytest.mark.usefixtures("two_devices")
def test_settings_stay_as_they_are() -> None:
    def settings() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            warnings.filters[:],
        )

    before = settings()
    auto(Network(), torch.ones(4, 8), budget_s=0.05)
    assert settings() == before


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_computed_whatever_the_caller_does(mode: Callable[[], object]) -> None:
    losses: list[torch.Tensor] = []

    def loss_fn(output: torch.Tensor) -> torch.Tensor:
        losses.append(output.sum())
        return losses[-1]

    with mode():  # pyright: ignore[reportGeneralTypeIssues]
        auto(nn.Linear(4, 4), torch.ones(2, 4), loss_fn=loss_fn, budget_s=0.05)
        assert not torch.is_grad_enabled()
    assert all(loss.requires_grad for loss in losses)


@pytest.mark.usefixtures("two_devices")
def test_the_batch_stays_as_it_is() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.mul_(2))

    batch = torch.ones(2, 4)
    auto(InPlace(), batch, budget_s=0.05)
    assert torch.equal(batch, torch.ones(2, 4))


@pytest.mark.usefixtures("two_devices")
def test_hooks_of_all_optimizers_see_none_of_the_steps() -> None:
    seen: list[object] = []
    handle = register_optimizer_step_post_hook(lambda *args: seen.append(args))
    try:
        model = nn.Linear(4, 4)
        auto(model, torch.ones(2, 4), optimizer=torch.optim.SGD, budget_s=0.05)
        assert not seen
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert len(seen) == 1, "and they are back afterwards"
    finally:
        handle.remove()


@pytest.mark.usefixtures("two_devices")
def test_a_device_where_the_step_fails_is_left_out() -> None:
    class NeedsValues(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * x.sum().item()

    with pytest.warns(RuntimeWarning, match="leaves out meta: .*item") as caught:
        assert auto(NeedsValues(), torch.ones(2, 4)) == CPU
    assert caught[0].filename == __file__


@pytest.mark.usefixtures("two_devices")
def test_a_step_that_fails_everywhere_is_an_error() -> None:
    model = nn.Linear(4, 4)
    random_before = torch.get_rng_state()
    reasons = r"cpu: RuntimeError.*shapes.*; meta: RuntimeError"
    with pytest.raises(BreakevenError, match=reasons) as caught:
        auto(model, torch.ones(2, 5))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert torch.equal(torch.get_rng_state(), random_before)


@pytest.mark.usefixtures("two_devices")
def test_an_interrupt_gets_through_and_all_is_put_back() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.rand(3)
            raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        auto(Interrupted(), torch.ones(1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("two_devices")
def test_a_model_that_memory_does_not_hold_twice_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("breakeven.placement.training_place.available_bytes", lambda: 1_000)
    with pytest.warns(RuntimeWarning, match=r"leaves out cpu: .* a copy of the model .* free"):
        assert auto(nn.Linear(100, 100), torch.ones(2, 100)) == OTHER


@pytest.mark.usefixtures("two_devices")
def test_a_short_run_stays_on_the_cpu() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    choice = choose_device(model, torch.ones(64, 512), num_steps=2)
    assert choice.device == CPU
    assert [left.name for left in choice.left_out] == ["meta"]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.linear(a + b) * scale


class AsLoss(nn.Module):
    """Like a model of transformers: keyword arguments in, a mapping with a loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, input: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(input)
        return {"logits": logits, "loss": (logits - labels).square().mean()}


X, Y = torch.ones(2, 4), torch.zeros(2, 1)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("model", "batch", "loss_fn"),
    [
        (nn.Linear(4, 1), X, None),
        (nn.Linear(4, 1), X.numpy(), None),
        (nn.Linear(4, 1), [X, Y], None),
        (nn.Linear(4, 1), (X, Y), nn.functional.mse_loss),
        (Pair(), (X, X), None),
        (Pair(), (X, X, Y), nn.functional.mse_loss),
        (Pair(), {"a": X, "b": X}, None),
        (AsLoss(), UserDict(input=X, labels=Y), None),
        (nn.LSTM(4, 3, batch_first=True), torch.ones(2, 5, 4), None),
        (nn.DataParallel(nn.Linear(4, 1)), (X, Y), nn.functional.mse_loss),
        (nn.Linear(4, 1).requires_grad_(False), X, None),
    ],
)
def test_batches_that_are_understood(
    model: nn.Module, batch: object, loss_fn: Callable[..., torch.Tensor] | None
) -> None:
    choice = choose_device(model, batch, loss_fn=loss_fn, budget_s=0.02)
    assert len(choice.times) == 2, choice.reason


def test_layers_without_a_shape_yet_get_it_in_the_copy() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    copied, _ = copy_model(model, CPU)
    assert copied(X).shape == (2, 3)
    assert nn.parameter.is_lazy(model[0].weight)


@pytest.mark.usefixtures("two_devices")
def test_a_scheduled_optimizer_makes_no_step_of_its_own() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    before = model.weight.detach().clone()
    model(X).sum().backward()
    auto(model, X, optimizer=optimizer, budget_s=0.02)
    assert torch.equal(model.weight, before)
    optimizer.step()
    scheduler.step()  # warns where it believes that no step was made
    assert not torch.equal(model.weight, before)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    "make",
    [
        torch.optim.SGD,
        torch.optim.AdamW,
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=torch.tensor(0.1)),
    ],
)
@pytest.mark.parametrize("is_made", [True, False])
def test_optimizers_that_are_understood(
    make: Callable[..., torch.optim.Optimizer], is_made: bool
) -> None:
    model = nn.Linear(4, 1)
    optimizer = make(model.parameters()) if is_made else make
    choice = choose_device(model, X, optimizer=optimizer, budget_s=0.02)
    assert len(choice.times) == 2, choice.reason


@pytest.mark.usefixtures("two_devices")
def test_an_optimizer_that_evaluates_by_itself_is_refused() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(BreakevenError, match=r"fails on every device .*closure"):
        auto(model, X, optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": print}, "not a torch.nn.Module"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"budget_s": 0.0}, "budget_s is 0"),
        ({"budget_s": float("nan")}, "budget_s is nan"),
        ({"model": nn.Embedding(3, 3), "loss_fn": None}, "fails on every device"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters())}, "not the model's"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"model": nn.Linear(4, 1), "sample_batch": X, **arguments}
    with pytest.raises(BreakevenError, match=message):
        auto(**given)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("two_devices")
def test_an_output_that_cannot_be_a_loss_asks_for_one() -> None:
    class Decides(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).argmax(1)

    with pytest.raises(UsageError, match="no floating-point tensor") as caught:
        auto(Decides(4, 2), X)
    assert caught.value.hint is not None
    assert "loss_fn" in caught.value.hint


@pytest.mark.gpu
@pytest.mark.timing
def test_a_gpu_wins_where_there_is_much_to_do() -> None:
    model = nn.Sequential(*(nn.Linear(4_096, 4_096) for _ in range(4)))
    state = torch.cuda.get_rng_state()
    device = auto(model, torch.ones(4_096, 4_096), optimizer=torch.optim.Adam)
    assert device.type == "cuda"
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert auto(nn.Linear(4, 4), torch.ones(2, 4)).type == "cpu"
