from __future__ import annotations

import pytest

from breakeven.systems.neural_ode import CpuRun, GpuRun, best_of, slowdown_claim, steps_table
from breakeven.timing import Estimate, Source
from breakeven.verdict import ClaimOutcome, RowSource


def _time(value_ns: float, source: Source, factor: float = 1.1) -> Estimate:
    return Estimate(
        value_ns=value_ns, low_ns=value_ns / factor, high_ns=value_ns * factor, source=source
    )


def _cpu(value_ns: float, solver: str = "own", *, is_compiled: bool = False) -> CpuRun:
    return CpuRun(
        device="CPU, 1 thread",
        solver=solver,
        is_compiled=is_compiled,
        step=_time(value_ns, Source.MEASURED),
    )


def _k40(value_ns: float, *, is_of_its_day: bool, factor: float = 1.1) -> GpuRun:
    return GpuRun(
        device="K40",
        is_k40=True,
        is_of_its_day=is_of_its_day,
        solver="own",
        step=_time(value_ns, Source.PREDICTED, factor),
        num_kernels=100,
        num_syncs=3,
    )


_FAILED = CpuRun(device="CPU", solver="own, compiled", is_compiled=True, failure="no compiler")


def test_run_that_failed_is_not_the_best() -> None:
    runs = (_FAILED, _cpu(9e6), _cpu(3e6, is_compiled=True))
    assert best_of(runs).step_ns == 3e6


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
    cpu = (_FAILED, _cpu(8e6), _cpu(2.5e6, is_compiled=True))
    gpus = (
        _k40(k40_ns, is_of_its_day=True, factor=factor),
        _k40(9 * k40_ns, is_of_its_day=True, factor=factor),
        _k40(3e6, is_of_its_day=False),
    )
    claim = slowdown_claim(gpus, cpu, is_of_its_day=True)
    assert claim.outcome is outcome
    # What it is against the eager CPU is said with it.
    assert f"{k40_ns / 8e6:.2g}".rstrip("0").rstrip(".") in claim.because
    assert slowdown_claim(gpus, cpu, is_of_its_day=False).outcome is ClaimOutcome.DISAGREES


def test_table_shows_what_succeeded_with_a_cell_for_every_column() -> None:
    table = steps_table(
        (_cpu(8e6), _FAILED, _cpu(4e6, is_compiled=True)),
        (_k40(40e6, is_of_its_day=False),),
        (90_000.0, 20_000.0),
    )
    assert [row.source for row in table.rows] == [
        RowSource.MEASURED, RowSource.MEASURED, RowSource.PREDICTED,
    ]  # fmt: skip
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
    assert [row.cells[4] for row in table.rows] == [2.0, 1.0, 10.0]
    assert table.rows[2].cells[3] == 40e9
