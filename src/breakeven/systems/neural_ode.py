"""neural-ode: a network so small that the GPU only ever waits for the host."""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec

from breakeven.capture import run_script
from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.store import machine_lock
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.catalogue import Findings, judged_claim, ratio_of, rows, table
from breakeven.systems.published import (
    NEURAL_ODE_BAND,
    NEURAL_ODE_CLAIM,
    NEURAL_ODE_FRAMEWORK,
    NEURAL_ODE_ITERATIONS,
)
from breakeven.timing import Estimate, Measurement
from breakeven.trace import StepTrace
from breakeven.units import format_digits, format_duration
from breakeven.verdict import Cell, Claim, ColumnKind, RowSource, SystemTable

_SCRIPT = "neural_ode.py"
# From here on the solver takes as many steps for an iteration as on average of all 1,000; in the
# first ones, with a network that does nothing yet, it takes half of that.
_TRAINED_ITERATIONS = 200
_TRAINING_LIMIT_S = 300.0
_LOSS = re.compile(r"loss +([0-9.]+)")
OWN_SOLVER, TORCHDIFFEQ = "own", "torchdiffeq"
EAGER, COMPILED, FAST_STEP = "eager", "torch.compile", "fast_step"
_COMPILING = {COMPILED: "--compile", FAST_STEP: "--fast-step"}
_K40 = "K40"
_GPUS = (_K40, "K80", "T4", "V100 SXM2 16GB", "A100 SXM4 80GB", "RTX 4090")
_BUDGET_S = 2.0
# Compiling takes some 10 to 100 s, the steps after it little.
_COMPILE_LIMIT_S = 400.0


def run(bench: Bench) -> Findings:
    """Train a while, then measure the step on this CPU in several ways and predict GPUs."""
    with tempfile.TemporaryDirectory(prefix="breakeven-") as folder:
        weights = Path(folder) / "weights.pt"
        losses = _train(bench, weights)
        cpu_runs = measure_cpu(bench, weights)
        gpu_runs = predict_gpus(bench, weights)
    return Findings(
        host=bench.host_summary(),
        tables=(steps_table(cpu_runs, gpu_runs, losses), *_untried(cpu_runs)),
        claims=tuple(
            slowdown_claim(gpu_runs, cpu_runs, is_of_its_day=old) for old in (True, False)
        ),
    )


def _train(bench: Bench, weights: Path) -> tuple[float, ...]:
    """Train the network for a while, save it, and return the losses that were printed."""
    # One more, for the script prints its loss in every fiftieth and first iteration.
    options = ("--iterations", str(_TRAINED_ITERATIONS + 1), "--save", str(weights))
    limit_s = bench.time_limit_s(_TRAINING_LIMIT_S)
    printed = run_script(script_path(_SCRIPT), options, time_limit_s=limit_s)
    return tuple(map(float, _LOSS.findall(printed)))


def best_of(runs: tuple[CpuRun, ...]) -> CpuRun:
    """Return the fastest of the runs that succeeded."""
    return min((run for run in runs if run.step is not None), key=lambda run: run.step_ns)


def steps_table(
    cpu_runs: tuple[CpuRun, ...], gpu_runs: tuple[GpuRun, ...], losses: tuple[float, ...]
) -> SystemTable:
    """Return the step of every device.

    Args:
        cpu_runs: Measured here; those that failed are left out.
        gpu_runs: Predicted.
        losses: Of the training up to there.
    """
    best_ns = best_of(cpu_runs).step_ns

    def cells(step: Estimate) -> tuple[Cell, ...]:
        return step, NEURAL_ODE_ITERATIONS * step.value_ns, step.value_ns / best_ns

    measured = (
        (run.device, run.solved_by, *cells(run.step), None, None) for run in cpu_runs if run.step
    )
    predicted = (
        (run.device, run.solver, *cells(run.step), run.num_kernels, run.num_syncs)
        for run in gpu_runs
    )
    return table(
        f"One iteration, after {_TRAINED_ITERATIONS} of training",
        {
            "device": ColumnKind.TEXT,
            "solver": ColumnKind.TEXT,
            "step": ColumnKind.TIME_NS,
            "1,000 of them": ColumnKind.TIME_NS,
            "vs CPU": ColumnKind.RATIO,
            "launches": ColumnKind.COUNT,
            "syncs": ColumnKind.COUNT,
        },
        (*rows(RowSource.MEASURED, measured), *rows(RowSource.PREDICTED, predicted)),
        note="vs CPU: how many times as long as the best CPU. torch.compile takes the network of "
        "torchdiffeq's solver, and one step of our own; fast_step takes an iteration of 16 tried "
        "steps. 2020: with the software of that year. The training lowered the loss from "
        f"{format_digits(losses[0], 4)} to {format_digits(losses[-1], 4)}. GPUs run "
        "the step eagerly, as did the source's; a compiled one launches less and is not "
        "predicted.",
    )


