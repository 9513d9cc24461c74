"""disc-mlp: the number of parameters from which a laptop's GPU is faster (blog post, 2019)."""

from __future__ import annotations

from typing import assert_never

from breakeven.report import (
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemTable,
)
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import FACTS, judge, report, table, times
from breakeven.timing import Estimate
from breakeven.units import format_count, format_duration
from breakeven.verdict import (
    AxisRole,
    Crossover,
    DeviceKind,
    NoCrossover,
    PublishedPoint,
    SweepAxis,
    SweepPoint,
    SweepReport,
)

_FACTS = FACTS["disc-mlp"]
_LAPTOP_GPU, _OLDER_LAPTOP_GPU, *_ = _FACTS["gpus"]
_DEPTHS = tuple(range(2, 13))
_STEPS_PER_RUN = 1_000  # 100 epochs of 1,000 points, 100 of them per step
_PARAMETERS = "num_parameters"


def run(bench: Bench) -> SystemReport:
    """Sweep the depth, and find the number of parameters from which each GPU is faster."""
    sweep = bench.sweep(
        "disc_mlp.py",
        "--depth",
        "{depth}",
        axes=(SweepAxis(name="depth", role=AxisRole.ARGUMENT, values=_DEPTHS),),
        devices=_FACTS["gpus"],
        published=(
            PublishedPoint(
                label="published: GPU faster from here on (laptop, 2019)",
                axis=_PARAMETERS,
                size=_FACTS["parameters"],
                step_ns=None,
                source=_FACTS["published_in"],
            ),
        ),
    )
    tables, claims = (depth_table(sweep),), (crossover_claim(sweep),)
    return report("disc-mlp", sweep.host, tables=tables, claims=claims, sweeps=(sweep,))


def depth_table(sweep: SweepReport) -> SystemTable:
    """Return parameters and times by depth: of one step, and of the 100 epochs of the post.

    If the script failed at a depth, that depth has no row; the sweep lists it.
    """
    published = (_FACTS["depth"], _FACTS["parameters"], None, None, None, None, 1.0)
    rows: list[tuple[RowSource, list[tuple[Cell, ...]]]] = [(RowSource.PUBLISHED, [published])]
    for depth in _DEPTHS:
        if (found := _at_depth(sweep, depth)) is None:
            continue
        cpu, gpu = found
        estimates = (
            Estimate(
                value_ns=point.step_ns * num_steps,
                low_ns=point.low_ns * num_steps,
                high_ns=point.high_ns * num_steps,
                source=point.source,
            )
            for point in found
            for num_steps in (1, _STEPS_PER_RUN)
        )
        cells = (depth, cpu.num_parameters, *estimates, cpu.step_ns / gpu.step_ns)
        rows.append((RowSource(cpu.source.value), [cells]))
    return table(
        "Time by depth, batch 100, SGD",
        {
            "depth": ColumnKind.COUNT,
            "parameters": ColumnKind.COUNT,
            **times(*(f"{name}, {of}" for name in ("CPU", _LAPTOP_GPU)
                      for of in ("step", "100 epochs"))),
            "GPU vs CPU": ColumnKind.RATIO,
        },
        *rows,
        note=_FACTS["notes"]["depth"],
    )  # fmt: skip


def _at_depth(sweep: SweepReport, depth: int) -> tuple[SweepPoint, SweepPoint] | None:
    """Return the fastest CPU and the laptop's GPU at a depth; None if one failed there."""
    points = [point for point in sweep.points if point.settings["depth"] == depth]
    cpus = [point for point in points if point.kind is DeviceKind.CPU]
    gpu = next((point for point in points if point.device == _LAPTOP_GPU), None)
    return (min(cpus, key=lambda point: point.step_ns), gpu) if cpus and gpu else None


def crossover_claim(sweep: SweepReport) -> Claim:
    """Return the claim that the laptop GPU's crossover agrees with the post's."""
    found = {
        crossover.device: crossover.outcome
        for crossover in sweep.crossovers
        if crossover.outcome.axis == _PARAMETERS
    }
    match found.get(_LAPTOP_GPU):
        case Crossover(value=value, low=low, high=high):
            outcome, because = judge(value, low, high, _FACTS["band"])
        case NoCrossover():
            outcome, because = ClaimOutcome.DISAGREES, ""
        case None:  # too few depths succeeded
            outcome, because = ClaimOutcome.OPEN, ""
    if points := _at_depth(sweep, depth := _FACTS["depth"]):
        cpu, gpu = points
        because += (
            f"At {depth} layers a step takes {format_duration(cpu.step_ns, 2)} on {cpu.device} "
            f"and {format_duration(gpu.step_ns, 2)} on the GPU. "
        )

    def in_words(device: str) -> str:
        match found.get(device):
            case Crossover(value=value, low=low, high=high):
                end = "or more" if high is None else f"to {format_count(high)}"
                return f"from {format_count(value)} parameters on ({format_count(low)} {end})"
            case NoCrossover(none_because=reason):
                return reason.removeprefix(f"{device} ").rstrip(".")
            case None:
                return "not found: too few depths gave an answer"
            case outcome:
                assert_never(outcome)

    return Claim(
        claim="A laptop GPU of 2018 or 2019 is faster from somewhere within 0.3–3 M parameters on",
        published=f"from about {format_count(_FACTS['parameters'])} parameters on",
        ours=f"{_LAPTOP_GPU}: {in_words(_LAPTOP_GPU)}",
        outcome=outcome,
        because=f"{because}{_OLDER_LAPTOP_GPU} (desktop datasheet): "
        f"{in_words(_OLDER_LAPTOP_GPU)}. The post names neither its CPU "
        "nor its GPU; a faster CPU moves the crossover to more parameters.",
    )
