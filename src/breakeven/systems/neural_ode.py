"""neural-ode: a network so small that the GPU only ever waits for the host."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from breakeven.capture import run_script
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.findings import Findings, judged_claim, ratio_of, rows, table
from breakeven.systems.neural_ode_runs import CpuRun, GpuRun, measure_cpu, predict_gpus
from breakeven.systems.published import (
    NEURAL_ODE_BAND,
    NEURAL_ODE_CLAIM,
    NEURAL_ODE_ITERATIONS,
)
from breakeven.timing import Estimate
from breakeven.units import format_digits, format_duration
from breakeven.verdict import Cell, Claim, ColumnKind, RowSource, SystemTable

_SCRIPT = "neural_ode.py"
# From here on the solver takes as many steps for an iteration as on average of all 1,000; in the
# first ones, with a network that does nothing yet, it takes half of that.
_TRAINED_ITERATIONS = 200
_TRAINING_LIMIT_S = 300.0
_LOSS = re.compile(r"loss +([0-9.]+)")


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

    def cells(run: CpuRun | GpuRun, step: Estimate) -> tuple[Cell, ...]:
        time_ns = step.value_ns
        return run.device, run.solver, step, NEURAL_ODE_ITERATIONS * time_ns, time_ns / best_ns

    measured = ((*cells(run, run.step), None, None) for run in cpu_runs if run.step is not None)
    predicted = ((*cells(run, run.step), run.num_kernels, run.num_syncs) for run in gpu_runs)
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
        note="vs CPU: how many times as long as the best CPU. Compiled of torchdiffeq's solver is "
        "the network alone, of our own all of its step. 2020: with the software of that year. The "
        f"training lowered the loss from "
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
            rows(RowSource.MEASURED, ((run.device, run.solver, run.failure) for run in failed)),
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
        ours=f"{ratio}: {cpu.device}, {cpu.solver}, {format_duration(cpu.step.value_ns)}; K40, "
        f"{gpu.solver}, {format_duration(gpu.step.value_ns)}",
        because=_because(cpu_runs, k40, is_of_its_day=is_of_its_day),
    )


def _because(cpu_runs: tuple[CpuRun, ...], k40: list[GpuRun], *, is_of_its_day: bool) -> str:
    eager_ns = min(run.step_ns for run in cpu_runs if run.step and not run.is_compiled)
    fastest, slowest = (choose(k40, key=lambda run: run.step.value_ns) for choose in (min, max))
    times = format_digits(fastest.step.value_ns / eager_ns, 2)
    reason = (
        f"Against the fastest eager CPU it is {times}×: eager PyTorch spends its time on dispatch "
        "on either device, which compiled code on the CPU does not, nor did the source's"
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
