"""Steps of loops that nobody rewrote: recorded, generated, and held against what they did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

from breakeven.capture.sessions.session import BackwardCalls
from faststep import FastStepError
from faststep.codegen.program import UnsupportedError
from faststep.codegen.tracing import without_onednn
from faststep.recorded import GeneratedCode, StepRecorder, generate_recorded

Step = Callable[[], object]


def recorded(step: Step) -> StepRecorder:
    """Return a recording of the third step: by then there is every state of an optimizer."""
    for _ in range(2):
        step()
    recorder = StepRecorder(lambda: "train.py:7")
    calls = BackwardCalls(lambda call: recorder.note_backward(call.outputs))
    with calls, without_onednn(), recorder:
        step()
    recorder.is_on = False
    return recorder


def generated(step: Step, *optimizers: torch.optim.Optimizer) -> GeneratedCode:
    """Return the generated code of a step, which did what the step did."""
    recorder = recorded(step)
    names = {
        id(value): name
        for optimizer in optimizers
        for state in optimizer.state.values()
        for name, value in state.items()
    }
    found = generate_recorded(recorder, names)
    found.run()  # it may be called again
    return found


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def supervised(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, *, max_norm: float = 0.0
) -> Step:
    y = torch.randn_like(model(x).detach())

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()

    return step


OPTIMIZERS = {
    "sgd": lambda p, **kw: torch.optim.SGD(p, lr=0.1, **kw),
    "momentum": lambda p, **kw: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **kw),
    "adam": lambda p, **kw: torch.optim.Adam(p, weight_decay=0.1, **kw),
    "adamw": lambda p, **kw: torch.optim.AdamW(p, amsgrad=True, **kw),
    "rmsprop": lambda p, **kw: torch.optim.RMSprop(p, centered=True, momentum=0.5, **kw),
    "adagrad": lambda p, **kw: torch.optim.Adagrad(p, lr_decay=0.1, **kw),
}


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_of_optimizers_are_generated(make: Callable[..., torch.optim.Optimizer], foreach):
    model = mlp()
    optimizer = make(model.parameters(), foreach=foreach)
    generated(supervised(model, optimizer, torch.randn(5, 4), max_norm=0.1), optimizer)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


MODELS = {
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), (6, 4)),
    "batch-norm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), (6, 4)),
    "lstm": (_Recurrent, (3, 4, 4)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        (3, 1, 8, 8),
    ),
}


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_steps_of_models_are_generated(make: Callable[[], nn.Module], shape: tuple[int, ...]):
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    generated(supervised(model, optimizer, torch.randn(shape)), optimizer)


def test_gradients_that_are_set_to_zero_and_added_to():
    model, x = mlp(), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        for half in x.split(3):
            model(half).pow(2).mean().backward()
        optimizer.step()

    generated(step, optimizer)


def test_two_optimizers_in_a_step():
    actor, critic, x = mlp(), mlp(), torch.randn(5, 4)
    first = torch.optim.Adam(actor.parameters())
    second = torch.optim.Adam(critic.parameters())

    def step() -> None:
        first.zero_grad()
        actor(x).pow(2).mean().backward()
        first.step()
        second.zero_grad()
        (critic(x) - actor(x).detach()).pow(2).mean().backward()
        second.step()

    generated(step, first, second)


def test_weights_that_a_loop_updates_by_itself():
    weights, x = torch.randn(4, 3, requires_grad=True), torch.randn(5, 4)

    def step() -> None:
        (x @ weights).pow(2).mean().backward()
        assert weights.grad is not None
        weights.data -= 0.1 * weights.grad
        weights.grad = None

    generated(step)


def test_a_loss_may_be_read_for_a_log():
    model, x, log = mlp(), torch.randn(5, 4), []
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        log.append(loss.item())
        loss.backward()
        optimizer.step()

    generated(step, optimizer)


def _reads_another_value(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out.pow(2).mean() * (2 if out.sum().item() > 0 else 1)


def _computes_with_the_loss(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).pow(2).mean()
    return loss / loss.item()


def _chooses_by_a_mask(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    return out[out > 0].pow(2).mean()


def _rounds(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).to(torch.bfloat16).pow(2).mean()


class _Own(Tensor):
    pass


def _is_of_its_own(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.as_subclass(_Own)).pow(2).mean()


def _sorts(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sort().values.pow(2).mean()


def _draws_from_data(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) * torch.bernoulli(x.sigmoid()).mean()).pow(2).mean()


REFUSED = [
    (_reads_another_value, "read in Python at train.py:7"),
    (_computes_with_the_loss, "value"),
    (_chooses_by_a_mask, "index|nonzero|mask"),
    (_rounds, "torch.bfloat16"),
    (_is_of_its_own, "_Own"),
    (_sorts, "sort"),
    (_draws_from_data, "depend on data"),
]


@pytest.mark.parametrize(("loss_of", "reason"), REFUSED)
def test_what_cannot_be_generated_is_named(loss_of: Callable[..., Tensor], reason: str):
    model, x = mlp(), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    with pytest.raises(FastStepError, match=reason):
        generate_recorded(recorded(step))


def test_fused_optimizers_are_refused_by_name():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with pytest.raises(UnsupportedError, match="_fused_adam_"):
        generate_recorded(recorded(supervised(model, optimizer, torch.randn(5, 4))))


def test_memory_that_several_tensors_share_is_not_written_to():
    flat = torch.randn(8)
    halves = [flat[:4].requires_grad_(), flat[4:].requires_grad_()]
    optimizer = torch.optim.SGD(halves, lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        (halves[0] * halves[1]).sum().backward()
        optimizer.step()

    with pytest.raises(UnsupportedError, match="share memory"):
        generate_recorded(recorded(step))


def test_other_numbers_than_those_of_the_step_are_noticed():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = recorded(supervised(model, optimizer, torch.randn(5, 4)))
    with torch.no_grad():
        model[0].weight.add_(0.01)
    with pytest.raises(FastStepError, match="computes something else: the parameter"):
        generate_recorded(recorder)


def test_a_step_is_recorded_as_it_would_have_gone():
    def trained(is_recorded: bool) -> list[Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        step = supervised(model, optimizer, torch.randn(5, 4))
        if is_recorded:
            recorded(step)
        else:
            for _ in range(3):
                step()
        return [parameter.detach() for parameter in model.parameters()]

    for plain, seen in zip(trained(False), trained(True), strict=True):
        assert torch.allclose(plain, seen, rtol=1e-6)
