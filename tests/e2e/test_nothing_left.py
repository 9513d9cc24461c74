"""What a script starts, and where breakeven is ended: no process, file or semaphore is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from check_process import BREAKEVEN, SCRIPTS, TAG_NAME, end_leftovers, processes_with
from script_runs import request_of

from breakeven.capture import FailureKind, Keep, Launcher, PlainRun, RunFailure
from breakeven.errors import BreakevenError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="elsewhere only the group of the script's process is ended"
    ),
]

HELPERS = SCRIPTS / "leaves_helpers.py"


@pytest.fixture
def tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark every process that is started from now on, and end those that are left."""
    monkeypatch.setenv(TAG_NAME, str(tmp_path))
    yield str(tmp_path)
    end_leftovers(str(tmp_path))


@pytest.mark.parametrize("arguments", [(), ("--short",)], ids=["is stopped", "comes to its end"])
def test_helpers_end_with_the_run(
    arguments: tuple[str, ...], tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMAPHORE_FILE", str(tmp_path / "semaphore"))
    # In a layer of its own a run has shared memory of its own, too.
    with Launcher(Keep(writes=True)) as launcher:
        answer = launcher.run(request_of(HELPERS, *arguments))
        assert isinstance(answer, PlainRun | RunFailure)
        assert getattr(answer, "kind", FailureKind.NO_STEP) is FailureKind.NO_STEP
        left = [line for line in processes(tag) if "breakeven.capture.process.server" not in line]
        name = (tmp_path / "semaphore").read_text().removeprefix("/")
        assert left == []
        assert not Path(f"/dev/shm/sem.{name}").exists()
    assert processes(tag) == []


def test_where_the_server_is_killed_its_run_ends(tag: str) -> None:
    with Launcher() as launcher:
        launcher.ready()
        folder = launcher.folder

        # Long enough that it tells of its steps.
        request = request_of(HELPERS, budget_s=20.0)

        def kill_server(told: str) -> None:
            launcher._processes.process.kill()

        # Its forked workers keep open what the server has answered on.
        with pytest.raises(BreakevenError, match="has died"):
            launcher.run(request, kill_server)
    assert processes(tag) == []
    assert not folder.exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_ended_while_torch_is_imported(name: str, tag: str, tmp_path: Path) -> None:
    number = signal.Signals[name]
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = subprocess.Popen(
        [str(BREAKEVEN), "check", str(HELPERS), "-q"],
        env={**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(temporary.iterdir()):
        assert process.poll() is None
        time.sleep(0.005)
    time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    if number is signal.SIGKILL:
        assert process.returncode == -number
        assert end_leftovers(tag) == []
    else:
        assert process.returncode == 128 + number
        assert processes(tag) == []
        assert stderr == ("interrupted\n" if number is signal.SIGINT else "terminated\n")
    assert stdout == ""
    assert list(temporary.iterdir()) == []


def processes(tag: str) -> list[str]:
    """Return the command lines of the processes that have the tag."""
    return list(processes_with(tag).values())
