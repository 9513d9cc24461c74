"""Systems with published figures, run for real on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from breakeven.systems import script_path

pytestmark = pytest.mark.slow
FULL = partial(pytest.param, marks=pytest.mark.full)

ROOT = Path(__file__).parents[2]
SCHEMA_FILE = ROOT / "docs" / "schema" / "workloads.schema.json"
COMMAND = [sys.executable, "-m", "breakeven", "workloads"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment whose cache is empty, and whose runs do not fight for cores."""
    cache = tmp_path_factory.mktemp("cache")
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}


def run_system(environment: dict[str, str], *names: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, *names, "--json", "-q"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, json.loads(SCHEMA_FILE.read_bytes()))
    return document


def cells(table: dict[str, Any], name: str, source: str) -> list[Any]:
    position = [column["name"] for column in table["columns"]].index(name)
    return [row["cells"][position] for row in table["rows"] if row["source"] == source]


@pytest.mark.full
def test_the_update_on_the_host_costs_more_than_on_any_device(
    environment: dict[str, str],
) -> None:
    (system,) = run_system(environment, "weight-update")["systems"]
    assert system["tables"][0]["title"].startswith("GTX 960")
    for table in system["tables"]:
        on_host, *on_device = cells(table, "step", "predicted")
        assert all(on_host["value_ns"] > other["value_ns"] for other in on_device)
        shares = cells(table, "in update", "predicted")
        assert shares[0] == max(shares) > 0.2
        assert all(0 <= share <= 1 for share in cells(table, "GPU idle", "predicted"))
    (claim,) = system["claims"]
    assert claim["outcome"] in ("agrees", "disagrees", "open")


@pytest.mark.full
def test_the_stream_pays_off_at_the_large_batch_more_than_at_the_small(
    environment: dict[str, str],
) -> None:
    (system,) = run_system(environment, "rnn-stream")["systems"]
    small, large = system["tables"]
    for few, many in zip(
        cells(small, "vs CPU", "predicted"), cells(large, "vs CPU", "predicted"), strict=True
    ):
        assert many > 3 * few
    assert len(system["claims"]) == 4


@pytest.mark.full
def test_the_disc_has_a_time_at_every_depth(
    environment: dict[str, str],
) -> None:
    (system,) = run_system(environment, "disc-mlp")["systems"]
    (sweep,) = system["sweeps"]
    assert sweep["failures"] == []
    sizes = {point["settings"]["depth"]: point["num_parameters"] for point in sweep["points"]}
    assert sizes[8] == 44_710
    assert list(sizes) == list(range(2, 13))
    # An order that holds on any machine: more parameters, more advantage for the GPU.
    ratios = cells(system["tables"][0], "GPU vs CPU", "measured")
    assert ratios[-1] > ratios[0]
    axes = {crossover["outcome"]["axis"] for crossover in sweep["crossovers"]}
    assert axes == {"depth", "num_parameters"}


def test_an_interrupt_ends_every_process(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "weight-update"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("weight-update")
    time.sleep(4)  # a script runs by now, or torch is being imported for it
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        ("disc_mlp.py", "--depth", "3", "--epochs", "3"),
        FULL(("rnn_stream.py", "--batch-size", "10", "--steps", "50")),
        ("mnist_mlp.py", "--update", "host", "--batch-size", "500"),
        FULL(("mnist_mlp.py", "--update", "single", "--batch-size", "500")),
        FULL(("mnist_mlp.py", "--update", "foreach", "--batch-size", "500")),
        FULL(("mnist_mlp.py", "--update", "fused", "--batch-size", "500")),
    ],
    ids=" ".join,
)
def test_a_script_runs_by_itself_to_its_end(
    environment: dict[str, str], command: tuple[str, ...]
) -> None:
    script, *options = command
    done = subprocess.run(
        [sys.executable, str(script_path(script)), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
