"""The whole step does what the loop did: generated, and traced for Inductor.

What Inductor would get is traced for real, but not compiled: see tests/e2e.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from factories.traced_steps import run_as_traced
from faststep import FastStepError, fast_step, inductor
from faststep.engines import NUM_RARE, Engine
from faststep.fast import FastStep
from faststep.inductor import compile_tensors, trace_tensors


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what Inductor would get as it is traced: compiling takes seconds."""
    run_as_traced(monkeypatch)


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batches(count: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 3), torch.randn(size, 2)) for _ in range(count)]


def stock(model: nn.Module, loss_fn: Any, optimizer: Any, x: Any, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_same(model: nn.Module, other: nn.Module) -> None:
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, msg=name)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "sgd-dampening": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.3, maximize=True
    ),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
    "rmsprop-centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01),
}


def make_pair(
    engine: Engine, create: Callable[[Any], Any], model: nn.Module | None = None, **options: Any
) -> tuple[nn.Module, Any, FastStep, nn.Module, Any]:
    model = model or make_mlp()
    other = copy.deepcopy(model)
    optimizer, other_optimizer = create(model.parameters()), create(other.parameters())
    step = fast_step(model, nn.MSELoss(), optimizer, engine=engine, **options)
    return model, optimizer, step, other, other_optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_the_loop_does_and_hands_its_state_over(engine: Engine, name: str) -> None:
    model, optimizer, step, other, other_optimizer = make_pair(engine, OPTIMIZERS[name])
    data = batches(12)
    for x, y in data[:5]:
        torch.testing.assert_close(step(x, y), stock(other, nn.MSELoss(), other_optimizer, x, y))
    assert step.num_compiled == 1
    assert_same(model, other)
    # From the fast step to a stock loop, by a file.
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    saved = torch.load(file)
    third = make_mlp()
    third_optimizer = OPTIMIZERS[name](third.parameters())
    third.load_state_dict(saved[0])
    third_optimizer.load_state_dict(saved[1])
    for x, y in data[5:8]:
        stock(third, nn.MSELoss(), third_optimizer, x, y)
        stock(other, nn.MSELoss(), other_optimizer, x, y)
    assert_same(third, other)
    # And back into the fast step.
    model.load_state_dict(other.state_dict())
    optimizer.load_state_dict(copy.deepcopy(other_optimizer.state_dict()))
    for x, y in data[8:]:
        step(x, y)
        stock(other, nn.MSELoss(), other_optimizer, x, y)
    assert_same(model, other)
    assert all(param.grad is None for param in model.parameters())


@pytest.mark.parametrize("name", ["sgd-nesterov", "adamw", "adagrad"])
def test_several_steps_in_a_call(engine: Engine, name: str) -> None:
    model, _, step, other, other_optimizer = make_pair(engine, OPTIMIZERS[name], steps_per_call=3)
    x_data, y_data = torch.randn(20, 3), torch.randn(20, 2)
    indices = torch.randint(0, 20, (14, 4))
    losses = step.run(x_data, y_data, indices)
    wanted = [
        stock(other, nn.MSELoss(), other_optimizer, x_data[row], y_data[row]) for row in indices
    ]
    torch.testing.assert_close(losses, torch.stack(wanted))
    assert_same(model, other)


def test_schedulers_and_groups_count(engine: Engine) -> None:
    def create(params: Any) -> torch.optim.Optimizer:
        first, *rest = params
        return torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.01)

    model, optimizer, step, other, other_optimizer = make_pair(engine, create)
    ours = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    theirs = torch.optim.lr_scheduler.StepLR(other_optimizer, 2, gamma=0.5)
    for x, y in batches(7):
        step(x, y)
        stock(other, nn.MSELoss(), other_optimizer, x, y)
        ours.step()
        theirs.step()
    assert_same(model, other)
    assert step.num_compiled == 1  # the rate is a number that the compiled step is given


