"""Steps done by parts of their samples: the same numbers, or not divided at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from generated_call import GeneratedCall
from torch import Tensor, nn

from faststep.codegen.emit import choose_sample_parts
from faststep.codegen.program import Buffer, Call, Program, View

SAMPLES = 32
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def divided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Divide all steps that can be, however small they are, by four threads at most."""
    monkeypatch.setattr(
        "faststep.codegen.dividing.choose_sample_parts", lambda half, count, lanes: 4
    )
    before = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Last(nn.Module):
    """A recurrent layer and a linear one on its last output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Attention(nn.Module):
    """Attention within each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.inner(x, x, x, need_weights=False)[0]).mean(1)


def mean_square(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x)[:, :3], y)


def chosen(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of what was chosen, as in Q-learning."""
    best = model(x).gather(1, (y[:, :1] > 0).long())
    return (best - y[:, 1:2]).abs().sum() / len(x)


def of_classes(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of classes, some of which do not count."""
    classes = torch.where(y[:, 0] > 1, -100, (y[:, 1] > 0).long())
    return nn.functional.cross_entropy(model(x), classes)


def of_normalised_targets(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mean_square(model, x, (y - y.mean(0)) / (y.std(0) + 1e-3))


def of_batch_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x)[:, :3]
    return ((out - out.mean(0)) - y).square().mean()


def of_next_sample(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, :3].roll(1, 0) - y).square().mean()


def of_some_samples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:20, :3] - y[:20]).square().mean()


def of_weights_for_samples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    weights = torch.linspace(0, 1, len(x)).unsqueeze(1)
    return ((model(x)[:, :3] - y).square() * weights).mean()


def of_softmax_over_samples(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, :3].softmax(0) * y).sum()


def with_penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    penalty = sum(one.square().sum() for one in model.parameters())
    return mean_square(model, x, y) + 1e-2 * penalty


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 4))


DIVIDED: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[int, ...]]] = {
    "mlp": (mlp, mean_square, (5,)),
    "mlp-of-sequences": (lambda: nn.Sequential(mlp(), nn.Flatten()), mean_square, (6, 5)),
    "penalty": (mlp, with_penalty, (5,)),
    "chosen": (mlp, chosen, (5,)),
    "classes": (mlp, of_classes, (5,)),
    "normalised-targets": (mlp, of_normalised_targets, (5,)),
    "lstm": (lambda: Last(nn.LSTM(5, 32, batch_first=True)), mean_square, (4, 5)),
    "gru": (lambda: Last(nn.GRU(5, 6, num_layers=2, batch_first=True)), mean_square, (4, 5)),
    "attention": (Attention, mean_square, (6, 8)),
}
TOGETHER: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[int, ...]]] = {
    "batch-norm": (
        lambda: nn.Sequential(mlp(), nn.BatchNorm1d(4, track_running_stats=False)),
        mean_square,
        (5,),
    ),
    "batch-mean": (mlp, of_batch_mean, (5,)),
    "next-sample": (mlp, of_next_sample, (5,)),
    "some-samples": (mlp, of_some_samples, (5,)),
    "weights-for-samples": (mlp, of_weights_for_samples, (5,)),
    "softmax-over-samples": (mlp, of_softmax_over_samples, (5,)),
    "samples-along-another-dimension": (lambda: Last(nn.GRU(5, 6)), mean_square, (4, 5)),
}
SLOW = ("lstm", "gru", "attention", "samples-along-another-dimension")


def names_of(cases: dict[str, tuple[Callable[[], nn.Module], Loss, tuple[int, ...]]]) -> list:
    return [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in cases]


def generate(
    create: Callable[[], nn.Module], loss_fn: Loss, shape: tuple[int, ...]
) -> tuple[GeneratedCall, list[Tensor], list[Tensor]]:
    """Return code for a loss and its gradients, what it is called with, and exact results."""
    model = create()
    names = [name for name, _ in model.named_parameters()]

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss_fn(self.model, x, y)

    whole = Loss()

    def function(*tensors: Tensor) -> list[Tensor]:
        params = [one.detach().requires_grad_() for one in tensors[:-2]]
        given = {f"model.{name}": one for name, one in zip(names, params, strict=True)}
        loss = torch.func.functional_call(whole, given, tensors[-2:])
        return [loss.detach(), *torch.autograd.grad(loss, params)]

    params = [one.detach().clone() for one in model.parameters()]
    arguments = [*params, torch.randn(SAMPLES, *shape), torch.randn(SAMPLES, 3)]
    call = GeneratedCall(function, arguments, batch=(len(params), len(params) + 1))
    whole.double()
    exact = function(*(one.double() for one in arguments))
    return call, arguments, exact


