"""Steps that go through more networks than they train, and losses that differentiate."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from faststep import fast_step

ENGINES = {"generated": "generated C", "inductor": "Inductor"}


def assert_same(found: nn.Module, wanted: nn.Module) -> None:
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(
            found.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=1e-3)


class Pair(nn.Module):
    """A generator and a discriminator; both normalise their batches, after no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
        )
        self.discriminator = nn.Sequential(
            nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1)
        )


class Tell(nn.Module):
    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, real: Tensor, noise: Tensor) -> Tensor:
        fake = self.pair.generator(noise).detach()
        right = self.pair.discriminator(real), self.pair.discriminator(fake)
        return cross_entropy(right[0], torch.ones_like(right[0])) + cross_entropy(
            right[1], torch.zeros_like(right[1])
        )


class Fool(nn.Module):
    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, noise: Tensor) -> Tensor:
        taken = self.pair.discriminator(self.pair.generator(noise))
        return cross_entropy(taken, torch.ones_like(taken))


def itself(output: Tensor, _: Any) -> Tensor:
    return output


@pytest.mark.slow
def test_a_gan_trains_by_two_steps_as_by_the_loop(engine: str) -> None:
    pair, other = Pair(), Pair()
    other.load_state_dict(pair.state_dict())
    tell = fast_step(Tell(pair), itself, adam(pair.discriminator), engine=engine)
    fool = fast_step(Fool(pair), itself, adam(pair.generator), engine=engine)
    optimizers = adam(other.discriminator), adam(other.generator)
    for _ in range(6):
        real, noise, more = torch.randn(16, 2), torch.randn(16, 4), torch.randn(16, 4)
        losses = tell((real, noise), ()), fool(more, ())
        wanted = []
        for module, batch, optimizer in (
            (Tell(other), (real, noise), optimizers[0]),
            (Fool(other), (more,), optimizers[1]),
        ):
            optimizer.zero_grad()
            wanted.append(module(*batch))
            wanted[-1].backward()
            optimizer.step()
        torch.testing.assert_close(losses, tuple(loss.detach() for loss in wanted))
    assert_same(pair, other)
    # The generator's step leaves the discriminator's statistics as the loop does: seen 18 times.
    assert pair.discriminator[2].num_batches_tracked == 18
    assert tell.engine == fool.engine == ENGINES[engine]


def test_a_step_sees_what_another_has_done_to_its_fixed_network(engine: str) -> None:
    """Not the parameters as they were when it was compiled; nor a network put in by loading."""
    pair = Pair()
    fool = fast_step(Fool(pair), itself, adam(pair.generator), engine=engine)
    noise = torch.randn(16, 4)
    for _ in range(3):
        fool(noise, ())
    with torch.no_grad():
        pair.discriminator[3].bias += 5.0
    wanted = Fool(copy.deepcopy(pair))(noise)
    torch.testing.assert_close(fool(noise, ()), wanted.detach())


class Heat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, points: Tensor) -> Tensor:
        points = points.detach().requires_grad_()
        heat = self.network(points)
        by_x, by_t = torch.autograd.grad(heat.sum(), points, create_graph=True)[0].unbind(dim=1)
        by_xx = torch.autograd.grad(by_x.sum(), points, create_graph=True)[0][:, 0]
        return heat.square().mean() + (by_t - by_xx).square().mean()


class Penalty(nn.Module):
    """The critic of a WGAN with gradient penalty, whose slope is asked for by the points alone."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, points: Tensor) -> Tensor:
        points = points.detach().requires_grad_()
        value = self.network(points)
        slope = torch.autograd.grad(value, points, torch.ones_like(value), create_graph=True)[0]
        return value.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


@pytest.mark.parametrize("kind", [Heat, Penalty])
def test_a_loss_may_differentiate(kind: type[nn.Module], engine: str) -> None:
    model = kind()
    other = copy.deepcopy(model)
    step = fast_step(model, itself, adam(model), engine=engine)
    optimizer = adam(other)
    for _ in range(5):
        points = torch.rand(16, 2)
        loss = step(points, ())
        optimizer.zero_grad()
        wanted = other(points)
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach())
    assert_same(model, other)
    assert step.engine == ENGINES[engine]


def test_a_module_of_two_names_and_a_weight_of_two_modules_stay_what_they_are(engine: str) -> None:
    """Torch's ``functional_call`` leaves other tensors in the first."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = self.first
            self.other = nn.Linear(3, 3)
            self.other.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.other(self.second(self.first(x)).tanh()).square().mean()

    model = Shared()
    weights = list(model.parameters())
    other = copy.deepcopy(model)
    step = fast_step(model, itself, adam(model), engine=engine)
    optimizer = adam(other)
    for _ in range(4):
        x = torch.randn(5, 3)
        step(x, ())
        optimizer.zero_grad()
        other(x).backward()
        optimizer.step()
    assert all(one is kept for one, kept in zip(model.parameters(), weights, strict=True))
    assert model.other.weight is model.first.weight
    assert_same(model, other)
    assert step.engine == ENGINES[engine]
