"""Scripts that capture their work in CUDA graphs, checked without a GPU."""

from __future__ import annotations

import pytest
from check_process import SCRIPTS, line_of

from breakeven.capture import Launcher, PlainRun, RunRequest, TracedRun, find_target
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.trace import GraphLaunch, Op, Phase, StepTrace

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0


def _trace(launcher: Launcher, name: str, *arguments: str) -> StepTrace:
    target = find_target(str(SCRIPTS / name), arguments)
    run = launcher.run(RunRequest(target=target, is_traced=True, time_limit_s=_LIMIT_S))
    assert isinstance(run, TracedRun), run
    assert run.trace.faults == ()
    return run.trace


def _plain(launcher: Launcher, name: str, *, has_cuda: bool = True) -> PlainRun:
    target = find_target(str(SCRIPTS / name))
    request = RunRequest(
        target=target, is_traced=False, time_limit_s=_LIMIT_S, budget_s=0.1, has_cuda=has_cuda
    )
    run = launcher.run(request)
    assert isinstance(run, PlainRun), run
    return run


def _predicted(trace: StepTrace) -> StepPrediction:
    (prediction,) = predict_steps(trace, (find_device("A100"),), reference_host())
    return prediction


def _launch_phases(trace: StepTrace) -> list[Phase]:
    return [event.phase for event in trace.events if isinstance(event, GraphLaunch)]


def test_a_step_that_is_one_replay_is_predicted_as_one_launch(launcher: Launcher) -> None:
    trace = _trace(launcher, "graph_step.py")
    eager = _trace(launcher, "graph_step.py", "eager")

    assert len(_launch_phases(trace)) == 1
    (launch,) = [event for event in trace.events if isinstance(event, GraphLaunch)]
    assert launch.location is not None
    assert launch.location.line == line_of(SCRIPTS / "graph_step.py", "g.replay()")
    replayed = [op for op in trace.ops if op.is_replayed]
    assert {op.phase for op in replayed} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    # The inputs are copied eagerly in both.
    assert len(trace.ops) - len(replayed) == 2
    assert [op.name for op in trace.ops] == [op.name for op in eager.ops]
    assert trace.num_parameters == eager.num_parameters
    assert trace.syncs == ()

    graphed, one_by_one = _predicted(trace), _predicted(eager)
    assert graphed.num_kernels == one_by_one.num_kernels
    assert graphed.estimate.value_ns < one_by_one.estimate.value_ns / 3
    assert graphed.estimate.value_ns >= graphed.device_busy_ns


def test_graphed_modules_are_a_launch_in_each_direction(launcher: Launcher) -> None:
    trace = _trace(launcher, "graph_modules.py")
    assert _launch_phases(trace) == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2
    is_replayed = {op.phase: set[bool]() for op in trace.ops}
    for op in trace.ops:
        is_replayed[op.phase].add(op.is_replayed)
    assert is_replayed[Phase.OPTIMIZER] == {False}
    products = [op for op in trace.ops if op.name in ("aten.addmm.default", "aten.mm.default")]
    assert products
    assert all(op.is_replayed for op in products)
    assert all(isinstance(op, Op) and op.inputs[0].dtype == "float16" for op in products)
    # One reads the sum, one whether the gradients are finite.
    assert [sync.kind for sync in trace.syncs] == ["item", "item"]


@pytest.mark.parametrize("name", ["graph_step.py", "graph_modules.py"])
def test_graphs_are_replayed_on_the_cpu(launcher: Launcher, name: str) -> None:
    run = _plain(launcher, name)
    assert len(run.measurement.samples_ns) > 2
    assert "graph-eager" in {caveat.code for caveat in run.caveats}