def check(call: GeneratedCall, arguments: list[Tensor], exact: list[Tensor]) -> list[Tensor]:
    found = list(call(*arguments))
    largest = max(float(one.abs().max()) for one in exact)
    for one, other in zip(found, exact, strict=True):
        assert (one - other).abs().max() < 2e-6 * largest
    return found


@pytest.mark.parametrize("name", names_of(DIVIDED))
def test_the_parts_together_are_the_whole_for_any_number_of_threads(name: str) -> None:
    call, arguments, exact = generate(*DIVIDED[name])
    assert call.is_divided
    torch.set_num_threads(1)
    alone = check(call, arguments, exact)
    for threads in (2, 3, 4, 2):
        torch.set_num_threads(threads)
        for _ in range(5):
            for one, other in zip(call(*arguments), alone, strict=True):
                assert torch.equal(one, other), threads


@pytest.mark.parametrize("name", names_of(TOGETHER))
def test_what_looks_at_several_samples_is_not_divided(name: str) -> None:
    call, arguments, exact = generate(*TOGETHER[name])
    assert not call.is_divided
    check(call, arguments, exact)


def test_an_index_out_of_range_in_any_part_is_an_error() -> None:
    rows = torch.randn(SAMPLES, 9)
    index = torch.randint(0, 9, (SAMPLES, 1))

    def function(rows: Tensor, index: Tensor) -> list[Tensor]:
        return [(rows.gather(1, index) @ torch.ones(1, 2)).sum(0)]

    call = GeneratedCall(function, [rows, index], batch=(0, 1))
    assert call.is_divided
    torch.testing.assert_close(call(rows, index)[0], function(rows, index)[0])
    for place in (0, SAMPLES - 1):
        wrong = index.clone()
        wrong[place] = 9
        with pytest.raises(IndexError):
            call(rows, wrong)


def test_what_is_not_linear_is_done_with_the_sum() -> None:
    def function(w: Tensor, x: Tensor) -> list[Tensor]:
        total = (x @ w).sum(0)
        return [
            torch.div(total, 7, rounding_mode="floor"),
            total + 1,
            1 / total,
            total * total,
            torch.maximum(total, -total),
            total.view(3, 1).neg().T / 2,
        ]

    w, x = torch.ones(5, 3), torch.randint(-9, 9, (SAMPLES, 5)).float()
    call = GeneratedCall(function, [w, x], batch=(1,))
    assert call.is_divided
    for found, expected in zip(call(w, x), function(w, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_samples_may_lie_apart() -> None:
    def function(w: Tensor, x: Tensor) -> list[Tensor]:
        return [(x @ w).tanh().sum(0)]

    w, x = torch.randn(5, 3), torch.randn(SAMPLES, 11)[:, 2:7]
    call = GeneratedCall(function, [w, x], batch=(1,))
    assert call.is_divided
    torch.testing.assert_close(call(w, x)[0], function(w, x)[0])


def test_small_steps_large_sums_and_large_statements_are_not_divided() -> None:
    def parts(operations: float, sums: int, samples: int, statements: int = 10) -> int:
        view = View(Buffer(torch.float32, sums), (sums,), (1,))
        one = Call("", (view,), (view,), 0, operations=operations / statements)
        return choose_sample_parts(Program([], [one] * statements, [view]), samples, 16)

    assert parts(4e5, 1000, 64) == 0
    assert parts(6e5, 1000, 64) == 2
    assert parts(3e6, 1000, 256) == 8
    assert parts(3e6, 1000, 64) == 4
    assert parts(3e6, 1000, 48) == 0
    assert parts(3e6, 1_000_000, 256) == 0
    assert parts(6e5, 1000, 64, statements=100) == 0
    # Threads share its statements, each in as many parts as there may be threads.
    assert parts(4e7, 1000, 256) == 0
    assert parts(4e7, 1000, 256, statements=100) == 8
