"""Seven networks under five frameworks on CPUs and GPUs of 2016, and under PyTorch here."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.errors import BreakevenError, Caveat
from breakeven.processor import num_physical_cores
from breakeven.systems.bench import Bench
from breakeven.systems.findings import Findings
from breakeven.systems.shi2016_claims import claims, order_table, thread_table
from breakeven.systems.shi2016_runs import HOST_OF_2016, NetworkRuns, run_network
from breakeven.systems.shi2016_table import networks
from breakeven.systems.shi2016_tables import accuracy_table, block, today_table

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
        caveats=(*_left_out(failures), *_ABOUT, *_run_caveats(all_runs)),
    )


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … up to the cores, and the cores themselves."""
    counts = {2**i for i in range(num_cores.bit_length())}
    return tuple(sorted({*counts, num_cores}))


def _left_out(failures: Sequence[BreakevenError]) -> tuple[Caveat, ...]:
    return tuple(Caveat(code="left-out", message=failure.message) for failure in failures)


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