def test_batch_norm_ties_frozen_parameters_and_clipping(engine: Engine) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            # A bias here has no gradient but rounding noise, which Adam turns into whole steps.
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight
            self.norm = nn.BatchNorm1d(3)
            self.frozen = nn.Linear(3, 2)
            self.frozen.weight.requires_grad_(False)
            self.unused = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.norm(self.second(torch.relu(self.first(x)))))

    model, optimizer, step, other, other_optimizer = make_pair(
        engine, OPTIMIZERS["adamw"], Net(), max_grad_norm=0.05
    )
    for x, y in batches(6):
        step(x, y)
        other_optimizer.zero_grad()
        nn.MSELoss()(other(x), y).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        other_optimizer.step()
    assert_same(model, other)
    assert model.norm.num_batches_tracked == 6
    assert len(optimizer.state) == len(other_optimizer.state)


def test_dropout_draws_what_the_loop_draws(engine: Engine) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    _, _, step, other, other_optimizer = make_pair(engine, OPTIMIZERS["sgd"], net)
    data = batches(5)
    torch.manual_seed(1)
    ours = [step(x, y) for x, y in data]
    after = torch.get_rng_state()
    torch.manual_seed(1)
    theirs = [stock(other, nn.MSELoss(), other_optimizer, x, y) for x, y in data]
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(after, torch.get_rng_state())


def test_another_shape_is_compiled_only_when_it_comes_again(engine: Engine) -> None:
    model, _, step, other, other_optimizer = make_pair(engine, OPTIMIZERS["adam"])
    for _ in range(NUM_RARE + 2):
        for x, y in (*batches(3), *batches(1, size=2)):
            step(x, y)
            stock(other, nn.MSELoss(), other_optimizer, x, y)
    assert_same(model, other)
    assert step.num_compiled == 2


def test_where_many_shapes_were_compiled_no_other_one_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststep.engines.MOST_COMPILED", 1)
    model, _, step, other, other_optimizer = make_pair(engine, OPTIMIZERS["adam"])

    def train(count: int, size: int) -> None:
        for x, y in batches(count, size=size):
            step(x, y)
            stock(other, nn.MSELoss(), other_optimizer, x, y)

    train(2, size=8)
    with pytest.warns(UserWarning, match="1 steps of different shapes were compiled"):
        train(1, size=2)
    train(NUM_RARE + 2, size=2)
    assert_same(model, other)
    assert step.num_compiled == 1


def test_what_is_switched_in_the_model_is_noticed(engine: Engine) -> None:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model, optimizer, step, other, other_optimizer = make_pair(engine, OPTIMIZERS["adam"], net)

    def train(count: int) -> None:
        for x, y in batches(count):
            step(x, y)
            stock(other, nn.MSELoss(), other_optimizer, x, y)
        assert_same(model, other)

    train(3)
    for either in (model, other):
        either.eval()
    train(3)
    assert step.num_compiled == 2
    for either in (model, other):
        either.train()
        either[0].weight.requires_grad_(False)
    train(3)
    for each in (optimizer, other_optimizer):
        each.param_groups[0]["weight_decay"] = 0.1
    train(3)
    for either in (model, other):
        either.double()
    x, y = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    for each in (optimizer, other_optimizer):
        for state in each.state.values():
            state["exp_avg"], state["exp_avg_sq"] = (
                state[name].double() for name in ("exp_avg", "exp_avg_sq")
            )
    for _ in range(3):
        step(x, y)
        stock(other, nn.MSELoss(), other_optimizer, x, y)
    assert_same(model, other)


def test_steps_done_by_the_loop_in_between_count(engine: Engine) -> None:
    model, optimizer, step, other, other_optimizer = make_pair(engine, OPTIMIZERS["adam"])
    for number, (x, y) in enumerate(batches(9)):
        if number in (4, 5):
            stock(model, nn.MSELoss(), optimizer, x, y)
        else:
            step(x, y)
        stock(other, nn.MSELoss(), other_optimizer, x, y)
    assert_same(model, other)


