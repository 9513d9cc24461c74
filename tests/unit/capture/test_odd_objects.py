"""Modules, optimizers, data sets and loaders whose methods are not what torch's are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from breakeven.capture import record_steps, time_step
from breakeven.capture.sessions.numbers import ParameterNames
from breakeven.configure import ByIdentity
from breakeven.configure.patching import has_parameters, named_parameters_of, named_parts
from breakeven.settings import configured
from breakeven.trace import Configuration, Phase, StepTrace


class ForbiddenError(Exception):
    """Something of the script was called that torch would not have called."""


def refuse(*_: Any, **__: Any) -> Any:
    raise ForbiddenError


class OddModule(nn.Module):
    """Everything that a script may override, overridden."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.last = nn.Linear(8, 1)
        self.shared = self.last

    def parameters(self, recurse: bool = True) -> Any:
        return [*self.layer.parameters(), *self.last.parameters()]

    named_parameters = named_modules = modules = children = named_children = refuse
    buffers = named_buffers = state_dict = train = eval = refuse
    __eq__ = __len__ = __bool__ = __iter__ = __contains__ = refuse
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_modules", {})
        if name not in held:
            raise KeyError(name)
        return held[name]

    def to(self, where: str) -> None:  # type: ignore[override]
        self.layer.to(where)
        self.last.to(where)

    def cuda(self) -> None:  # type: ignore[override]
        self.to("cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(x).relu())


class StepSize(torch.optim.Optimizer):
    """Is given a step size and a module where others take a closure."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.defaults = None  # type: ignore[assignment]
        self.given: list[Any] = []

    def zero_grad(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self, size: float, owner: nn.Module | None = None) -> str:  # type: ignore[override]
        self.given.append((size, owner))
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-size)
        return "stepped"

    __eq__ = __len__ = __bool__ = refuse
    __hash__ = None  # type: ignore[assignment]


class Wrapping(torch.optim.Optimizer):
    """Has no groups of its own before it is complete."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        pass

    def add_param_group(self, param_group: Any) -> None:
        pass

    def step(self, closure: Callable[..., Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure(again=True)
        self.inner.step()


class OddRows(Dataset[torch.Tensor]):
    """Raises for everything but a sample."""

    def __init__(self, num: int = 64) -> None:
        self.rows = torch.randn(num, 4)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]

    def __len__(self) -> int:
        return 64

    @property
    def dataset(self) -> Any:
        raise ForbiddenError

    transform = property(refuse)
    __eq__ = __bool__ = __iter__ = refuse
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        # Torch asks for this one itself.
        raise AttributeError(name) if name == "__getitems__" else ForbiddenError(name)


class Endless(IterableDataset[torch.Tensor]):
    """Defines a length, and refuses it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(4)

    def __len__(self) -> int:
        raise ForbiddenError


class OwnLoader(DataLoader[Any]):
    """Makes and iterates itself in its own way."""

    def __init__(self, rows: Any, size: int) -> None:
        self.__dict__["extra"] = "before anything"
        super().__init__(rows, size)

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch, "of my own"

    __eq__ = __bool__ = refuse
    __hash__ = None  # type: ignore[assignment]


class OddBatch(tuple):  # type: ignore[type-arg]
    """A batch that answers to nothing."""

    data = property(refuse)
    __slots__ = ()


def recorded(
    model: nn.Module, optimizer: Any, step: Callable[[Any], Any] | None = None
) -> StepTrace:
    with record_steps() as recording:
        model.cuda()
        x = torch.randn(16, 4, device="cuda")
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            (step or (lambda each: each.step()))(optimizer)
    return recording.trace


def test_module_may_override_everything() -> None:
    model = OddModule()
    trace = recorded(model, torch.optim.SGD(model.parameters(), lr=0.01))
    modules = {op.module for op in trace.ops if op.phase is Phase.FORWARD}
    assert {"OddModule.layer", "OddModule.last"} <= modules
    assert [call.model for call in trace.facts.model_calls] == ["OddModule"]
    assert trace.facts.num_parameter_tensors == 4


def test_module_may_override_everything_in_a_plain_run() -> None:
    model = OddModule()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()

    assert time_step(step, budget_s=0.01).measurement.median_ns > 0


@pytest.mark.parametrize(
    "configuration", [Configuration(channels_last=True), Configuration(autocast="bfloat16")]
)
def test_module_may_override_everything_where_settings_are_changed(
    configuration: Configuration,
) -> None:
    with configured(configuration, device="cpu"):
        model = OddModule()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_parts_and_parameters_are_those_of_torch() -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    assert [(name, id(part)) for name, part in named_parts(plain)] == [
        (name, id(part)) for name, part in plain.named_modules()
    ]
    assert [(name, id(each)) for name, each in named_parameters_of(plain)] == [
        (name, id(each)) for name, each in plain.named_parameters(remove_duplicate=False)
    ]
    assert has_parameters(plain)
    assert not has_parameters(nn.Sequential(nn.ReLU()))
    scripted = torch.jit.script(plain)
    assert [name for name, _ in named_parts(scripted)] == [name for name, _ in named_parts(plain)]
    assert len(list(named_parameters_of(scripted))) == len(list(plain.parameters()))


def test_shared_part_is_one_part_with_two_names_for_its_parameters() -> None:
    odd = OddModule()
    assert [name for name, _ in named_parts(odd)] == ["", "layer", "last"]
    names = [name for name, _ in named_parameters_of(odd)]
    assert names[-2:] == ["shared.weight", "shared.bias"]


def test_module_that_is_not_complete_has_no_parts() -> None:
    incomplete = nn.Linear.__new__(nn.Linear)
    assert [name for name, _ in named_parts(incomplete)] == [""]
    assert not has_parameters(incomplete)


def test_parameters_of_an_odd_module_have_names() -> None:
    model = OddModule()
    assert ParameterNames().name_of(model.layer.weight) == "layer.weight"


def test_optimizer_gets_what_the_script_gave_it() -> None:
    model = nn.Linear(4, 1)
    optimizer = StepSize(model.parameters())
    trace = recorded(model, optimizer, lambda each: each.step(0.5, model))
    assert optimizer.given[0] == (0.5, model)
    assert trace.facts.optimizers[0].name == "StepSize"
    assert trace.facts.optimizers[0].foreach is None


def test_optimizer_that_wraps_another_passes_its_closure_what_it_takes() -> None:
    model = nn.Linear(4, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    given: list[bool] = []
    with configured(Configuration(channels_last=True), device="cpu"):
        optimizer = Wrapping(inner)
    recorded(model, optimizer, lambda each: each.step(lambda again: given.append(again)))
    assert given
    assert all(given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(OddRows(), 8, shuffle=True),
        lambda: DataLoader(Endless(), 8),
        lambda: OwnLoader(TensorDataset(torch.randn(64, 4)), 8),
        lambda: DataLoader([torch.randn(4)] * 64, 8, collate_fn=lambda rows: OddBatch(rows)),
    ],
    ids=["rows", "endless", "own loader", "own batch"],
)
def test_data_set_and_loader_may_be_odd(make: Callable[[], DataLoader[Any]]) -> None:
    def first(batch: Any) -> torch.Tensor:
        while not isinstance(batch, torch.Tensor):
            batch = torch.stack(tuple(batch)) if type(batch) is OddBatch else batch[0]
        return batch

    with record_steps() as recording:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = make()
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(first(batch).cuda()).square().mean().backward()
            optimizer.step()
            if number == 3:
                break
    (facts,) = recording.trace.facts.loaders
    assert facts.batch_size == 8


def test_loader_that_was_begun_before_goes_on() -> None:
    batches = iter(DataLoader(TensorDataset(torch.randn(64, 4)), 8))
    next(batches)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record_steps() as recording:
        for _ in range(3):
            (x,) = next(batches)
            model(x).sum().backward()
            optimizer.step()
    assert recording.trace.ops


def test_map_by_identity_calls_nothing_and_forgets_what_is_gone() -> None:
    known: ByIdentity[Any, int] = ByIdentity()
    first, second = OddModule(), OddModule()
    known[first], known[second] = 1, 2
    assert (known[first], known[second], len(known)) == (1, 2, 2)
    assert [number for _, number in known.items()] == [1, 2]
    del first
    assert known.get(second) == 2
    assert len(known) == 1
    assert OddModule not in known
