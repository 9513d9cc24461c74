"""Small recurrent layers, whose time steps are one kernel of cuDNN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from breakeven.cost import (
    Family,
    Kernel,
    StepCosts,
    is_in_one_kernel,
    kernel_times,
    load_efficiencies,
    lower,
    no_step_effects,
    step_by_step,
)
from breakeven.cost.step_effects import Era
from breakeven.device import find_device
from breakeven.trace import Op, Settings, TensorSpec

NUM_STEPS = 50
LSTM, GRU, RELU, TANH = 2, 3, 0, 1
NUM_GATES = {LSTM: 4, GRU: 3, RELU: 1, TANH: 1}


def steps_of(
    hidden: int, *, mode: int = LSTM, dtype: str = "float32", is_backward: bool = False,
    is_packed: bool = False, **attributes: Any,
) -> Kernel:  # fmt: skip
    """Return the time steps of a layer with a batch of 32, and as many inputs as units."""

    def spec(*shape: int) -> TensorSpec:
        return TensorSpec(shape=shape, dtype=dtype, device="cuda:0")

    source = spec(NUM_STEPS * 32, hidden) if is_packed else spec(NUM_STEPS, 32, hidden)
    weight = spec(NUM_GATES[mode] * hidden, hidden)
    op = Op(
        name=f"aten._cudnn_rnn{'_backward' if is_backward else ''}.default",
        inputs=(source, spec(1, 32, hidden), weight, weight),
        outputs=(source,),
        attributes={"mode": mode, "hidden_size": hidden, "num_layers": 1, **attributes},
    )
    kernels = lower(op, Settings(allow_tf32_convolution=False)).kernels
    (steps,) = (kernel for kernel in kernels if kernel.family is Family.RECURRENT)
    return steps


@pytest.mark.parametrize(
    ("mode", "is_backward", "most_units"),
    [
        (LSTM, False, 192), (LSTM, True, 128), (GRU, False, 192), (GRU, True, 128),
        (RELU, False, 384), (RELU, True, 256), (TANH, False, 384), (TANH, True, 256),
    ],
)  # fmt: skip
def test_layers_up_to_a_size_are_launched_once(
    mode: int, is_backward: bool, most_units: int
) -> None:
    small, large = (
        steps_of(hidden, mode=mode, is_backward=is_backward)
        for hidden in (most_units, most_units + 1)
    )
    assert (small.launches, small.num_steps) == (1, NUM_STEPS)
    assert (large.launches, large.num_steps) == (NUM_STEPS, 1)
    assert small.variant == f"small_{large.variant}"


def test_each_layer_is_launched_in_each_direction() -> None:
    steps = steps_of(64, num_layers=3, bidirectional=True)
    assert (steps.launches, steps.num_steps) == (6, NUM_STEPS)


@pytest.mark.parametrize(
    "other",
    [{"dtype": "bfloat16"}, {"dtype": "float64"}, {"is_packed": True}, {"proj_size": 32}],
    ids=str,
)
def test_other_layers_are_launched_step_by_step(other: dict[str, Any]) -> None:
    assert not is_in_one_kernel(steps_of(64, **other).variant)


@pytest.mark.parametrize("name", ["H200", "A100 SXM4 40GB", "RTX 3090"])
def test_a_step_of_a_small_layer_takes_a_fraction_of_a_large_one(name: str) -> None:
    layers = [steps_of(64), steps_of(256), steps_of(128, is_backward=True),
              steps_of(256, is_backward=True)]  # fmt: skip
    small, large, small_back, large_back = kernel_times(layers, [find_device(name)]).time_ns[:, 0]
    assert small < large / 8
    assert small < small_back < large_back / 6


@pytest.mark.parametrize(("dtype", "measured_us"), [("float32", 0.96), ("float16", 1.48)])
def test_steps_take_what_they_took_on_an_h200(dtype: str, measured_us: float) -> None:
    for mode in (LSTM, GRU):
        steps = kernel_times([steps_of(64, mode=mode, dtype=dtype)], [find_device("H200")])
        assert steps.time_ns[0, 0] / NUM_STEPS / 1e3 == pytest.approx(measured_us, rel=0.1)
        assert steps.is_latency_bound[0, 0]


@pytest.mark.parametrize("name", ["M40", "Instinct MI210"])
def test_gpus_without_that_kernel_take_step_by_step(name: str) -> None:
    small = steps_of(64)
    times = kernel_times([small, step_by_step(small)], [find_device(name)]).time_ns
    assert times[0] == times[1]


def test_devices_with_and_without_it_stand_side_by_side() -> None:
    devices = [find_device(name) for name in ("M40", "T4", "Instinct MI210", "H200")]
    together = kernel_times([steps_of(64)], devices).time_ns[0]
    alone = [kernel_times([steps_of(64)], [device]).time_ns[0, 0] for device in devices]
    assert together.tolist() == pytest.approx(alone)


@pytest.mark.parametrize("era", list(Era))
def test_software_before_cudnn_8_2_takes_step_by_step(era: Era) -> None:
    costs = StepCosts(efficiencies=load_efficiencies(), effects=no_step_effects(), era=era)
    small = steps_of(64)
    times = costs.kernel_times([small, step_by_step(small)], [find_device("RTX 3090")]).time_ns
    is_new = era in (Era.TORCH_1_LATE, Era.TORCH_2, Era.UNKNOWN)
    assert (times[0, 0] < times[1, 0] / 8) == is_new
    assert (times[0, 0] == times[1, 0]) == (not is_new)


def test_what_one_gpu_showed_widens_the_interval() -> None:
    small = steps_of(64)
    devices = [find_device("H200"), find_device("RTX 4090")]
    sigmas = kernel_times([small, step_by_step(small)], devices).log_sigma
    assert np.all(sigmas[0] > sigmas[1])
