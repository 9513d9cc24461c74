from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn

from breakeven.capture import trace_step
from breakeven.capture.record.recorder import _is_repeatable
from breakeven.capture.sessions.session import PhaseWatch
from breakeven.cost import reference_host
from breakeven.device import HostSpec, find_device
from breakeven.simulate import (
    CpuStep,
    MeasuredStep,
    Program,
    anchored_host,
    build_program,
    predict_cpu_step,
    predict_steps,
    scaled_host,
)
from breakeven.trace import HostWork, Op, StepTrace

HERE = HostSpec(
    id="here", name="Made-up host", op_ns=2_000, python_ns=350, view_python_ns=1_750,
    autograd_ns=450, backward_ns=2_900, backward_call_ns=30_000, foreach_ns=3_200,
    foreach_tensor_ns=140, view_ns=800, device_ns=1_000, module_ns=700, source="made up",
)  # fmt: skip
GPU = find_device("RTX 4090")
TINY_NS, LONG_NS = 2_000, 5_000_000


def recorded(host_ns: int, **options: object) -> StepTrace:
    """Return the step of a small network, each of whose operators took that long on the CPU."""
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(network.parameters(), **options)  # type: ignore[arg-type]
    x = torch.randn(8, 4)

    def step() -> None:
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()

    trace = trace_step(step).trace
    return replace(
        trace,
        # A disturbance while it is recorded reads as work of the script's own.
        events=tuple(
            replace(event, host_ns=host_ns) if isinstance(event, Op) else event
            for event in trace.events
            if not isinstance(event, HostWork)
        ),
    )


@pytest.fixture(scope="module")
def tiny() -> Program:
    """Return a step without arithmetic to speak of, whose optimizer takes lists anywhere."""
    return build_program(recorded(TINY_NS, foreach=True))


def measured(step: CpuStep, factor: float = 1.0) -> MeasuredStep:
    return MeasuredStep(
        forward_ns=factor * (step.zero_grad_ns + step.forward_ns),
        backward_ns=factor * step.backward_ns,
        optimizer_ns=factor * step.optimizer_ns,
    )


def with_slow_python(step: CpuStep, factor: float) -> MeasuredStep:
    """Return a step as measured whose forward pass and update took so many times as long."""
    return replace(measured(step, factor), backward_ns=step.backward_ns)


def gpu_step_ns(program: Program, host: HostSpec) -> float:
    (prediction,) = predict_steps(program.trace, [GPU], host)
    return prediction.estimate.value_ns


def test_arithmetic_of_the_recording_is_time_of_the_step(tiny: Program) -> None:
    events = list(tiny.trace.events)
    at = next(
        i for i, event in enumerate(events) if isinstance(event, Op) and "addmm" in event.name
    )
    events[at] = replace(events[at], host_ns=events[at].host_ns + 1_000_000)
    slower = build_program(replace(tiny.trace, events=tuple(events)))
    before, after = predict_cpu_step(tiny, HERE), predict_cpu_step(slower, HERE)
    assert after.forward_ns == pytest.approx(before.forward_ns + 1_000_000)
    assert after.step_ns == pytest.approx(before.step_ns + 1_000_000)


def test_optimizer_that_loops_over_tensors_takes_longer_than_one_that_takes_lists() -> None:
    loops, lists = (
        predict_cpu_step(build_program(recorded(TINY_NS, foreach=foreach)), HERE)
        for foreach in (None, True)
    )
    assert loops.optimizer_ns > 1.2 * lists.optimizer_ns
    assert loops.zero_grad_ns == lists.zero_grad_ns


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0, 8.0, 20.0, 1_000.0])
def test_gpu_is_not_faster_than_the_host_where_arithmetic_is_negligible(
    tiny: Program, factor: float
) -> None:
    step = predict_cpu_step(tiny, HERE)
    slow = with_slow_python(step, factor)
    host = anchored_host(tiny, HERE, slow)
    assert gpu_step_ns(tiny, host) >= slow.forward_ns + slow.backward_ns + slow.optimizer_ns


