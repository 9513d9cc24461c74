"""The neural ODE's step on this CPU, in all ways that may be its best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from breakeven.capture import run_script
from breakeven.errors import BreakevenError
from breakeven.store import machine_lock
from breakeven.systems import neural_ode_compiled as compiled_timer
from breakeven.systems.bench import Bench, script_path
from breakeven.timing import Estimate, Measurement

TORCHDIFFEQ = "torchdiffeq"
OWN_SOLVER = "own"
SCRIPTS = {TORCHDIFFEQ: "neural_ode.py", OWN_SOLVER: "neural_ode_solver.py"}
_COMPILED = {
    TORCHDIFFEQ: "torchdiffeq, compiled",
    OWN_SOLVER: "own, compiled",
}
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
