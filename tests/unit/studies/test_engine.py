from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, PlainRun, RunRequest
from breakeven.capture.answers import Ready
from breakeven.store import machine_lock
from breakeven.studies import LocalEngine
from breakeven.timing import Measurement
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
    requests = [request(configuration=Configuration(num_threads=n)) for n in (1, 2)]
    launcher = ReadyLauncher([plain_run(), failure(FailureKind.KILLED)], num_steps=[7])
    progress = ProgressLog()
    engine = LocalEngine(launcher, progress)  # type: ignore[arg-type]
    done = list(engine.measure(requests))
    assert [run.request for run in done] == requests == launcher.requests
    assert done[0].answer == plain_run()
    assert done[1].answer == failure(FailureKind.KILLED)
    assert done[1].output == "what the script printed"
    assert {run.machine for run in done} == set(engine.machines())
    assert done[0].machine.processor == "Made-up CPU"
    assert progress.details == ["step 7", "step 7"]


def request(**changes: object) -> RunRequest:
    return replace(RunRequest(target=SCRIPT, is_traced=False, time_limit_s=1.0), **changes)


def test_a_script_that_refuses_the_cpu_always_sees_a_gpu_from_then_on() -> None:
    launcher = ReadyLauncher([failure(), plain_run(), plain_run(), plain_run()])
    done = list(LocalEngine(launcher).measure([request(), request(), request(on_gpu=True)]))  # type: ignore[arg-type]
    assert [run.answer for run in done] == [plain_run()] * 3
    # One refusal is enough to know.
    assert [asked.has_cuda for asked in launcher.requests] == [False, True, True, False]
    # Without a GPU it is told of its first failure.
    failed = ReadyLauncher([failure(message="the first"), failure(message="the second")])
    (run,) = LocalEngine(failed).measure([request()])  # type: ignore[arg-type]
    assert run.answer == failure(message="the first")


@pytest.mark.parametrize("times", [(3_000_000, 2_000_000), (2_000_000, 3_000_000)])
def test_the_better_of_two_disturbed_runs_counts(times: tuple[int, int]) -> None:
    runs = [
        replace(
            plain_run(step_ns),
            measurement=Measurement(samples_ns=(step_ns,) * 9, waited_ns=(step_ns // 2,) * 9),
        )
        for step_ns in times
    ]
    (done,) = LocalEngine(ReadyLauncher(runs)).measure([request()])  # type: ignore[arg-type]
    assert isinstance(done.answer, PlainRun)
    assert done.answer.measurement.median_ns == 2_000_000


def test_nothing_is_held_between_two_runs() -> None:
    engine = LocalEngine(ReadyLauncher([plain_run(), plain_run()]))  # type: ignore[arg-type]
    answers = engine.measure([request(), request()])
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
