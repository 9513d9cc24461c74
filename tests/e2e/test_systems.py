"""Systems with published figures, run for real on this machine, at small sizes if that suffices."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from breakeven.report import RowSource
from breakeven.systems import script_path
from breakeven.systems import shi2016 as system
from breakeven.systems.bench import Bench
from breakeven.systems.shi2016 import NETWORKS
from breakeven.systems.shi2016 import SCRIPT as SHI2016
from breakeven.timing import Estimate
from factories.sampled import sampled

pytestmark = pytest.mark.slow
FULL = partial(pytest.param, marks=pytest.mark.full)

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema" / "workloads.schema.json"
COMMAND = [sys.executable, "-m", "breakeven", "workloads"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose cache is empty, and whose runs do not fight for cores."""
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(time_limit_s=240) as bench:
        yield bench


def run_system(environment: dict[str, str], name: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, name, "--json", "-q"], env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(SCHEMA_FILE.read_bytes()))
    (one,) = document["systems"]
    return one


def cells(table: dict[str, Any], name: str, source: str) -> list[Any]:
    position = [column["name"] for column in table["columns"]].index(name)
    return [row["cells"][position] for row in table["rows"] if row["source"] == source]


@pytest.mark.full
def test_the_update_on_the_host_costs_more_than_on_any_device(environment: dict[str, str]) -> None:
    found = run_system(environment, "weight-update")
    assert found["tables"][0]["title"].startswith("GTX 960")
    for table in found["tables"]:
        on_host, *on_device = cells(table, "step", "predicted")
        assert all(on_host["value_ns"] > other["value_ns"] for other in on_device)
        shares = cells(table, "in update", "predicted")
        assert shares[0] == max(shares) > 0.2
        assert all(0 <= share <= 1 for share in cells(table, "GPU idle", "predicted"))
    (claim,) = found["claims"]
    assert claim["outcome"] in ("agrees", "disagrees", "open")


@pytest.mark.full
def test_the_stream_pays_off_at_the_large_batch_more_than_at_the_small(
    environment: dict[str, str],
) -> None:
    found = run_system(environment, "rnn-stream")
    small, large = (cells(table, "vs CPU", "predicted") for table in found["tables"])
    assert all(many > 3 * few for few, many in zip(small, large, strict=True))
    assert len(found["claims"]) == 4


@pytest.mark.full
def test_the_disc_has_a_time_at_every_depth(environment: dict[str, str]) -> None:
    found = run_system(environment, "disc-mlp")
    (sweep,) = found["sweeps"]
    assert sweep["failures"] == []
    sizes = {point["settings"]["depth"]: point["num_parameters"] for point in sweep["points"]}
    assert sizes[8] == 44_710
    assert list(sizes) == list(range(2, 13))
    # An order that holds on any machine: more parameters, more advantage for the GPU.
    ratios = cells(found["tables"][0], "GPU vs CPU", "measured")
    assert ratios[-1] > ratios[0]
    axes = {crossover["outcome"]["axis"] for crossover in sweep["crossovers"]}
    assert axes == {"depth", "num_parameters"}