def _untried(runs: tuple[CpuRun, ...]) -> tuple[SystemTable, ...]:
    """Return the ways of the CPU that failed here, with the reason."""
    failed = [run for run in runs if run.step is None]
    if not failed:
        return ()
    return (
        table(
            "Tried on the CPU without success",
            dict.fromkeys(("device", "solver", "failed because"), ColumnKind.TEXT),
            rows(RowSource.MEASURED, ((run.device, run.solved_by, run.failure) for run in failed)),
        ),
    )


def slowdown_claim(
    gpu_runs: tuple[GpuRun, ...], cpu_runs: tuple[CpuRun, ...], *, is_of_its_day: bool
) -> Claim:
    """Return whether the CPU at its best is ten times as fast as a K40.

    Args:
        gpu_runs: Of which those on a K40 with the software in question count, the fastest.
        cpu_runs: The fastest counts.
        is_of_its_day: With the software of the source's years, or with today's.
    """
    cpu = best_of(cpu_runs)
    assert cpu.step is not None
    k40 = [run for run in gpu_runs if run.is_k40 and run.is_of_its_day is is_of_its_day]
    gpu = min(k40, key=lambda run: run.step.value_ns)
    ratio = ratio_of(gpu.step, cpu.step)
    software = "the software of the source's years" if is_of_its_day else "today's software"
    return judged_claim(
        ratio,
        NEURAL_ODE_BAND,
        claim=f"With {software}, the CPU at its best trains at least "
        f"{format_digits(NEURAL_ODE_BAND.low)} times as fast as a K40",
        published=NEURAL_ODE_CLAIM,
        ours=f"{ratio}: {cpu.device}, {cpu.solved_by}, {format_duration(cpu.step.value_ns)}; K40, "
        f"{gpu.solver}, {format_duration(gpu.step.value_ns)}",
        because=_because(cpu_runs, k40, is_of_its_day=is_of_its_day),
    )


def _because(cpu_runs: tuple[CpuRun, ...], k40: list[GpuRun], *, is_of_its_day: bool) -> str:
    fastest, slowest = (choose(k40, key=lambda run: run.step.value_ns) for choose in (min, max))
    # The slowest way first, of each its fastest run.
    least = {
        run.way: run.step_ns
        for run in sorted((run for run in cpu_runs if run.step), key=lambda run: -run.step_ns)
    }
    times = ", ".join(
        f"{format_digits(fastest.step.value_ns / step_ns, 2)}× ({way})"
        for way, step_ns in least.items()
    )
    reason = (
        f"Against each way of the CPU it is {times}: eager PyTorch spends its time on "
        "dispatch on either device, which generated code on the CPU does not, nor did the source's"
    )
    if slowest is not fastest:
        with_slowest = format_digits(slowest.step.value_ns / best_of(cpu_runs).step_ns, 2)
        reason += f". With {slowest.solver}'s solver on the K40 it is {with_slowest}×"
    if is_of_its_day:
        reason += (
            ". Of the years' software only the kernels enter: what the host takes is measured "
            "with today's"
        )
    return f"{reason}."


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRun:
    """One way to run the step on this CPU.

    Args:
        device: The CPU and its threads.
        solver: Which solver.
        way: What runs the step: ``eager``, ``torch.compile`` or ``fast_step``.
        step: Its time; None where it failed.
        failure: Why it failed.
    """

    device: str
    solver: str
    way: str = EAGER
    step: Estimate | None = None
    failure: str = ""

    @property
    def solved_by(self) -> str:
        """Return the solver, and what runs it where PyTorch alone does not."""
        return self.solver if self.way == EAGER else f"{self.solver}, {self.way}"

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


