"""Runs of tiny scripts through one launcher, as a check makes them one after the other."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from script_runs import request_of

from breakeven.capture import (
    FailureKind,
    Keep,
    Launcher,
    PlainRun,
    RunFailure,
    RunRequest,
    TracedRun,
    alternate,
)
from breakeven.capture.process.run_processes import ForkServer, SpawnedProcesses
from breakeven.timing import TurnKind

LOOP = """
    import sys
    import torch

    print("arguments", *sys.argv[1:])
    model = torch.nn.Linear(4, 1)
    if torch.cuda.is_available():
        model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10_000):
        optimizer.zero_grad()
        model(torch.ones(8, 4, device=model.weight.device)).sum().backward()
        optimizer.step()
"""
Prepare = Callable[..., RunRequest]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="forked"),
        pytest.param(True, id="spawned", marks=pytest.mark.full),
    ],
)
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setenv("BREAKEVEN_SPAWN", "1")
        with Launcher() as started:
            kind = SpawnedProcesses if request.param else ForkServer
            assert type(started._processes) is kind
            yield started


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Return a function that writes a script and returns the request to run it."""

    def write(text: str, *arguments: str, is_traced: bool = False) -> RunRequest:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return request_of(path, *arguments, is_traced=is_traced, time_limit_s=30.0)

    return write


def test_one_script_is_timed_then_recorded(launcher: Launcher, prepare: Prepare) -> None:
    request = prepare(LOOP, "--lr", "0.1")
    plain = launcher.run(request)
    assert isinstance(plain, PlainRun)
    assert plain.measurement.median_ns > 0
    assert plain.precision == "fp32"
    assert plain.loader is None
    assert launcher.output == "arguments --lr 0.1\n"
    traced = launcher.run(replace(request, is_traced=True))
    assert isinstance(traced, TracedRun)
    assert traced.trace.uses_device
    assert traced.trace.num_parameters == 5


@pytest.mark.parametrize("turns", [TurnKind.SHORT, TurnKind.LONG])
def test_two_runs_take_turns(prepare: Prepare, turns: TurnKind) -> None:
    # Each says when a step of it begins and ends, so that steps of two runs cannot overlap.
    request = prepare(
        """
        import os, sys, time, torch
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight])
        times = open(sys.argv[1], "a", buffering=1)
        while True:
            times.write(f"{time.perf_counter_ns()} {os.getpid()}\\n")
            weight.sum().backward()
            time.sleep(0.004)
            times.write(f"{time.perf_counter_ns()} {os.getpid()}\\n")
            optimizer.step()
        """,
        "times.txt",
    )
    folder = Path(request.target.path).parent
    request = replace(
        request,
        target=replace(request.target, raw_arguments=(os.fsencode(folder / "times.txt"),)),
        budget_s=0.3 if turns is TurnKind.SHORT else 1.0,
        turns=turns,
    )
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else None
    keep = Keep(writes=True)
    with Launcher(keep) as one, Launcher(keep) as second:
        (first, _), (other, _) = alternate(
            (one.run_in_turns(request), second.run_in_turns(request)), turns
        )
    assert isinstance(first, PlainRun)
    assert isinstance(other, PlainRun)
    # Each sample is of a turn, and turns of the same number are neighbours.
    for run in (first, other):
        assert len(run.turns) == len(run.measurement.samples_ns)
        assert list(run.turns) == sorted(run.turns)
    assert len(set(first.turns) & set(other.turns)) >= 8
    assert allowed is None or os.sched_getaffinity(0) == allowed
    events = sorted(
        (int(time_ns), process)
        for time_ns, process in map(str.split, (folder / "times.txt").read_text().splitlines())
    )
    processes = [process for _, process in events]
    # The time of the other's turns is in no step: all steps together fit into the whole time.
    span_ns = events[-1][0] - events[0][0]
    sampled_ns = [sum(run.measurement.samples_ns) for run in (first, other)]
    assert sum(sampled_ns) <= span_ns
    num_turns = 1 + sum(before != after for before, after in pairwise(processes))
    assert num_turns >= 8
    # Within a turn both marks of each step are of one process.
    begins, ends = processes[0::2], processes[1::2]
    assert begins[: len(ends)] == ends


