"""What a script creates is what torch would create, wherever it says that it should be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu
from breakeven.capture.record.device_map import DeviceMap
from breakeven.capture.record.recorder import StepRecorder

DATA = [[1.0, 2.0], [3.0, 4.0]]
MADE: dict[str, Callable[..., torch.Tensor]] = {
    "zeros": lambda **named: torch.zeros(2, 2, **named),
    "full": lambda **named: torch.full((2, 2), 3.0, **named),
    "arange": lambda **named: torch.arange(4.0, **named),
    "eye": lambda **named: torch.eye(2, **named),
    "tensor": lambda **named: torch.tensor(DATA, **named),
    "asarray": lambda **named: torch.asarray(DATA, **named),
    "asarray of numpy": lambda **named: torch.asarray(np.array(DATA), copy=True, **named),
    "scalar": lambda **named: torch.scalar_tensor(3.0, **named),
    "like": lambda **named: torch.ones_like(torch.zeros(2, 2), **named),
    "new_tensor": lambda **named: torch.zeros(1).new_tensor(DATA, **named),
    "new_full": lambda **named: torch.zeros(1).new_full((2,), 3.0, **named),
    "linspace": lambda **named: torch.linspace(0, 1, 5, **named),
    "window": lambda **named: torch.signal.windows.hann(4, **named),
    "frequencies": lambda **named: torch.fft.fftfreq(4, **named),
}

DEVICES = st.sampled_from([None, "cpu", "cuda", "cuda:0", "cuda:1", torch.device("cuda"), 0, 2])
DTYPES = st.sampled_from([None, torch.float32, torch.float64])


def fake(*, is_lazy: bool = False) -> Any:
    return fake_cuda(StepRecorder(DeviceMap()), lambda: None, is_lazy=is_lazy)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(MADE)),
    device=DEVICES,
    default=st.sampled_from([None, "cpu", "cuda"]),
    dtype=DTYPES,
    requires_grad=st.sampled_from([None, False, True]),
    is_fake=st.booleans(),
)
def test_created_tensor_is_torchs_own_but_for_its_device(
    name: str, device: Any, default: str | None, dtype: Any, requires_grad: bool | None,
    is_fake: bool,
) -> None:  # fmt: skip
    options = {
        key: value
        for key, value in (("dtype", dtype), ("requires_grad", requires_grad))
        if value is not None
    }
    expected = MADE[name](**options)
    with fake() if is_fake else redirect_cuda_to_cpu():
        around = torch.device(default) if default else nullcontext()
        with around:
            made = MADE[name](**options, **({} if device is None else {"device": device}))
        # `zeros_like(x)` and `x.new_*` follow `x`, which the block's own device has made.
        wanted = device if device is not None else default
        is_cuda = wanted not in (None, "cpu")
        assert made.device.type == ("cuda" if is_cuda and is_fake else "cpu")
        assert made.is_leaf is expected.is_leaf
        assert made.requires_grad is expected.requires_grad
        assert made.dtype is expected.dtype
    assert torch.equal(made.detach(), expected.detach())


# By the name of the function or method; what torch itself gives the keyword.
PINNED: dict[str, Callable[..., torch.Tensor]] = {
    **{
        name: MADE[name]
        for name in MADE.keys() - {"asarray", "asarray of numpy", "new_tensor", "window"}
    },
    "empty": lambda **named: torch.empty(10, 14, **named),
    "empty_strided": lambda **named: torch.empty_strided((2, 2), (2, 1), **named),
    "ones": lambda **named: torch.ones(2, **named),
    "rand": lambda **named: torch.rand(2, **named),
    "randn": lambda **named: torch.randn(2, **named),
    "randint": lambda **named: torch.randint(3, (2,), **named),
    "randperm": lambda **named: torch.randperm(3, **named),
    "normal": lambda **named: torch.normal(0.0, 1.0, (2,), **named),
    "empty_like": lambda **named: torch.empty_like(torch.zeros(2), **named),
    "zeros_like": lambda **named: torch.zeros_like(torch.zeros(2), **named),
    "full_like": lambda **named: torch.full_like(torch.zeros(2), 3.0, **named),
    "rand_like": lambda **named: torch.rand_like(torch.zeros(2), **named),
    "randn_like": lambda **named: torch.randn_like(torch.zeros(2), **named),
    "randint_like": lambda **named: torch.randint_like(torch.zeros(2), 3, **named),
    "new_empty": lambda **named: torch.zeros(1).new_empty((2,), **named),
    "new_empty_strided": lambda **named: torch.zeros(1).new_empty_strided((2,), (1,), **named),
    "new_zeros": lambda **named: torch.zeros(1).new_zeros((2,), **named),
    "new_ones": lambda **named: torch.zeros(1).new_ones((2,), **named),
}


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("name", sorted(PINNED))
def test_host_memory_is_pinned_before_and_after_the_script_names_a_gpu(
    name: str, is_watched: bool
) -> None:
    with fake(is_lazy=not is_watched):
        made = PINNED[name](pin_memory=True)
        assert made.device.type == "cpu"
        assert made.is_pinned()
        assert not PINNED[name](pin_memory=False).is_pinned()


@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_run_on_the_cpu_pins_nothing(name: str) -> None:
    with redirect_cuda_to_cpu():
        assert not PINNED[name](pin_memory=True).is_pinned()