def solvers() -> tuple[str, ...]:
    """Return our own solver, and torchdiffeq's where it is installed."""
    return (OWN_SOLVER, TORCHDIFFEQ) if find_spec(TORCHDIFFEQ) else (OWN_SOLVER,)


def _options(solver: str, weights: Path) -> tuple[str, ...]:
    return "--solver", solver, "--load", str(weights)


def _eager(bench: Bench, weights: Path) -> Iterator[CpuRun]:
    for solver in solvers():
        seen: set[int] = set()
        for num_threads in (0, 1):
            run = bench.measure(
                _SCRIPT, *_options(solver, weights), num_threads=num_threads, budget_s=_BUDGET_S
            )
            if run.num_threads not in seen:
                seen.add(run.num_threads)
                step = run.measurement.estimate
                yield CpuRun(device=_cpu(run.num_threads), solver=solver, step=step)


def _compiled(weights: Path, time_limit_s: float) -> Iterator[CpuRun]:
    for solver in solvers():
        for way, option in _COMPILING.items():
            if (solver, way) == (TORCHDIFFEQ, FAST_STEP):  # which reads no number, as it does
                continue
            step, failure = None, ""
            try:
                step = _time_compiled((*_options(solver, weights), option), time_limit_s)
            except BreakevenError as error:  # without a compiler, for instance
                failure = error.message
            yield CpuRun(device=_cpu(1), solver=solver, way=way, step=step, failure=failure)


def _time_compiled(options: tuple[str, ...], time_limit_s: float) -> Estimate:
    arguments = (str(_BUDGET_S), "1", str(script_path(_SCRIPT)), *options)
    with machine_lock():
        printed = run_script(Path(__file__), arguments, time_limit_s=time_limit_s)
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
    """Return the eager step of each solver on the GPUs.

    Args:
        bench: Records the steps.
        weights: Checkpoint that the training goes on from.

    Raises:
        BreakevenError: A script gave no answer.
    """
    traces = {solver: bench.step(_SCRIPT, *_options(solver, weights)) for solver in solvers()}
    old = [_old(bench, trace, solver) for solver, trace in traces.items()]
    today = [
        _run(prediction, trace, solver)
        for solver, trace in traces.items()
        for prediction in bench.predict(trace, _GPUS if solver == OWN_SOLVER else (_K40, _GPUS[-1]))
    ]
    return (*old, *today)


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


class _EnoughError(BaseException):
    """The samples suffice; no handler of the script for errors catches it."""


def main() -> None:
    """Time the steps of a script that compiles them, and print the times as JSON.

    Other measurements run such steps eagerly. This module is started for it as ``python
    neural_ode.py BUDGET_S NUM_THREADS SCRIPT [ARGUMENT ...]``.
    """
    import torch  # here alone: whoever imports this module only starts others
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from breakeven.measure import HostClock, StepTimer

    budget_s, num_threads, script = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).resolve().parent)
    if num_threads:
        torch.set_num_threads(num_threads)
    timer = StepTimer(HostClock(), budget_s)

    def mark(*_: object) -> None:
        if timer.mark(0):
            raise _EnoughError

    register_optimizer_step_post_hook(mark)
    try:
        runpy.run_path(script, run_name="__main__")
    except _EnoughError:
        sys.stdout.flush()
    measurement = timer.measurement()
    if measurement is None:
        sys.exit("it made no two steps")
    sys.stdout.write(msgspec.json.encode(measurement).decode() + "\n")


if __name__ == "__main__":
    main()
