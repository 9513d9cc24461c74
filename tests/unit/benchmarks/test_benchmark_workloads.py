"""The benchmark of ``breakeven tune``: its scripts, its runs, and what it makes of the times."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from breakeven.capture import FailureKind, Launcher, PlainRun, RunFailure, RunRequest, find_target
from breakeven.errors import BreakevenError
from breakeven.timing import Measurement, compare_pairs, compare_runs
from breakeven.trace import Configuration
from breakeven.verdict import TuneReport
from factories.loaded_scripts import BENCHMARKS, load_benchmark
from factories.sampled import sampled

MACHINE = {"processor": "some", "num_cores": "2"}


TUNE: Any = load_benchmark("tune_workloads")
RESULTS: Any = load_benchmark("tune_results")
WORKLOAD = TUNE.WORKLOADS[1]
TRIAL = {"title": "", "numerics": "exact", "reason": ""}
KEEPS_ONE_THREAD = {
    "target": "train.py",
    "device": "cpu",
    "machine": {
        "processor": "some",
        "num_cores": 2,
        "gpu": "",
        "torch_version": "2.13",
        "python_version": "3.11",
        "breakeven_version": "0",
    },
    "num_steps": 10_000,
    "numerics": "reordered",
    "pays_off_after_steps": 0,
    "code_change": None,
    "duration_ns": 9_000_000_000,
    "baseline_step_ns": 2e6,
    "tuned_step_ns": 1e6,
    "speedup": 2.0,
    "low": 1.9,
    "high": 2.1,
    "configuration": {"num_threads": 1},
    "trials": [
        TRIAL | {"candidate": "threads=1", "outcome": "kept"},
        TRIAL | {"candidate": "compile", "outcome": "not_faster"},
    ],
}
KEEPS_NOTHING = KEEPS_ONE_THREAD | {"configuration": {}, "trials": [], "speedup": 1.0}


def said(document: dict[str, Any], name: str = "disc_mlp", **changes: Any) -> Any:
    """Return a result that the command has answered so."""
    report = msgspec.convert(document, TuneReport)
    return RESULTS.Result(name=name, tune_s=9.0, said=report, **changes)


def confirmed(name: str, ratio: float) -> Any:
    return said(KEEPS_ONE_THREAD, name, baseline_ns=(ratio * 1e6,) * 5, tuned_ns=(1e6,) * 5)


class FakeRunner:
    """Times steps by their configuration, from a table, and notes the order."""

    def __init__(self, default_ns: int, one_thread_ns: int) -> None:
        self.order: list[int] = []
        self._times = {0: default_ns, 1: one_thread_ns}

    def run(self, request: RunRequest) -> PlainRun | RunFailure:
        num_threads = request.configuration.num_threads
        self.order.append(num_threads)
        if not self._times[num_threads]:
            return RunFailure(kind=FailureKind.EXCEPTION, message="no such thing")
        return PlainRun(
            measurement=Measurement(samples_ns=(self._times[num_threads],) * 5),
            processor="some",
            precision="fp32",
            num_threads=2,
            peak_memory_bytes=1,
        )


@pytest.fixture
def fake_tune(tmp_path: Path) -> Callable[..., list[str]]:
    """Return what makes a program that notes its arguments, prints and exits as told."""

    def make(printed: str, exit_code: int = 0, complaint: str = "") -> list[str]:
        program = tmp_path / "program.py"
        program.write_text(
            "import json, pathlib, sys\n"
            f"pathlib.Path({str(tmp_path / 'arguments')!r}).write_text(json.dumps(sys.argv[1:]))\n"
            f"print({printed!r})\n"
            f"sys.stderr.write({complaint!r})\n"
            f"sys.exit({exit_code})\n"
        )
        return [sys.executable, str(program)]

    return make


def test_there_are_twelve_scripts_that_know_nothing_of_breakeven() -> None:
    assert len({each.name for each in TUNE.WORKLOADS}) == len(TUNE.WORKLOADS) == 12
    mine = {each.script for each in TUNE.WORKLOADS if each.script.parent.parent == BENCHMARKS}
    assert mine == set((BENCHMARKS / "workloads").glob("*.py"))  # none is left out
    allowed = set(sys.stdlib_module_names) | {"torch", "numpy"}
    for each in TUNE.WORKLOADS:
        tree = ast.parse(each.script.read_text("utf-8"))
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
        assert "torch" in imported
        assert imported <= allowed, each.name
        assert "torch.manual_seed(" in each.script.read_text("utf-8"), each.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    sampled(TUNE.WORKLOADS, *(each for each in TUNE.WORKLOADS if each.name in ("gcn", "lenet"))),
    ids=lambda each: each.name,
)
def test_each_script_comes_to_its_steps(launcher: Launcher, workload: Any) -> None:
    request = RunRequest(
        target=find_target(str(workload.script), workload.arguments),
        is_traced=False,
        time_limit_s=120.0,
        budget_s=0.2,
    )
    run = launcher.run(request)
    assert isinstance(run, PlainRun), (run, launcher.output)
    assert len(run.measurement.samples_ns) >= 2
    assert run.precision == "fp32"


def test_the_command_is_called_as_a_user_calls_it(
    fake_tune: Callable[..., list[str]], tmp_path: Path
) -> None:
    result = TUNE.tune(WORKLOAD, "45s", fake_tune(json.dumps(KEEPS_ONE_THREAD)))
    arguments = json.loads((tmp_path / "arguments").read_text())
    assert arguments[:4] == ["tune", str(WORKLOAD.script), "--json", "-o"]
    assert arguments[5:] == ["--budget", "45s", "--", *WORKLOAD.arguments]
    assert not Path(arguments[4]).parent.exists()  # its folder is gone
    assert result.failure == ""
    assert result.said.configuration == Configuration(num_threads=1)
    assert result.kept == ("threads=1",)
    assert result.tune_s > 0


def test_a_failed_tuning_is_a_failure_with_its_reason(fake_tune: Callable[..., list[str]]) -> None:
    result = TUNE.tune(WORKLOAD, "", fake_tune("", exit_code=3, complaint="one\nno steps\n"))
    assert result.said is None
    assert result.failure == "tune exited with 3: no steps"
    assert "not its JSON" in TUNE.tune(WORKLOAD, "", fake_tune("half a doc")).failure
    unknown = KEEPS_ONE_THREAD | {"configuration": {"hyperdrive": True}}
    assert "hyperdrive" in TUNE.tune(WORKLOAD, "", fake_tune(json.dumps(unknown))).failure


def test_pairs_are_interleaved_in_alternating_order() -> None:
    runner = FakeRunner(default_ns=3_000_000, one_thread_ns=1_000_000)
    after = TUNE.confirm(runner, WORKLOAD, said(KEEPS_ONE_THREAD), 3)
    assert runner.order == [0, 1, 1, 0, 0, 1]
    assert (after.baseline_ns, after.tuned_ns) == ((3e6,) * 3, (1e6,) * 3)
    # What is measured here counts, not what the command said.
    assert after.confirmed.value == pytest.approx(3.0)
    assert after.confirmed == compare_pairs([compare_runs(3e6, 1e6)] * 3)


def test_if_nothing_is_kept_nothing_is_gained_and_what_fails_afterwards_is_a_failure() -> None:
    runner = FakeRunner(default_ns=3_000_000, one_thread_ns=0)
    kept_nothing = TUNE.confirm(runner, WORKLOAD, said(KEEPS_NOTHING), 3)
    assert runner.order == []
    speedup = kept_nothing.confirmed
    assert (speedup.low, speedup.value, speedup.high) == (1.0, 1.0, 1.0)
    assert "unchanged" in RESULTS.render([kept_nothing])
    failed = TUNE.confirm(runner, WORKLOAD, said(KEEPS_ONE_THREAD), 3)
    assert failed.failure == "disc_mlp could not be measured: exception: no such thing"
    assert "failed: 1 of 1" in RESULTS.render([failed])


def test_geometric_mean_and_its_interval() -> None:
    unchanged = said(KEEPS_NOTHING, "b")
    mean = RESULTS.geometric_mean([confirmed("a", 4.0), unchanged])
    assert mean.value == pytest.approx(2.0)
    # One of two is known exactly: on logarithms the other's interval counts half.
    alone = confirmed("a", 4.0).confirmed
    assert math.log(mean.high / mean.low) == pytest.approx(math.log(alone.high / alone.low) / 2)
    four = RESULTS.geometric_mean([confirmed(name, 4.0) for name in "abcd"])
    assert four.value == pytest.approx(4.0)
    assert math.log(four.high / four.low) == pytest.approx(math.log(alone.high / alone.low) / 2)


def test_table_and_json_say_the_mean_the_least_and_the_failures() -> None:
    failed = RESULTS.Result(name="c", tune_s=3.0, failure="tune exited with 3: no")
    rows = (confirmed("a", 4.0), confirmed("b", 0.9), failed)
    table = RESULTS.render(rows)
    assert "geometric mean of 2: 1.897×" in table
    assert "least: 0.900× (b); below 0.98×: 1" in table
    assert "c               failed after 3 s: tune exited with 3: no" in table
    assert table.endswith("failed: 1 of 3")
    document = json.loads(
        RESULTS.render_json(RESULTS.Results(machine=MACHINE, budget="", results=rows))
    )
    assert document["least"] == pytest.approx(0.9)
    assert document["geometric_mean"]["value"] == pytest.approx(math.sqrt(3.6))
    assert document["results"][0]["confirmed"]["value"] == pytest.approx(4.0)
    assert document["results"][2]["confirmed"] is None


def test_only_what_is_not_finished_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    failed = RESULTS.Result(name="lenet", tune_s=3.0, failure="interrupted")
    RESULTS.save_results(
        path,
        RESULTS.Results(machine=MACHINE, budget="", results=(confirmed("neural_ode", 2.0), failed)),
    )
    tuned: list[str] = []

    def tune(workload: Any, budget: str) -> Any:
        tuned.append(workload.name)
        return said(KEEPS_ONE_THREAD, workload.name)

    runner = FakeRunner(default_ns=1_000_000, one_thread_ns=2_000_000)
    monkeypatch.setattr(TUNE, "tune", tune)
    monkeypatch.setattr(TUNE, "Launcher", lambda: nullcontext(runner))
    monkeypatch.setattr(TUNE, "machine_lock", lambda _: nullcontext())
    monkeypatch.setattr(TUNE, "describe_machine", lambda: MACHINE)
    options = ["--results", str(path), "--pairs", "2", "--only", "neural_ode", "--only", "lenet"]
    assert TUNE.main(options) == 1  # lenet has become slower
    assert tuned == ["lenet"]
    assert "least: 0.500× (lenet)" in capsys.readouterr().out
    assert [each.name for each in RESULTS.load_results(path, MACHINE, "").results] == [
        "neural_ode",
        "lenet",
    ]
    assert TUNE.main(options) == 1
    assert tuned == ["lenet"]  # all finished
    assert TUNE.main([*options, "--budget", "9s"]) == 3
    assert "another budget" in capsys.readouterr().err


def test_results_of_another_machine_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    RESULTS.save_results(path, RESULTS.Results(machine=MACHINE, budget=""))
    with pytest.raises(BreakevenError, match="another machine"):
        RESULTS.load_results(path, MACHINE | {"num_cores": "64"}, "")
    path.write_text("{}")
    with pytest.raises(BreakevenError, match="holds no results"):
        RESULTS.load_results(path, MACHINE, "")
    assert RESULTS.load_results(tmp_path / "none", MACHINE, "").results == ()
