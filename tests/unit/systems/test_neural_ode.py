from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from breakeven.errors import BreakevenError
from breakeven.report import ClaimOutcome, RowSource
from breakeven.systems import neural_ode
from breakeven.systems.bench import Bench
from breakeven.systems.neural_ode import (
    COMPILED,
    EAGER,
    FAST_STEP,
    Run,
    best_of,
    measure_cpu,
    slowdown_claim,
    steps_tables,
)
from breakeven.timing import Estimate, Source


def _time(value_ns: float, source: Source, factor: float = 1.1) -> Estimate:
    return Estimate(
        value_ns=value_ns, low_ns=value_ns / factor, high_ns=value_ns * factor, source=source
    )


def _cpu(value_ns: float, way: str = EAGER) -> Run:
    return Run(
        device="CPU, 1 thread",
        solver="own",
        way=way,
        step=_time(value_ns, Source.MEASURED),
    )


def _k40(value_ns: float, *, is_of_its_day: bool, factor: float = 1.1) -> Run:
    return Run(
        device="K40",
        is_of_its_day=is_of_its_day,
        solver="own",
        step=_time(value_ns, Source.PREDICTED, factor),
        launches=100,
        syncs=3,
    )


_FAILED = Run(device="CPU", solver="own", way=COMPILED, failure="no compiler")


def test_run_that_failed_is_not_the_best() -> None:
    runs = (_FAILED, _cpu(9e6), _cpu(3e6, COMPILED))
    assert best_of(runs).time.value_ns == 3e6


@pytest.mark.parametrize(
    ("k40_ns", "factor", "outcome"),
    [
        (100e6, 1.2, ClaimOutcome.AGREES),
        (20e6, 1.5, ClaimOutcome.OPEN),
        (6e6, 1.2, ClaimOutcome.DISAGREES),
    ],
)
def test_claim_compares_the_best_of_both_sides(
    k40_ns: float, factor: float, outcome: ClaimOutcome
) -> None:
    cpu = (_FAILED, _cpu(10e6), _cpu(8e6), _cpu(5e6, COMPILED), _cpu(2.5e6, FAST_STEP))
    gpus = (
        _k40(k40_ns, is_of_its_day=True, factor=factor),
        _k40(9 * k40_ns, is_of_its_day=True, factor=factor),
        _k40(3e6, is_of_its_day=False),
    )
    claim = slowdown_claim(gpus, cpu, is_of_its_day=True)
    assert claim.outcome is outcome
    assert "own, fast_step, 2.5 ms" in claim.ours
    # What it is against each way on the CPU is said with it.
    assert f"{k40_ns / 8e6:.2g}× (eager), {k40_ns / 5e6:.2g}× (torch.compile)" in claim.because
    assert slowdown_claim(gpus, cpu, is_of_its_day=False).outcome is ClaimOutcome.DISAGREES


def test_table_shows_what_succeeded_with_a_cell_for_every_column() -> None:
    table, failed = steps_tables(
        (_cpu(8e6), _FAILED, _cpu(4e6, FAST_STEP)),
        (_k40(40e6, is_of_its_day=False),),
        (90_000.0, 20_000.0),
    )
    assert [row.source for row in table.rows] == [
        RowSource.MEASURED, RowSource.MEASURED, RowSource.PREDICTED,
    ]  # fmt: skip
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
    assert [row.cells[4] for row in table.rows] == [2.0, 1.0, 10.0]
    assert table.rows[2].cells[3] == 40e9
    assert [row.cells[1] for row in table.rows] == ["own", "own, fast_step", "own"]
    assert [row.cells for row in failed.rows] == [("CPU", "own, torch.compile", "no compiler")]


@pytest.mark.parametrize("is_installed", [False, True])
def test_torchdiffeq_is_a_further_row_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, *, is_installed: bool
) -> None:
    def measure(*arguments: str, num_threads: int, **__: Any) -> SimpleNamespace:
        if "--compile" in arguments:
            raise BreakevenError("no compiler")
        measurement = SimpleNamespace(estimate=_time(9e6, Source.MEASURED))
        return SimpleNamespace(num_threads=num_threads or 2, measurement=measurement)

    bench = SimpleNamespace(measure=measure)
    monkeypatch.setattr(neural_ode, "find_spec", lambda _: is_installed or None)
    runs = measure_cpu(cast("Bench", bench), Path("weights.pt"))
    ways = [(run.solver, run.way) for run in runs]
    own = [("own", EAGER), ("own", EAGER), ("own", COMPILED), ("own", FAST_STEP)]
    torchdiffeq = [("torchdiffeq", EAGER), ("torchdiffeq", EAGER), ("torchdiffeq", COMPILED)]
    assert sorted(ways) == sorted(own + torchdiffeq if is_installed else own)
    assert {run.failure for run in runs if run.way == COMPILED} == {"no compiler"}
