"""neural-ode: a network so small that the GPU always waits for the host."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from breakeven.capture import run_script
from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.report import Claim, ColumnKind, RowSource, SystemReport, SystemTable
from breakeven.simulate import predict_steps
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.catalogue import (
    FACTS,
    judged_claim,
    ratio_of,
    report,
    table,
    texts,
    times,
)
from breakeven.timing import Estimate
from breakeven.units import format_digits, format_duration
from breakeven.verdict import threads_text

_FACTS = FACTS["neural-ode"]
_SCRIPT = "neural_ode.py"
# From this iteration on, the solver takes as many steps per iteration as the average over all
# 1,000. In the first ones, the untrained network needs only half as many.
_TRAINED_ITERATIONS = 200
_TRAINING_LIMIT_S = 300.0
OWN_SOLVER, TORCHDIFFEQ = "own", "torchdiffeq"
EAGER, COMPILED, FAST_STEP = "eager", "torch.compile", "fast_step"
_K40 = "K40"
_BUDGET_S = 2.0
# Compiling takes some 10 to 100 s, and the steps after it little.
_COMPILE_LIMIT_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The step on a device.

    Args:
        device: The CPU and its threads, or the GPU, with its software if that is not today's.
        solver: Name of the solver.
        way: How the step runs: ``eager``, ``torch.compile`` or ``fast_step``.
        step: Its time; None if it failed.
        failure: The reason if it failed.
        is_of_its_day: Whether its software is as old as the source.
        launches: Kernel launches in the step; None on a CPU.
        syncs: How often the host waits in the step; None on a CPU.
    """

    device: str
    solver: str
    way: str = EAGER
    step: Estimate | None = None
    failure: str = ""
    is_of_its_day: bool = False
    launches: int | None = None
    syncs: int | None = None

    @property
    def solved_by(self) -> str:
        """The solver, and how it runs if not eagerly."""
        return self.solver if self.way == EAGER else f"{self.solver}, {self.way}"

    @property
    def time(self) -> Estimate:
        """The time of a step that succeeded."""
        assert self.step is not None
        return self.step


def run(bench: Bench) -> SystemReport:
    """Train a while, then measure the step on this CPU in several ways and predict GPUs."""
    with tempfile.TemporaryDirectory(prefix="breakeven-") as folder:
        weights = Path(folder) / "weights.pt"
        # Add one: the script prints its loss in the first and in every fiftieth iteration.
        options = ("--iterations", str(_TRAINED_ITERATIONS + 1), "--save", str(weights))
        limit_s = bench.time_limit_s(_TRAINING_LIMIT_S)
        printed = run_script(script_path(_SCRIPT), options, time_limit_s=limit_s)
        cpu_runs = measure_cpu(bench, weights)
        gpu_runs = predict_gpus(bench, weights)
    losses = [float(loss) for loss in re.findall(r"loss +([0-9.]+)", printed)]
    return report(
        "neural-ode",
        bench.host_summary(),
        tables=steps_tables(cpu_runs, gpu_runs, losses),
        claims=[slowdown_claim(gpu_runs, cpu_runs, is_of_its_day=old) for old in (True, False)],
    )


def solvers() -> tuple[str, ...]:
    """Return our own solver, and torchdiffeq's if it is installed."""
    return (OWN_SOLVER, TORCHDIFFEQ) if find_spec(TORCHDIFFEQ) else (OWN_SOLVER,)


def measure_cpu(bench: Bench, weights: Path) -> list[Run]:
    """Measure the step on this CPU: eager by solver and threads, and compiled.

    Args:
        bench: Measures the steps.
        weights: Checkpoint to continue the training from.

    Raises:
        BreakevenError: If a script gave no answer.
    """
    eager: dict[tuple[str, int], Run] = {}
    compiled: list[Run] = []
    for solver in solvers():
        script = (_SCRIPT, "--solver", solver, "--load", str(weights))
        for num_threads in (0, 1):
            found = bench.measure(*script, num_threads=num_threads, budget_s=_BUDGET_S)
            cpu, step = f"CPU, {threads_text(found.num_threads)}", found.measurement.estimate
            run = Run(device=cpu, solver=solver, step=step)
            eager.setdefault((solver, found.num_threads), run)
        for way, option in ((COMPILED, "--compile"), (FAST_STEP, "--fast-step")):
            if (solver, way) == (TORCHDIFFEQ, FAST_STEP):  # its solver reads values of tensors
                continue
            step, failure = None, ""
            limits = {"budget_s": _BUDGET_S, "compile_limit_s": _COMPILE_LIMIT_S}
            try:
                found = bench.measure(*script, option, num_threads=1, **limits)
                step = found.measurement.estimate
            except BreakevenError as error:  # for example, without a compiler
                failure = error.message
            cpu = f"CPU, {threads_text(1)}"
            compiled.append(Run(device=cpu, solver=solver, way=way, step=step, failure=failure))
    return [*eager.values(), *compiled]


