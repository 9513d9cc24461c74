"""The neural ODE's step: on this CPU in all ways that may be its best, and on GPUs.

The source's GPU is predicted with the software of its years as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from breakeven.capture import run_script
from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.store import machine_lock
from breakeven.systems import neural_ode_compiled as compiled_timer
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.published import NEURAL_ODE_FRAMEWORK
from breakeven.timing import Estimate, Measurement
from breakeven.trace import StepTrace

TORCHDIFFEQ = "torchdiffeq"
OWN_SOLVER = "own"
SCRIPTS = {TORCHDIFFEQ: "neural_ode.py", OWN_SOLVER: "neural_ode_solver.py"}
_COMPILED = {
    TORCHDIFFEQ: "torchdiffeq, compiled",
    OWN_SOLVER: "own, compiled",
}
_K40 = "K40"
_GPUS = (_K40, "K80", "T4", "V100 SXM2 16GB", "A100 SXM4 80GB", "RTX 4090")
_BUDGET_S = 2.0
# Compiling takes some 10 to 100 s, the steps after it few.
_COMPILE_LIMIT_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRun:
    """One way to run the step on this CPU.

    Args:
        device: The CPU and its threads.
        solver: Which solver, and what is compiled of it.
        is_compiled: Whether anything is.
        step: Its time; None where it failed.
        failure: Why it failed.
    """

    device: str
    solver: str
    is_compiled: bool = False
    step: Estimate | None = None
    failure: str = ""

    @property
    def step_ns(self) -> float:
        """Return the time of a step that succeeded."""
        assert self.step is not None
        return self.step.value_ns


def measure_cpu(bench: Bench, weights: Path) -> tuple[CpuRun, ...]:
    """Return the step on this CPU: eager by solver and threads, and compiled.

    Args:
        bench: Measures the eager steps.
        weights: Checkpoint that the training goes on from.

    Raises:
        BreakevenError: A script gave no answer.
    """
    return (*_eager(bench, weights), *_compiled(weights, bench.time_limit_s(_COMPILE_LIMIT_S)))


def _eager(bench: Bench, weights: Path) -> Iterator[CpuRun]:
    for solver, script in SCRIPTS.items():
        seen: set[int] = set()
        for num_threads in (0, 1):
            run = bench.measure(
                script, "--load", str(weights), num_threads=num_threads, budget_s=_BUDGET_S
            )
            if run.num_threads not in seen:
                seen.add(run.num_threads)
                step = run.measurement.estimate
                yield CpuRun(device=_cpu(run.num_threads), solver=solver, step=step)


def _compiled(weights: Path, time_limit_s: float) -> Iterator[CpuRun]:
    for solver, script in SCRIPTS.items():
        step, failure = None, ""
        try:
            step = _time_compiled(script_path(script), weights, time_limit_s)
        except BreakevenError as error:  # without a C++ compiler, for instance
            failure = error.message
        yield CpuRun(
            device=_cpu(1), solver=_COMPILED[solver], is_compiled=True, step=step, failure=failure
        )


def _time_compiled(script: Path, weights: Path, time_limit_s: float) -> Estimate:
    options = (str(_BUDGET_S), "1", str(script), "--load", str(weights), "--compile")
    with machine_lock():
        printed = run_script(Path(compiled_timer.__file__), options, time_limit_s=time_limit_s)
    return msgspec.json.decode(printed.splitlines()[-1], type=Measurement).estimate


def _cpu(num_threads: int) -> str:
    return f"CPU, {num_threads} thread{'' if num_threads == 1 else 's'}"


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
