from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Optional

import numpy as np
import pytest
import torch
import torch._dynamo  # replaces torch.manual_seed, once
import torch.utils._device
from torch import nn
from torch.nn import functional

from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.recorder import StepRecorder
from breakeven.settings import configured
from breakeven.trace import Configuration

OWNERS: dict[str, Any] = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "cuda": torch.cuda,
    "accelerator": torch.accelerator,
    "functional": functional,
    "_VF": torch._VF,
    "_C": torch._C,
    "_nn": vars(torch._C)["_nn"],
    "Module": nn.Module,
    "autocast": torch.autocast,
    "DeviceContext": torch.utils._device.DeviceContext,
    "nvtx": torch.cuda.nvtx,
    "cudnn": torch.backends.cudnn,
}


def snapshot() -> dict[str, Any]:
    """Return what each attribute of torch is, by identity; lazily loaded modules are left out."""
    return {
        f"{owner}.{name}": value
        for owner, target in OWNERS.items()
        for name, value in vars(target).items()
        if not isinstance(value, type(sys)) and name != "__annotations__"
    }


def pretend() -> AbstractContextManager[None]:
    return fake_cuda(StepRecorder(DeviceMap()), lambda: None)


BOTH = pytest.mark.parametrize(
    "enter", [lambda: redirect_cuda_to_cpu(has_cuda=True), pretend], ids=["redirect", "pretend"]
)


def use_everything() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 4, device="cuda")).float().square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()


@BOTH
def test_torch_is_as_before_afterwards(enter: Callable[[], Any]) -> None:
    with enter():
        use_everything()  # what is loaded lazily is there from now on
    before = snapshot()
    with enter():
        assert torch.cuda.is_available()
        use_everything()
    after = snapshot()
    changed = {name for name in {*before, *after} if before.get(name) is not after.get(name)}
    assert changed == set()
    assert not torch.cuda.is_available()
    assert torch.zeros(1).device.type == "cpu"


@BOTH
def test_torch_is_as_before_after_an_exception(enter: Callable[[], Any]) -> None:
    before = snapshot()

    def fail() -> None:
        with enter():
            torch.zeros(3, device="cuda")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    after = snapshot()
    assert {name for name in {*before, *after} if before.get(name) is not after.get(name)} == set()


@pytest.mark.parametrize("has_cuda", [False, True])
def test_script_is_told_of_a_gpu_only_where_it_insists(has_cuda: bool) -> None:
    with redirect_cuda_to_cpu(has_cuda=has_cuda):
        assert torch.cuda.is_available() is has_cuda
        assert torch.cuda.device_count() == int(has_cuda)