def test_an_interrupt_ends_every_process(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "weight-update"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("weight-update")
    time.sleep(4)  # a script runs by now, or torch is being imported for it
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err


def run_by_itself(environment: dict[str, str], script: str, *options: str) -> list[float]:
    """Return the losses that a script prints."""
    done = subprocess.run(
        [sys.executable, str(script_path(script)), *options], env=environment,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return [float(loss) for loss in re.findall(r"loss +([\d.]+)", done.stdout)]


@pytest.mark.parametrize(
    "command",
    [
        ("disc_mlp.py", "--depth", "3", "--epochs", "3"),
        FULL(("rnn_stream.py", "--batch-size", "10", "--steps", "50")),
        ("mnist_mlp.py", "--update", "host", "--batch-size", "500"),
        *(FULL(("mnist_mlp.py", "--update", update, "--batch-size", "500"))
          for update in ("single", "foreach", "fused")),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_script_runs_by_itself_to_its_end(
    environment: dict[str, str], command: tuple[str, ...]
) -> None:
    run_by_itself(environment, *command)


# The networks of the benchmark of 2016.

OPERATORS = {  # which must be in its step; the LSTM is one operator on a GPU
    "FCN-S": "aten.addmm",
    "AlexNet-S": "aten.convolution",
    "ResNet-50": "batch_norm",
    "FCN-R": "aten.sigmoid",
    "AlexNet-R": "avg_pool2d",
    "ResNet-56": "constant_pad_nd",
    "LSTM": "cudnn_rnn",
}


@pytest.mark.parametrize("name", sampled(NETWORKS, "FCN-R", "LSTM"))
def test_a_network_of_2016_trains_and_its_step_is_known_in_full(
    environment: dict[str, str], bench: Bench, name: str
) -> None:
    options = ("--network", name, "--batch-size", "2")
    losses = run_by_itself(environment, SHI2016, *options, "--steps", "3", "--threads", "1")
    assert len(losses) == 3
    assert losses[2] < losses[0]  # the same samples each time
    trace = bench.step(SHI2016, *options)
    assert trace.batch_size == 2 or name == "LSTM"
    assert any(OPERATORS[name] in op.name for op in trace.ops), {op.name for op in trace.ops}
    # One host for all: a step of two samples is bound by the machine that feeds the GPU.
    devices = ["K80", "GTX 980", "H100 SXM5 80GB"]
    k80, gtx_980, h100 = bench.predict(trace, devices, host="reference")
    assert h100.estimate.value_ns < min(k80.estimate.value_ns, gtx_980.estimate.value_ns)
    codes = {caveat.code for found in (k80, gtx_980, h100) for caveat in found.caveats}
    assert "uncosted-op" not in codes


@pytest.mark.full
def test_a_network_of_2016_in_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NETWORKS", {"FCN-R": 1024})
    monkeypatch.setattr(system, "num_physical_cores", lambda: 1)
    report = system.run(bench)
    cpu_table, gpu_table = report.tables[:2]
    (cpu_row, *_) = [row for row in cpu_table.rows if row.source is RowSource.MEASURED]
    cpu = cpu_row.cells[1]
    assert isinstance(cpu, Estimate)
    today, of_2016 = [row for row in gpu_table.rows if row.source is RowSource.PREDICTED]
    for cell in (*today.cells[1:], *of_2016.cells[1:]):
        assert isinstance(cell, Estimate)
        assert cell.value_ns < cpu.value_ns  # 87 GFLOP on one core
    assert len(report.claims) == 2


# The neural ODE: it trains, its ways agree with each other, and it is recorded whole.

NEURAL_ODE = "neural_ode.py"
TORCHDIFFEQ = ("--solver", "torchdiffeq")
needs_torchdiffeq = pytest.mark.skipif(
    find_spec("torchdiffeq") is None, reason="compares with torchdiffeq"
)


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [("--fast-step",), pytest.param(TORCHDIFFEQ, marks=needs_torchdiffeq)],
    ids=" ".join,
)
def test_training_lowers_the_loss_alike_in_another_way_and_goes_on(
    environment: dict[str, str], options: tuple[str, ...], tmp_path: Path
) -> None:
    steps = ("--iterations", "51")
    weights = str(tmp_path / "weights.pt")
    first = run_by_itself(environment, NEURAL_ODE, *steps, "--save", weights)
    second = run_by_itself(environment, NEURAL_ODE, *steps, *options)
    for start, end in (first, second):
        assert end < 0.5 * start
    assert second[0] == pytest.approx(first[0], rel=1e-3)
    assert second[1] == pytest.approx(first[1], rel=0.05)
    again = run_by_itself(environment, NEURAL_ODE, *steps, "--load", weights)
    assert again[0] == pytest.approx(first[1], rel=0.2)


def test_step_is_recorded_with_the_syncs_of_an_adaptive_solver(bench: Bench) -> None:
    own = bench.step(NEURAL_ODE)
    assert own.faults == ()
    assert own.num_parameters == 703
    # Our own solver asks once a step whether it was precise enough.
    assert 1 < len(own.syncs) < 101
    for prediction in bench.predict(own, ("K40", "RTX 4090")):
        assert prediction.bound in ("launch", "sync")
        assert prediction.device_busy_ns < 0.5 * prediction.estimate.value_ns
    if find_spec("torchdiffeq") is not None:
        # That asks at each time whether it is there yet.
        trace = bench.step(NEURAL_ODE, *TORCHDIFFEQ)
        assert trace.faults == ()
        assert trace.num_parameters == 703
        assert len(trace.syncs) > 101
        assert len(own.ops) < len(trace.ops) / 2
