"""Which systems there are, and what each finds: tables, and whether its figures agree.

Each is imported when it is run, so that none can break the others.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.progress import Progress
from breakeven.systems.bench import Bench
from breakeven.systems.published import DISC_MLP_SOURCE, Band
from breakeven.timing import Estimate
from breakeven.units import format_digits
from breakeven.verdict import (
    Cell,
    Claim,
    ClaimOutcome,
    ColumnKind,
    HostSummary,
    RowSource,
    SweepReport,
    SystemReport,
    SystemTable,
    TableColumn,
    TableRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEntry:
    """A system: a network with published figures that can be run and set beside them.

    The module of its name in this package, with ``_`` for ``-``, has a function ``run``, which
    measures it on a bench, predicts it elsewhere, and sets both beside what was published.

    Args:
        name: What it is called on the command line.
        title: What it is, in a line.
        published: What was published of it, in a line.
        published_in: Where.
        about_s: How long it takes to run on two cores, roughly, in seconds.
        scripts: File names of its scripts, the first the one that its report names.
    """

    name: str
    title: str
    published: str
    published_in: str
    about_s: float
    scripts: tuple[str, ...]

    def load(self) -> Callable[[Bench], Findings]:
        """Return the function that runs it.

        Raises:
            BreakevenError: It cannot be imported.
        """
        try:
            module = importlib.import_module(f"breakeven.systems.{self.name.replace('-', '_')}")
        except ImportError as error:
            raise BreakevenError(
                f"{self.name} cannot be imported: {error}",
                hint="install breakeven anew, with its dependencies",
            ) from error
        return module.run


_DIFFEQFLUX = "question and answer on the GPU training of a neural ODE (DiffEqFlux, Julia)"

SYSTEMS = (
    SystemEntry(
        name="neural-ode",
        title="a neural ODE of 3-100-3 learns the Lorenz system",
        published="the CPU is orders of magnitude faster than a K40c",
        published_in=_DIFFEQFLUX,
        about_s=60,
        scripts=("neural_ode.py",),
    ),
    SystemEntry(
        name="disc-mlp",
        title="points in a disc, classified by 2 to 12 layers that double in width",
        published="a laptop's GPU is faster from about 700,000 parameters on",
        published_in=DISC_MLP_SOURCE,
        about_s=120,
        scripts=("disc_mlp.py",),
    ),
    SystemEntry(
        name="rnn-stream",
        title="an RNN of 256 units over a stream of frames, batch 100 against 10,000",
        published="Colab's GPU at 0.52 times the CPU's speed, and at 9.7 times",
        published_in='question "Why GPU is much slower than cpu in google colab?"',
        about_s=60,
        scripts=("rnn_stream.py",),
    ),
    SystemEntry(
        name="shi2016",
        title="seven networks of a benchmark of 2016, by threads and GPUs",
        published="seconds per mini-batch of five frameworks on CPUs and three GPUs",
        published_in="S. Shi, Q. Wang, P. Xu, X. Chu, “Benchmarking state-of-the-art deep learning "
        "software tools”, arXiv 1608.07249, Table 7",
        about_s=360,
        scripts=("shi2016.py",),
    ),
    SystemEntry(
        name="device-rules",
        title="what a lecture teaches about devices, checked without a GPU",
        published="rules about where tensors live, and that copies to a GPU are slow",
        published_in='AMMI lecture 6.6 "Using GPUs", 2018',
        about_s=30,
        scripts=("device_rules.py",),
    ),
    SystemEntry(
        name="weight-update",
        title="the weights of an MNIST perceptron, updated on the host or on the device",
        published="64.03 s with the update on the host, 32.57 s on a GTX 960",
        published_in="issue 88 of the machine learning framework Leaf",
        about_s=60,
        scripts=("mnist_mlp.py",),
    ),
)


def find_systems(names: Sequence[str]) -> tuple[SystemEntry, ...]:
    """Return the systems of these names, each once, in the order given.

    Raises:
        UsageError: There is no such system.
    """
    by_name = {entry.name: entry for entry in SYSTEMS}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"there is no system {name!r}", hint=f"{meant}there are: {', '.join(by_name)}"
            )
    return tuple(by_name[name] for name in dict.fromkeys(names))


def run_system(
    entry: SystemEntry,
    *,
    host: str = "auto",
    time_limit_s: float = 120.0,
    progress: Progress | None = None,
) -> SystemReport:
    """Run one system on a bench of its own: a script that goes wrong harms no other system.

    Args:
        entry: Which one.
        host: What feeds the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        time_limit_s: Limit of each run of a script, in seconds.
        progress: Progress callback.

    Raises:
        BreakevenError: It could not be run, or there is no such host.
    """
    run = entry.load()
    with Bench(host=host, time_limit_s=time_limit_s, progress=progress) as bench:
        found = run(bench)
    return SystemReport(
        name=entry.name,
        title=entry.title,
        published_in=entry.published_in,
        script=entry.scripts[0],
        host=found.host,
        tables=found.tables,
        sweeps=found.sweeps,
        claims=found.claims,
        caveats=found.caveats,
    )


_REACHES_INTO = "Outside of the band, but its interval reaches into it. "
_REACHES_BEYOND = "Within the band, but its interval reaches beyond it. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What running a system came to.

    Args:
        host: The machine that feeds the devices.
        tables: Figures side by side.
        claims: What was claimed of it.
        sweeps: Curves.
        caveats: Reasons to trust all of its figures less.
    """

    host: HostSummary
    tables: tuple[SystemTable, ...]
    claims: tuple[Claim, ...]
    sweeps: tuple[SweepReport, ...] = ()
    caveats: tuple[Caveat, ...] = ()


