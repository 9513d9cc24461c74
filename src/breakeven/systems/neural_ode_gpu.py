"""The neural ODE's step on GPUs: today's, and the source's with the software of its years."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.systems.bench import Bench
from breakeven.systems.neural_ode_cpu import SCRIPTS, TORCHDIFFEQ
from breakeven.systems.neural_ode_published import NEURAL_ODE_FRAMEWORK
from breakeven.timing import Estimate
from breakeven.trace import StepTrace

_K40 = "K40"
_GPUS = (_K40, "K80", "T4", "V100 SXM2 16GB", "A100 SXM4 80GB", "RTX 4090")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """A step on a GPU.

    Args:
        device: The GPU, and its software where that is not today's.
        is_k40: Whether it is the source's.
        is_of_its_day: Whether its software is of the source's years.
        solver: Which solver.
        step: Its time.
        num_kernels: Kernels launched in it.
        num_syncs: How often the host waits in it.
    """

    device: str
    is_k40: bool
    is_of_its_day: bool
    solver: str
    step: Estimate
    num_kernels: int
    num_syncs: int


def predict_gpus(bench: Bench, weights: Path) -> tuple[GpuRun, ...]:
    """Return the eager step of both solvers on the GPUs.

    Args:
        bench: Records the steps.
        weights: Checkpoint that the training goes on from.

    Raises:
        BreakevenError: A script gave no answer.
    """
    traces = {
        solver: bench.step(script, "--load", str(weights)) for solver, script in SCRIPTS.items()
    }
    old = [_old(bench, trace, solver) for solver, trace in traces.items()]
    today = [
        _run(prediction, traces[TORCHDIFFEQ], TORCHDIFFEQ)
        for prediction in bench.predict(traces[TORCHDIFFEQ], _GPUS)
    ]
    own = [
        _run(prediction, trace, solver)
        for solver, trace in traces.items()
        if solver != TORCHDIFFEQ
        for prediction in bench.predict(trace, (_K40, _GPUS[-1]))
    ]
    return (*old, *today, *own)


def _old(bench: Bench, trace: StepTrace, solver: str) -> GpuRun:
    costs = StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        era=era_of(NEURAL_ODE_FRAMEWORK),
    )
    (prediction,) = predict_steps(trace, (find_device(_K40),), bench.host, costs=costs)
    return _run(prediction, trace, solver, is_of_its_day=True)


def _run(
    prediction: StepPrediction, trace: StepTrace, solver: str, *, is_of_its_day: bool = False
) -> GpuRun:
    name = prediction.device.name
    return GpuRun(
        device=f"{name} (2020)" if is_of_its_day else name,
        is_k40=prediction.device.id == find_device(_K40).id,
        is_of_its_day=is_of_its_day,
        solver=solver,
        step=prediction.estimate,
        num_kernels=prediction.num_kernels,
        num_syncs=len(trace.syncs),
    )
