"""How much faster ``breakeven tune`` makes twelve training scripts on this CPU.

Run ``python benchmarks/tune_workloads.py`` in an environment with breakeven; docs/speed.md says
what is measured. Each script is tuned by the command, and what came of it is measured again here:
the script as it is and the script under the configuration, in turn, each in a fresh process. It
takes some 25 minutes; with ``--results FILE`` an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from tune_results import (
    LEAST_RATIO,
    Result,
    Results,
    load_results,
    render,
    render_json,
    save_results,
)

from breakeven.capture import Launcher, PlainRun, RunFailure, RunRequest, TracedRun, find_target
from breakeven.errors import BreakevenError
from breakeven.store import machine_lock
from breakeven.trace import Configuration
from breakeven.units import NS_PER_S, format_duration
from breakeven.verdict import TuneReport

ROOT = Path(__file__).resolve().parents[1]
BREAKEVEN = Path(sysconfig.get_path("scripts")) / "breakeven"
_SCRIPTS = ROOT / "benchmarks" / "workloads"
_OWN_SCRIPTS = ROOT / "examples"
_TIME_LIMIT_S = 300.0
_HELD = "another breakeven process measures; waiting for it"


class Workload(msgspec.Struct, frozen=True):
    """A training script, as people write it.

    Args:
        name: What it is called here.
        script: Its file.
        arguments: Those with which it runs for thousands of steps.
    """

    name: str
    script: Path
    arguments: tuple[str, ...] = ()


WORKLOADS = (
    Workload("neural_ode", _SCRIPTS / "neural_ode.py"),
    Workload("disc_mlp", _OWN_SCRIPTS / "disc_mlp.py", ("--epochs", "400")),
    Workload("rnn_stream", _OWN_SCRIPTS / "rnn_stream.py"),
    Workload("mnist_mlp", _SCRIPTS / "mnist_mlp.py"),
    Workload("ppo_policy", _SCRIPTS / "ppo_policy.py"),
    Workload("sac_critic", _SCRIPTS / "sac_critic.py"),
    Workload("lenet", _SCRIPTS / "lenet.py"),
    Workload("lstm_forecaster", _SCRIPTS / "lstm_forecaster.py"),
    Workload("gcn", _SCRIPTS / "gcn.py"),
    Workload("transformer", _SCRIPTS / "transformer.py"),
    Workload("tabular", _SCRIPTS / "tabular.py"),
    Workload("resnet18", _SCRIPTS / "resnet18.py"),
)


class Runner(Protocol):
    """Runs a script once: ``breakeven.capture.Launcher``, or a fake."""

    def run(self, request: RunRequest) -> PlainRun | TracedRun | RunFailure:
        """Run once, and return what came of it."""
        ...


def tune(workload: Workload, budget: str, command: Sequence[str] = (str(BREAKEVEN),)) -> Result:
    """Tune a workload by the command line, as a user does.

    Args:
        workload: What to tune.
        budget: Value of ``--budget``; empty for its default.
        command: The program.
    """
    with tempfile.TemporaryDirectory() as folder:
        line = [*command, "tune", str(workload.script), "--json"]
        line += ["-o", str(Path(folder) / "breakeven.toml")]
        line += ["--budget", budget] if budget else []
        line += ["--", *workload.arguments] if workload.arguments else []
        started_s = time.perf_counter()
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False)
        tune_s = time.perf_counter() - started_s
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        failure = f"tune exited with {done.returncode}: {last}"
        return Result(name=workload.name, tune_s=tune_s, failure=failure)
    try:
        said = msgspec.json.decode(done.stdout, type=TuneReport)
    except msgspec.DecodeError as error:
        failure = f"tune printed what is not its JSON: {error}"
        return Result(name=workload.name, tune_s=tune_s, failure=failure)
    return Result(name=workload.name, tune_s=tune_s, said=said)


def measure_ns(runner: Runner, workload: Workload, configuration: Configuration) -> float:
    """Return the median step of a workload in a fresh process, in nanoseconds.

    Raises:
        BreakevenError: It did not come to its steps.
    """
    return measure(runner, workload, configuration).measurement.median_ns


def measure(runner: Runner, workload: Workload, configuration: Configuration) -> PlainRun:
    """Run a workload in a fresh process until a second of steps is measured.

    Raises:
        BreakevenError: It did not come to its steps.
    """
    request = RunRequest(
        target=find_target(str(workload.script), workload.arguments),
        is_traced=False,
        time_limit_s=_TIME_LIMIT_S,
        configuration=configuration,
    )
    run = runner.run(request)
    if not isinstance(run, PlainRun):
        detail = f"{run.kind}: {run.message}" if isinstance(run, RunFailure) else "it was recorded"
        raise BreakevenError(f"{workload.name} could not be measured: {detail}")
    return run


def confirm(runner: Runner, workload: Workload, result: Result, num_pairs: int) -> Result:
    """Measure again what the command kept, apart from it.

    Args:
        runner: Makes the processes.
        workload: What was tuned.
        result: What the command answered.
        num_pairs: Pairs of runs, in the order A B, B A, A B, ...
    """
    if result.said is None or not result.said.configuration.changes:
        return result
    stock, tuned = Configuration(), result.said.configuration
    baseline_ns: list[float] = []
    tuned_ns: list[float] = []
    try:
        for number in range(num_pairs):
            if number % 2:
                tuned_ns.append(measure_ns(runner, workload, tuned))
            baseline_ns.append(measure_ns(runner, workload, stock))
            if not number % 2:
                tuned_ns.append(measure_ns(runner, workload, tuned))
    except BreakevenError as error:
        return msgspec.structs.replace(result, failure=str(error))
    return msgspec.structs.replace(result, baseline_ns=tuple(baseline_ns), tuned_ns=tuple(tuned_ns))


def print_baselines(workloads: Sequence[Workload]) -> None:
    """Print how long a step takes by default and on one thread, and when the first one ends."""
    print(f"{'workload':<16}{'default':>12}{'threads':>9}{'one thread':>12}{'first step':>12}")
    with machine_lock(lambda: print(_HELD, file=sys.stderr)), Launcher() as launcher:
        for each in workloads:
            stock = measure(launcher, each, Configuration())
            single = measure(launcher, each, Configuration(num_threads=1))
            print(
                f"{each.name:<16}{format_duration(stock.measurement.median_ns):>12}"
                f"{stock.num_threads:>9}{format_duration(single.measurement.median_ns):>12}"
                f"{single.startup_ns / NS_PER_S:>10.1f} s",
                flush=True,
            )


def describe_machine() -> dict[str, str]:
    """Return what the results depend on."""
    with Launcher() as launcher:
        ready = launcher.ready()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return {
        "processor": ready.processor,
        "num_cores": str(len(cores) or os.cpu_count()),
        "torch": ready.torch_version,
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def run_all(
    workloads: Sequence[Workload],
    results: Results,
    on_result: Callable[[Results], None],
    *,
    num_pairs: int,
) -> Results:
    """Tune and confirm the workloads that are not finished.

    Args:
        workloads: Which.
        results: Those that are; a failed one is tried again.
        on_result: Told the results after each.
        num_pairs: Pairs of runs that confirm each.
    """
    kept = {each.name: each for each in results.results if not each.failure}
    for workload in workloads:
        if workload.name not in kept:
            print(f"{workload.name} ...", file=sys.stderr, flush=True)
            tuned = tune(workload, results.budget)
            with machine_lock(lambda: print(_HELD, file=sys.stderr)), Launcher() as launcher:
                kept[workload.name] = confirm(launcher, workload, tuned, num_pairs)
        results = msgspec.structs.replace(results, results=tuple(kept.values()))
        on_result(results)
    names = {each.name for each in workloads}
    return msgspec.structs.replace(
        results, results=tuple(each for each in kept.values() if each.name in names)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads that the command line asks for; 1 if one failed or became slower."""
    parser = argparse.ArgumentParser(description="Tune twelve training scripts and print gains.")
    names = [each.name for each in WORKLOADS]
    parser.add_argument("--only", action="append", choices=names, help="one; may be repeated")
    parser.add_argument("--budget", default="", help="of each tuning, as 60s (default: tune's own)")
    parser.add_argument("--pairs", type=int, default=7, help="confirming pairs (default: 7)")
    parser.add_argument("--results", type=Path, help="keep finished workloads here, and go on")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--baselines", action="store_true", help="time the scripts, tune nothing")
    args = parser.parse_args(arguments)
    if args.pairs < 2:
        parser.error("--pairs must be 2 at least: one pair says nothing of its spread")
    workloads = [each for each in WORKLOADS if not args.only or each.name in args.only]
    try:
        if args.baselines:
            print_baselines(workloads)
            return 0
        before = load_results(args.results, describe_machine(), args.budget)
        results = run_all(
            workloads,
            before,
            lambda found: save_results(args.results, found),
            num_pairs=args.pairs,
        )
    except BreakevenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(render_json(results) if args.json else render(results.results))
    is_good = all(
        not each.failure and each.confirmed.value >= LEAST_RATIO for each in results.results
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
