from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from breakeven.capture import RunRequest
from breakeven.capture.messages import Ready
from breakeven.store import machine_lock
from breakeven.sweep import LocalEngine
from breakeven.trace import Configuration
from factories.runs import SCRIPT, ProgressLog, ScriptedLauncher, failure, plain_run

_HOLDER = """
import sys
from breakeven.store import machine_lock
with machine_lock():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


class ReadyLauncher(ScriptedLauncher):
    def ready(self) -> Ready:
        return Ready(torch_version="2.9", processor="Made-up CPU")


def start_holder() -> subprocess.Popen[str]:
    """Start a process that holds the machine until it is killed or told to end."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_local_engine_answers_in_order_with_this_machine() -> None:
    requests = [
        RunRequest(
            target=SCRIPT,
            is_traced=False,
            time_limit_s=1.0,
            configuration=Configuration(num_threads=n),
        )
        for n in (1, 2)
    ]
    launcher = ReadyLauncher([plain_run(), failure()], num_steps=[7])
    progress = ProgressLog()
    engine = LocalEngine(launcher, progress)  # type: ignore[arg-type]
    done = list(engine.measure(requests))
    assert [run.request for run in done] == requests == launcher.requests
    assert done[0].answer == plain_run()
    assert done[1].answer == failure()
    assert done[1].output == "what the script printed"
    assert {run.machine for run in done} == set(engine.machines())
    assert done[0].machine.processor == "Made-up CPU"
    assert progress.details == ["step 7", "step 7"]


def test_nothing_is_held_between_two_runs() -> None:
    engine = LocalEngine(ReadyLauncher([plain_run(), plain_run()]))  # type: ignore[arg-type]
    request = RunRequest(target=SCRIPT, is_traced=False, time_limit_s=1.0)
    answers = engine.measure([request, request])
    next(answers)
    with start_holder() as holder:
        holder.communicate("end\n")
    assert len(list(answers)) == 1


def test_second_process_waits_for_the_first_and_says_so() -> None:
    waits: list[float] = []
    with start_holder() as holder:
        assert holder.stdin is not None
        released = threading.Timer(0.5, lambda: holder.communicate("end\n"))
        started = time.monotonic()
        released.start()
        with machine_lock(on_wait=lambda: waits.append(time.monotonic() - started)):
            waited = time.monotonic() - started
        released.join()
    assert len(waits) == 1
    assert waits[0] < waited


def test_killed_process_holds_nothing() -> None:
    with start_holder() as holder:
        holder.kill()
        holder.wait()
        waits: list[None] = []
        with machine_lock(on_wait=lambda: waits.append(None)):
            pass
    assert waits == []


def test_lock_is_let_go_when_a_run_raises() -> None:
    with pytest.raises(KeyboardInterrupt), machine_lock():
        raise KeyboardInterrupt
    with machine_lock(on_wait=lambda: pytest.fail("still held")):
        pass


def test_lock_works_where_the_cache_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "file" / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with machine_lock():
        assert list(tmp_path.glob("breakeven-*.lock"))
