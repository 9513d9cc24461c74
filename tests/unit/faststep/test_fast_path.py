"""A generated step called in C alone notices whatever changes, and leaves no object behind."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from faststep import FastStep, FastStepError, fast_path, fast_step
from faststep.generated_step import GeneratedStep

Change = Callable[[nn.Sequential, torch.optim.Optimizer], object]


pytestmark = pytest.mark.skipif(
    not fast_path.has_fast_path(), reason="this Python has no fast path, or no C compiler"
)


class Pair:
    """A model that is trained by the fast path, and its twin by stock steps."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam) -> None:
        first = nn.Linear(4, 8, bias=False)
        self.model = nn.Sequential(first, nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.twin = copy.deepcopy(self.model)
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2)  # pyright: ignore
        self.other = optimizer(self.twin.parameters(), lr=1e-2)  # pyright: ignore
        self.step: FastStep = fast_step(
            self.model, nn.functional.mse_loss, self.optimizer, engine="generated"
        )
        self.x, self.y = torch.randn(16, 4), torch.randn(16, 2)

    def train(self, num_steps: int, x: Tensor | None = None) -> None:
        x = self.x if x is None else x
        for _ in range(num_steps):
            loss = self.step(x, self.y)
            self.other.zero_grad()
            wanted = nn.functional.mse_loss(self.twin(x), self.y)
            wanted.backward()
            self.other.step()
            torch.testing.assert_close(loss, wanted.detach(), rtol=1e-4, atol=1e-6)

    def assert_same(self) -> None:
        theirs = self.twin.state_dict()
        for name, value in self.model.state_dict().items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


def test_steps_are_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.train(3)

    def refuse(*_: object) -> None:
        raise AssertionError("not by a fast path")

    monkeypatch.setattr(GeneratedStep, "__call__", refuse)
    pair.train(100)
    pair.assert_same()
    # After as many losses as there were tensors for, and a step that makes others.
    monkeypatch.undo()
    for _ in range(300):
        pair.step(pair.x, pair.y)
    assert {int(one["step"]) for one in pair.optimizer.state.values()} == {403}