MADE = {
    "cuda": lambda: torch.arange(6.0).cuda(),
    "cuda index": lambda: torch.arange(6.0).cuda(0, non_blocking=True),
    "to": lambda: torch.arange(6.0).to("cuda"),
    "to device": lambda: torch.arange(6.0).to(torch.device("cuda", 0), torch.float32),
    "to keyword": lambda: torch.arange(6.0).to(device="cuda:0", non_blocking=True),
    "to other": lambda: torch.arange(6.0).to(torch.zeros(1, device="cuda")),
    "arange": lambda: torch.arange(6.0, device="cuda"),
    "tensor": lambda: torch.tensor([0.0, 1, 2, 3, 4, 5], device="cuda"),
    "as_tensor": lambda: torch.as_tensor([0.0, 1, 2, 3, 4, 5], device=torch.device("cuda")),
    "new_tensor": lambda: torch.zeros(1, device="cuda").new_tensor([0.0, 1, 2, 3, 4, 5]),
    "like": lambda: torch.zeros_like(torch.ones(6), device="cuda") + torch.arange(6.0).cuda(),
    "pinned": lambda: torch.arange(6.0).pin_memory().to("cuda", non_blocking=True),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
@BOTH
def test_tensors_are_made_as_on_a_gpu(
    make: Callable[[], torch.Tensor], enter: Callable[[], Any]
) -> None:
    with enter():
        made = make()
        assert made.cpu().tolist() == [0, 1, 2, 3, 4, 5]
        expected = "cuda" if enter is pretend else "cpu"
        assert made.device.type == expected
        assert made.is_cuda is (expected == "cuda")
    assert made.device.type == "cpu"


@BOTH
def test_default_device_and_device_context_may_be_cuda(enter: Callable[[], Any]) -> None:
    with enter():
        expected = "cuda" if enter is pretend else "cpu"
        torch.set_default_device("cuda")
        try:
            assert torch.ones(2).device.type == expected
            assert nn.Linear(2, 2).weight.device.type == expected
        finally:
            torch.set_default_device(None)
        with torch.device("cuda"):
            assert torch.ones(2).device.type == expected
            assert torch.tensor([1.0]).device.type == expected
    assert torch.ones(2).device.type == "cpu"


@BOTH
def test_number_is_a_cuda_device(enter: Callable[[], Any]) -> None:
    kind = torch.device
    with enter():
        device = torch.device(0)
        assert (str(device), str(torch.device(device=1))) == ("cuda:0", "cuda:1")
        assert torch.ones(2, device=device).is_cuda is (enter is pretend)
        assert str(torch.device("cpu")) == "cpu"
        assert torch.device("cuda:1") == torch.device("cuda", 1)
        assert isinstance(device, torch.device | None)
        assert issubclass(type(device), torch.device)
        assert torch.device != "cuda"
        assert torch.device.type is kind.type
        assert str(torch.device(np.int64(1))) == "cuda:1"
        assert not isinstance("cuda:0", torch.device)
        assert pickle.loads(pickle.dumps(copy.deepcopy(device))) == device
        # As keys of what was made before, and the other way round.
        assert {kind: "found"}[torch.device] == "found"
        assert {torch.device: "found"}[type(device)] == "found"
    assert torch.device is kind


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@BOTH
def test_scripted_function_may_be_given_a_device(enter: Callable[[], Any]) -> None:
    with enter():

        @torch.jit.script
        def ones(device: torch.device) -> torch.Tensor:
            return torch.ones(2, device=device).to(torch.device("cpu"))

        assert ones(torch.device("cpu")).tolist() == [1, 1]
        scripted = torch.jit.script(ones_on)
        assert scripted(torch.device("cpu")).tolist() == [1, 1]


def ones_on(device: Optional[torch.device] = None) -> torch.Tensor:  # noqa: UP045 - TorchScript
    return torch.ones(2, device=device)


@BOTH
def test_tensor_made_from_data_without_memory_has_none(enter: Callable[[], Any]) -> None:
    with enter():
        with torch.device("meta"):
            assert torch.tensor([1.0]).is_meta
        assert torch.tensor([1.0], device="meta").is_meta
        assert torch.zeros(1).new_tensor([1.0], device="meta").is_meta


@BOTH
def test_generator_of_the_device_repeats_itself(enter: Callable[[], Any]) -> None:
    with enter():
        draws = [
            torch.randn(4, generator=torch.Generator(device="cuda").manual_seed(7), device="cuda")
            for _ in range(2)
        ]
        assert torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("where", [None, "cuda", "cuda:0", torch.device("cuda")])
@BOTH
def test_checkpoint_of_a_gpu_can_be_loaded(where: Any, enter: Callable[[], Any]) -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.arange(3.0)}, file)
    file.seek(0)
    with enter():
        loaded = torch.load(file, map_location=where)
        assert loaded["weight"].tolist() == [0, 1, 2]


@BOTH
def test_compile_gives_the_model_back(enter: Callable[[], Any]) -> None:
    model = nn.Linear(2, 2)
    with enter():
        assert torch.compile(model) is model
        assert torch.compile(model, mode="max-autotune") is model

        @torch.compile(dynamic=True)
        def twice(x: int) -> int:
            return 2 * x

        assert twice(3) == 6


def test_use_of_compile_is_told() -> None:
    used: list[int] = []
    with redirect_cuda_to_cpu(on_compile=lambda: used.append(1)):
        assert used == []
        torch.compile(nn.Linear(2, 2))
    assert used == [1]


def test_lazy_modules_are_moved_before_they_have_memory() -> None:
    with redirect_cuda_to_cpu(has_cuda=True):
        model = nn.Sequential(nn.LazyLinear(3), nn.ReLU()).to("cuda")
        assert model(torch.ones(2, 5)).shape == (2, 3)
    assert nn.LazyLinear(3).to("cpu")(torch.ones(2, 5)).shape == (2, 3)


def test_weights_are_put_into_channels_last_memory_when_an_optimizer_gets_them() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 2))
    images = torch.rand(2, 3, 8, 8)
    expected = model(images)
    before = torch.optim.Optimizer.__init__
    with configured(Configuration(channels_last=True)) as settings:
        torch.optim.SGD(model.parameters(), lr=0.1)
    assert settings.effects() == {"channels_last": 1}
    weight = model[0].weight

    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert model[0](images).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(model(images), expected, atol=1e-5)
    assert torch.optim.Optimizer.__init__ is before
