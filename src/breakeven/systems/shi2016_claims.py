"""What the benchmark found, beside what is found here: the order of devices, and the threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from breakeven.simulate import StepPrediction
from breakeven.systems.catalogue import rows, table
from breakeven.systems.published import CORES, GPUS, cells, fastest_ns, frameworks, thread_curves
from breakeven.systems.shi2016_runs import HOST_OF_2016, NetworkRuns
from breakeven.timing import Estimate
from breakeven.units import format_ratio
from breakeven.verdict import Cell, Claim, ClaimOutcome, ColumnKind, RowSource, SystemTable

_CPU = "CPU"
_IS_SAME_ORDER = {
    ClaimOutcome.AGREES: "yes",
    ClaimOutcome.OPEN: "open: intervals overlap",
    ClaimOutcome.DISAGREES: "no",
}
_FALLS = _IS_SAME_ORDER | {ClaimOutcome.OPEN: "not shown"}


def published_order(network: str) -> tuple[str, ...]:
    """Return the GPUs and the CPU, the fastest first, each with the framework fastest on it.

    The CPU is the faster of the two, on the number of threads that suits it best.
    """
    times_ns = {name: fastest_ns(network, (name,)) for name in GPUS}
    times_ns[_CPU] = fastest_ns(network, CORES)
    return tuple(sorted(times_ns, key=times_ns.__getitem__))


def frameworks_in_order(network: str) -> tuple[int, int]:
    """Return how many frameworks have the GPUs in the order of the table's columns' speed.

    Returns:
        Those that have the published order among the GPUs of which they have figures, and all.
    """
    order = [name for name in published_order(network) if name != _CPU]
    num_alike = 0
    for framework in frameworks(network):
        times = [cells(network, framework, name).get(None) for name in order]
        known = [time for time in times if time is not None]
        num_alike += known == sorted(known)
    return num_alike, len(frameworks(network))


def our_order(gpus: Mapping[str, StepPrediction], cpu: Estimate) -> tuple[str, ...]:
    """Return the GPUs of the benchmark and this CPU, the fastest first."""
    estimates = _estimates(gpus, cpu)
    return tuple(sorted(estimates, key=lambda name: estimates[name].value_ns))


def order_outcome(runs: NetworkRuns) -> ClaimOutcome:
    """Return whether ours is the published order, under the software of today and of 2016.

    Where it is not, but only devices whose intervals overlap have changed places, it is open.
    """
    published = published_order(runs.network)
    outcomes = {
        _order_outcome(published, _estimates(gpus, runs.best_cpu))
        for gpus in (runs.today, runs.of_2016)
    }
    if outcomes == {ClaimOutcome.AGREES}:
        return ClaimOutcome.AGREES
    return ClaimOutcome.DISAGREES if ClaimOutcome.DISAGREES in outcomes else ClaimOutcome.OPEN


def order_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return the order of devices per network, published and ours."""
    return table(
        "Devices from the fastest to the slowest",
        dict.fromkeys(("network", "published", "ours", "agrees"), ColumnKind.TEXT),
        rows(
            RowSource.CHECKED,
            (
                (
                    runs.network,
                    " < ".join(published_order(runs.network)),
                    " < ".join(our_order(runs.today, runs.best_cpu)),
                    _IS_SAME_ORDER[order_outcome(runs)],
                )
                for runs in all_runs
            ),
        ),
        note="Published: each device with the framework that is fastest on it. Ours: PyTorch of "
        "today, this CPU at its best; with the software of 2016 the order must be the same to "
        "agree. The published CPUs are of 2012 to 2014, ours is this machine's.",
    )


