"""What is recorded of a training loop, and that recording leaves nothing behind."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from breakeven.capture import RunRequest, find_target
from breakeven.capture.sessions.numbers import (
    NumbersSession,
    ParameterNames,
    WeightNoise,
    random_state_digest,
    repeatable_random_numbers,
    tensor_numbers,
)
from breakeven.trace import Configuration
from breakeven.verdict import RecordedNumbers, TensorNumbers

Loop = Callable[[], None]


def record(
    loop: Loop, folder: Path, *, num_steps: int = 3, noise: float = 0.0, **settings: object
) -> RecordedNumbers:
    """Record a loop in this process."""
    path = folder / "numbers"
    script = folder / "script.py"
    script.touch()
    request = RunRequest(
        target=find_target(str(script), ()),
        is_traced=False,
        time_limit_s=10.0,
        num_recorded_steps=num_steps,
        raw_numbers_path=os.fsencode(path),
        weight_noise_roundoffs=noise,
        configuration=msgspec.convert(settings, Configuration),
    )
    session = NumbersSession(request, lambda: None)
    with session:
        loop()
    assert session.result() is not None
    return msgspec.msgpack.decode(path.read_bytes(), type=RecordedNumbers)


def train(optimizer_type: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
    """Train a small network for three steps."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = optimizer_type(model.parameters(), lr=0.1)  # pyright: ignore[reportCallIssue]
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()


def test_each_step_has_its_loss_and_the_named_gradients_before_the_update(tmp_path: Path) -> None:
    expected: list[tuple[float, list[float]]] = []

    def loop() -> None:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            assert model[0].weight.grad is not None
            expected.append((loss.item(), model[0].weight.grad.double().flatten().tolist()))
            optimizer.step()

    recorded = record(loop, tmp_path)
    assert len(recorded.steps) == 3
    for step, (loss, gradient) in zip(recorded.steps, expected, strict=True):
        assert [tensor.values[0] for tensor in step.losses] == [loss]
        assert [each.name for each in step.gradients] == [
            "0.weight", "0.bias", "1.weight", "1.bias",
        ]  # fmt: skip
        assert step.gradients[0].values.tolist() == gradient