def _new_state(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"].mul_(0.5)
    optimizer.load_state_dict(state)


def _new_param(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    old = model[3].bias
    model[3].bias = nn.Parameter(torch.full((2,), 0.25))
    params = optimizer.param_groups[0]["params"]
    params[next(i for i, one in enumerate(params) if one is old)] = model[3].bias


def _copy_group(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0] = dict(optimizer.param_groups[0])
    optimizer.param_groups[0]["lr"] = 0.05


def _add_group(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    last = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [last], "lr": 0.05})


CHANGES: dict[str, Change] = {
    "lr": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.05),
    "lr, a tensor": lambda model, optimizer: optimizer.param_groups[0].update(lr=torch.tensor(0.1)),
    "betas": lambda model, optimizer: optimizer.param_groups[0].update(betas=(0.5, 0.9)),
    "weight decay": lambda model, optimizer: optimizer.param_groups[0].update(weight_decay=0.1),
    "maximize": lambda model, optimizer: optimizer.param_groups[0].update(maximize=True),
    "groups": _add_group,
    "another group": _copy_group,
    "mode": lambda model, optimizer: model[1].eval(),
    "frozen": lambda model, optimizer: model[0].requires_grad_(False),
    "layer": lambda model, optimizer: model.__setitem__(2, nn.ReLU()),
    "more layers": lambda model, optimizer: model.append(nn.Tanh()),
    "buffer": lambda model, optimizer: model[1].register_buffer(
        "running_var", torch.full((8,), 2.0)
    ),
    "data": lambda model, optimizer: setattr(model[3].weight, "data", torch.full((2, 8), 0.1)),
    "parameter": _new_param,
    "values": lambda model, optimizer: model[3].weight.data.fill_(0.1),
    "state": _new_state,
    "state of one": lambda model, optimizer: optimizer.state.update({model[0].weight: {}}),
    "no state": lambda model, optimizer: optimizer.state.clear(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_at_once(name: str) -> None:
    pair = Pair()
    pair.train(20)
    CHANGES[name](pair.model, pair.optimizer)
    CHANGES[name](pair.twin, pair.other)
    pair.train(20)
    pair.assert_same()


@pytest.mark.parametrize("hooked", ["module", "parameter", "optimizer"])
def test_hooks_are_refused_at_once(hooked: str) -> None:
    pair = Pair()
    pair.train(20)
    handle = {
        "module": lambda: pair.model[2].register_forward_hook(lambda *_: None),
        "parameter": lambda: pair.model[0].weight.register_hook(lambda grad: grad),
        "optimizer": lambda: pair.optimizer.register_step_post_hook(lambda *_: None),
    }[hooked]()
    with pytest.raises(FastStepError, match="hooks"):
        pair.step(pair.x, pair.y)
    handle.remove()
    pair.train(20)
    pair.assert_same()


def test_other_tensors_go_the_long_way() -> None:
    pair = Pair()
    pair.train(20)
    strided = torch.randn(4, 16).t()
    pair.train(3, strided)
    pair.train(3)
    pair.train(3, torch.randn(16, 4).requires_grad_())
    first, pair.x = pair.x, torch.randn(16, 4)
    first.resize_(2, 3, 4)  # in place, after calls with it
    pair.train(3)
    with pytest.raises((RuntimeError, TypeError)):
        pair.step(pair.x[:, :3], pair.y)
    with pytest.raises((RuntimeError, TypeError, AttributeError)):
        pair.step("x", pair.y)
    pair.train(3)
    pair.assert_same()


def test_autograd_sees_what_a_step_writes() -> None:
    pair = Pair()
    pair.train(20)
    first = pair.model[0](pair.x)
    wide = pair.model[3](torch.tanh(first)).sum()
    pair.step(pair.x, pair.y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        wide.backward()


def test_a_schedule_stays_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(torch.optim.SGD)
    pair.train(3)
    monkeypatch.setattr(GeneratedStep, "__call__", None)
    for number in range(20):
        for optimizer in (pair.optimizer, pair.other):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
        pair.train(1)
    pair.assert_same()


def test_without_the_fast_path_the_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faststep.generated_step.has_fast_path", lambda: False)
    pair = Pair()
    pair.train(20)
    assert pair.step.engine == "generated C"
    pair.assert_same()


def test_an_index_out_of_range_is_refused_and_nothing_is_written() -> None:
    model = nn.Linear(4, 3)
    step = fast_step(model, nn.functional.cross_entropy, torch.optim.Adam(model.parameters()))
    x, classes = torch.randn(8, 4), torch.randint(0, 3, (8,))
    for _ in range(20):
        step(x, classes)
    before = model.weight.detach().clone()
    with pytest.raises(IndexError, match="out of range"):
        step(x, classes + 3)
    assert torch.equal(model.weight, before)


def test_threads_do_one_step_after_the_other() -> None:
    pair = Pair()
    pair.train(3)
    threads = [
        threading.Thread(target=lambda: [pair.step(pair.x, pair.y) for _ in range(3000)])
        for _ in range(4)
    ]
    # Let them in between any two lines, where one of them gets tensors for losses, for example.
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert {int(one["step"]) for one in pair.optimizer.state.values()} == {12_003}


def test_no_reference_is_kept_or_lost() -> None:
    pair = Pair()
    pair.train(5)
    watched = [pair.x, pair.y, pair.model[0].weight, pair.optimizer.param_groups[0]]
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(1000):
        loss = pair.step(pair.x, pair.y)
    after = [sys.getrefcount(one) for one in watched]
    assert after == before
    assert sys.getrefcount(loss) == 2
    gone = weakref.ref(pair.step), weakref.ref(pair.model)
    del pair, watched
    gc.collect()
    assert [one() for one in gone] == [None, None]


class Several:
    """A classifier that is trained by several steps a call, and its twin by stock steps."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.twin = copy.deepcopy(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.other = torch.optim.Adam(self.twin.parameters(), lr=1e-2)
        self.step = fast_step(
            self.model, nn.CrossEntropyLoss(), self.optimizer, engine="generated", steps_per_call=5
        )
        self.x, self.y = torch.randn(40, 4), torch.randint(0, 3, (40,))

    def train(self, indices: Tensor | None = None) -> None:
        indices = torch.randint(0, 40, (5, 6)) if indices is None else indices
        losses = self.step.run(self.x, self.y, indices)
        wanted: list[Tensor] = []
        for row in indices:
            self.other.zero_grad()
            loss = nn.functional.cross_entropy(self.twin(self.x[row]), self.y[row])
            loss.backward()
            self.other.step()
            wanted.append(loss.detach())
        torch.testing.assert_close(losses, torch.stack(wanted), rtol=1e-4, atol=1e-6)

    def assert_same(self) -> None:
        found, wanted = self.model.state_dict(), self.twin.state_dict()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_several_steps_are_one_fast_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Several()
    for _ in range(3):
        pair.train()
    with monkeypatch.context() as patch:
        patch.setattr(GeneratedStep, "__call__", None)
        for _ in range(20):
            pair.train()
        # Twice as many: two calls, of which the second takes the rows behind the first.
        pair.train(torch.randint(0, 40, (10, 6)))
    pair.assert_same()
    for _ in range(300):  # more than there were tensors for
        pair.step.run(pair.x, pair.y, torch.randint(0, 40, (5, 6)))
    assert {int(one["step"]) for one in pair.optimizer.state.values()} == {15 + 110 + 1500}


def test_what_changes_between_calls_of_several_steps_is_noticed() -> None:
    pair = Several()
    for _ in range(3):
        pair.train()
    pair.train(torch.randint(-40, 40, (5, 6)))  # from the end
    pair.train(torch.randint(0, 40, (5, 6), dtype=torch.int32))
    pair.train(torch.randint(0, 40, (6, 5)).t())
    for model, optimizer in ((pair.model, pair.optimizer), (pair.twin, pair.other)):
        optimizer.param_groups[0]["lr"] = 0.05
        model[2].bias.data = torch.full((3,), 0.5)
    for _ in range(3):
        pair.train()
    with pytest.raises(IndexError, match="outside of 40 samples"):
        pair.step.run(pair.x, pair.y, torch.full((5, 6), 40))
    pair.x, pair.y = pair.x[:30], pair.y[:30]
    pair.train(torch.randint(0, 30, (5, 6)))
    pair.assert_same()


def test_a_class_out_of_range_among_several_steps_says_which() -> None:
    pair = Several()
    for _ in range(3):
        pair.train()
    pair.y[39] = 3
    indices = torch.zeros(5, 6, dtype=torch.int64)
    indices[3, 2] = 39  # after three steps
    with pytest.raises(IndexError, match=r"out of range \(step 3 of 5\)"):
        pair.step.run(pair.x, pair.y, indices)
    # Three were done, once.
    assert {int(one["step"]) for one in pair.optimizer.state.values()} == {18}