def rows(source: RowSource, cells: Iterable[Iterable[Cell]]) -> tuple[TableRow, ...]:
    """Return rows whose figures come from one source."""
    return tuple(TableRow(source=source, cells=tuple(row)) for row in cells)


def table(
    title: str, columns: Mapping[str, ColumnKind], rows: Iterable[TableRow], note: str = ""
) -> SystemTable:
    """Return a table.

    Args:
        title: What its figures show.
        columns: What the numbers of each column are, by its heading.
        rows: Published ones above ours.
        note: What a reader must know of them.
    """
    return SystemTable(
        title=title,
        columns=tuple(TableColumn(name=name, kind=kind) for name, kind in columns.items()),
        rows=tuple(rows),
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a figure agrees, and what its interval takes from that.

    Args:
        outcome: By where the figure lies.
        remark: Begins the reason of the claim, with a space behind it; empty where the whole
            interval lies as the figure does.
    """

    outcome: ClaimOutcome
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as long one step takes as another, with its 90 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        low, value, high = (
            format_digits(figure, 2) for figure in (self.low, self.value, self.high)
        )
        return f"{value}× ({low}–{high}×)"


def ratio_of(slower: Estimate, faster: Estimate) -> Ratio:
    """Return how many times as long one step takes as another.

    Their errors are taken to be independent, so their distances on a logarithmic scale add in
    squares; of two predictions for one GPU and host they are partly the same, and the interval is
    wider than it had to be.
    """
    value = slower.value_ns / faster.value_ns
    below = (slower.value_ns / slower.low_ns, faster.high_ns / faster.value_ns)
    above = (slower.high_ns / slower.value_ns, faster.value_ns / faster.low_ns)
    return Ratio(
        value=value,
        low=value / math.exp(math.hypot(*map(math.log, below))),
        high=value * math.exp(math.hypot(*map(math.log, above))),
    )


def judge(value: float, low: float, high: float | None, band: Band) -> Judgement:
    """Return whether a figure agrees with a published one.

    It agrees where it lies in the band, with a remark where its interval leaves the band, and
    disagrees where all of its interval lies outside; between these the interval is too wide to say.

    Args:
        value: Ours.
        low: Lower end of its 90 % interval.
        high: Upper end; None where there is none.
        band: Figures that agree.
    """
    highest = math.inf if high is None else high
    if value in band:
        is_within = low in band and highest in band
        return Judgement(outcome=ClaimOutcome.AGREES, remark="" if is_within else _REACHES_BEYOND)
    if low <= band.high and highest >= band.low:
        return Judgement(outcome=ClaimOutcome.OPEN, remark=_REACHES_INTO)
    return Judgement(outcome=ClaimOutcome.DISAGREES)


def judged_claim(
    ratio: Ratio, band: Band, *, claim: str, published: str, ours: str, because: str
) -> Claim:
    """Return a claim that holds where a ratio lies in its band.

    Args:
        ratio: Ours.
        band: Ratios that agree with the published one.
        claim: The statement.
        published: The published figure.
        ours: The figure found here.
        because: What to know of it; what its interval takes from it stands before.
    """
    judged = judge(ratio.value, ratio.low, ratio.high, band)
    return Claim(
        claim=claim,
        published=published,
        ours=ours,
        outcome=judged.outcome,
        because=judged.remark + because,
    )