def test_a_closure_is_recorded_after_it_has_run(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        batch = torch.randn(8, 4)

        def evaluate() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(batch) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(evaluate)  # pyright: ignore[reportArgumentType]

    (step,) = record(loop, tmp_path).steps
    assert len(step.losses) > 1
    assert [loss.name for loss in step.losses][:2] == ["the loss", "loss 2"]
    assert [each.name for each in step.gradients] == ["weight"]


def test_two_optimizers_are_told_apart(tmp_path: Path) -> None:
    def loop() -> None:
        parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
        optimizers = [torch.optim.SGD([each], lr=0.1) for each in parameters]
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.sum().backward()
            optimizer.step()

    recorded = record(loop, tmp_path)
    keys = [each.key for step in recorded.steps for each in step.gradients]
    assert keys == ["optimizer0.group0.0", "optimizer1.group0.0"]


def test_gradients_that_a_fused_optimizer_unscales_itself_are_unscaled(tmp_path: Path) -> None:
    def loop_with(*, fused: bool) -> Loop:
        def loop() -> None:
            model = nn.Linear(4, 1)
            optimizer = torch.optim.Adam(model.parameters(), fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(8, 4)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        return loop

    plain, fused = (record(loop_with(fused=fused), tmp_path) for fused in (False, True))
    for own, other in zip(plain.steps[0].gradients, fused.steps[0].gradients, strict=True):
        assert own.norm > 0
        assert own.digest == other.digest


def test_the_scripts_own_autocast_is_noted(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        optimizer.step()

    assert record(loop, tmp_path).arithmetic == "bfloat16"
    assert record(train, tmp_path).arithmetic == ""


def test_unseeded_runs_are_alike_and_follow_the_scripts_own_seed(tmp_path: Path) -> None:
    def seeded() -> None:
        torch.manual_seed(5)
        train()

    one, other, own = (record(loop, tmp_path) for loop in (train, train, seeded))
    assert one == other
    assert own.steps[0].losses != one.steps[0].losses
    assert own.rng_digest != one.rng_digest


def test_noise_changes_the_numbers_by_little_and_draws_none(tmp_path: Path) -> None:
    plain, noisy = (record(train, tmp_path, noise=noise) for noise in (0.0, 16.0))
    assert noisy.rng_digest == plain.rng_digest
    own, other = (run.steps[0].gradients[0] for run in (plain, noisy))
    difference = max(abs(a - b) for a, b in zip(own.values, other.values, strict=True))
    assert 0 < difference < 1e-4 * own.norm


def test_everything_is_put_back(tmp_path: Path) -> None:
    hooks = importlib.import_module("torch.optim.optimizer")

    def state() -> tuple[object, ...]:
        return (
            torch.autograd.backward, torch.optim.Optimizer.__init__, torch.Tensor.to, torch.seed,
            random.seed, np.random.bit_generator.randbits, torch.autocast.__enter__, torch.compile,
            torch.get_num_threads(), random_state_digest(),
            len(hooks._global_optimizer_pre_hooks), len(hooks._global_optimizer_post_hooks),
        )  # fmt: skip

    before = state()
    record(train, tmp_path, noise=16.0)
    assert state() == before
    record(train, tmp_path, flushes_denormals=True)
    assert state() == before


def test_generators_without_a_seed_differ_from_each_other_but_not_between_runs() -> None:
    def draw() -> list[float]:
        with repeatable_random_numbers():
            first, second = np.random.default_rng(), np.random.default_rng()
            torch.seed()
            drawn = [first.random(), second.random(), torch.rand(()).item()]
            random.seed()
            np.random.seed()
            return [*drawn, random.random(), np.random.random()]

    drawn = draw()
    assert drawn == draw()
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_memory_layout_does_not_count_but_values_and_formats_do(dtype: torch.dtype) -> None:
    tensor = torch.randn(2, 3, 4, 5).to(dtype)
    last = tensor.contiguous(memory_format=torch.channels_last)
    one, other = (tensor_numbers(each, key="k", name="n") for each in (tensor, last))
    assert one == other
    assert one.norm == pytest.approx(float(tensor.double().norm()))
    assert one.values.tolist() == tensor.double().flatten().tolist()
    changed = tensor.clone()
    changed[1, 2, 3, 4] *= 2
    assert tensor_numbers(changed, key="k", name="n").digest != one.digest


@pytest.mark.parametrize(
    ("tensor", "num_not_finite", "norm"),
    [
        (torch.tensor([3.0, float("nan"), 4.0, float("inf")]), 2, 5.0),
        (torch.tensor([3 + 4j]), 0, 5.0),
        (torch.zeros(0, 4), 0, 0.0),
    ],
)
def test_the_norm_is_that_of_the_finite_values(
    tensor: torch.Tensor, num_not_finite: int, norm: float
) -> None:
    numbers = tensor_numbers(tensor, key="k", name="n")
    assert (numbers.num_not_finite, numbers.norm) == (num_not_finite, norm)


def test_sparse_gradients_are_kept_with_their_places() -> None:
    found: list[TensorNumbers] = []
    for indices in ([1, 7, 1], [1, 8, 1]):
        embedding = nn.Embedding(10, 3, sparse=True)
        embedding(torch.tensor(indices)).sum().backward()
        assert embedding.weight.grad is not None
        found.append(tensor_numbers(embedding.weight.grad, key="k", name="n"))
    for numbers in found:
        assert numbers.shape == (2, 3)
        assert numbers.values.tolist() == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert found[0].digest != found[1].digest


def test_of_a_large_tensor_every_column_is_kept() -> None:
    tensor = torch.arange(512.0).expand(4096, 512)
    numbers = tensor_numbers(tensor, key="k", name="n")
    assert len(numbers.values) <= 4096
    assert set(numbers.values) == set(range(512))
    assert numbers.num_elements == 4096 * 512


def test_names_are_those_of_the_outermost_model() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2))

    outer, lone = Outer(), nn.Parameter(torch.ones(1))
    names = ParameterNames()
    assert names.name_of(outer.inner[0].weight) == "inner.0.weight"
    assert names.name_of(lone) == ""


def test_noise_moves_each_weight_by_the_same_fraction_and_depends_on_its_seed_alone() -> None:
    def change(seed: int) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(1.0, 1000.0, 100))
        before = weight.detach().clone()
        with WeightNoise(2.0**14, seed):
            torch.optim.SGD([weight], lr=0.1)
        return weight.detach() / before - 1

    size = change(1).abs()
    assert torch.allclose(size, torch.full_like(size, 2.0**-10), rtol=1e-3)
    assert torch.equal(change(1), change(1))
    assert not torch.equal(change(0), change(1))
