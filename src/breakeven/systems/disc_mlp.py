"""disc-mlp: from how many parameters on a laptop's GPU is faster, as a blog post asked in 2019."""

from __future__ import annotations

from typing import assert_never

from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import Findings, Judgement, judge, table
from breakeven.systems.published import (
    DISC_MLP_BAND,
    DISC_MLP_CROSSOVER_DEPTH,
    DISC_MLP_CROSSOVER_PARAMETERS,
    DISC_MLP_SOURCE,
)
from breakeven.timing import Estimate
from breakeven.units import format_count, format_duration
from breakeven.verdict import (
    AxisRole,
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    Crossover,
    DeviceKind,
    NoCrossover,
    PublishedPoint,
    RowSource,
    SweepAxis,
    SweepPoint,
    SweepReport,
    SystemTable,
    TableRow,
)

_DEPTHS = tuple(range(2, 13))
_STEPS_PER_RUN = 1_000  # 100 epochs of 1,000 points, 100 of them per step
# The post does not name its GPU. The catalogue has this laptop GPU of its year, and the chip that
# laptops of 2017 and 2018 had most; that one's datasheet is the desktop card's.
_LAPTOP_GPU = "RTX 2070 Max-Q"
_OLDER_LAPTOP_GPU = "GTX 1060 6GB"
_GPUS = (_LAPTOP_GPU, _OLDER_LAPTOP_GPU, "RTX 4060 Laptop", "T4", "RTX 4090", "A100 SXM4 80GB")
_PARAMETERS = "num_parameters"


def run(bench: Bench) -> Findings:
    """Sweep the depth, and look from how many parameters on each GPU is faster."""
    sweep = bench.sweep(
        "disc_mlp.py",
        "--depth",
        "{depth}",
        axes=(SweepAxis(name="depth", role=AxisRole.ARGUMENT, values=_DEPTHS),),
        devices=_GPUS,
        published=(
            PublishedPoint(
                label="published: GPU faster from here on (laptop, 2019)",
                axis=_PARAMETERS,
                size=DISC_MLP_CROSSOVER_PARAMETERS,
                step_ns=None,
                source=DISC_MLP_SOURCE,
            ),
        ),
    )
    return Findings(
        host=sweep.host,
        tables=(depth_table(sweep),),
        claims=(crossover_claim(sweep),),
        sweeps=(sweep,),
    )


def depth_table(sweep: SweepReport) -> SystemTable:
    """Return parameters and times by depth: of one step, and of the 100 epochs of the post."""
    times = (f"{name}, {what}" for name in ("CPU", _LAPTOP_GPU) for what in ("step", "100 epochs"))
    published: tuple[Cell, ...] = (
        DISC_MLP_CROSSOVER_DEPTH, DISC_MLP_CROSSOVER_PARAMETERS, None, None, None, None
    )  # fmt: skip
    return table(
        "Time by depth, batch 100, SGD",
        {
            "depth": ColumnKind.COUNT,
            "parameters": ColumnKind.COUNT,
            **dict.fromkeys(times, ColumnKind.TIME_NS),
            "GPU vs CPU": ColumnKind.RATIO,
        },
        rows=(
            TableRow(source=RowSource.PUBLISHED, cells=(*published, 1.0)),
            *(row for depth in _DEPTHS if (row := _depth_row(sweep, depth)) is not None),
        ),
        note="The published row is the size from which on the post's GPU was faster. 100 epochs "
        f"are {_STEPS_PER_RUN:,} steps, without the count of errors after each epoch.",
    )


def _depth_row(sweep: SweepReport, depth: int) -> TableRow | None:
    """Return the row of a depth; None where the script failed there, which the sweep lists."""
    found = _at_depth(sweep, depth)
    if found is None:
        return None
    cpu, gpu = found
    return TableRow(
        source=RowSource(cpu.source.value),
        cells=(
            depth,
            cpu.num_parameters,
            _estimate(cpu),
            _estimate(cpu, _STEPS_PER_RUN),
            _estimate(gpu),
            _estimate(gpu, _STEPS_PER_RUN),
            cpu.step_ns / gpu.step_ns,
        ),
    )


def _at_depth(sweep: SweepReport, depth: int) -> tuple[SweepPoint, SweepPoint] | None:
    """Return the fastest CPU and the laptop's GPU at a depth; None where one failed there."""
    points = [point for point in sweep.points if point.settings["depth"] == depth]
    cpus = [point for point in points if point.kind is DeviceKind.CPU]
    gpu = next((point for point in points if point.device == _LAPTOP_GPU), None)
    if not cpus or gpu is None:
        return None
    return min(cpus, key=lambda point: point.step_ns), gpu


def _estimate(point: SweepPoint, num_steps: int = 1) -> Estimate:
    return Estimate(
        value_ns=point.step_ns * num_steps,
        low_ns=point.low_ns * num_steps,
        high_ns=point.high_ns * num_steps,
        source=point.source,
    )


def crossover_claim(sweep: SweepReport) -> Claim:
    """Return whether the laptop GPU's crossover lies where the post's did."""
    found = {
        crossover.device: crossover.outcome
        for crossover in sweep.crossovers
        if crossover.outcome.axis == _PARAMETERS
    }
    outcome = found.get(_LAPTOP_GPU)
    match outcome:
        case Crossover():
            judged = judge(outcome.value, outcome.low, outcome.high, DISC_MLP_BAND)
        case NoCrossover():
            judged = Judgement(outcome=ClaimOutcome.DISAGREES)
        case None:  # too few depths gave an answer
            judged = Judgement(outcome=ClaimOutcome.OPEN)
        case _:
            assert_never(outcome)
    older = found.get(_OLDER_LAPTOP_GPU)
    return Claim(
        claim="A laptop GPU of 2018 or 2019 is faster from somewhere within 0.3–3 M parameters on",
        published=f"from about {format_count(DISC_MLP_CROSSOVER_PARAMETERS)} parameters on",
        ours=f"{_LAPTOP_GPU}: {_in_words(_LAPTOP_GPU, outcome)}",
        outcome=judged.outcome,
        because=f"{judged.remark}{_at_published_depth(sweep)}{_OLDER_LAPTOP_GPU} (desktop "
        f"datasheet): {_in_words(_OLDER_LAPTOP_GPU, older)}. The post names neither its CPU "
        "nor its GPU; a faster CPU moves the crossover to more parameters.",
    )


def _at_published_depth(sweep: SweepReport) -> str:
    """Return what the CPU and the GPU take where theirs crossed; empty where one failed there."""
    found = _at_depth(sweep, DISC_MLP_CROSSOVER_DEPTH)
    if found is None:
        return ""
    cpu, gpu = found
    return (
        f"At {DISC_MLP_CROSSOVER_DEPTH} layers a step takes {format_duration(cpu.step_ns, 2)} on "
        f"{cpu.device} and {format_duration(gpu.step_ns, 2)} on the GPU. "
    )


def _in_words(device: str, outcome: Crossover | NoCrossover | None) -> str:
    """Return an outcome to be read behind the name of its GPU."""
    match outcome:
        case Crossover():
            high = "or more" if outcome.high is None else f"to {format_count(outcome.high)}"
            return (
                f"from {format_count(outcome.value)} parameters on "
                f"({format_count(outcome.low)} {high})"
            )
        case NoCrossover():
            return outcome.none_because.removeprefix(f"{device} ").rstrip(".")
        case None:
            return "not found: too few depths gave an answer"
        case _:
            assert_never(outcome)
