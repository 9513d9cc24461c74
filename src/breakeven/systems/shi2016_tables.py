"""The benchmark's Table 7 with rows of ours below the published ones: a block per network."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.systems.shi2016_jax import INSTALL_JAX, JAX_NETWORKS, jax_label
from breakeven.systems.shi2016_runs import GPUS_OF_TODAY, HOST_OF_2016, NetworkRuns
from breakeven.systems.shi2016_table import CORES, GPUS, cells, fastest_ns, frameworks, networks
from breakeven.units import format_duration
from breakeven.verdict import Cell, ColumnKind, RowSource, SystemTable, TableColumn, TableRow

_THREADS = (1, 2, 4, 8, 16, 32)


def pytorch_label(torch_version: str) -> str:
    """Return PyTorch with its version, without the build: ``PyTorch 2.13.0``."""
    return f"PyTorch {torch_version.partition('+')[0]}"


def block(runs: NetworkRuns, *, torch_version: str) -> tuple[SystemTable, SystemTable]:
    """Return what the benchmark's table has of a network, its CPUs and its GPUs, with ours."""
    return (
        _cpu_table(runs, torch_version=torch_version),
        _gpu_table(runs, torch_version=torch_version),
    )


def today_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return each network on this CPU and on GPUs of today."""
    return SystemTable(
        title="Time of a mini-batch today: this CPU at its best, and GPUs of today",
        columns=(
            TableColumn(name="network", kind=ColumnKind.TEXT),
            _time_column("this CPU"),
            *(_time_column(name) for name in GPUS_OF_TODAY),
        ),
        rows=tuple(
            TableRow(
                source=RowSource.PREDICTED,
                cells=(
                    runs.network,
                    runs.best_cpu,
                    *(runs.today[name].estimate for name in GPUS_OF_TODAY),
                ),
            )
            for runs in all_runs
        ),
        note="The CPU is measured, the GPUs are predicted. Matrix products run in full fp32, as "
        "torch has it by default; convolutions use TF32 where a GPU has it.",
    )


def accuracy_table(all_runs: Sequence[NetworkRuns]) -> SystemTable:
    """Return our predictions for the software of 2016 over what was published."""
    return SystemTable(
        title="Predicted for the software of 2016, over the fastest published framework",
        columns=(
            TableColumn(name="network", kind=ColumnKind.TEXT),
            *(TableColumn(name=name, kind=ColumnKind.RATIO) for name in GPUS),
        ),
        rows=tuple(
            TableRow(
                source=RowSource.PREDICTED,
                cells=(
                    runs.network,
                    *(
                        runs.of_2016[name].estimate.value_ns / fastest_ns(runs.network, (name,))
                        for name in GPUS
                    ),
                ),
            )
            for runs in all_runs
        ),
        note="None of these published times were used to calibrate breakeven. The K80 is predicted "
        "at its boost clock of 875 MHz; at its base clock of 562 MHz what is bound by arithmetic "
        "takes 1.6 times as long.",
    )


def _cpu_table(runs: NetworkRuns, *, torch_version: str) -> SystemTable:
    counts = sorted({*_THREADS, *runs.cpu})
    rows = [
        TableRow(
            source=RowSource.PUBLISHED,
            cells=(f"{framework}, {device.removesuffix(' CPU')}", *map(times_ns.get, counts)),
        )
        for framework in frameworks(runs.network)
        for device in CORES
        if (times_ns := cells(runs.network, framework, device))
    ]
    ours = [(f"{pytorch_label(torch_version)}, here", runs.cpu)]
    note = ""
    if runs.network in JAX_NETWORKS:
        label = jax_label()
        ours.append((f"{label}, here" if label else "JAX (not installed)", runs.jax))
        if label is None:
            note = f"JAX is {INSTALL_JAX}"
        elif runs.compile_ns:
            first = format_duration(runs.compile_ns, 2)
            note = f"JAX: a step that jax.jit compiled; the first one, which compiles, took {first}"
    rows += [
        TableRow(source=RowSource.MEASURED, cells=(label, *map(times.get, counts)))
        for label, times in ours
    ]
    return SystemTable(
        title=f"{_heading(runs.network)}, by threads of a CPU",
        columns=(
            TableColumn(name="framework, CPU", kind=ColumnKind.TEXT),
            *(_time_column(str(count)) for count in counts),
        ),
        rows=tuple(rows),
        note=note,
    )


def _gpu_table(runs: NetworkRuns, *, torch_version: str) -> SystemTable:
    published = [
        TableRow(
            source=RowSource.PUBLISHED,
            cells=(
                framework,
                *(cells(runs.network, framework, name).get(None) for name in GPUS),
            ),
        )
        for framework in frameworks(runs.network)
    ]
    ours: list[TableRow] = []
    for label, found in (
        (f"{pytorch_label(torch_version)}, this host", runs.today),
        (f"software of 2016, {HOST_OF_2016}", runs.of_2016),
    ):
        times: tuple[Cell, ...] = tuple(found[name].estimate for name in GPUS)
        ours.append(TableRow(source=RowSource.PREDICTED, cells=(label, *times)))
    return SystemTable(
        title=f"{_heading(runs.network)}, on GPUs",
        columns=(
            TableColumn(name="framework", kind=ColumnKind.TEXT),
            *(_time_column(name) for name in GPUS),
        ),
        rows=(*published, *ours),
    )


def _heading(network: str) -> str:
    return f"{network}, {networks()[network]:,} samples per mini-batch"


def _time_column(name: str) -> TableColumn:
    return TableColumn(name=name, kind=ColumnKind.TIME_NS)
