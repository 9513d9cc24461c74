"""shi2016: seven networks with five frameworks of 2016, and with PyTorch here."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise

from msgspec.structs import replace

from breakeven.cost import Era, StepCosts, host_for, load_efficiencies, load_step_effects
from breakeven.device import DeviceSpec, find_device
from breakeven.errors import BreakevenError, Caveat, has_caveat
from breakeven.processor import num_physical_cores
from breakeven.report import Claim, ClaimOutcome, ColumnKind, RowSource, SystemReport, SystemTable
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import FACTS, report, table, texts, times
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import StepTrace
from breakeven.units import NS_PER_S, format_ratio

_FACTS = FACTS["shi2016"]
SCRIPT = "shi2016.py"
GPUS: list[str] = _FACTS["gpus"]
HOST_OF_2016: str = _FACTS["host"]
CORES: dict[str, int] = _FACTS["cores"]
_CPU = "CPU"
_THREADS = (1, 2, 4, 8, 16, 32)
# Sampling time per number of threads: enough for two steps of 4 s after the warm-up, to tell the
# times on one and on two threads apart.
_BUDGET_S = 6.0
_BUSY = Caveat(
    code=BUSY_MACHINE,
    message="other processes used this machine while steps were measured; their times may be too "
    "long, those on several threads most of all",
)
# Samples per mini-batch of each network.
NETWORKS: dict[str, int] = {}
# Times of a mini-batch in ns by network, framework, device and threads of a CPU (None on a GPU).
PUBLISHED: dict[str, dict[str, dict[str, dict[int | None, float]]]] = {}
_TABLE = resources.files("breakeven.systems").joinpath("shi2016_table7.csv").read_text("utf-8")
for _row in csv.DictReader(line for line in _TABLE.splitlines() if not line.startswith("#")):
    NETWORKS[_row["network"]] = int(_row["batch_size"])
    _devices = PUBLISHED.setdefault(_row["network"], {}).setdefault(_row["framework"], {})
    _threads = int(_row["threads"]) if _row["threads"] else None
    _time_ns = float(_row["seconds_per_minibatch"]) * NS_PER_S
    _devices.setdefault(_row["device"], {})[_threads] = _time_ns


def fastest_ns(network: str, devices: Iterable[str]) -> float:
    """Return the shortest published time on any of the devices, framework and threads."""
    wanted = set(devices)
    return min(
        time_ns
        for by_device in PUBLISHED[network].values()
        for device, by_threads in by_device.items()
        if device in wanted
        for time_ns in by_threads.values()
    )


def thread_curves(network: str) -> list[list[float]]:
    """Return published times by 1, 2, 4, … threads up to the physical cores.

    There is one curve per framework and CPU, if all its times were published.
    """
    curves: list[list[float]] = []
    for by_device in PUBLISHED[network].values():
        for device, num_cores in CORES.items():
            curve = [by_device.get(device, {}).get(count) for count in thread_counts(num_cores)]
            known = [time_ns for time_ns in curve if time_ns is not None]
            if len(known) == len(curve):
                curves.append(known)
    return curves


def thread_counts(num_cores: int) -> list[int]:
    """Return 1, 2, 4, … up to the number of cores, and that number."""
    return sorted({*(2**i for i in range(num_cores.bit_length())), num_cores})


def published_order(network: str) -> list[str]:
    """Return the GPUs and the CPU, the fastest first, each with its fastest framework.

    The CPU is the faster of the two, on its best number of threads.
    """
    times_ns = {name: fastest_ns(network, (name,)) for name in GPUS}
    times_ns[_CPU] = fastest_ns(network, CORES)
    return sorted(times_ns, key=times_ns.__getitem__)


def frameworks_in_order(network: str) -> int:
    """Return how many frameworks reproduce the published order of the GPUs that they list."""
    order = [name for name in published_order(network) if name != _CPU]
    num_alike = 0
    for by_device in PUBLISHED[network].values():
        known = [by_device[name][None] for name in order if name in by_device]
        num_alike += known == sorted(known)
    return num_alike


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRuns:
    """Times of one network's step.

    Args:
        network: Its name in the benchmark.
        cpu: Times of PyTorch on this CPU, by threads.
        today: Times of today's PyTorch by GPU of the benchmark.
        of_2016: The same with software and host of 2016.
        caveats: Caveats on the figures.
    """

    network: str
    cpu: dict[int, Estimate]
    today: dict[str, StepPrediction]
    of_2016: dict[str, StepPrediction]
    caveats: tuple[Caveat, ...] = ()

    @property
    def best_cpu(self) -> Estimate:
        """The shortest time of PyTorch on this CPU."""
        return min(self.cpu.values(), key=lambda estimate: estimate.value_ns)


def run(bench: Bench) -> SystemReport:
    """Measure all networks on this CPU, and predict them on the GPUs of the benchmark.

    Raises:
        BreakevenError: If no network could be run.
    """
    counts = thread_counts(num_physical_cores())
    all_runs: list[NetworkRuns] = []
    failures: list[BreakevenError] = []
    for network in NETWORKS:
        try:
            all_runs.append(run_network(bench, network, counts))
        except BreakevenError as error:
            failures.append(error)
    if not all_runs:
        raise failures[0]
    # Show each message once, with its networks.
    networks_of: dict[Caveat, list[str]] = {}
    for runs in all_runs:
        for caveat in runs.caveats:
            networks_of.setdefault(caveat, []).append(runs.network)
    label = f"PyTorch {bench.torch_version.partition('+')[0]}"
    return report(
        "shi2016",
        bench.host_summary(),
        tables=(
            *(
                each
                for runs in all_runs
                for each in (cpu_table(runs, label), gpu_table(runs, label))
            ),
            accuracy_table(all_runs),
        ),
        claims=claims(all_runs),
        caveats=(
            *(Caveat(code="left-out", message=failure.message) for failure in failures),
            *(Caveat(code=code, message=text) for code, text in _FACTS["caveats"].items()),
            *(
                Caveat(code=caveat.code, message=f"{', '.join(names)}: {caveat.message}")
                for caveat, names in networks_of.items()
            ),
        ),
    )


def run_network(bench: Bench, network: str, counts: Sequence[int]) -> NetworkRuns:
    """Measure one network on ascending numbers of threads, and predict it.

    Raises:
        BreakevenError: If the script gave no answer.
    """
    arguments = ("--network", network)
    runs = {n: bench.measure(SCRIPT, *arguments, num_threads=n, budget_s=_BUDGET_S) for n in counts}
    trace = bench.step(SCRIPT, *arguments, num_threads=counts[-1])
    today = dict(zip(GPUS, bench.predict(trace, GPUS), strict=True))
    found = [
        *(caveat for run in runs.values() for caveat in run.caveats),
        *trace.caveats,
        *(caveat for prediction in today.values() for caveat in prediction.caveats),
    ]
    for name, prediction in today.items():
        if not prediction.fits:
            message = (
                f"the step needs more memory than a {name} has; its time there is hypothetical"
            )
            found.append(Caveat(code="does-not-fit", message=message))
    # The load of the machine differs from run to run; report it once.
    caveats = (_BUSY if caveat.code == BUSY_MACHINE else caveat for caveat in found)
    return NetworkRuns(
        network=network,
        cpu={count: run.measurement.estimate for count, run in runs.items()},
        today=today,
        of_2016=dict(zip(GPUS, predict_of_2016(trace, map(find_device, GPUS)), strict=True)),
        caveats=tuple(dict.fromkeys(caveats)),
    )


def predict_of_2016(trace: StepTrace, devices: Iterable[DeviceSpec]) -> tuple[StepPrediction, ...]:
    """Predict the step with the software of 2016 and a CPU of those years."""
    era = Era.TORCH7
    costs = StepCosts(efficiencies=load_efficiencies(), effects=load_step_effects(), era=era)
    host, caveat = host_for(HOST_OF_2016, era)
    assert caveat is None, caveat
    host = replace(host, log_sigma=costs.host_log_sigma(host))
    return predict_steps(trace, list(devices), host, costs=costs)


def cpu_table(runs: NetworkRuns, pytorch: str) -> SystemTable:
    """Return the published times of a network on CPUs, with ours."""
    counts = sorted({*_THREADS, *runs.cpu})
    published = [
        (f"{framework}, {device.removesuffix(' CPU')}", *map(by_device[device].get, counts))
        for framework, by_device in PUBLISHED[runs.network].items()
        for device in CORES
        if device in by_device
    ]
    return table(
        f"{_heading(runs.network)}, by threads of a CPU",
        texts("framework, CPU") | times(*map(str, counts)),
        (RowSource.PUBLISHED, published),
        (RowSource.MEASURED, [(f"{pytorch}, here", *map(runs.cpu.get, counts))]),
    )


def gpu_table(runs: NetworkRuns, pytorch: str) -> SystemTable:
    """Return the published times of a network on GPUs, with ours."""
    published = [
        (framework, *(by_device.get(name, {}).get(None) for name in GPUS))
        for framework, by_device in PUBLISHED[runs.network].items()
    ]
    ours = [
        (label, *(found[name].estimate for name in GPUS))
        for label, found in (
            (f"{pytorch}, this host", runs.today),
            (f"software of 2016, {HOST_OF_2016}", runs.of_2016),
        )
    ]
    return table(
        f"{_heading(runs.network)}, on GPUs",
        texts("framework") | times(*GPUS),
        (RowSource.PUBLISHED, published),
        (RowSource.PREDICTED, ours),
    )


def _heading(network: str) -> str:
    return f"{network}, {NETWORKS[network]:,} samples per mini-batch"


def accuracy_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return our predictions for the software of 2016 over the published times."""

    def ratio(runs: NetworkRuns, name: str) -> float:
        return runs.of_2016[name].estimate.value_ns / fastest_ns(runs.network, (name,))

    return table(
        "Predicted for the software of 2016, over the fastest published framework",
        texts("network") | dict.fromkeys(GPUS, ColumnKind.RATIO),
        (
            RowSource.PREDICTED,
            [(runs.network, *(ratio(runs, name) for name in GPUS)) for runs in all_runs],
        ),
        note=_FACTS["notes"]["accuracy"],
    )


