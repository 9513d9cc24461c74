"""What a change of a step would bring."""

from __future__ import annotations

import math

import pytest

from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import CAPTURED, Bound, Edit, Scenario, WhatIf, build_program, predict_steps
from breakeven.simulate.what_if import WhatIfResult
from breakeven.trace import Event, Op, Settings, StepTrace, Sync, TensorSpec
from factories.steps import GPU, HOST, MadeUpCosts, op

SYNC = Sync(kind="item", num_bytes=4)


def what_if(*events: Event, **costs: float) -> WhatIf:
    return WhatIf(build_program(StepTrace(events=events), costs=MadeUpCosts(**costs)), GPU, HOST)


def without(index: int, *events: Event, **costs: float) -> WhatIfResult:
    return what_if(*events, **costs).fixed(Edit(replaced={index: ()}))


def test_the_gain_is_the_part_of_the_step_that_is_saved() -> None:
    # 10 + 200 + 40 with the sync; 200 where host and device overlap.
    result = without(1, op(200, host_ns=10), SYNC, sync_ns=40)

    assert result.fixed.value_ns == 200
    assert result.gain_fraction == pytest.approx(0.2)
    assert result.gain_low_fraction < 0.2 < result.gain_high_fraction


def test_new_events_take_the_place_of_others() -> None:
    step = what_if(op(10, host_ns=10), op(100, host_ns=10), op(30, host_ns=10))
    edit = Edit(replaced={1: (op(5, host_ns=1), op(6, host_ns=1)), 2: ()})

    assert step.step.value_ns == 140
    assert step.fixed(edit).fixed.value_ns == 21
    # The step itself stays as it was.
    assert step.fixed(Edit(replaced={0: ()})).fixed.value_ns == 130


def test_new_events_keep_their_order() -> None:
    # The sync that comes with the kernel stands before the host's work, which it then waits for.
    edit = Edit(replaced={0: (op(100), SYNC)})
    assert what_if(op(100), op(host_ns=50)).fixed(edit).fixed.value_ns == 150


def test_circumstances_alone_may_change() -> None:
    step = what_if(op(10, host_ns=100), op(20, host_ns=100), launch_ns=50, graph_launch_ns=7)

    assert step.fixed(None, CAPTURED).fixed.value_ns == 30
    assert step.fixed(None, CAPTURED).gain_fraction == pytest.approx(0.9)
    assert step.fixed(None, Scenario(without=frozenset({Bound.LAUNCH}))).fixed.value_ns == 30


def test_nothing_changed_gains_nothing() -> None:
    result = what_if(op(10, host_ns=100, sigma=0.3), SYNC, sync_ns=5, log_sigma=0.2).fixed(None)

    assert (result.gain_low_fraction, result.gain_fraction, result.gain_high_fraction) == (0, 0, 0)
    assert result.fixed.low_ns < result.fixed.value_ns < result.fixed.high_ns


def test_the_interval_knows_that_host_and_device_err_apart() -> None:
    # The device decides by a hair: removing work of the host gains nothing, unless the host is
    # slower and the device faster than thought. Off together, the gain is 0 as well.
    result = without(1, op(100, host_ns=60, sigma=0.25), op(host_ns=38))

    assert result.gain_fraction == 0
    assert result.gain_low_fraction == 0
    assert result.gain_high_fraction > 0.2


def test_the_interval_knows_that_a_single_kernel_errs_more_than_the_step() -> None:
    # Different kernels, each off by itself: their sum is off by less, the one that goes is not.
    kernels = [op(time_ns, sigma=0.3) for time_ns in (100, 101, 99, 100.5)]
    sure = without(0, *(op(100) for _ in range(4)))
    unsure = without(0, *kernels, shared_sigma_fraction=0.0)
    slow = 100 * math.exp(0.3 * 1.6449 / math.sqrt(2))
    fast = 100 * math.exp(-0.3 * 1.6449 / math.sqrt(2))

    assert sure.gain_low_fraction == sure.gain_high_fraction == pytest.approx(0.25)
    assert unsure.gain_fraction == pytest.approx(100 / 400.5)
    assert unsure.gain_low_fraction == pytest.approx(fast / (fast + 300.5))
    assert unsure.gain_high_fraction == pytest.approx(slow / (slow + 300.5))


def test_a_change_that_costs_more_has_a_negative_gain() -> None:
    step = what_if(op(100, host_ns=10))
    assert step.fixed(Edit(replaced={0: (op(150, host_ns=10),)})).gain_fraction == -0.5


def test_other_settings_change_the_kernels() -> None:
    square = TensorSpec(shape=(4096, 4096), dtype="float32", device="cuda:0")
    events = tuple(
        Op(name=name, inputs=(square, square), outputs=(square,))
        for name in ("aten.mm.default", "aten.add.Tensor")
    )
    trace, device, host = StepTrace(events=events), find_device("A100"), reference_host()
    edit = Edit(settings=Settings(allow_tf32_matmul=True), replaced={1: ()})

    result = WhatIf(build_program(trace), device, host).fixed(edit)
    (expected,) = predict_steps(edit.apply(trace), (device,), host)
    assert result.fixed.value_ns == pytest.approx(expected.estimate.value_ns)
    assert result.fixed.high_ns == pytest.approx(expected.estimate.high_ns)
    assert result.gain_fraction > 0.5


def test_settings_that_stay_change_nothing() -> None:
    step = what_if(op(100, host_ns=10))
    assert step.fixed(Edit(settings=Settings())).gain_high_fraction == 0


def test_the_whole_step_may_go() -> None:
    result = without(0, op(100, host_ns=10))
    assert result.fixed.value_ns == 0
    assert result.gain_fraction == 1


def test_an_empty_step_gains_nothing() -> None:
    assert what_if().step.value_ns == 0
    assert what_if().fixed(Edit()).gain_fraction == 0