def thread_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return how much faster each doubling of the threads made a network, published and ours."""
    names = ("network", "published, 1 → 2", "curves that fall", "ours", "falls")
    return table(
        "What more threads gain, up to the physical cores",
        dict.fromkeys(names, ColumnKind.TEXT),
        rows(RowSource.CHECKED, map(_thread_cells, all_runs)),
        note="Published: the range over frameworks and CPUs, and of these curves, those that fall "
        f"at each doubling up to the cores ({CORES['desktop CPU']} and {CORES['server CPU']}).",
    )


def thread_outcome(cpu: Mapping[int, Estimate]) -> ClaimOutcome:
    """Return whether the time falls at each step up in threads, and not by chance."""
    steps = list(pairwise(cpu[count] for count in sorted(cpu)))
    if any(after.low_ns > before.high_ns for before, after in steps):
        return ClaimOutcome.DISAGREES
    if steps and all(after.high_ns < before.low_ns for before, after in steps):
        return ClaimOutcome.AGREES
    return ClaimOutcome.OPEN


def claims(all_runs: Sequence[NetworkRuns]) -> tuple[Claim, ...]:
    """Return both claims over all networks that were run."""
    return _order_claim(all_runs), _thread_claim(all_runs)


def _order_claim(all_runs: Sequence[NetworkRuns]) -> Claim:
    outcomes = {runs.network: order_outcome(runs) for runs in all_runs}
    num_alike, num_frameworks = (
        sum(counts)
        for counts in zip(*(frameworks_in_order(runs.network) for runs in all_runs), strict=True)
    )
    gains_published = [
        fastest_ns(runs.network, CORES) / fastest_ns(runs.network, ("GTX 1080",))
        for runs in all_runs
    ]
    gains_ours = [
        runs.best_cpu.value_ns / runs.today["GTX 1080"].estimate.value_ns for runs in all_runs
    ]
    return Claim(
        claim="each network is faster on a GTX 1080 than on a GTX 980, there than on one GPU of a "
        "K80, and there than on the CPU",
        published=f"so in {num_alike} of {num_frameworks} pairs of a network and a framework",
        ours=_counted(outcomes),
        outcome=_overall(outcomes.values()),
        because=f"A GTX 1080 beats the best CPU {_range(gains_published)} as published; "
        f"{_range(gains_ours)} as predicted, over this CPU as measured. Ours counts where both "
        f"PyTorch of today and the software of 2016 on a {HOST_OF_2016} have the order."
        + _exceptions(outcomes),
    )


def _thread_claim(all_runs: Sequence[NetworkRuns]) -> Claim:
    outcomes = {runs.network: thread_outcome(runs.cpu) for runs in all_runs}
    curves = [curve for runs in all_runs for curve in thread_curves(runs.network)]
    num_cores = max(max(runs.cpu) for runs in all_runs)
    if num_cores == 1:
        remark = " This CPU has one core, so that there is nothing to compare."
    elif any(runs.is_disturbed for runs in all_runs):
        remark = _exceptions(outcomes) + " Other processes used this machine meanwhile."
    else:
        remark = _exceptions(outcomes)
    return Claim(
        claim="more CPU threads are faster, up to the physical cores",
        published=f"so in {sum(map(_falls, curves))} of {len(curves)} curves of a network, a "
        "framework and a CPU",
        ours=f"{_counted(outcomes)}, up to {num_cores} threads",
        outcome=_overall(outcomes.values()),
        because="The published curves that rise before the cores are used up are all of the "
        "server with its 16 cores." + remark,
    )


def _estimates(gpus: Mapping[str, StepPrediction], cpu: Estimate) -> dict[str, Estimate]:
    return {**{name: gpus[name].estimate for name in GPUS}, _CPU: cpu}


def _order_outcome(published: Sequence[str], estimates: Mapping[str, Estimate]) -> ClaimOutcome:
    is_changed = is_clear = False
    for i, faster in enumerate(published):
        for slower in published[i + 1 :]:
            is_changed |= estimates[faster].value_ns > estimates[slower].value_ns
            is_clear |= estimates[faster].low_ns > estimates[slower].high_ns
    if is_clear:
        return ClaimOutcome.DISAGREES
    return ClaimOutcome.OPEN if is_changed else ClaimOutcome.AGREES


def _thread_cells(runs: NetworkRuns) -> tuple[Cell, ...]:
    curves = thread_curves(runs.network)
    return (
        runs.network,
        _range([gains(curve)[0] for curve in curves]),
        f"{sum(map(_falls, curves))} of {len(curves)}",
        _our_gains(runs.cpu),
        _FALLS[thread_outcome(runs.cpu)],
    )


def gains(times_ns: Iterable[float]) -> tuple[float, ...]:
    """Return by which factor each time is shorter than the one before it."""
    return tuple(before / after for before, after in pairwise(times_ns))


def _our_gains(cpu: Mapping[int, Estimate]) -> str:
    counts = sorted(cpu)
    factors = gains(cpu[count].value_ns for count in counts)
    return ", ".join(
        f"{format_ratio(factor)} ({before} → {after})"
        for factor, (before, after) in zip(factors, pairwise(counts), strict=True)
    )


def _falls(curve: Sequence[float]) -> bool:
    return all(factor > 1 for factor in gains(curve))


def _overall(outcomes: Collection[ClaimOutcome]) -> ClaimOutcome:
    for outcome in (ClaimOutcome.DISAGREES, ClaimOutcome.OPEN):
        if outcome in outcomes:
            return outcome
    return ClaimOutcome.AGREES


def _counted(outcomes: Mapping[str, ClaimOutcome]) -> str:
    num_agreeing = sum(outcome is ClaimOutcome.AGREES for outcome in outcomes.values())
    return f"so in {num_agreeing} of {len(outcomes)} networks"


def _exceptions(outcomes: Mapping[str, ClaimOutcome]) -> str:
    """Return a sentence on the networks that do not agree; empty where all do."""
    sentences: list[str] = []
    for outcome, what in (
        (ClaimOutcome.DISAGREES, "differ beyond their intervals"),
        (ClaimOutcome.OPEN, "lie within each other's interval"),
    ):
        names = [name for name, found in outcomes.items() if found is outcome]
        if names:
            sentences.append(f" Not so for {', '.join(names)}, whose times {what}.")
    return "".join(sentences)


def _range(ratios: Sequence[float]) -> str:
    low, high = format_ratio(min(ratios)), format_ratio(max(ratios))
    return low if low == high else f"{low.removesuffix('×')} to {high}"
