"""The benchmark's networks run and traced for real, at small batch sizes where that suffices."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from breakeven.systems import Bench, script_path
from breakeven.systems import shi2016 as system
from breakeven.systems.shi2016 import NETWORKS, SCRIPT
from breakeven.timing import Estimate
from breakeven.verdict import RowSource
from factories.sampled import sampled

pytestmark = pytest.mark.slow

OPERATORS = {  # which must be in its step; the LSTM is one operator on a GPU
    "FCN-S": "aten.addmm",
    "AlexNet-S": "aten.convolution",
    "ResNet-50": "batch_norm",
    "FCN-R": "aten.sigmoid",
    "AlexNet-R": "avg_pool2d",
    "ResNet-56": "constant_pad_nd",
    "LSTM": "cudnn_rnn",
}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(time_limit_s=240) as bench:
        yield bench


@pytest.mark.parametrize("name", sampled(NETWORKS, "FCN-R", "LSTM"))
def test_the_script_trains(name: str) -> None:
    command = [sys.executable, str(script_path(SCRIPT)), "--network", name]
    command += ["--batch-size", "2", "--steps", "3", "--threads", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    losses = [float(loss) for loss in re.findall(r"loss +([\d.]+)", run.stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0]  # the same samples each time


@pytest.mark.parametrize("name", sampled(NETWORKS, "FCN-R", "LSTM"))
def test_its_step_is_known_in_full(bench: Bench, name: str) -> None:
    trace = bench.step(SCRIPT, "--network", name, "--batch-size", "2")
    assert trace.batch_size == 2 or name == "LSTM"
    assert any(OPERATORS[name] in op.name for op in trace.ops), {op.name for op in trace.ops}
    k80, gtx_980, h100 = bench.predict(trace, ["K80", "GTX 980", "H100 SXM5 80GB"])
    assert h100.estimate.value_ns < min(k80.estimate.value_ns, gtx_980.estimate.value_ns)
    codes = {caveat.code for found in (k80, gtx_980, h100) for caveat in found.caveats}
    assert "uncosted-op" not in codes


@pytest.mark.full
def test_a_network_in_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NETWORKS", {"FCN-R": 1024})
    monkeypatch.setattr(system, "num_physical_cores", lambda: 1)
    report = system.run(bench)
    cpu_table, gpu_table = report.tables[:2]
    (cpu_row, *_) = [row for row in cpu_table.rows if row.source is RowSource.MEASURED]
    cpu = cpu_row.cells[1]
    assert isinstance(cpu, Estimate)
    today, of_2016 = [row for row in gpu_table.rows if row.source is RowSource.PREDICTED]
    for row in (today, of_2016):
        for cell in row.cells[1:]:
            assert isinstance(cell, Estimate)
            assert cell.value_ns < cpu.value_ns  # 87 GFLOP on one core
    assert len(report.claims) == 2