def predict_gpus(bench: Bench, weights: Path) -> list[Run]:
    """Predict the eager step of each solver on the GPUs, first with software of the source's years.

    Args:
        bench: Records the steps.
        weights: Checkpoint to continue the training from.

    Raises:
        BreakevenError: If a script gave no answer.
    """
    costs = StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        era=era_of(_FACTS["framework"]),
    )
    old: list[Run] = []
    today: list[Run] = []
    for solver in solvers():
        trace = bench.step(_SCRIPT, "--solver", solver, "--load", str(weights))
        names = _FACTS["gpus"] if solver == OWN_SOLVER else (_K40, _FACTS["gpus"][-1])
        then = predict_steps(trace, (find_device(_K40),), bench.host, costs=costs)
        for runs, predictions, year in (
            (old, then, " (2020)"),
            (today, bench.predict(trace, names), ""),
        ):
            runs += [
                Run(
                    device=f"{prediction.device.name}{year}",
                    solver=solver,
                    step=prediction.estimate,
                    is_of_its_day=bool(year),
                    launches=prediction.num_kernels,
                    syncs=len(trace.syncs),
                )
                for prediction in predictions
            ]
    return [*old, *today]


def best_of(runs: Sequence[Run]) -> Run:
    """Return the fastest of the runs that succeeded."""
    return min((run for run in runs if run.step), key=lambda run: run.time.value_ns)


def steps_tables(
    cpu_runs: Sequence[Run], gpu_runs: Sequence[Run], losses: Sequence[float]
) -> list[SystemTable]:
    """Return a table of the step on every device, and one of the runs that failed here.

    Args:
        cpu_runs: Runs measured here.
        gpu_runs: Predicted runs.
        losses: Losses of the training before.
    """
    best_ns = best_of(cpu_runs).time.value_ns
    num_iterations = _FACTS["iterations"]
    measured, predicted = (
        [
            (
                run.device, run.solved_by, run.step, num_iterations * run.time.value_ns,
                run.time.value_ns / best_ns, run.launches, run.syncs,
            )
            for run in runs
            if run.step
        ]
        for runs in (cpu_runs, gpu_runs)
    )  # fmt: skip
    tables = [
        table(
            f"One iteration, after {_TRAINED_ITERATIONS} of training",
            {
                **texts("device", "solver"),
                **times("step", "1,000 of them"),
                "vs CPU": ColumnKind.RATIO,
                "launches": ColumnKind.COUNT,
                "syncs": ColumnKind.COUNT,
            },
            (RowSource.MEASURED, measured),
            (RowSource.PREDICTED, predicted),
            note=_FACTS["notes"]["steps"].format(
                first=format_digits(losses[0], 4), last=format_digits(losses[-1], 4)
            ),
        )
    ]
    if failed := [(run.device, run.solved_by, run.failure) for run in cpu_runs if not run.step]:
        columns = texts("device", "solver", "failed because")
        rows = (RowSource.MEASURED, failed)
        tables.append(table("Tried on the CPU without success", columns, rows))
    return tables


def slowdown_claim(
    gpu_runs: Sequence[Run], cpu_runs: Sequence[Run], *, is_of_its_day: bool
) -> Claim:
    """Return the claim that the CPU at its best is ten times as fast as a K40.

    Args:
        gpu_runs: Predictions; the fastest on a K40 with the software in question is used.
        cpu_runs: Measurements; the fastest is used.
        is_of_its_day: Whether to use the software of the source's years or today's.
    """
    cpu = best_of(cpu_runs)
    k40 = sorted(
        (r for r in gpu_runs if r.is_of_its_day is is_of_its_day and r.device.startswith(_K40)),
        key=lambda run: run.time.value_ns,
    )
    gpu, slowest = k40[0], k40[-1]
    ratio = ratio_of(gpu.time, cpu.time)
    # Order by the slowest way first; keep the fastest run of each.
    succeeded = sorted((run for run in cpu_runs if run.step), key=lambda run: -run.time.value_ns)
    fastest_ns = {run.way: run.time.value_ns for run in succeeded}
    ratios = ", ".join(
        f"{format_digits(gpu.time.value_ns / step_ns, 2)}× ({way})"
        for way, step_ns in fastest_ns.items()
    )
    because = (
        f"Against each way of the CPU it is {ratios}: eager PyTorch spends its time on "
        "dispatch on either device, which generated code on the CPU does not, nor did the source's"
    )
    if slowest is not gpu:
        with_slowest = format_digits(slowest.time.value_ns / cpu.time.value_ns, 2)
        because += f". With {slowest.solver}'s solver on the K40 it is {with_slowest}×"
    if is_of_its_day:
        because += (
            ". Of the years' software only the kernels enter: what the host takes is measured "
            "with today's"
        )
    software = "the software of the source's years" if is_of_its_day else "today's software"
    return judged_claim(
        ratio,
        _FACTS["band"],
        claim=f"With {software}, the CPU at its best trains at least "
        f"{format_digits(_FACTS['band'][0])} times as fast as a K40",
        published=_FACTS["statement"],
        ours=f"{ratio}: {cpu.device}, {cpu.solved_by}, {format_duration(cpu.time.value_ns)}; K40, "
        f"{gpu.solver}, {format_duration(gpu.time.value_ns)}",
        because=f"{because}.",
    )