def _estimates(runs: NetworkRuns, gpus: Mapping[str, StepPrediction]) -> dict[str, Estimate]:
    return {**{name: gpus[name].estimate for name in GPUS}, _CPU: runs.best_cpu}


def order_outcome(runs: NetworkRuns) -> ClaimOutcome:
    """Compare our order with the published one, for software of today and of 2016.

    The outcome is open if only devices with overlapping intervals have changed places.
    """
    published = published_order(runs.network)
    is_changed = False
    for gpus in (runs.today, runs.of_2016):
        estimates = _estimates(runs, gpus)
        for i, faster in enumerate(published):
            for slower in published[i + 1 :]:
                if estimates[faster].low_ns > estimates[slower].high_ns:
                    return ClaimOutcome.DISAGREES
                is_changed |= estimates[faster].value_ns > estimates[slower].value_ns
    return ClaimOutcome.OPEN if is_changed else ClaimOutcome.AGREES


def gains(times_ns: Iterable[float]) -> list[float]:
    """Return the factor by which each time is shorter than the previous one."""
    return [before / after for before, after in pairwise(times_ns)]


def thread_outcome(cpu: Mapping[int, Estimate]) -> ClaimOutcome:
    """Decide whether the time falls significantly with each higher number of threads."""
    steps = list(pairwise(cpu[count] for count in sorted(cpu)))
    if any(after.low_ns > before.high_ns for before, after in steps):
        return ClaimOutcome.DISAGREES
    if steps and all(after.high_ns < before.low_ns for before, after in steps):
        return ClaimOutcome.AGREES
    return ClaimOutcome.OPEN