def test_run_leaves_nothing_for_the_next(launcher: Launcher, prepare: Prepare) -> None:
    changed = prepare("import torch, os\nos.environ['LEFT'] = '1'\ntorch.left = 1\n")
    first = launcher.run(changed)
    assert isinstance(first, RunFailure)
    assert first.kind is FailureKind.NO_STEP
    looking = "import torch, os\nprint(hasattr(torch, 'left'), 'LEFT' in os.environ)\n"
    launcher.run(prepare(looking))
    assert launcher.output == "False False\n"


@pytest.mark.parametrize(
    ("text", "kind", "message", "line"),
    [
        ("x = 1\nraise ValueError('boom')\n", FailureKind.EXCEPTION, "boom", 2),
        ("import sys\n\nsys.exit(7)\n", FailureKind.EXIT, "7", 3),
        ("pass\n", FailureKind.NO_STEP, "", None),
        ("import os\nos._exit(3)\n", FailureKind.EXIT, "3", 2),
        ("import os\nos.closerange(3, 256)\n", FailureKind.PIPE_CLOSED, "74", None),
        ("import os\nos.kill(os.getpid(), 11)\n", FailureKind.KILLED, "SIGSEGV", None),
    ],
)
def test_end_without_an_answer_says_why_and_where(
    text: str,
    kind: FailureKind,
    message: str,
    line: int | None,
    launcher: Launcher,
    prepare: Prepare,
) -> None:
    failure = launcher.run(prepare(text, is_traced=True))
    assert isinstance(failure, RunFailure)
    assert (failure.kind, failure.message) == (kind, message)
    assert (failure.location.line if failure.location else None) == line
    if line is not None:
        assert failure.source == text.splitlines()[line - 1]
    # The server lives on.
    assert isinstance(launcher.run(prepare(LOOP)), PlainRun)


def test_script_that_hangs_is_stopped_where_it_stands(launcher: Launcher, prepare: Prepare) -> None:
    request = prepare("import time\n\ntime.sleep(600)\n")
    told: list[str] = []
    # Enough for a busy machine to come to the line.
    failure = launcher.run(replace(request, time_limit_s=3.0), told.append)
    assert isinstance(failure, RunFailure)
    assert (failure.kind, failure.message) == (FailureKind.TIME_LIMIT, "3 s")
    assert failure.location is not None
    assert failure.location.line == 3
    assert set(told) == {f"no step yet, at {Path(request.target.path).name}:3"}


def test_only_the_end_of_a_long_output_is_kept(launcher: Launcher, prepare: Prepare) -> None:
    launcher.run(prepare("print('x' * 1_000_000)\nprint('the end')\n"))
    assert launcher.output.endswith("x\nthe end\n")
    assert len(launcher.output) <= 16_384


def test_steps_are_told_as_they_pass(launcher: Launcher, prepare: Prepare) -> None:
    seen: list[str] = []
    slowly = LOOP.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.01)")
    request = replace(prepare(slowly), budget_s=0.7)
    assert isinstance(launcher.run(request, seen.append), PlainRun)
    numbers = [int(text.split()[1].strip(",")) for text in seen]
    assert numbers == sorted(set(numbers))
    assert numbers


def test_host_and_a_core_are_measured_in_processes_of_their_own(launcher: Launcher) -> None:
    host = launcher.measure_host(10).calibration.host
    assert host.id == "here"
    assert 0 < host.view_ns < 2 * host.op_ns
    core = launcher.measure_cpu_rates()
    assert core.num_cores == 1
    # A product reuses what a copy has from memory once.
    assert core.flop_per_s > core.bytes_per_s > 0


def test_server_is_gone_when_the_launcher_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BREAKEVEN_SPAWN", raising=False)
    with Launcher() as launcher:
        version = launcher.ready().torch_version
        process = launcher._processes.process.pid
    assert version.startswith("2.")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
