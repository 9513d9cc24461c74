"""What a check answers: the examples as they are, and the rows beside the plain ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from check_process import BREAKEVEN, SCRIPTS, CheckRun, line_of

from factories.sampled import sampled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCHEMA = ROOT / "docs" / "schema" / "check.schema.json"
# Samples per optimizer step, from the scripts.
BATCH_SIZES = {
    "fast_step_mlp.py": 64,
    "amp_unet.py": 8,
    "disc_mlp.py": 100,
    "mnist_mlp.py": 20,
    "rnn_stream.py": 100,
    "small_cnn.py": 64,
    "tabular_mlp.py": 64,
    "tiny_transformer.py": 32,
    "trainer_class.py": 128,
}


@pytest.fixture
def check(run_check: Callable[..., CheckRun]) -> Callable[..., CheckRun]:
    """Return a function that checks a script, which is answered."""

    def answered(script: Path, *options: str, **more: Any) -> CheckRun:
        run = run_check(script, *options, **more)
        assert run.returncode == 0, run.stderr
        return run

    return answered


Check = Callable[..., CheckRun]


def codes_at(run: CheckRun) -> set[tuple[str, str, int]]:
    return {(one["code"], one["file"], one["line"]) for one in run.document["findings"]}


# The examples.


@pytest.mark.parametrize(
    "name", sampled(sorted(path.name for path in EXAMPLES.glob("*.py")), "disc_mlp.py")
)
def test_each_example_is_answered(check: Check, name: str) -> None:
    run = check(EXAMPLES / name)
    document, step = run.document, run.document["step"]
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert {result["source"] for result in run.cpus} == {"measured"}  # one or two rows
    assert len([result for result in run.gpus if result["source"] == "predicted"]) >= 5
    assert "uncosted-op" not in run.caveat_codes
    assert step["batch_size"] == BATCH_SIZES[name]
    for result in document["results"]:
        assert 0 < result["low_ns"] <= result["step_ns"] <= result["high_ns"], result
    assert all(0 <= finding["share_fraction"] <= 1 for finding in document["findings"])

    verdict = document["verdict"]
    assert verdict["low"] <= verdict["speedup"] <= verdict["high"]
    straddles = verdict["low"] < 1 < verdict["high"]
    # Beside other work a time of the CPU may be a bound, which leaves it undecided.
    assert (verdict["choice"] in ("too_close", "undecided")) >= straddles
    assert (verdict["choice"] == "too_close") <= straddles
    assert verdict["because"]

    crossover = document["crossover"]
    assert crossover["axis"] == "batch_size"
    if crossover["outcome"] == "found":
        smallest, largest = crossover["searched"]
        assert smallest <= crossover["low"] <= crossover["value"] <= largest
        assert crossover["high"] is None or crossover["value"] <= crossover["high"]
    else:
        assert crossover["none_because"]

    if name in ("disc_mlp.py", "rnn_stream.py"):
        assert {result["bound"] for result in run.gpus} == {"launch"}
    if name == "disc_mlp.py":
        # Eight layers: 2 × 4 + 4, 4 × 8 + 8, ..., 128 × 256 + 256, 256 × 2 + 2.
        widths = (2, 4, 8, 16, 32, 64, 128, 256, 2)
        assert step["num_parameters"] == sum(a * b + b for a, b in pairwise(widths))
        assert step["num_syncs"] == 1
        assert step["h2d_bytes"] == 0  # the points are on the device from the start
    if name == "rnn_stream.py":
        line = line_of(EXAMPLES / name, "loss.item()")
        assert ("SYNC001", str(EXAMPLES / name), line) in codes_at(run)
    if name == "trainer_class.py":
        accumulated = check(EXAMPLES / name, arguments=("--accumulate", "2"))
        assert accumulated.document["step"]["batch_size"] == 2 * 128


def test_a_speed_seen_elsewhere_tells_of_such_machines(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BREAKEVEN_CALIBRATIONS", str(tmp_path / "own"))
    run = check(EXAMPLES / "disc_mlp.py", "--no-fast-step", "--measured", "T4: 3 ms")
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


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_measured_beside_the_predicted_ones(check: Check) -> None:
    run = check(EXAMPLES / "mnist_mlp.py")
    measured = [each for each in run.document["results"] if each["source"] == "measured"]
    assert [result["kind"] for result in measured] == ["cpu", "gpu"]
    assert all(result["num_samples"] >= 2 for result in measured)
    assert measured[1]["low_ns"] <= measured[1]["step_ns"] <= measured[1]["high_ns"]


# Rows beside the plain ones.


def test_cpus_that_are_named_are_predicted(check: Check) -> None:
    run = check(
        SCRIPTS / "small_network.py", "--no-fast-step", "--device", "T4", "--device", "i9-10940X",
        "--device", "8 cores of EPYC 7R13", "--steps", "1000",
    )  # fmt: skip
    absent = run.document["absent_cpus"]
    assert [one["device"] for one in absent] == ["Core i9-10940X (14 cores)", "EPYC 7R13 (8 cores)"]
    (here,) = {one["step_ns"] for one in run.cpus[:1]}
    # The whole training has the same rest on each.
    times = {one["device"]: one for one in run.document["program"]["times"]}
    assert len(times) == 4
    for result in absent:
        assert result["source"] == "predicted"
        assert result["low_ns"] < result["step_ns"] < result["high_ns"]
        # A small network's step is Python for the most part: no CPU has a tenth of it.
        assert 0.1 < result["step_ns"] / here < 10
        time = times[result["device"]]
        assert time["low_ns"] < time["total_ns"] < time["high_ns"]
        assert time["total_ns"] > 999 * result["step_ns"]
    assert [one["device"] for one in run.gpus] == ["T4"]
    assert run.document["verdict"]["device"] not in {one["device"] for one in absent}
    # What nobody asked for, and what was left out.
    assert run.document["compiled"] is run.document["generated"] is None
    assert "not-generated" not in run.caveat_codes


def test_a_small_step_is_timed_as_generated_code_and_predicted_compiled(check: Check) -> None:
    run = check(SCRIPTS / "small_network.py", "--compile", "reduce-overhead")
    step, results = run.document["generated"], run.document["results"]
    assert 0 < step["code_ns"] < step["step_ns"]
    assert step["low_ns"] <= step["step_ns"] <= step["high_ns"]
    assert step["kept_ns"] > 0  # the loader's batches
    parts_ns = step["code_ns"] + step["call_ns"] + step["kept_ns"]
    assert step["step_ns"] == pytest.approx(parts_ns)
    best_ns = min(result["step_ns"] for result in run.cpus)
    assert step["speedup"] == pytest.approx(best_ns / step["step_ns"], rel=0.01)
    assert step["speedup"] > 1.1
    # A GPU has to beat a faster CPU: from a larger size on, or at none that was searched.
    crossover = run.document["generated_crossover"]
    assert crossover["searched"][0] == 16
    assert crossover["outcome"] in ("found", "none")
    assert all("generated" not in result["device"] for result in results)
    assert run.document["writes"]["num_files"] == 0
    eager = {result["device"]: result for result in results}
    # The best GPU's step has its row, too: small, and without a read.
    captured = run.document["captured"]
    assert captured["because"] == ""
    graph = captured["result"]
    assert graph["setting"] == "CUDA graph"
    assert graph["low_ns"] < graph["step_ns"] < graph["high_ns"]
    assert graph["step_ns"] < 0.9 * eager[graph["device"]]["step_ns"]

    steps = run.document["compiled"]
    assert steps["mode"] == "reduce-overhead"
    assert not steps["is_asked_for_by_script"]
    assert steps["num_graphs"] == 2  # forward and backward
    assert steps["breaks"] == []
    for result in steps["results"]:
        assert result["low_ns"] <= result["step_ns"] <= result["high_ns"]
        ratio = eager[result["device"]]["step_ns"] / result["step_ns"]
        assert result["speedup"] == pytest.approx(ratio)
        # To enter graphs may take a small network longer than what they save.
        assert (result["pays_after_steps"] is None) == (result["speedup"] <= 1)


@pytest.mark.full
def test_what_has_no_generated_code_is_named(check: Check) -> None:
    run = check(SCRIPTS / "small_network.py", arguments=["--sorts"])
    assert run.document["generated"] is None
    (message,) = (c["message"] for c in run.document["caveats"] if c["code"] == "not-generated")
    assert "sort" in message


def test_other_batch_sizes_are_predicted_if_nobody_can_set_them(check: Check) -> None:
    run = check(SCRIPTS / "hand_fed.py", "--device", "T4", "--no-fast-step")
    report = run.document
    assert report["step"]["batch_size"] == 48
    (caveat,) = [each for each in report["caveats"] if each["code"] == "batch-sizes-predicted"]
    assert "only a batch of 48 was run" in caveat["message"]
    cpu, gpu = report["curves"]
    sources = {point["size"]: point["source"] for point in cpu["points"]}
    assert sources.pop(48) == "measured"
    assert set(sources.values()) == {"predicted"}
    assert {point["source"] for point in gpu["points"]} == {"predicted"}
    # A step of small layers is bound by its launches, so a GPU takes as long for more samples.
    times = {point["size"]: point["step_ns"] for point in gpu["points"]}
    assert times[64] == pytest.approx(times[48], rel=0.1)
    assert report["crossover"]["axis"] == "batch_size"
    assert report["crossover"].get("searched") or report["crossover"].get("none_because")


@pytest.mark.full
def test_a_batch_as_large_as_a_layer_is_told_as_the_reason(check: Check) -> None:
    run = check(SCRIPTS / "hand_fed.py", "--device", "T4", "--no-fast-step", arguments=["128"])
    because = run.document["crossover"]["none_because"]
    assert "the batch of 128 samples is as large as a dimension of the model" in because
    assert "--batch-size N" not in because


# What a script does besides its steps.


def part_of(program: dict[str, Any]) -> tuple[str, int]:
    assert program["other_ns"], "what lies between the steps is not known"
    return program["parts"][0]["function"], program["parts"][0]["line"]


def test_an_evaluation_between_steps_is_named_and_counted(check: Check) -> None:
    target = SCRIPTS / "evaluates.py"
    program = check(target, "--device", "T4", "--epochs", "100").document["program"]
    # 200 ms after 20 steps, which take less than 1 ms each on a machine of its own.
    assert program["other_ns"] == pytest.approx(10e6, rel=0.5)
    assert program["step_fraction"] < 0.8
    assert part_of(program) == ("evaluate", line_of(target, "    evaluate()"))
    assert [part["file"] for part in program["parts"]] == [str(target)]
    assert program["num_steps"] == 2_000
    # Twenty seconds of evaluations, whatever computes the steps.
    assert all(time["total_ns"] > 10e9 for time in program["times"])


def test_every_update_of_a_federated_loop_is_a_sample(check: Check) -> None:
    cpus = check(SCRIPTS / "federated.py", "--device", "T4").cpus
    # Not those of the client alone whose turn it was when the time for samples was over.
    assert all(cpu["num_samples"] > 40 for cpu in cpus)
    assert all(cpu["high_ns"] < 3 * cpu["low_ns"] for cpu in cpus if not cpu["is_disturbed"])


def test_rollouts_see_one_observation_at_a_time_on_a_gpu(check: Check) -> None:
    pytest.importorskip("stable_baselines3")
    target = SCRIPTS / "sb3_ppo.py"
    program = check(target, "--device", "RTX 4090").document["program"]
    assert program["step_fraction"] < 0.9
    learns = line_of(target, "model.learn(")
    assert part_of(program) == ("OnPolicyAlgorithm.collect_rollouts", learns)
    (on_gpu,) = program["between"]
    assert on_gpu["device"] == "RTX 4090"
    # Each observation is copied up and each action read back: a GPU takes longer for all of it.
    assert on_gpu["time_ns"] > program["other_ns"]


def test_a_validation_on_the_lines_of_the_training_is_counted(check: Check) -> None:
    target = SCRIPTS / "train_and_val.py"
    program = check(target, "--device", "T4", "--device", "RTX 4090").document["program"]
    # Twice as many batches as of the training, each without a backward pass and an update.
    assert 0.2 < program["step_fraction"] < 0.8
    line = line_of(target, "cross_entropy(model(inputs)")
    assert part_of(program) == ("Sequential without gradients", line)
    assert len(program["parts"]) == 1
    t4, rtx_4090 = program["between"]
    assert rtx_4090["time_ns"] <= t4["time_ns"]


@pytest.mark.full
def test_work_between_epochs_is_named_and_stays_on_the_cpu(check: Check, tmp_path: Path) -> None:
    text = (ROOT / "tests" / "cases" / "14_lightgcn.py").read_text()
    target = tmp_path / "lightgcn.py"
    # A tenth of its size, with larger embeddings: an epoch of a few seconds.
    small = text.replace("29858, 40981, 810128", "2985, 4098, 81012")
    target.write_text(small.replace("default=64", "default=256"))
    document = check(target, "--device", "RTX 4090").document
    program, verdict = document["program"], document["verdict"]
    assert part_of(program) == ("draw", line_of(target, "rows = draw(data)"))
    assert program["parts"][0]["time_ns"] > 0.5 * program["other_ns"]
    assert verdict["device"] == "RTX 4090"
    assert program["speedup"] < 0.5 * verdict["speedup"]
