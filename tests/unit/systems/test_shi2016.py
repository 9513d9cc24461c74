"""shi2016: the published table, how a network is run, and what tables and claims make of it."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from breakeven.capture import PlainRun
from breakeven.device import find_device
from breakeven.errors import BreakevenError, Caveat
from breakeven.report import ClaimOutcome, RowSource, SystemTable
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.systems import script_path
from breakeven.systems import shi2016 as system
from breakeven.systems.shi2016 import (
    CORES,
    GPUS,
    NETWORKS,
    PUBLISHED,
    accuracy_table,
    claims,
    cpu_table,
    fastest_ns,
    frameworks_in_order,
    gains,
    gpu_table,
    order_outcome,
    predict_of_2016,
    published_order,
    run_network,
    thread_counts,
    thread_curves,
    thread_outcome,
)
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import StepTrace
from breakeven.verdict import HostSummary
from factories.networks import estimate, network_runs
from factories.reports import HOST as HOST_SUMMARY
from factories.runs import plain_run, traced_run
from factories.steps import HOST

# The published table.


def test_the_table_has_the_networks_devices_and_threads_of_the_paper() -> None:
    assert list(NETWORKS.items()) == [
        ("FCN-S", 64), ("AlexNet-S", 16), ("ResNet-50", 16), ("FCN-R", 1024), ("AlexNet-R", 1024),
        ("ResNet-56", 128), ("LSTM", 128),
    ]  # fmt: skip
    by_device = [one for some in PUBLISHED.values() for one in some.values()]
    assert {device for one in by_device for device in one} == {*CORES, *GPUS}
    for one in by_device:
        assert all(list(times) == [None] for device, times in one.items() if device in GPUS)
        assert all(None not in times for device, times in one.items() if device in CORES)


def test_a_cell_is_in_nanoseconds_and_an_empty_one_is_absent() -> None:
    # 0.030 s in the table.
    assert PUBLISHED["FCN-S"]["Caffe"]["GTX 1080"] == {None: pytest.approx(30e6)}
    assert PUBLISHED["LSTM"]["CNTK"]["desktop CPU"][4] == pytest.approx(90e6)
    assert "GTX 980" not in PUBLISHED["FCN-S"]["MXNet"]
    assert 8 not in PUBLISHED["FCN-S"]["Torch"]["desktop CPU"]
    assert "Caffe" not in PUBLISHED["LSTM"]


def test_the_fastest_is_over_frameworks_threads_and_devices() -> None:
    assert fastest_ns("AlexNet-S", ("GTX 1080",)) == pytest.approx(14e6)  # MXNet
    # TensorFlow on 16 threads of the server against Caffe on 4 of the desktop.
    assert fastest_ns("AlexNet-S", CORES) == pytest.approx(701e6)


def test_curves_end_at_the_physical_cores() -> None:
    curves = thread_curves("FCN-R")
    assert len(curves) == 10  # five frameworks on two CPUs
    assert {len(curve) for curve in curves} == {3, 5}  # 1, 2, 4 and 1, 2, 4, 8, 16 threads
    assert curves[0] == pytest.approx((2.476e9, 1.499e9, 1.149e9))
    # TensorFlow has no CPU figures of ResNet-56, CNTK neither.
    assert len(thread_curves("ResNet-56")) == 6


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_are_published_with_one_order_and_falling_desktop_curves(network: str) -> None:
    assert published_order(network) == ["GTX 1080", "GTX 980", "K80", "CPU"]
    desktop = [curve for curve in thread_curves(network) if len(curve) == 3]
    assert desktop
    assert all(gain > 1 for curve in desktop for gain in gains(curve))


def test_tensorflow_has_another_order_for_one_network() -> None:
    # 0.227 s on the GTX 980, 0.317 s on the GTX 1080.
    assert (frameworks_in_order("AlexNet-R"), len(PUBLISHED["AlexNet-R"])) == (4, 5)
    assert (frameworks_in_order("LSTM"), len(PUBLISHED["LSTM"])) == (4, 4)


@pytest.mark.parametrize(
    ("num_cores", "counts"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])],
)
def test_powers_of_two_up_to_the_cores(num_cores: int, counts: list[int]) -> None:
    assert thread_counts(num_cores) == counts


# How a network is run.


class FakeBench:
    """Answers at once: a step that takes 1 s on one thread and half of it on two."""

    torch_version = "2.13.0+cpu"

    def __init__(self, *, fails: Callable[[str], bool] = lambda network: False) -> None:
        self._fails = fails
        self.calls: list[tuple[str, ...]] = []
        self.trace = traced_run().trace

    def measure(self, script: str, *arguments: str, num_threads: int, budget_s: float) -> PlainRun:
        self.calls.append((script, *arguments, str(num_threads)))
        if self._fails(arguments[-1]):
            raise BreakevenError(f"{arguments[-1]} ran out of memory")
        busy = Caveat(code=BUSY_MACHINE, message=f"busy at {num_threads} threads")
        return replace(plain_run(step_ns=10**9 // num_threads), caveats=(busy,))

    def step(self, script: str, *arguments: str, num_threads: int) -> StepTrace:
        return self.trace

    def predict(self, trace: StepTrace, devices: Sequence[str]) -> tuple[StepPrediction, ...]:
        return predict_steps(trace, [find_device(name) for name in devices], HOST)

    def host_summary(self) -> HostSummary:
        return HOST_SUMMARY


def run(bench: Any) -> Any:
    return system.run(bench)


def rows(table: SystemTable, source: RowSource) -> list[tuple[object, ...]]:
    return [row.cells for row in table.rows if row.source is source]


def test_a_network_is_measured_on_each_number_of_threads() -> None:
    bench: Any = FakeBench()
    runs = run_network(bench, "FCN-R", (1, 2))
    assert bench.calls == [
        ("shi2016.py", "--network", "FCN-R", "1"),
        ("shi2016.py", "--network", "FCN-R", "2"),
    ]
    assert [runs.cpu[n].value_ns for n in (1, 2)] == [1e9, 0.5e9]
    assert runs.best_cpu.value_ns == 0.5e9
    assert set(runs.today) == set(GPUS)
    assert set(runs.of_2016) == set(GPUS)
    assert [caveat.code for caveat in runs.caveats] == [BUSY_MACHINE]  # one for both runs


def test_a_step_that_does_not_fit_is_said() -> None:
    bench: Any = FakeBench()
    bench.trace = replace(bench.trace, peak_memory_bytes=5 * 10**9)
    caveats = run_network(bench, "FCN-R", (1,)).caveats
    (message,) = [caveat.message for caveat in caveats if caveat.code == "does-not-fit"]
    assert "a GTX 980 has" in message


def test_the_software_of_2016_has_a_host_and_spread_of_its_own() -> None:
    trace = traced_run().trace
    (then,) = predict_of_2016(trace, [find_device("GTX 980")])
    (now,) = predict_steps(trace, [find_device("GTX 980")], HOST)
    assert then.host_ns > now.host_ns
    assert then.estimate.low_ns < then.estimate.value_ns < then.estimate.high_ns


def test_the_report_has_two_tables_per_network_and_two_claims() -> None:
    report = run(FakeBench())
    assert len(report.tables) == 2 * 7 + 1
    for number, name in enumerate(NETWORKS):
        assert report.tables[2 * number].title.startswith(f"{name}, ")
    assert len(report.claims) == 2
    (busy,) = [caveat.message for caveat in report.caveats if caveat.code == BUSY_MACHINE]
    assert busy.startswith("FCN-S, AlexNet-S, ResNet-50, FCN-R, AlexNet-R, ResNet-56, LSTM: ")
    for table in report.tables:
        assert all(len(row.cells) == len(table.columns) for row in table.rows)
        sources = [row.source for row in table.rows]
        assert sources == sorted(sources, key=lambda source: source is not RowSource.PUBLISHED)


def test_a_network_that_fails_is_left_out_and_named() -> None:
    report = run(FakeBench(fails=lambda network: network == "ResNet-50"))
    assert len(report.tables) == 2 * 6 + 1
    assert report.caveats[0] == Caveat(code="left-out", message="ResNet-50 ran out of memory")
    assert "of 6 networks" in report.claims[0].ours
    with pytest.raises(BreakevenError, match="FCN-S ran out of memory"):
        run(FakeBench(fails=lambda network: True))


# Tables and claims.


def test_published_rows_stand_above_ours() -> None:
    runs = network_runs("LSTM")
    published = rows(cpu_table(runs, "PyTorch"), RowSource.PUBLISHED)
    assert [cells[0] for cells in published] == [
        "CNTK, desktop", "CNTK, server", "TensorFlow, desktop", "TensorFlow, server",
        "Torch, desktop", "Torch, server",
    ]  # fmt: skip
    assert published[0][1:] == pytest.approx((186e6, 120e6, 90e6, 118e6, None, None))
    assert [cells[0] for cells in rows(gpu_table(runs, "PyTorch"), RowSource.PUBLISHED)] == [
        "CNTK", "TensorFlow", "MXNet", "Torch",
    ]  # fmt: skip


def test_our_threads_have_columns_of_their_own_where_the_paper_has_none() -> None:
    table = cpu_table(network_runs("ResNet-50", cpu={1: 8.0, 2: 4.0, 4: 2.0, 6: 1.5}), "PyTorch")
    names = [column.name for column in table.columns]
    assert names == ["framework, CPU", "1", "2", "4", "6", "8", "16", "32"]
    cells = rows(table, RowSource.MEASURED)[0]
    times = [cell.value_ns if isinstance(cell, Estimate) else cell for cell in cells[1:]]
    assert times == [8e9, 4e9, 2e9, 1.5e9, None, None, None]


def test_ratios_are_over_the_fastest_framework() -> None:
    # 0.04 s predicted for a GTX 980, where Torch took 0.040 s.
    of_2016 = {"GTX 980": 0.04, "GTX 1080": 0.06, "K80": 0.035}
    (row,) = accuracy_table([network_runs("FCN-S", of_2016=of_2016)]).rows
    assert row.cells == ("FCN-S", *(pytest.approx(ratio) for ratio in (1.0, 2.0, 0.5)))


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, ClaimOutcome.AGREES),
        # Places changed within the intervals, and beyond them.
        ({"gpus": {"GTX 980": 0.029, "GTX 1080": 0.03, "K80": 0.07}}, ClaimOutcome.OPEN),
        ({"gpus": {"GTX 980": 0.02, "GTX 1080": 0.03, "K80": 0.07}}, ClaimOutcome.DISAGREES),
        ({"cpu": {1: 0.05}}, ClaimOutcome.DISAGREES),
        # The software of 2016 must agree too.
        ({"of_2016": {"GTX 980": 0.01, "GTX 1080": 0.03, "K80": 0.07}}, ClaimOutcome.DISAGREES),
    ],
)
def test_order(changed: dict[str, Any], outcome: ClaimOutcome) -> None:
    assert order_outcome(network_runs(**changed)) is outcome


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        ({1: 2.0, 2: 1.0, 4: 0.5}, ClaimOutcome.AGREES),
        ({1: 2.0, 2: 1.9}, ClaimOutcome.OPEN),  # intervals of ±10 % overlap
        ({1: 2.0, 2: 1.0, 4: 1.5}, ClaimOutcome.DISAGREES),
        ({1: 2.0}, ClaimOutcome.OPEN),
    ],
)
def test_threads(seconds: dict[int, float], outcome: ClaimOutcome) -> None:
    assert thread_outcome({n: estimate(time) for n, time in seconds.items()}) is outcome


def test_claims_of_networks_that_agree() -> None:
    order, threads = claims([network_runs(), network_runs("LSTM")])
    assert order.outcome is threads.outcome is ClaimOutcome.AGREES
    assert order.ours == "so in 2 of 2 networks"
    # FCN-S and LSTM: MXNet has no GTX 980 for the first, Caffe nothing for the second.
    assert "9 of 9" in order.published
    assert threads.ours == "so in 2 of 2 networks, up to 2 threads"
    assert "Not so" not in order.because + threads.because


def test_one_network_that_disagrees_makes_the_claim_disagree_and_is_named() -> None:
    order, threads = claims(
        [network_runs(cpu={1: 0.05, 2: 0.2}), network_runs("LSTM"), network_runs("FCN-R")]
    )
    assert order.outcome is threads.outcome is ClaimOutcome.DISAGREES
    assert order.ours == "so in 2 of 3 networks"
    assert "Not so for FCN-S, " in order.because
    assert "Not so for FCN-S, " in threads.because


def test_one_core_or_a_busy_machine_is_said_with_the_threads() -> None:
    _, threads = claims([network_runs(cpu={1: 2.0})])
    assert threads.outcome is ClaimOutcome.OPEN
    assert "one core" in threads.because
    assert "interval" not in threads.because
    busy = Caveat(code=BUSY_MACHINE, message="other processes used this machine")
    for caveats in ((busy,), ()):
        _, threads = claims([network_runs(cpu={1: 2.0, 2: 3.0}, caveats=caveats)])
        assert threads.outcome is ClaimOutcome.DISAGREES
        assert ("Other processes" in threads.because) == bool(caveats)


# The script's networks.

SCRIPT: dict[str, Any] = runpy.run_path(str(script_path("shi2016.py")))["NETWORKS"]


def linear(*widths: int) -> int:
    return sum(a * b + b for a, b in pairwise(widths))


def conv(num_in: int, num_out: int, size: int) -> int:
    return num_in * num_out * size * size


# Weights without biases, and two per channel of a batch norm. Of ResNet-56 He et al. give 0.85 M,
# of AlexNet-R the benchmark's own notes 85,000; AlexNet-S has the 61.0 M of the original and what
# its groups of 2 leave out.
PARAMETERS = {
    "FCN-S": linear(26_752, 2048, 2048, 2048, 26_752),
    "AlexNet-S": conv(3, 96, 11) + 96 + conv(96, 256, 5) + 256 + conv(256, 384, 3) + 384
    + conv(384, 384, 3) + 384 + conv(384, 256, 3) + 256 + linear(9216, 4096, 4096, 1000),
    "ResNet-50": 25_557_032,  # 25.6 M, as torchvision has it
    "FCN-R": linear(784, 2048, 4096, 1024, 10),
    "AlexNet-R": conv(3, 32, 5) + 32 + conv(32, 32, 5) + 32 + conv(32, 64, 5) + 64
    + linear(576, 10),
    "ResNet-56": conv(3, 16, 3) + 18 * conv(16, 16, 3) + conv(16, 32, 3) + 17 * conv(32, 32, 3)
    + conv(32, 64, 3) + 17 * conv(64, 64, 3) + 2 * (19 * 16 + 18 * 32 + 18 * 64)
    + linear(64, 10),
    # Embedding, four gates with two biases each in two layers, softmax.
    "LSTM": 10_000 * 256 + 2 * (4 * 256 * (256 + 256) + 2 * 4 * 256) + linear(256, 10_000),
}  # fmt: skip


def test_the_script_has_the_batch_sizes_of_the_table() -> None:
    assert {name: network.batch_size for name, network in SCRIPT.items()} == NETWORKS


@pytest.mark.parametrize("name", SCRIPT)
def test_a_network_has_its_size_and_scores_of_its_classes(name: str) -> None:
    network = SCRIPT[name]
    with torch.device("meta"):
        model = network.create()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    inputs, targets = network.create_batch(2)
    scores = model(inputs.to("meta"))
    num_targets = 64 if name == "LSTM" else 2  # a target for each of 32 words
    assert targets.shape == (num_targets,)
    assert scores.shape == (num_targets, network.num_classes)
    assert 0 <= int(targets.min()) <= int(targets.max()) < network.num_classes


def test_the_next_word_is_the_target() -> None:
    words, targets = SCRIPT["LSTM"].create_batch(3)
    assert torch.equal(words[1:].flatten(), targets[:-3])


def test_resnet_56_has_56_layers_and_its_shortcut_adds_channels_of_zeros() -> None:
    with torch.device("meta"):
        model = SCRIPT["ResNet-56"].create()
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 56
    block = type(model[2])(16, 32, 2).eval()
    torch.nn.init.zeros_(block.second[1].weight)  # the branch beside it gives nothing
    x = torch.rand(1, 16, 4, 4)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert not y[:, 16:].any()
