"""disc-mlp, rnn-stream and weight-update: tables and claims, from made-up runs."""

from __future__ import annotations

import math
import re
from types import ModuleType
from typing import cast

import pytest
from msgspec.structs import replace

from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.report import ClaimOutcome, RowSource, SystemReport, SystemTable
from breakeven.systems import disc_mlp, rnn_stream, weight_update
from breakeven.systems.bench import Bench
from breakeven.systems.disc_mlp import crossover_claim, depth_table
from breakeven.systems.weight_update import is_of_update, step_shares
from breakeven.timing import Estimate
from factories.systems import FakeBench, disc_sweep, num_disc_parameters, update_trace


def column(table: SystemTable, name: str) -> list[object]:
    """Return the cells below a heading."""
    position = [each.name for each in table.columns].index(name)
    return [row.cells[position] for row in table.rows]


def published_stand_above(table: SystemTable) -> bool:
    are_published = [row.source is RowSource.PUBLISHED for row in table.rows]
    return are_published == sorted(are_published, reverse=True)


def test_ten_layers_have_the_published_number_of_parameters() -> None:
    assert num_disc_parameters(8) == 44_710
    assert math.isclose(num_disc_parameters(10), 700_000, rel_tol=0.01)


def test_a_depth_has_times_of_a_step_and_of_a_thousand() -> None:
    table = depth_table(disc_sweep())
    assert published_stand_above(table)
    assert column(table, "depth") == [10, *range(2, 13)]
    for row in table.rows[1:]:
        cpu, run, gpu, gpu_run = row.cells[2:6]
        assert isinstance(cpu, Estimate)
        assert isinstance(run, Estimate)
        assert run.value_ns == pytest.approx(1_000 * cpu.value_ns)
        assert isinstance(gpu, Estimate)
        assert isinstance(gpu_run, Estimate)
        assert row.cells[6] == pytest.approx(cpu.value_ns / gpu.value_ns)


def test_a_depth_at_which_the_script_failed_has_no_row() -> None:
    sweep = disc_sweep()
    kept = tuple(point for point in sweep.points if point.settings["depth"] != 5)
    table = depth_table(replace(sweep, points=kept))
    assert 5 not in column(table, "depth")[1:]


@pytest.mark.parametrize(
    ("gpu_fixed_ms", "cpu_factor", "outcome"),
    [
        (1.5, 1.0, ClaimOutcome.AGREES),  # (1.5 ms - 0.4 ms) / 1.45 ns: at 760,000 parameters
        (0.41, 1.0, ClaimOutcome.DISAGREES),  # at 7,000
        (0.1, 1.0, ClaimOutcome.DISAGREES),  # faster at every depth
        (500.0, 1.0, ClaimOutcome.DISAGREES),  # slower at every depth
    ],
)
def test_the_crossover_is_judged_by_where_it_lies(
    gpu_fixed_ms: float, cpu_factor: float, outcome: ClaimOutcome
) -> None:
    claim = crossover_claim(disc_sweep(gpu_fixed_ms, cpu_factor))
    assert claim.outcome is outcome
    assert "RTX 2070 Max-Q" in claim.ours
    assert "GTX 1060 6GB" in claim.because


def test_without_a_crossover_to_judge_the_claim_is_open() -> None:
    sweep = disc_sweep()
    claim = crossover_claim(replace(sweep, crossovers=()))
    assert claim.outcome is ClaimOutcome.OPEN


def test_the_disc_report_holds_the_curves_with_the_published_point() -> None:
    report = _run(disc_mlp, FakeBench(disc_sweep()))
    (sweep,) = report.sweeps
    (point,) = sweep.published
    assert (point.axis, point.size, point.step_ns) == ("num_parameters", 700_000, None)
    assert len(report.claims) == 1
    # A comparison of two runs finds a figure by the name of its column.
    names = [column.name for column in report.tables[0].columns]
    assert len(set(names)) == len(names)


def test_the_stream_is_measured_on_one_thread_as_on_colab() -> None:
    bench = FakeBench()
    report = _run(rnn_stream, bench)
    assert {(arguments[1], threads) for _, arguments, threads in bench.measured} == {
        ("100", 1), ("100", 0), ("10000", 1), ("10000", 0)
    }  # fmt: skip
    assert [table.title for table in report.tables] == ["Batch 100", "Batch 10,000"]
    assert all(published_stand_above(table) for table in report.tables)


def test_ratios_of_the_stream_are_against_the_cpu_measured_here() -> None:
    report = _run(rnn_stream, FakeBench())
    small, large = report.tables
    for table, cpu_ns in ((small, 1_500_000), (large, 60_000_000)):
        for row in table.rows:
            step, ratio = row.cells[2], row.cells[4]
            if row.source is RowSource.PREDICTED:
                assert isinstance(step, Estimate)
                assert ratio == pytest.approx(cpu_ns / step.value_ns)
    assert column(small, "vs CPU")[:2] == [1.0, pytest.approx(340 / 650)]
    assert column(large, "vs CPU")[:2] == [1.0, pytest.approx(145 / 15)]


def test_each_gpu_of_the_stream_has_a_claim_at_each_batch() -> None:
    report = _run(rnn_stream, FakeBench())
    assert [
        (re.findall(r"batch ([\d,]+) a (T4|K80)", claim.claim)[0]) for claim in report.claims
    ] == [("100", "T4"), ("100", "K80"), ("10,000", "T4"), ("10,000", "K80")]


def test_the_events_of_an_update_are_told_from_the_others() -> None:
    events = update_trace(is_on_host=True).events
    assert [is_of_update(event) for event in events] == [False, False, True, True, True]


def test_shares_of_a_step_whose_update_is_on_the_host() -> None:
    device, host = find_device("GTX 960"), reference_host()
    on_host = step_shares(update_trace(is_on_host=True), device, host)
    on_device = step_shares(update_trace(is_on_host=False), device, host)
    # 2 ms on the host and 8 MB over PCIe, against a kernel.
    assert on_host[0] > 0.9
    assert on_device[0] < on_host[0]
    assert on_device[1] < on_host[1] <= 1


def test_the_update_has_a_table_for_each_gpu_and_wall_times_on_the_published_one() -> None:
    report = _run(weight_update, FakeBench())
    published, *others = report.tables
    assert published.title.startswith("GTX 960")
    assert column(published, "run")[:3] == [64.03e9, 32.57e9, None]
    assert column(published, "speed-up")[1] == pytest.approx(64.03 / 32.57)
    assert all(row.source is RowSource.PREDICTED for table in others for row in table.rows)
    assert all(len(row.cells) == len(table.columns) for table in others for row in table.rows)


def test_the_update_is_claimed_by_the_variant_that_followed() -> None:
    report = _run(weight_update, FakeBench())
    (claim,) = report.claims
    ratio = float(claim.ours.partition("×")[0])
    assert column(report.tables[0], "speed-up")[3] == pytest.approx(ratio, rel=0.05)


def _run(system: ModuleType, bench: FakeBench) -> SystemReport:
    return system.run(cast(Bench, bench))
