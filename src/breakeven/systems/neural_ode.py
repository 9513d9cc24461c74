"""neural-ode: a network so small that the GPU only ever waits for the host."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from breakeven.capture import run_script
from breakeven.systems.bands import NEURAL_ODE_BAND
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.claims import judge, ratio_of
from breakeven.systems.neural_ode_cpu import CpuRun, measure_cpu
from breakeven.systems.neural_ode_gpu import GpuRun, predict_gpus
from breakeven.systems.neural_ode_published import (
    NEURAL_ODE_CLAIM,
    NEURAL_ODE_ITERATIONS,
    NEURAL_ODE_SOURCE,
)
from breakeven.units import format_digits, format_duration
from breakeven.verdict import (
    Claim,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemTable,
    TableColumn,
    TableRow,
)

_SCRIPT = "neural_ode.py"
# From here on the solver takes as many steps for an iteration as on average of all 1,000; in the
# first ones, with a network that does nothing yet, it takes half of that.
_TRAINED_ITERATIONS = 200
_TRAINING_LIMIT_S = 300.0
_LOSS = re.compile(r"loss +([0-9.]+)")


class NeuralOde:
    """A network of 703 weights learns the Lorenz system through an adaptive solver."""

    name = "neural-ode"
    title = "a neural ODE of 3-100-3 learns the Lorenz system"
    published_in = NEURAL_ODE_SOURCE

    def run(self, bench: Bench) -> SystemReport:
        """Train a while, then measure the step on this CPU in several ways and predict GPUs."""
        with tempfile.TemporaryDirectory(prefix="breakeven-") as folder:
            weights = Path(folder) / "weights.pt"
            losses = _train(bench, weights)
            cpu_runs = measure_cpu(bench, weights)
            gpu_runs = predict_gpus(bench, weights)
        return SystemReport(
            name=self.name,
            title=self.title,
            published_in=self.published_in,
            script=_SCRIPT,
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
    best = best_of(cpu_runs)
    assert best.step is not None
    measured = [
        TableRow(
            source=RowSource.MEASURED,
            cells=(
                run.device, run.solver, run.step, NEURAL_ODE_ITERATIONS * run.step.value_ns,
                run.step.value_ns / best.step.value_ns, None, None,
            ),
        )
        for run in cpu_runs if run.step is not None
    ]  # fmt: skip
    predicted = [
        TableRow(
            source=RowSource.PREDICTED,
            cells=(
                run.device, run.solver, run.step, NEURAL_ODE_ITERATIONS * run.step.value_ns,
                run.step.value_ns / best.step.value_ns, run.num_kernels, run.num_syncs,
            ),
        )
        for run in gpu_runs
    ]  # fmt: skip
    return SystemTable(
        title=f"One iteration, after {_TRAINED_ITERATIONS} of training",
        columns=(
            TableColumn(name="device", kind=ColumnKind.TEXT),
            TableColumn(name="solver", kind=ColumnKind.TEXT),
            TableColumn(name="step", kind=ColumnKind.TIME_NS),
            TableColumn(name="1,000 of them", kind=ColumnKind.TIME_NS),
            TableColumn(name="vs CPU", kind=ColumnKind.RATIO),
            TableColumn(name="launches", kind=ColumnKind.COUNT),
            TableColumn(name="syncs", kind=ColumnKind.COUNT),
        ),
        rows=(*measured, *predicted),
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
    names = ("device", "solver", "failed because")
    return (
        SystemTable(
            title="Tried on the CPU without success",
            columns=tuple(TableColumn(name=name, kind=ColumnKind.TEXT) for name in names),
            rows=tuple(
                TableRow(source=RowSource.MEASURED, cells=(run.device, run.solver, run.failure))
                for run in failed
            ),
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
    judged = judge(ratio.value, ratio.low, ratio.high, NEURAL_ODE_BAND)
    software = "the software of the source's years" if is_of_its_day else "today's software"
    return Claim(
        claim=f"With {software}, the CPU at its best trains at least "
        f"{format_digits(NEURAL_ODE_BAND.low)} times as fast as a K40",
        published=NEURAL_ODE_CLAIM,
        ours=f"{ratio}: {cpu.device}, {cpu.solver}, {format_duration(cpu.step.value_ns)}; K40, "
        f"{gpu.solver}, {format_duration(gpu.step.value_ns)}",
        outcome=judged.outcome,
        because=judged.remark + _because(cpu_runs, k40, is_of_its_day=is_of_its_day),
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
