"""Failures of real runs: whose they are, and training in processes that the script starts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from script_runs import request_of

from breakeven.capture import FailureKind, Launcher, PlainRun, RunFailure, RunRequest
from breakeven.errors import BreakevenError, ScriptError
from breakeven.progress import SilentProgress
from breakeven.studies import Runner

TRAIN = """
import sys, torch
def train(num_steps=10_000):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
"""
Prepare = Callable[..., RunRequest]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Return a function that writes ``train.py`` and returns the request to run it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> RunRequest:
        path = tmp_path / "train.py"
        path.write_text(TRAIN + textwrap.dedent(text))
        return request_of(path, time_limit_s=30.0)

    return write


def check(launcher: Launcher, request: RunRequest) -> BreakevenError:
    """Return the error with which a check ends."""
    runner = Runner(launcher, request.target, request.time_limit_s, SilentProgress())
    with pytest.raises(BreakevenError) as caught:
        runner.record()
    return caught.value


WORKERS = """
import torch.multiprocessing as mp
if __name__ == "__main__":
    context = mp.get_context("{method}")
    workers = [context.Process(target=train, args=({num_steps},)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


@pytest.mark.parametrize("is_traced", [False, True], ids=["plain", "traced"])
def test_training_in_forked_processes_is_no_step(
    is_traced: bool, launcher: Launcher, prepare: Prepare
) -> None:
    request = prepare(WORKERS.format(method="fork", num_steps=10**9))
    failure = launcher.run(replace(request, is_traced=is_traced, time_limit_s=3.0))
    assert isinstance(failure, RunFailure)
    assert (failure.kind, failure.num_steps) == (FailureKind.TIME_LIMIT, 0)
    assert failure.processes is not None
    assert failure.processes.source == "worker.start()"
    assert failure.processes.function == "train.py:train"
    # Nobody goes on training.
    assert isinstance(launcher.run(prepare("train()")), PlainRun)


@pytest.mark.slow
def test_training_in_fresh_processes_is_no_missing_step(
    launcher: Launcher, prepare: Prepare
) -> None:
    error = check(launcher, prepare(WORKERS.format(method="spawn", num_steps=1)))
    assert "it started 2 other processes at train.py:16: `worker.start()`" in error.message
    assert "train.py:train" in str(error.hint)


def test_other_programs_of_python_are_told_of(launcher: Launcher, prepare: Prepare) -> None:
    request = prepare("import subprocess\nsubprocess.run([sys.executable, '-c', ''])")
    message = check(launcher, request).message
    assert "another process at train.py:11: `subprocess.run(" in message


def test_own_processes_of_other_kinds_do_not_matter(launcher: Launcher, prepare: Prepare) -> None:
    request = prepare("""
        import os, subprocess
        from torch.utils.data import DataLoader
        if os.fork() == 0:
            try:
                sys.exit(3)
            finally:
                print('child', flush=True)
        print(os.waitstatus_to_exitcode(os.wait()[1]), subprocess.getoutput('echo shell'))
        print([int(batch) for batch in DataLoader(range(2), num_workers=1)])
        train()
    """)
    assert isinstance(launcher.run(request), PlainRun)
    assert launcher.output == "child\n3 shell\n[0, 1]\n"
    only_loading = prepare("""
        from torch.utils.data import DataLoader
        print([int(batch) for batch in DataLoader(range(2), num_workers=1)])
    """)
    failure = launcher.run(only_loading)
    assert isinstance(failure, RunFailure)
    assert (failure.kind, failure.processes) == (FailureKind.NO_STEP, None)


def test_script_for_a_gpu_is_told_its_own_error(launcher: Launcher, prepare: Prepare) -> None:
    error = check(
        launcher,
        prepare("""
            assert torch.cuda.is_available(), "needs a GPU"
            weight = torch.ones(2).cuda()
            weight.no_such_thing()
        """),
    )
    assert isinstance(error, ScriptError)
    assert "AttributeError" in error.message
    assert error.line == 13


def test_script_of_its_own_error_is_known_to_have_it(launcher: Launcher, prepare: Prepare) -> None:
    error = check(launcher, prepare("print('so far')\ntrain(2)\nraise ValueError('boom')"))
    assert isinstance(error, ScriptError)
    assert error.output == "so far\n"
    assert "ValueError: boom" in error.message
    assert "check that the script runs without breakeven: python" in str(error.hint)
