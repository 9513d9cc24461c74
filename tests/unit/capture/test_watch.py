"""What is watched of a script, and when: as little as will do."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

from breakeven.capture import record_steps, trace_step
from breakeven.capture.record import step_tracer
from breakeven.capture.record.device_map import DEVICE, HOST, DeviceMap
from breakeven.capture.record.held_objects import held_arrays
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.record.step_tracer import StepTracer
from breakeven.trace import HostArray, Phase, StepTrace
from breakeven.units import NS_PER_S

NUM_STEPS = 5


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()


def run(train: Callable[[], object]) -> StepTrace:
    with record_steps() as recording:
        train()
    return recording.trace


def evaluations_recorded(*, evaluates_always: bool) -> int:
    def train() -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4, device="cuda")).mean().backward()
            optimizer.step()
            if evaluates_always or step < 2:
                with torch.no_grad():
                    for _ in range(400):
                        torch.sigmoid(model[0].weight)

    return sum(op.name.startswith("aten.sigmoid") for op in run(train).ops)


def test_evaluation_after_the_first_updates_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakeven.capture.record.event_log._LONG_EVALUATION_NS", 0)
    assert evaluations_recorded(evaluates_always=False) == 0


def test_evaluation_of_each_step_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakeven.capture.record.event_log._LONG_EVALUATION_NS", 0)
    assert evaluations_recorded(evaluates_always=True) == 400


class Squares(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        squares = torch.sin(torch.tensor([index, index**2], dtype=torch.float32))
        return squares + torch.zeros(2, device=squares.device)

    def __len__(self) -> int:
        return 1_000_000


def test_loading_is_no_part_of_a_step_that_is_moved_to_a_device() -> None:
    """A sampler reads numbers back, which waits for no device."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = Squares()
    loader = DataLoader(data, 4, sampler=RandomSampler(data, replacement=True))

    def step() -> None:
        optimizer.zero_grad()
        model(next(iter(loader))).mean().backward()
        optimizer.step()

    trace = trace_step(step).trace
    assert trace.uses_device
    assert not [op for op in trace.ops if op.name.startswith("aten.sin")]
    assert trace.h2d_bytes == 4 * 2 * 4


class OnDevice(Squares):
    def __init__(self, device: str) -> None:
        self.device = device

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index).to(self.device)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_loading_puts_on_the_device_is_there_from_the_first_batch_on(device: str) -> None:
    def train() -> None:
        model = nn.Linear(2, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x in DataLoader(Subset(OnDevice(device), range(4 * NUM_STEPS)), 4):
            optimizer.zero_grad()
            model(x if device == "cuda" else x.cuda()).mean().backward()
            optimizer.step()

    trace = run(train)
    assert not trace.faults
    assert any(op.name.startswith("aten.sin") for op in trace.ops) == (device == "cuda")


def test_device_of_a_script_on_the_cpu_is_the_one_that_it_is_moved_to() -> None:
    device = torch.device("cpu")
    model = nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = np.ones((4, 2), dtype=np.float32)

    def step() -> None:
        noise = torch.randn(4, 2).to(device)
        x = torch.from_numpy(data).to(device) + noise
        assert x.device == model.weight.device == torch.zeros(1, device=device).device
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        loss.detach().cpu().numpy()

    trace = trace_step(step).trace
    assert [(copy.source, copy.num_bytes) for copy in trace.copies] == [("cpu", 4 * 2 * 4)]
    assert [sync.kind for sync in trace.syncs] == ["cpu"]


def test_weights_read_from_numpy_are_moved_with_the_model_and_not_in_a_step() -> None:
    devices = DeviceMap(DEVICE)
    with OptimizerHooks(lambda _: None, StepRecorder(devices)):
        weight = nn.Parameter(torch.from_numpy(np.ones((2, 3), dtype=np.float32)))
        devices.place(weight, HOST)
        torch.optim.SGD([weight], 0.1)
    assert devices.is_on_device(weight)


def test_nothing_is_watched_before_a_device_is_named() -> None:
    sizes: list[int] = []

    def note() -> None:
        sizes.append(torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack())

    with record_steps():
        torch.randn(3).sum()
        note()
        torch.device("cpu")
        torch.zeros(3, device="cpu").to("cpu")
        note()
        torch.zeros(3, device="cuda")
        note()
    note()
    assert sizes == [0, 0, 2, 0]


def test_modes_of_the_script_stay_its_own() -> None:
    """They are entered before, and left after, a device is named for the first time."""

    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.add else result

    with record_steps():
        with Doubling(), torch.device("cpu"):
            x = torch.ones(2, device="cuda")
            assert torch.add(x, x).tolist() == [4, 4]
            assert torch.zeros(1).device.type == "cpu"
        assert torch.add(x, x).tolist() == [2, 2]
        assert x.is_cuda
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize(
    ("step_s", "records_longer", "is_enough"),
    [
        (0.1, False, [False] * 5 + [True]),
        (8, False, [False, True]),
        (30, False, [True]),
        (8, True, [False, False, True]),
        (0.1, True, [False] * 8 + [True]),
    ],
)
def test_step_that_logs_first_is_followed_by_one_that_does_not_where_that_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, step_s: float, records_longer: bool, is_enough: list[bool]
) -> None:
    times_ns = itertools.count(1, int(step_s * NS_PER_S))
    monkeypatch.setattr(step_tracer, "perf_counter_ns", lambda: next(times_ns))
    tracer = StepTracer(StepRecorder(DeviceMap()), lambda: None, records_longer=records_longer)
    assert not tracer.mark(0)
    assert [tracer.mark(0) for _ in is_enough] == is_enough