def test_arguments_by_name_and_a_weighted_loss(engine: Engine) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor, *, scale: Tensor, is_squared: bool) -> Tensor:
            return self.layer(x * scale if is_squared else x)

    model = Net()
    other = copy.deepcopy(model)
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 0.7]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    step = fast_step(model, loss_fn, optimizer, engine=engine)
    for x, _ in batches(5):
        target = torch.randint(0, 2, (6,))
        given = {"x": x, "scale": torch.rand(3), "is_squared": True}
        step(given, target)
        other_optimizer.zero_grad()
        loss_fn(other(**given), target).backward()
        other_optimizer.step()
        loss_fn.weight.mul_(1.1)  # a buffer, not a constant of the compiled step
    assert_same(model, other)


def test_a_wrong_step_is_refused_and_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimizer, step, _, _ = make_pair(
        "inductor",
        OPTIMIZERS["adam"],
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    )
    [(x, y)] = batches(1)
    step(x, y)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    rng = torch.get_rng_state()

    def trace(function: Any, examples: Any, mode: str) -> Callable[..., Any]:
        graph = trace_tensors(function, examples)

        def call(*args: Tensor) -> Any:
            with torch.no_grad():
                result = graph(*args)
                args[3].mul_(1.001)  # the bias of the normalisation
            return result

        return call

    monkeypatch.setattr(inductor, "compile_tensors", trace)
    with pytest.raises(FastStepError, match=r"the parameter 1\.bias"):
        step(x, y)
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(rng, torch.get_rng_state())


def test_a_value_read_in_the_loss_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_tensors", compile_tensors)
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        loss = (output - target).square().mean()
        return loss if loss.item() > 0 else -loss

    step = fast_step(model, loss_fn, optimizer)
    [(x, y)] = batches(1)
    step(x, y)
    with pytest.raises(FastStepError, match="reads a tensor's value"):
        step(x, y)


class Unknown(torch.optim.Adam):
    pass


def _with_hook() -> nn.Module:
    model = make_mlp()
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "create", "options", "message"),
    [
        (make_mlp, lambda p: torch.optim.LBFGS(p), {}, "LBFGS"),
        (make_mlp, lambda p: Unknown(p), {}, "Unknown"),
        (
            lambda: nn.Embedding(4, 2, sparse=True),
            lambda p: torch.optim.SGD(p, lr=0.1),
            {},
            "sparse",
        ),
        (
            make_mlp,
            lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(1))], lr=0.1),
            {},
            "not the model's",
        ),
        (make_mlp, lambda p: torch.optim.SGD(p), {"steps_per_call": 0}, "steps_per_call"),
        (make_mlp, lambda p: torch.optim.SGD(p), {"mode": "fastest"}, "fastest"),
        (make_mlp, lambda p: torch.optim.SGD(p), {"autocast": torch.float16}, "float16"),
        (_with_hook, lambda p: torch.optim.SGD(p), {}, "hooks"),
    ],
)
def test_what_cannot_be_done_is_refused(
    model: Callable[[], nn.Module],
    create: Callable[[Any], Any],
    options: dict[str, Any],
    message: str,
) -> None:
    made = model()
    with pytest.raises(FastStepError, match=message):
        fast_step(made, nn.MSELoss(), create(made.parameters()), **options)(*batches(1)[0])


@pytest.mark.parametrize("checks_numbers", [False, True])
def test_watchers_of_all_optimizers_see_every_step_and_no_other(
    engine: Engine, checks_numbers: bool
) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _, _, step, _, _ = make_pair(engine, OPTIMIZERS["adam"], checks_numbers=checks_numbers)
    seen: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda *args: seen.append(args[0]))
    try:
        for x, y in batches(5):
            step(x, y)
    finally:
        handle.remove()
    assert len(seen) == 5


def test_random_indices_must_be_rows_of_integers(engine: Engine) -> None:
    _, _, step, _, _ = make_pair(engine, OPTIMIZERS["adam"], steps_per_call=2)
    with pytest.raises(FastStepError, match="shape"):
        step.run(torch.randn(4, 3), torch.randn(4, 2), torch.arange(4))
