"""How a network is run, what its tables show, and what the system makes of failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from breakeven.capture import PlainRun
from breakeven.device import find_device
from breakeven.errors import BreakevenError, Caveat
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.systems import shi2016 as system
from breakeven.systems.published import GPUS, networks
from breakeven.systems.shi2016 import accuracy_table, block, today_table
from breakeven.systems.shi2016_runs import (
    GPUS_OF_TODAY,
    NetworkRuns,
    predict_of_2016,
    run_network,
)
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import HostWork, Phase, StepTrace
from breakeven.verdict import ClaimOutcome, HostSummary, RowSource, SystemTable
from factories.networks import network_runs
from factories.runs import plain_run, traced_run
from factories.steps import HOST

LABEL = "PyTorch 2.13.0"


def host_work(kind: str, duration_ns: int) -> HostWork:
    return HostWork(
        kind=kind, duration_ns=duration_ns, num_workers=0, phase=Phase.FORWARD, location=None
    )


class FakeBench:
    """Answers at once: a step that takes 1 s on one thread and half of it on two."""

    torch_version = "2.13.0+cpu"

    def __init__(self, *, fails: Callable[[str], bool] = lambda network: False) -> None:
        self._fails = fails
        self.calls: list[tuple[str, ...]] = []

    def measure(self, script: str, *arguments: str, num_threads: int, budget_s: float) -> PlainRun:
        self.calls.append((script, *arguments, str(num_threads)))
        if self._fails(arguments[-1]):
            raise BreakevenError(f"{arguments[-1]} ran out of memory")
        busy = Caveat(code=BUSY_MACHINE, message=f"busy at {num_threads} threads")
        return replace(plain_run(step_ns=10**9 // num_threads), caveats=(busy,))

    def step(self, script: str, *arguments: str, num_threads: int) -> StepTrace:
        trace = traced_run().trace
        return replace(trace, events=(*trace.events, host_work("script", 10**10)))

    def predict(self, trace: StepTrace, devices: Sequence[str]) -> tuple[StepPrediction, ...]:
        return predict_steps(trace, [find_device(name) for name in devices], HOST)

    def host_summary(self) -> HostSummary:
        return HostSummary(
            name="CPU", num_threads=2, source="made up", torch_version="2", python_version="3"
        )


def rows(table: SystemTable, source: RowSource) -> list[tuple[object, ...]]:
    return [row.cells for row in table.rows if row.source is source]


def test_a_network_is_measured_on_each_number_of_threads() -> None:
    bench = FakeBench()
    runs = run_network(bench, "FCN-R", (1, 2))
    assert bench.calls == [
        ("shi2016.py", "--network", "FCN-R", "1"),
        ("shi2016.py", "--network", "FCN-R", "2"),
    ]
    assert [runs.cpu[n].value_ns for n in (1, 2)] == [1e9, 0.5e9]
    assert runs.best_cpu.value_ns == 0.5e9
    assert set(runs.today) == {*GPUS, *GPUS_OF_TODAY}
    assert set(runs.of_2016) == set(GPUS)
    assert runs.is_disturbed
    assert [caveat.code for caveat in runs.caveats] == [BUSY_MACHINE]  # one for both runs


def test_the_software_of_2016_has_a_host_and_spread_of_its_own() -> None:
    trace = traced_run().trace
    (then,) = predict_of_2016(trace, [find_device("GTX 980")])
    (now,) = predict_steps(trace, [find_device("GTX 980")], HOST)
    assert then.host_ns > now.host_ns
    assert then.estimate.low_ns < then.estimate.value_ns < then.estimate.high_ns


def test_a_block_has_the_published_rows_above_ours() -> None:
    cpu_table, gpu_table = block(network_runs("LSTM"), torch_version="2.13.0+cpu")
    published = rows(cpu_table, RowSource.PUBLISHED)
    assert [cells[0] for cells in published] == [
        "CNTK, desktop", "CNTK, server", "TensorFlow, desktop", "TensorFlow, server",
        "Torch, desktop", "Torch, server",
    ]  # fmt: skip
    assert published[0][1:] == pytest.approx((186e6, 120e6, 90e6, 118e6, None, None))
    assert [cells[0] for cells in rows(gpu_table, RowSource.PUBLISHED)] == [
        "CNTK", "TensorFlow", "MXNet", "Torch",
    ]  # fmt: skip
    for table in (cpu_table, gpu_table):
        assert all(len(row.cells) == len(table.columns) for row in table.rows)
        sources = [row.source for row in table.rows]
        assert sources == sorted(sources, key=lambda source: source is not RowSource.PUBLISHED)


def test_our_threads_have_columns_of_their_own_where_the_paper_has_none() -> None:
    runs = network_runs("ResNet-50", cpu={1: 8.0, 2: 4.0, 4: 2.0, 6: 1.5})
    cpu_table, _ = block(runs, torch_version="2.13.0")
    names = [column.name for column in cpu_table.columns]
    assert names == ["framework, CPU", "1", "2", "4", "6", "8", "16", "32"]
    cells = rows(cpu_table, RowSource.MEASURED)[0]
    times = [cell.value_ns if isinstance(cell, Estimate) else cell for cell in cells[1:]]
    assert times == [8e9, 4e9, 2e9, 1.5e9, None, None, None]


def test_ratios_are_over_the_fastest_framework() -> None:
    # 0.04 s predicted for a GTX 980, where Torch took 0.040 s.
    (row,) = accuracy_table([network_runs("FCN-S", of_2016={
        "GTX 980": 0.04, "GTX 1080": 0.06, "K80": 0.035,
    })]).rows  # fmt: skip
    assert row.cells == ("FCN-S", *(pytest.approx(ratio) for ratio in (1.0, 2.0, 0.5)))


def test_today_has_the_best_cpu_and_the_gpus_of_today() -> None:
    (row,) = today_table([network_runs(cpu={1: 2.0, 2: 1.0})]).rows
    assert row.cells[0] == "FCN-S"
    assert [cell.value_ns for cell in row.cells[1:]] == [1e9, 1e7, 1e7, 1e7, 1e7]


def test_the_report_has_a_block_per_network_and_two_claims() -> None:
    report = system.run(FakeBench())
    assert len(report.tables) == 2 * 7 + 4
    for number, name in enumerate(networks()):
        assert report.tables[2 * number].title.startswith(f"{name}, ")
    assert len(report.claims) == 2
    busy = [caveat.message for caveat in report.caveats if caveat.code == BUSY_MACHINE]
    assert len(busy) == 1
    assert busy[0].startswith("FCN-S, AlexNet-S, ResNet-50, FCN-R, AlexNet-R, ResNet-56, LSTM: ")


def test_a_network_that_fails_is_left_out_and_named() -> None:
    bench = FakeBench(fails=lambda network: network == "ResNet-50")
    report = system.run(bench)
    assert len(report.tables) == 2 * 6 + 4
    assert report.caveats[0] == Caveat(code="left-out", message="ResNet-50 ran out of memory")
    assert "of 6 networks" in report.claims[0].ours


def test_where_all_fail_the_first_error_is_raised() -> None:
    with pytest.raises(BreakevenError, match="FCN-S ran out of memory"):
        system.run(FakeBench(fails=lambda network: True))


def test_a_step_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replace(traced_run().trace, peak_memory_bytes=5 * 10**9)
    monkeypatch.setattr(FakeBench, "step", lambda *_, **__: trace)
    runs: NetworkRuns = run_network(FakeBench(), "FCN-R", (1,))
    messages = [caveat.message for caveat in runs.caveats if caveat.code == "does-not-fit"]
    assert len(messages) == 1
    assert "a GTX 980 has" in messages[0]


def test_claims_of_the_report_follow_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "run_network", lambda bench, network, counts: network_runs(network))
    report = system.run(FakeBench())
    assert {claim.outcome for claim in report.claims} == {ClaimOutcome.AGREES}
