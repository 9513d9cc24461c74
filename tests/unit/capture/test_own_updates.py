"""Steps of loops that step no optimizer of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad

from breakeven.capture import TracedRun, record_steps, trace_step
from breakeven.capture.record.event_log import SCRIPT_GAP_NS
from breakeven.capture.sessions.in_process import _request
from breakeven.capture.sessions.traced import TracedSession
from breakeven.measure import own_time_ns
from breakeven.trace import HostWork, Op, Phase

NUM_STEPS = 5


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(8, 4, device="cuda")).square().mean()


def run(train: Callable[[], object]) -> TracedRun:
    with record_steps() as recording:
        train()
    return recording.run


def stepped(update: Callable[[nn.Module], object], *, num_backwards: int = 1) -> TracedRun:
    """Return the recorded step of a loop with an update of its own."""

    def train() -> None:
        model = mlp()
        kept.append(model)
        for _ in range(NUM_STEPS):
            model.zero_grad()
            for _ in range(num_backwards):
                loss_of(model).backward()
            update(model)

    kept: list[nn.Module] = []
    return run(train)


def write_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad


def write_to_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)


def replace_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.data - 0.1 * parameter.grad


def write_all_at_once(model: nn.Module, prepare: Callable[[], object] = int) -> None:
    parameters = [parameter.data for parameter in model.parameters()]
    grads = [parameter.grad for parameter in model.parameters()]
    prepare()
    torch._foreach_add_(parameters, grads, alpha=-0.1)  # type: ignore[arg-type]


def write_after_work(model: nn.Module) -> None:
    write_all_at_once(model, work_in_python)


def write_where_indices_say(model: nn.Module) -> None:
    # On the host, from which each write copies them.
    indices = [torch.arange(len(parameter)) for parameter in model.parameters()]
    for parameter, rows in zip(model.parameters(), indices, strict=True):
        assert parameter.grad is not None
        parameter.data[rows] = parameter.data - 0.1 * parameter.grad


def work_in_python() -> None:
    """Take the processor for longer than any gap between two operators."""
    until_ns = own_time_ns() + 2 * SCRIPT_GAP_NS
    while own_time_ns() < until_ns:
        pass


def codes(found: TracedRun) -> list[str]:
    return [caveat.code for caveat in found.trace.caveats]


def num_forwards(found: TracedRun) -> int:
    """Return how often the batch of a step is drawn."""
    return sum(op.name.startswith("aten.randn") for op in found.trace.ops)


def test_function_that_ends_with_its_writes_is_a_step() -> None:
    model = nn.Linear(8, 1)

    def step() -> None:
        model.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)

    assert num_forwards(trace_step(step)) == 1


@pytest.mark.parametrize(
    "update",
    [
        write_in_place, write_to_data, replace_data, write_all_at_once, write_after_work,
        write_where_indices_say,
    ],
)  # fmt: skip
def test_write_to_parameters_ends_a_step(update: Callable[[nn.Module], object]) -> None:
    found = stepped(update)
    assert codes(found) == ["own-update"]
    assert num_forwards(found) == found.backwards_per_step == 1
    assert found.trace.num_parameters == 4 * 16 + 16 + 16 + 1
    phases = [op.phase for op in found.trace.ops if not op.name.startswith("aten.randn")]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER].index)
    assert phases[-1] is Phase.OPTIMIZER
    assert not found.trace.faults


def test_work_between_an_update_and_the_next_forward_pass_is_kept() -> None:
    x = torch.randn(8, 4)

    def train() -> None:
        model, batch = mlp(), x.cuda()
        kept.append(model)
        for _ in range(NUM_STEPS):
            model.zero_grad()
            model(batch).square().mean().backward()
            write_to_data(model)
            work_in_python()

    kept: list[nn.Module] = []
    (work,) = [event for event in run(train).trace.events if isinstance(event, HostWork)]
    assert work.duration_ns > SCRIPT_GAP_NS


def test_gradients_may_be_accumulated() -> None:
    found = stepped(write_to_data, num_backwards=3)
    assert codes(found) == ["own-update"]
    assert num_forwards(found) == found.backwards_per_step == 3


def test_several_models_in_turn_make_one_step() -> None:
    def train() -> None:
        models = [mlp(), mlp(), mlp()]
        kept.extend(models)
        for _ in range(NUM_STEPS):
            for model in models:
                model.zero_grad()
                loss_of(model).backward()
                write_to_data(model)

    kept: list[nn.Module] = []
    found = run(train)
    assert num_forwards(found) == found.backwards_per_step == 3


def test_new_parameters_make_a_step() -> None:
    def train() -> None:
        weight = torch.randn(4, 1, device="cuda", requires_grad=True)
        for _ in range(NUM_STEPS):
            loss = (torch.randn(8, 4, device="cuda") @ weight).square().mean()
            (slope,) = torch.autograd.grad(loss, weight)
            weight = (weight - 0.1 * slope).detach().requires_grad_()

    found = run(train)
    assert codes(found) == ["own-update"]
    assert num_forwards(found) == found.backwards_per_step == 1


def test_functional_training_has_steps() -> None:
    def train() -> None:
        model = mlp()
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def loss_with(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(model, weights, (x,)).square().mean()

        for _ in range(NUM_STEPS):
            slopes = grad(loss_with)(weights, torch.randn(8, 4, device="cuda"))
            weights = {name: value - 0.1 * slopes[name] for name, value in weights.items()}

    found = run(train)
    assert codes(found) == ["own-update"]
    assert num_forwards(found) == found.backwards_per_step == 1
    assert found.trace.num_parameters == 4 * 16 + 16 + 16 + 1


def test_gradients_alone_make_a_step_that_is_said_to_update_nothing() -> None:
    found = stepped(lambda _: None)
    assert codes(found) == ["no-update"]
    assert num_forwards(found) == found.backwards_per_step == 1


def test_gradient_of_a_gradient_is_part_of_its_step() -> None:
    def train() -> None:
        model = mlp()
        kept.append(model)
        for _ in range(NUM_STEPS):
            model.zero_grad()
            x = torch.randn(8, 4, device="cuda", requires_grad=True)
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            ((slope.norm() - 1).square() + model(x).mean()).backward()
            write_to_data(model)

    kept: list[nn.Module] = []
    found = run(train)
    assert codes(found) == ["own-update"]
    assert found.backwards_per_step == 2


def test_optimizer_of_torch_counts_alone() -> None:
    """The average of its weights, and whatever else is written to, are part of its step."""

    def train() -> None:
        model, average = mlp(), mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            loss_of(average).backward()
            write_to_data(average)

    found = run(train)
    assert codes(found) == []
    assert found.backwards_per_step == 0
    assert num_forwards(found) == 2


def ops_of(forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> list[tuple[str, Phase]]:
    def train() -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            forward(model, torch.randn(8, 4, device="cuda")).square().mean().backward()
            optimizer.step()

    found = run(train)
    assert not found.trace.faults
    return [(event.name, event.phase) for event in found.trace.events if isinstance(event, Op)]


def test_a_step_of_an_optimizer_is_one_however_often_it_evaluates_the_loss() -> None:
    num_evaluations = 300  # more gradients than make steps of their own
    is_done = threading.Event()
    with TracedSession(_request("made up"), is_done.set):
        weight = torch.ones(2, device="cuda", requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weight], lr=1e-6, max_iter=num_evaluations, max_eval=2 * num_evaluations,
            history_size=1, tolerance_grad=0, tolerance_change=0,
        )  # fmt: skip

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
    assert not is_done.is_set()


def test_forward_pass_in_another_thread_belongs_to_the_step() -> None:
    with ThreadPoolExecutor(1) as early:  # its thread is older than the recording
        early.submit(int).result()
        with ThreadPoolExecutor(1) as pool:
            there = ops_of(lambda model, x: pool.submit(model, x).result())
    here = ops_of(lambda model, x: model(x))
    assert there == here