@given(factors=st.tuples(*[st.floats(0.3, 100.0)] * 2).map(sorted))
def test_slower_step_never_makes_a_faster_host(tiny: Program, factors: list[float]) -> None:
    step = predict_cpu_step(tiny, HERE)
    fast, slow = (anchored_host(tiny, HERE, measured(step, by)) for by in factors)
    for name in ("forward_factor", "backward_factor", "optimizer_factor", "step_ns"):
        assert getattr(fast, name) <= 1.001 * getattr(slow, name)


def test_slower_step_is_a_slower_host(tiny: Program) -> None:
    step = predict_cpu_step(tiny, HERE)
    as_foreseen, slow = (anchored_host(tiny, HERE, measured(step, by)) for by in (1.0, 2.0))
    assert 1.4 < gpu_step_ns(tiny, slow) / gpu_step_ns(tiny, as_foreseen) < 2.0
    assert slow.forward_factor > as_foreseen.forward_factor
    assert slow.backward_factor > as_foreseen.backward_factor


def test_what_held_up_a_whole_step_makes_no_operator_many_times_dearer(tiny: Program) -> None:
    step = predict_cpu_step(tiny, HERE)
    as_foreseen, slow, held_up, longer = (
        anchored_host(tiny, HERE, measured(step, by)) for by in (1.0, 3.0, 30.0, 300.0)
    )
    for name in ("forward_factor", "backward_factor", "optimizer_factor"):
        assert getattr(held_up, name) == pytest.approx(getattr(slow, name))
        assert 1 < getattr(held_up, name) / getattr(as_foreseen, name) < 5
    assert as_foreseen.log_sigma < held_up.log_sigma < longer.log_sigma
    # The backward pass took what it takes: Python between operators is the host's work.
    python = anchored_host(tiny, HERE, with_slow_python(step, 30.0))
    assert python.forward_factor > 10 * as_foreseen.forward_factor
    # So is that of functions of the script's own in the backward pass.
    in_backward = replace(measured(step), backward_ns=30 * step.backward_ns)
    slow_backward = anchored_host(tiny, HERE, in_backward)
    assert slow_backward.backward_factor > 5 * as_foreseen.backward_factor


def test_step_that_was_hardly_timed_leaves_the_host_as_is_usual(tiny: Program) -> None:
    step = predict_cpu_step(tiny, HERE)
    usual_ns = gpu_step_ns(tiny, anchored_host(tiny, HERE, measured(step)))
    well = replace(with_slow_python(step, 40.0), spread=1.05)
    # One sample beside other work: nobody knows by how much that held it up.
    once = replace(well, spread=16.0)
    well_ns, once_ns = (gpu_step_ns(tiny, anchored_host(tiny, HERE, one)) for one in (well, once))
    assert well_ns > 10 * usual_ns
    assert once_ns < 3 * usual_ns


def test_arithmetic_says_nothing_of_the_host() -> None:
    program = build_program(recorded(LONG_NS))
    step = predict_cpu_step(program, HERE)
    found = [anchored_host(program, HERE, measured(step, by)) for by in (0.97, 1.0, 1.03)]
    times = [gpu_step_ns(program, host) for host in found]
    assert max(times) < 1.1 * min(times)
    assert all(0.8 < host.forward_factor < 1.5 for host in found)


def test_step_without_backward_pass_and_optimizer_leaves_those_as_they_are() -> None:
    network, x = nn.Linear(4, 4), torch.randn(2, 4)

    def step() -> None:
        with torch.no_grad():
            network(x).relu().sum()

    program = build_program(trace_step(step).trace)
    found = predict_cpu_step(program, HERE)
    assert (found.backward_ns, found.optimizer_ns, found.zero_grad_ns) == (0.0, 0.0, 0.0)
    host = anchored_host(program, HERE, measured(found, 3.0))
    assert (host.backward_factor, host.optimizer_factor) == (1.0, 1.0)
    assert host.forward_factor > 1.2