def test_arrays_of_a_script_are_told_without_asking_its_objects() -> None:
    class Gone:
        __slots__ = ()

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    class Short:
        pass

    short = Short()
    held = {"proxy": weakref.proxy(short), "gone": Gone(), "big": np.zeros(40_000, dtype=">f4")}
    del short

    def train() -> tuple[HostArray, ...]:
        proxy, gone, big = held["proxy"], held["gone"], held["big"]  # noqa: F841
        return held_arrays(sys._getframe())

    found = {array.name: (array.dtype, array.num_bytes) for array in train()}
    assert found["big"] == ("float32", 160_000)


def test_tensor_of_named_data_is_made_in_a_script_that_is_moved() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)

    def step() -> None:
        optimizer.zero_grad()
        (weight * torch.tensor(data=[1.0, 2.0])).sum().backward()
        optimizer.step()

    assert trace_step(step).trace.h2d_bytes == 8


def test_device_may_be_named_by_a_context_first() -> None:
    def train() -> None:
        with torch.device("cuda"):
            model = nn.Linear(4, 1)
            x = torch.randn(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

    trace = run(train)
    assert trace.uses_device
    assert not trace.faults


class Box(torch.Tensor):
    label: str = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if type(result) is cls:
            result.label = "of torch"
        return result


def test_subclasses_of_tensors_stay_what_they_are_on_their_way() -> None:
    labels: list[str] = []

    def train() -> None:
        model = nn.Linear(4, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(NUM_STEPS):
            box = torch.ones(8, 4).as_subclass(Box)
            there = box.to("cuda", torch.float32)
            back = there.cpu()
            assert type(there) is type(back) is Box
            labels.extend((there.label, back.label))
            optimizer.zero_grad()
            model(there.as_subclass(torch.Tensor)).mean().backward()
            optimizer.step()

    trace = run(train)
    assert set(labels) == {"of torch"}
    assert trace.h2d_bytes == 8 * 4 * 4


def test_an_update_within_the_backward_pass_is_one() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
        optimizers = {one: torch.optim.SGD([one], 0.1) for one in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(8):
            model(torch.randn(8, 4, device="cuda")).mean().backward()

    trace = run(train)
    updates = [op for op in trace.ops if op.phase is Phase.OPTIMIZER]
    assert len(updates) == 4
    backward = {op.module for op in trace.ops if op.phase is Phase.BACKWARD and "mm" in op.name}
    assert backward == {"Sequential.0", "Sequential.2"}
