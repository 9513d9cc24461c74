"""Seven networks under five frameworks on CPUs and GPUs of 2016, and under PyTorch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from breakeven.errors import BreakevenError, Caveat
from breakeven.processor import num_physical_cores
from breakeven.systems.bench import Bench
from breakeven.systems.catalogue import Findings, rows, table
from breakeven.systems.published import CORES, GPUS, cells, fastest_ns, frameworks, networks
from breakeven.systems.shi2016_claims import claims, order_table, thread_table
from breakeven.systems.shi2016_runs import (
    GPUS_OF_TODAY,
    HOST_OF_2016,
    NetworkRuns,
    run_network,
)
from breakeven.verdict import ColumnKind, RowSource, SystemTable

_ABOUT = (
    Caveat(
        code="other-machines",
        message="published: a desktop CPU of 4 cores and a server of 16, each also with two "
        "threads per core; ours: this machine's CPU, on its physical cores",
    ),
    Caveat(
        code="optimizer",
        message="published: SGD, in some of the frameworks' scripts with momentum; ours: as in "
        "its Torch scripts, plain for FCN-S, AlexNet-S and LSTM, momentum 0.9 for the others",
    ),
    Caveat(
        code="other-work",
        message="LSTM under CNTK is published as 0.19 s on one thread; 128 sequences of 32 words "
        "need about 90 GFLOP, which no core of its years does in that time, so its mini-batch must "
        "have been smaller",
    ),
    Caveat(
        code="era",
        message=f"software of 2016: the cost model's effects of Torch7, on a {HOST_OF_2016} in "
        "place of the benchmark's own hosts; its LSTM is cuDNN's, where Torch's own ran word by "
        "word",
    ),
)
_THREADS = (1, 2, 4, 8, 16, 32)


def run(bench: Bench) -> Findings:
    """Measure all networks on this CPU, and predict them on the GPUs of the benchmark.

    Args:
        bench: Runs the scripts.

    Raises:
        BreakevenError: None of the networks could be run.
    """
    counts = thread_counts(num_physical_cores())
    all_runs: list[NetworkRuns] = []
    failures: list[BreakevenError] = []
    for network in networks():
        try:
            all_runs.append(run_network(bench, network, counts))
        except BreakevenError as error:
            failures.append(error)
    if not all_runs:
        raise failures[0]
    blocks = [block(runs, torch_version=bench.torch_version) for runs in all_runs]
    return Findings(
        host=bench.host_summary(),
        tables=(
            *(table for tables in blocks for table in tables),
            accuracy_table(all_runs),
            today_table(all_runs),
            order_table(all_runs),
            thread_table(all_runs),
        ),
        claims=claims(all_runs),
        caveats=(
            *(Caveat(code="left-out", message=failure.message) for failure in failures),
            *_ABOUT,
            *_run_caveats(all_runs),
        ),
    )


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the cores, and the cores themselves."""
    counts = {2**i for i in range(num_cores.bit_length())}
    return tuple(sorted({*counts, num_cores}))


def _run_caveats(all_runs: Sequence[NetworkRuns]) -> tuple[Caveat, ...]:
    """Return what the runs met, each message once with the networks that it is of."""
    networks_of: dict[Caveat, list[str]] = {}
    for runs in all_runs:
        for caveat in runs.caveats:
            networks_of.setdefault(caveat, []).append(runs.network)
    return tuple(
        Caveat(code=caveat.code, message=f"{', '.join(names)}: {caveat.message}")
        for caveat, names in networks_of.items()
    )


def pytorch_label(torch_version: str) -> str:
    """Return PyTorch with its version, without the build: ``PyTorch 2.13.0``."""
    return f"PyTorch {torch_version.partition('+')[0]}"


def block(runs: NetworkRuns, *, torch_version: str) -> tuple[SystemTable, SystemTable]:
    """Return what the benchmark's table has of a network, its CPUs and its GPUs, with ours."""
    label = pytorch_label(torch_version)
    return _cpu_table(runs, label), _gpu_table(runs, label)


def today_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return each network on this CPU and on GPUs of today."""
    cells = (
        (runs.network, runs.best_cpu, *(runs.today[name].estimate for name in GPUS_OF_TODAY))
        for runs in all_runs
    )
    return table(
        "Time of a mini-batch today: this CPU at its best, and GPUs of today",
        _times("network", ("this CPU", *GPUS_OF_TODAY)),
        rows(RowSource.PREDICTED, cells),
        note="The CPU is measured, the GPUs are predicted. Matrix products run in full fp32, as "
        "torch has it by default; convolutions use TF32 where a GPU has it.",
    )


def accuracy_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return our predictions for the software of 2016 over what was published."""

    def ratio(runs: NetworkRuns, name: str) -> float:
        return runs.of_2016[name].estimate.value_ns / fastest_ns(runs.network, (name,))

    return table(
        "Predicted for the software of 2016, over the fastest published framework",
        {"network": ColumnKind.TEXT, **dict.fromkeys(GPUS, ColumnKind.RATIO)},
        rows(
            RowSource.PREDICTED,
            ((runs.network, *(ratio(runs, name) for name in GPUS)) for runs in all_runs),
        ),
        note="None of these published times were used to calibrate breakeven. The K80 is predicted "
        "at its boost clock of 875 MHz; at its base clock of 562 MHz what is bound by arithmetic "
        "takes 1.6 times as long.",
    )


def _cpu_table(runs: NetworkRuns, pytorch: str) -> SystemTable:
    counts = sorted({*_THREADS, *runs.cpu})
    published = (
        (f"{framework}, {device.removesuffix(' CPU')}", *map(times_ns.get, counts))
        for framework in frameworks(runs.network)
        for device in CORES
        if (times_ns := cells(runs.network, framework, device))
    )
    measured = ((f"{pytorch}, here", *map(runs.cpu.get, counts)),)
    return table(
        f"{_heading(runs.network)}, by threads of a CPU",
        _times("framework, CPU", map(str, counts)),
        (*rows(RowSource.PUBLISHED, published), *rows(RowSource.MEASURED, measured)),
    )


def _gpu_table(runs: NetworkRuns, pytorch: str) -> SystemTable:
    published = (
        (framework, *(cells(runs.network, framework, name).get(None) for name in GPUS))
        for framework in frameworks(runs.network)
    )
    ours = (
        (label, *(found[name].estimate for name in GPUS))
        for label, found in (
            (f"{pytorch}, this host", runs.today),
            (f"software of 2016, {HOST_OF_2016}", runs.of_2016),
        )
    )
    return table(
        f"{_heading(runs.network)}, on GPUs",
        _times("framework", GPUS),
        (*rows(RowSource.PUBLISHED, published), *rows(RowSource.PREDICTED, ours)),
    )


def _heading(network: str) -> str:
    return f"{network}, {networks()[network]:,} samples per mini-batch"


def _times(first: str, names: Iterable[str]) -> dict[str, ColumnKind]:
    """Return the columns of a table of times, whose first one names the row."""
    return {first: ColumnKind.TEXT, **dict.fromkeys(names, ColumnKind.TIME_NS)}