def _num_falling(curves: Iterable[Sequence[float]]) -> int:
    return sum(min(gains(curve)) > 1 for curve in curves)


def claims(all_runs: Sequence[NetworkRuns]) -> tuple[Claim, Claim]:
    """Return the claims on the order of devices and on threads, over all networks that ran."""
    networks = [runs.network for runs in all_runs]
    orders = {runs.network: order_outcome(runs) for runs in all_runs}
    gains_published = [fastest_ns(n, CORES) / fastest_ns(n, ("GTX 1080",)) for n in networks]
    gains_ours = [
        runs.best_cpu.value_ns / runs.today["GTX 1080"].estimate.value_ns for runs in all_runs
    ]
    order = Claim(
        claim="each network is faster on a GTX 1080 than on a GTX 980, there than on one GPU of a "
        "K80, and there than on the CPU",
        published=f"so in {sum(map(frameworks_in_order, networks))} of "
        f"{sum(len(PUBLISHED[n]) for n in networks)} pairs of a network and a framework",
        ours=_counted(orders),
        outcome=_overall(orders.values()),
        because=f"A GTX 1080 beats the best CPU {_range(gains_published)} as published; "
        f"{_range(gains_ours)} as predicted, over this CPU as measured. Ours counts where both "
        f"PyTorch of today and the software of 2016 on a {HOST_OF_2016} have the order."
        + _exceptions(orders),
    )
    threads = {runs.network: thread_outcome(runs.cpu) for runs in all_runs}
    curves = [curve for network in networks for curve in thread_curves(network)]
    num_cores = max(max(runs.cpu) for runs in all_runs)
    remark = _exceptions(threads)
    if num_cores == 1:
        remark = " This CPU has one core, so that there is nothing to compare."
    elif any(has_caveat(runs.caveats, BUSY_MACHINE) for runs in all_runs):
        remark += " Other processes used this machine meanwhile."
    return order, Claim(
        claim="more CPU threads are faster, up to the physical cores",
        published=f"so in {_num_falling(curves)} of {len(curves)} curves of a network, a "
        "framework and a CPU",
        ours=f"{_counted(threads)}, up to {num_cores} threads",
        outcome=_overall(threads.values()),
        because="The published curves that rise before the cores are used up are all of the "
        "server with its 16 cores." + remark,
    )


def _overall(outcomes: Collection[ClaimOutcome]) -> ClaimOutcome:
    order = (ClaimOutcome.DISAGREES, ClaimOutcome.OPEN, ClaimOutcome.AGREES)
    return next(outcome for outcome in order if outcome in outcomes)


def _counted(outcomes: Mapping[str, ClaimOutcome]) -> str:
    num_agreeing = list(outcomes.values()).count(ClaimOutcome.AGREES)
    return f"so in {num_agreeing} of {len(outcomes)} networks"


def _exceptions(outcomes: Mapping[str, ClaimOutcome]) -> str:
    """Return a sentence on the networks that do not agree; empty if all do."""
    text = ""
    for outcome, what in (
        (ClaimOutcome.DISAGREES, "differ beyond their intervals"),
        (ClaimOutcome.OPEN, "lie within each other's interval"),
    ):
        names = [name for name, found in outcomes.items() if found is outcome]
        if names:
            text += f" Not so for {', '.join(names)}, whose times {what}."
    return text


def _range(ratios: Sequence[float]) -> str:
    low, high = format_ratio(min(ratios)), format_ratio(max(ratios))
    return low if low == high else f"{low.removesuffix('×')} to {high}"
