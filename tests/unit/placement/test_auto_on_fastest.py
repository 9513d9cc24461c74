"""`on_fastest`: what it sets for a block or a step function, and that it is all put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from breakeven.errors import UsageError
from breakeven.placement import DeviceChoice, OnFastest, automatic, on_fastest

CPU, OTHER = torch.device("cpu"), torch.device("meta")
X, Y = torch.ones(2, 4), torch.zeros(2, 1)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        OnFastest, "choose", lambda self, batch: DeviceChoice(device=OTHER, num_threads=3)
    )


@pytest.fixture
def num_threads() -> int:
    return torch.get_num_threads()


@pytest.mark.usefixtures("chosen")
def test_a_block_has_the_model_and_the_threads_until_its_end(num_threads: int) -> None:
    model = nn.Linear(4, 1)
    with on_fastest(model, X) as device:
        assert device == OTHER
        assert model.weight.device == OTHER
        assert torch.get_num_threads() == 3
        # Values cannot come back from this device, as they do from a real one.
        model.to_empty(device=CPU)
    assert torch.get_num_threads() == num_threads
    assert model.weight.device == CPU


def test_what_was_learned_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "devices_present", lambda: (CPU,))
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    with on_fastest(model, X):
        model.weight.data.add_(1)
    assert torch.equal(model.weight, before + 1)


@pytest.mark.usefixtures("chosen")
def test_an_error_in_the_block_gets_through_and_all_is_put_back(num_threads: int) -> None:
    model = nn.Linear(4, 1)

    def fail() -> None:
        with on_fastest(model, X):
            model.to_empty(device=CPU)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert torch.get_num_threads() == num_threads


@pytest.mark.usefixtures("chosen")
def test_the_state_of_the_optimizer_moves_along() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    with on_fastest(model, X, optimizer=optimizer):
        assert state["exp_avg"].device == OTHER
        assert state["step"].device == CPU, "torch counts the steps there"
        model.to_empty(device=CPU)
        for entry in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                entry[name] = torch.zeros_like(entry[name], device=CPU)


@pytest.mark.usefixtures("chosen")
def test_a_step_function_gets_its_tensors_on_the_device(num_threads: int) -> None:
    model = nn.Linear(4, 1)
    calls: list[tuple[object, ...]] = []

    @on_fastest(model)
    def step(batch: dict[str, torch.Tensor], pair: list[torch.Tensor], name: str) -> str:
        """Say what came."""
        calls.append((batch["x"].device, pair[0].device, torch.get_num_threads()))
        return name

    assert step.choice is None
    assert step({"x": X}, [Y], name="kept") == "kept"
    assert step({"x": X}, [Y], name="again") == "again"
    assert calls == [(OTHER, OTHER, 3)] * 2
    assert torch.get_num_threads() == num_threads
    assert model.weight.device == OTHER
    assert step.__doc__ == "Say what came."
    assert step.choice is not None


def test_measuring_never_calls_the_step_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "devices_present", lambda: (CPU, OTHER))
    seen: list[tuple[object, ...]] = []
    choose = automatic._choose

    def choose_cpu(places: list[object], *rest: object) -> DeviceChoice:
        seen.append(tuple(calls))
        choice = choose(places, *rest)  # pyright: ignore[reportArgumentType]
        return DeviceChoice(device=CPU, times=choice.times)

    monkeypatch.setattr(automatic, "_choose", choose_cpu)
    model, calls = nn.Linear(4, 1), []

    @on_fastest(model, loss_fn=nn.functional.mse_loss, budget_s=0.02)
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        calls.append(x)

    before = model.weight.detach().clone()
    step(X, Y)
    assert seen == [()]
    assert len(calls) == 1
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


@pytest.mark.timing
def test_threads_of_the_cpu_are_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting so small a step among threads costs more than it saves, where it is split."""
    monkeypatch.setattr(automatic, "devices_present", lambda: (CPU,))
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        step = on_fastest(nn.Linear(4, 1), X)
        choice = step.choose(X)
        assert [time.name for time in choice.times] == [
            "cpu, 4 threads", "cpu, 2 threads", "cpu, 1 thread"
        ]  # fmt: skip
        assert choice.num_threads in (1, 2, 4)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_a_block_without_a_batch_says_what_to_write() -> None:
    with pytest.raises(UsageError, match="no sample batch"), on_fastest(nn.Linear(4, 1)):
        pass


def test_a_model_on_several_devices_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device=OTHER))
    with pytest.raises(UsageError, match="several devices: cpu, meta"), on_fastest(model, X):
        pass


@pytest.mark.usefixtures("chosen")
def test_a_block_is_not_entered_twice_at_once() -> None:
    model = nn.Linear(4, 1)
    block = on_fastest(model, X)
    with block:
        with pytest.raises(UsageError, match="entered already"), block:
            pass
        model.to_empty(device=CPU)
