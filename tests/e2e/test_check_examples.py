"""The examples, checked as they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from check_process import BREAKEVEN, CheckRun, line_of

from factories.sampled import sampled

pytestmark = pytest.mark.slow

RunCheck = Callable[..., CheckRun]

EXAMPLES = Path(__file__).parents[2] / "examples"
_NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))
# Samples per optimizer step, from the scripts.
_BATCH_SIZES = {
    "fast_step_mlp.py": 64,
    "amp_unet.py": 8,
    "disc_mlp.py": 100,
    "mnist_mlp.py": 20,
    "rnn_stream.py": 100,
    "small_cnn.py": 64,
    "tiny_transformer.py": 32,
    "trainer_class.py": 128,
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    path = Path(__file__).parents[2] / "docs" / "schema" / "check.schema.json"
    return json.loads(path.read_text())


def _assert_coherent(run: CheckRun) -> None:
    """Assert what holds for every report, whatever the script."""
    for result in run.document["results"]:
        assert 0 < result["low_ns"] <= result["step_ns"] <= result["high_ns"], result
    verdict = run.document["verdict"]
    assert verdict["low"] <= verdict["speedup"] <= verdict["high"]
    straddles = verdict["low"] < 1 < verdict["high"]
    # Beside other work a time of the CPU may be a bound, which leaves it undecided.
    assert (verdict["choice"] in ("too_close", "undecided")) >= straddles
    assert (verdict["choice"] == "too_close") <= straddles
    assert verdict["because"]
    shares = [finding["share_fraction"] for finding in run.document["findings"]]
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("name", sampled(_NAMES, "tiny_transformer.py"))
def test_each_example_is_answered(run_check: RunCheck, schema: dict[str, Any], name: str) -> None:
    run = run_check(EXAMPLES / name)
    assert run.returncode == 0, run.stderr
    jsonschema.validate(run.document, schema)

    assert {result["source"] for result in run.cpus} == {"measured"}  # one or two rows
    predicted = [result for result in run.gpus if result["source"] == "predicted"]
    assert len(predicted) >= 5
    assert "uncosted-op" not in run.caveat_codes
    assert run.document["step"]["batch_size"] == _BATCH_SIZES[name]
    _assert_coherent(run)


def test_the_disc_classifier_is_bound_by_launches(run_check: RunCheck) -> None:
    run = run_check(EXAMPLES / "disc_mlp.py")
    assert run.returncode == 0, run.stderr
    assert {result["bound"] for result in run.gpus} == {"launch"}
    step = run.document["step"]
    # Eight layers: 2 × 4 + 4, 4 × 8 + 8, ..., 128 × 256 + 256, 256 × 2 + 2.
    widths = (2, 4, 8, 16, 32, 64, 128, 256, 2)
    assert step["num_parameters"] == sum(a * b + b for a, b in pairwise(widths))
    assert step["num_syncs"] == 1
    assert step["h2d_bytes"] == 0  # the points are on the device from the start


@pytest.mark.full
def test_the_recurrent_network_is_told_of_its_sync(run_check: RunCheck) -> None:
    script = EXAMPLES / "rnn_stream.py"
    run = run_check(script)
    assert run.returncode == 0, run.stderr
    assert {result["bound"] for result in run.gpus} == {"launch"}
    line = line_of(script, "loss.item()")
    places = [
        (Path(finding["file"]).name, finding["line"])
        for finding in run.document["findings"]
        if finding["code"] == "SYNC001"
    ]
    assert ("rnn_stream.py", line) in places


def test_the_digits_have_a_crossover_or_a_reason(run_check: RunCheck) -> None:
    run = run_check(EXAMPLES / "mnist_mlp.py")
    assert run.returncode == 0, run.stderr
    crossover = run.document["crossover"]
    assert crossover["axis"] == "batch_size"
    if crossover["outcome"] == "found":
        smallest, largest = crossover["searched"]
        assert smallest <= crossover["low"] <= crossover["value"] <= largest
        assert crossover["high"] is None or crossover["value"] <= crossover["high"]
    else:
        assert crossover["none_because"]


@pytest.mark.full
def test_accumulation_in_the_trainer_doubles_the_batch(run_check: RunCheck) -> None:
    run = run_check(EXAMPLES / "trainer_class.py", arguments=("--accumulate", "2"))
    assert run.returncode == 0, run.stderr
    assert run.document["step"]["batch_size"] == 2 * 128


def test_a_speed_seen_elsewhere_tells_of_such_machines(
    run_check: RunCheck, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BREAKEVEN_CALIBRATIONS", str(tmp_path / "own"))
    run = run_check(EXAMPLES / "disc_mlp.py", "--no-fast-step", "--measured", "T4: 3 ms")
    assert run.returncode == 0, run.stderr
    assert "measured-speed" in run.caveat_codes
    fed_by = {result["device"]: result["fed_by"] for result in run.gpus}
    for name in ("T4", "A100 SXM4 80GB"):
        assert "the usual time as measured by you (T4: 3 ms, " in fed_by[name]
    assert "measured by you" not in fed_by["RTX 4090"]
    listed = subprocess.run(
        [BREAKEVEN, "devices", "--hosts", "--json"], capture_output=True, check=True
    )
    names = {kind["id"]: kind["name"] for kind in json.loads(listed.stdout)["kinds"]}
    assert "measured by you" in names["cloud"]
    assert "measured by you" not in names["sandbox"]