def test_captured_step_costs_the_host_one_launch_whatever_its_python_takes(tiny: Program) -> None:
    slow = replace(HERE, step_ns=1e6)
    (plain,) = predict_steps(tiny.trace, [GPU], HERE, is_captured=True)
    (captured,) = predict_steps(tiny.trace, [GPU], slow, is_captured=True)
    assert captured.estimate == plain.estimate
    assert gpu_step_ns(tiny, slow) == pytest.approx(gpu_step_ns(tiny, HERE) + 1e6, rel=0.02)


def test_other_host_takes_more_where_the_script_takes_this_one_more_than_usual(
    tiny: Program,
) -> None:
    named, step = reference_host(), predict_cpu_step(tiny, HERE)
    slow, slower = (
        scaled_host(named, HERE, anchored_host(tiny, HERE, measured(step, by))) for by in (1.5, 3.0)
    )
    assert slower.name == named.name
    assert gpu_step_ns(tiny, slower) > 1.3 * gpu_step_ns(tiny, slow)


def test_parts_of_a_step_are_timed_as_they_pass() -> None:
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: time.sleep(0.02))
    with PhaseWatch() as watch:
        for _ in range(4):
            weight.square().backward()
            time.sleep(0.01)
            watch.mark()
    phases = watch.phases((0, 1, 2, 3))
    assert phases is not None
    assert phases.backward_ns > 20e6
    assert 10e6 < phases.optimizer_ns < phases.backward_ns + 10e6
    assert watch.phases((0,)) is None


def test_update_within_a_backward_pass_is_part_of_that() -> None:
    weight = torch.ones(1, requires_grad=True)
    with PhaseWatch() as watch:
        weight.register_post_accumulate_grad_hook(lambda _: watch.mark())
        for _ in range(4):
            time.sleep(0.01)
            weight.square().backward()
    phases = watch.phases((0, 1, 2, 3))
    assert phases is not None
    assert phases.optimizer_ns == 0


def test_second_optimizer_after_one_backward_pass_has_time_of_its_own() -> None:
    weight = torch.ones(1, requires_grad=True)
    with PhaseWatch() as watch:
        for _ in range(3):
            weight.square().backward()
            for _ in range(2):
                time.sleep(0.01)
                watch.mark()
    phases = watch.phases((1, 3, 5))
    assert phases is not None
    assert phases.optimizer_ns > 20e6


@pytest.mark.parametrize(
    ("func", "is_repeatable"),
    [
        (torch.ops.aten.mul.Tensor, True),
        (torch.ops.aten.add_.Tensor, False),
        (torch.ops.aten.native_dropout.default, True),
        (torch.ops.aten.native_batch_norm.default, False),
        # The state of torch's own generator is put back.
        (torch.ops.aten.bernoulli.default, True),
        (torch.ops.aten.mm.out, False),
        (torch.ops.prim.device.default, False),
    ],
)
def test_only_operators_that_change_nothing_are_timed_again(func, is_repeatable: bool) -> None:
    assert _is_repeatable(func) is is_repeatable


def test_running_statistics_are_those_of_the_script() -> None:
    def train(*, is_recorded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        norm, x = nn.BatchNorm1d(4), torch.randn(8, 4) + 5
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            norm(x).square().mean().backward()

        if is_recorded:
            trace_step(step)
        else:
            for _ in range(13):
                step()
        # A mean after n steps from 0, at a momentum of 0.1.
        assert norm.running_mean is not None
        return norm.running_mean / (1 - 0.9**count)

    assert torch.allclose(train(is_recorded=True), train(is_recorded=False), rtol=1e-4)


def test_random_numbers_are_those_of_the_script() -> None:
    def draw() -> torch.Tensor:
        torch.manual_seed(0)
        x = nn.functional.dropout(torch.ones(64), 0.5) + torch.rand(64)
        attended = nn.functional.scaled_dot_product_attention(
            *torch.rand(3, 2, 4, 8).unbind(), dropout_p=0.5
        )
        return torch.cat([x, attended.flatten(), torch.rand(4)])

    found: list[torch.Tensor] = []
    trace_step(lambda: found.append(draw()))
    assert torch.equal(found[-1], draw())
