"""Tensors that a step returns beside its loss: the stock step's, whatever does the step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faststep import FastStepError, fast_step


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def make_step(model: nn.Module, loss_fn: Any, **options: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return fast_step(model, loss_fn, optimizer, has_aux=True, **options)


def classify(output: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Any]]:
    is_right = output.argmax(dim=1) == targets
    aux = {"right": is_right, "parts": (is_right.float().mean(), output.square().mean())}
    return nn.functional.cross_entropy(output, targets), aux


def make_batches(count: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 3), torch.randint(4, (size,))) for _ in range(count)]


def test_each_step_returns_what_the_stock_step_has_beside_its_loss(engine: str) -> None:
    model = make_model()
    other = copy.deepcopy(model)
    step = make_step(model, classify, engine=engine)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    kept = []
    for x, y in make_batches(6):
        loss, aux = step(x, y)
        wanted, beside = classify(other(x), y)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach())
        torch.testing.assert_close(aux["parts"], tuple(one.detach() for one in beside["parts"]))
        assert torch.equal(aux["right"], beside["right"])
        assert not any(one.requires_grad for one in (loss, *aux["parts"]))
        kept.append((aux["parts"][1], aux["parts"][1].item()))
    assert step.engine == {"generated": "generated C", "inductor": "Inductor"}[engine]
    # What one step returned is not overwritten by the next.
    assert all(tensor.item() == value for tensor, value in kept)


def test_several_steps_return_it_stacked(engine: str) -> None:
    model = make_model()
    other = copy.deepcopy(model)
    x, y = torch.randn(20, 3), torch.randint(4, (20,))
    indices = torch.randint(20, (7, 5))
    step = make_step(model, classify, steps_per_call=3, engine=engine)
    losses, aux = step.run(x, y, indices)
    single = make_step(other, classify, engine=engine)
    wanted = [single(x[row], y[row]) for row in indices]
    torch.testing.assert_close(losses, torch.stack([loss for loss, _ in wanted]))
    assert aux["right"].shape == (7, 5)
    means = torch.stack([one["parts"][1] for _, one in wanted])
    torch.testing.assert_close(aux["parts"][1], means)


def test_an_argument_and_a_constant_can_come_beside_the_loss(engine: str) -> None:
    def loss_fn(output: Tensor, targets: Tensor) -> Any:
        return nn.functional.cross_entropy(output, targets), [targets, torch.ones(2)]

    step = make_step(make_model(), loss_fn, engine=engine)
    for x, y in make_batches(3):
        _, (same, ones) = step(x, y)
        assert torch.equal(same, y)
        assert torch.equal(ones, torch.ones(2))


def test_what_an_update_writes_comes_beside_the_loss_as_it_was(engine: str) -> None:
    class Told(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.bias

    def loss_fn(output: Any, targets: Tensor) -> Any:
        return nn.functional.cross_entropy(output[0], targets), output[1]

    model = Told(3, 4)
    step = make_step(model, loss_fn, engine=engine)
    for x, y in make_batches(4):
        before = model.bias.detach().clone()
        _, bias = step(x, y)
        assert torch.equal(bias, before)
        assert not torch.equal(bias, model.bias)


def test_what_differs_beside_the_loss_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    from faststep.codegen import toolchain

    load = toolchain.load
    monkeypatch.setattr(
        "faststep.codegen.generated.load",
        lambda source: load(source.replace("f32_exp(", "1.01f * f32_exp(")),
    )

    def loss_fn(output: Tensor, targets: Tensor) -> Any:
        return output.square().mean(), targets.exp()

    step = make_step(make_model(), loss_fn, engine="generated")
    x = torch.randn(6, 3)
    step(x, x)
    with pytest.raises(FastStepError, match="tensor 0 of aux"):
        step(x, x)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda output, _: output.mean(), "returned Tensor"),
        (lambda output, _: (output.mean(), 1.5), "holds float"),
    ],
)
def test_what_is_no_pair_or_no_tensor_is_refused(loss_fn: Any, message: str) -> None:
    step = make_step(make_model(), loss_fn)
    with pytest.raises(FastStepError, match=message):
        step(*make_batches(1)[0])


def test_distributions_that_check_their_arguments_are_compiled(engine: str) -> None:
    """A check reads values in Python: done by the stock step, left out of what is compiled."""

    def loss_fn(output: Tensor, actions: Tensor) -> Any:
        spread = torch.distributions.Categorical(logits=output)
        normal = torch.distributions.Normal(output[:, 0], output[:, 1].exp())
        loss = -spread.log_prob(actions).mean() - normal.log_prob(output[:, 2]).mean()
        return loss, spread.entropy().mean()

    step = make_step(make_model(), loss_fn, engine=engine)
    for x, y in make_batches(3):
        loss, entropy = step(x, y)
        assert loss.isfinite()
        assert entropy > 0
    assert step.num_compiled == 1
    with pytest.raises(ValueError, match="logits"):
        torch.distributions.Categorical(logits=torch.full((2,), torch.nan))


def test_nothing_beside_the_loss_is_returned_as_nothing_at_every_call() -> None:
    model = nn.Linear(3, 2)
    step = fast_step(
        model,
        lambda output, targets: (nn.functional.mse_loss(output, targets), {}),
        torch.optim.SGD(model.parameters(), lr=0.1),
        has_aux=True,
        engine="generated",
    )
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    assert [step(x, y)[1] for _ in range(6)] == [{}] * 6
