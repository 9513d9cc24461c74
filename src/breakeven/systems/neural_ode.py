"""neural-ode: a network so small that the GPU always waits for the host."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from breakeven.capture import run_script
from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects
from breakeven.device import find_device
from breakeven.errors import BreakevenError, Caveat
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
        step: Its time.
        way: How the step runs: ``eager``, ``torch.compile`` or ``fast_step``.
        is_of_its_day: Whether its software is as old as the source.
        launches: Kernel launches in the step; None on a CPU.
        syncs: How often the host waits in the step; None on a CPU.
    """

    device: str
    step: Estimate
    way: str = EAGER
    is_of_its_day: bool = False
    launches: int | None = None
    syncs: int | None = None


def run(bench: Bench) -> SystemReport:
    """Train a while, then measure the step on this CPU in several ways and predict GPUs."""
    with tempfile.TemporaryDirectory(prefix="breakeven-") as folder:
        weights = Path(folder) / "weights.pt"
        # Add one: the script prints its loss in the first and in every fiftieth iteration.
        options = ("--iterations", str(_TRAINED_ITERATIONS + 1), "--save", str(weights))
        limit_s = bench.time_limit_s(_TRAINING_LIMIT_S)
        printed = run_script(script_path(_SCRIPT), options, time_limit_s=limit_s)
        cpu_runs, caveats = measure_cpu(bench, weights)
        gpu_runs = predict_gpus(bench, weights)
    losses = [float(loss) for loss in re.findall(r"loss +([0-9.]+)", printed)]
    return report(
        "neural-ode",
        bench.host_summary(),
        tables=(steps_table(cpu_runs, gpu_runs, losses),),
        claims=[slowdown_claim(gpu_runs, cpu_runs, is_of_its_day=old) for old in (True, False)],
        caveats=caveats,
    )


def measure_cpu(bench: Bench, weights: Path) -> tuple[list[Run], tuple[Caveat, ...]]:
    """Measure the step on this CPU: eager by threads, and compiled.

    Args:
        bench: Measures the steps.
        weights: Checkpoint to continue the training from.

    Returns:
        The runs, and a caveat for each way of compiling that failed.

    Raises:
        BreakevenError: If a script gave no answer eagerly.
    """
    script = (_SCRIPT, "--load", str(weights))
    eager: dict[int, Run] = {}
    for num_threads in (0, 1):
        found = bench.measure(*script, num_threads=num_threads, budget_s=_BUDGET_S)
        cpu = f"CPU, {threads_text(found.num_threads)}"
        eager.setdefault(found.num_threads, Run(device=cpu, step=found.measurement.estimate))
    compiled: list[Run] = []
    caveats: list[Caveat] = []
    for way, option in ((COMPILED, "--compile"), (FAST_STEP, "--fast-step")):
        limits = {"budget_s": _BUDGET_S, "compile_limit_s": _COMPILE_LIMIT_S}
        try:
            found = bench.measure(*script, option, num_threads=1, **limits)
        except BreakevenError as error:  # for example, without a compiler
            caveats.append(Caveat(code="left-out", message=f"{way} on the CPU: {error.message}"))
            continue
        step = found.measurement.estimate
        compiled.append(Run(device=f"CPU, {threads_text(1)}", way=way, step=step))
    return [*eager.values(), *compiled], tuple(caveats)


def predict_gpus(bench: Bench, weights: Path) -> list[Run]:
    """Predict the eager step on the GPUs, first with software of the source's years.

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
    trace = bench.step(_SCRIPT, "--load", str(weights))
    then = predict_steps(trace, (find_device(_K40),), bench.host, costs=costs)
    today = bench.predict(trace, _FACTS["gpus"])
    return [
        Run(
            device=f"{prediction.device.name}{year}",
            step=prediction.estimate,
            is_of_its_day=bool(year),
            launches=prediction.num_kernels,
            syncs=len(trace.syncs),
        )
        for predictions, year in ((then, " (2020)"), (today, ""))
        for prediction in predictions
    ]


def best_of(runs: Sequence[Run]) -> Run:
    """Return the fastest of the runs."""
    return min(runs, key=lambda run: run.step.value_ns)


def steps_table(
    cpu_runs: Sequence[Run], gpu_runs: Sequence[Run], losses: Sequence[float]
) -> SystemTable:
    """Return a table of the step on every device.

    Args:
        cpu_runs: Runs measured here.
        gpu_runs: Predicted runs.
        losses: Losses of the training before.
    """
    best_ns = best_of(cpu_runs).step.value_ns
    num_iterations = _FACTS["iterations"]
    measured, predicted = (
        [
            (
                run.device, run.way, run.step, num_iterations * run.step.value_ns,
                run.step.value_ns / best_ns, run.launches, run.syncs,
            )
            for run in runs
        ]
        for runs in (cpu_runs, gpu_runs)
    )  # fmt: skip
    return table(
        f"One iteration, after {_TRAINED_ITERATIONS} of training",
        {
            **texts("device", "run by"),
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


def slowdown_claim(
    gpu_runs: Sequence[Run], cpu_runs: Sequence[Run], *, is_of_its_day: bool
) -> Claim:
    """Return the claim that the CPU at its best is ten times as fast as a K40.

    Args:
        gpu_runs: Predictions; that of a K40 with the software in question is used.
        cpu_runs: Measurements; the fastest is used.
        is_of_its_day: Whether to use the software of the source's years or today's.
    """
    cpu = best_of(cpu_runs)
    gpu = best_of(
        [r for r in gpu_runs if r.is_of_its_day is is_of_its_day and r.device.startswith(_K40)]
    )
    ratio = ratio_of(gpu.step, cpu.step)
    # Order by the slowest way first; keep the fastest run of each.
    slowest_first = sorted(cpu_runs, key=lambda run: -run.step.value_ns)
    fastest_ns = {run.way: run.step.value_ns for run in slowest_first}
    ratios = ", ".join(
        f"{format_digits(gpu.step.value_ns / step_ns, 2)}× ({way})"
        for way, step_ns in fastest_ns.items()
    )
    because = (
        f"Against each way of the CPU it is {ratios}: eager PyTorch spends its time on "
        "dispatch on either device, which generated code on the CPU does not, nor did the source's"
    )
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
        ours=f"{ratio}: {cpu.device}, {cpu.way}, {format_duration(cpu.step.value_ns)}; K40, "
        f"{format_duration(gpu.step.value_ns)}",
        because=f"{because}.",
    )
