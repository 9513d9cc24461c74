from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, PlainRun, RunFailure, RunRequest, SourceFile, file_digest
from breakeven.capture.messages import Ready
from breakeven.store import MachineKey, machine_lock
from breakeven.studies import LocalEngine
from breakeven.studies.engine import EngineRun, RunCache
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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


def test_lock_works_where_the_cache_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "file" / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with machine_lock():
        assert list(tmp_path.glob("breakeven-*.lock"))


MACHINE = MachineKey(
    hostname="here", processor="Made-up CPU", num_processors=2, python_version="3.11",
    torch_version="2.9", breakeven_version="1",
)  # fmt: skip


class FakeEngine:
    """Answers by a function of the request, in order, and keeps the requests."""

    def __init__(self, answer: object, machine: MachineKey = MACHINE) -> None:
        self.requests: list[RunRequest] = []
        self._answer = answer
        self._machine = machine

    def machines(self) -> Sequence[MachineKey]:
        return (self._machine,)

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        for request in requests:
            self.requests.append(request)
            answer: PlainRun | RunFailure = self._answer(request)  # type: ignore[operator]
            yield EngineRun(request=request, answer=answer, output="", machine=self._machine)


def measured(engine: FakeEngine, *requests: RunRequest, **options: bool) -> list[EngineRun]:
    return list(RunCache(engine, **options).measure(requests))


def quick(_: RunRequest) -> PlainRun:
    return plain_run()


def test_second_sweep_measures_nothing() -> None:
    requests = [request(configuration=Configuration(num_threads=n)) for n in (1, 2, 3)]
    first = measured(FakeEngine(quick), *requests)
    engine = FakeEngine(quick)
    second = measured(engine, *requests)
    assert engine.requests == []
    assert [(done.request, done.answer) for done in second] == [
        (done.request, done.answer) for done in first
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"configuration": Configuration(num_threads=2)},
        {"budget_s": 0.7},
        {"new_batch_size": 7, "loader_batch_size": 3},
        {"on_gpu": True},
        {"target": replace(SCRIPT, raw_arguments=(b"--lr", b"0.2"))},
        {"target": replace(SCRIPT, raw_path=b"/home/me/other.py")},
    ],
)
def test_another_configuration_is_measured(changes: dict[str, object]) -> None:
    measured(FakeEngine(quick), request())
    engine = FakeEngine(quick)
    measured(engine, request(**changes))
    assert len(engine.requests) == 1


def test_time_limit_changes_no_measurement() -> None:
    measured(FakeEngine(quick), request())
    engine = FakeEngine(quick)
    measured(engine, request(time_limit_s=5.0))
    assert engine.requests == []


@pytest.mark.parametrize("field", MACHINE.__struct_fields__)
def test_another_machine_or_version_is_measured(field: str) -> None:
    measured(FakeEngine(quick), request())
    changed = 4 if field == "num_processors" else "another"
    engine = FakeEngine(quick, replace(MACHINE, **{field: changed}))
    measured(engine, request())
    assert len(engine.requests) == 1


def test_another_folder_or_environment_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(FakeEngine(quick), request())
    for change in (
        lambda: monkeypatch.chdir(tmp_path),
        lambda: monkeypatch.setenv("OMP_PROC_BIND", "close"),
        lambda: monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default"),
        lambda: monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so"),
        lambda: monkeypatch.setenv("PYTHONPATH", str(tmp_path / "another")),
        lambda: monkeypatch.setattr("sys.prefix", str(tmp_path / "venv")),
    ):
        change()
        engine = FakeEngine(quick)
        measured(engine, request())
        assert len(engine.requests) == 1


def test_changed_or_removed_source_is_measured(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("width = 1")

    def from_source(_: RunRequest) -> PlainRun:
        digest = file_digest(str(source))
        assert digest is not None
        return replace(plain_run(), sources=(SourceFile(path=str(source), sha256=digest),))

    measured(FakeEngine(from_source), request())
    for text, is_measured in [("width = 1", False), ("width = 2", True), ("width = 2", False)]:
        source.write_text(text)
        os.utime(source, (0, 0))
        engine = FakeEngine(from_source)
        measured(engine, request())
        assert bool(engine.requests) is is_measured, text
    source.unlink()
    engine = FakeEngine(quick)
    measured(engine, request())
    assert engine.requests


def test_a_file_that_is_edited_while_it_runs_is_measured_again(tmp_path: Path) -> None:
    source = tmp_path / "own.py"
    source.write_text("width = 1")
    os.utime(source, (0, 0))

    def edits_meanwhile(_: RunRequest) -> PlainRun:
        source.write_text("width = 2")
        os.utime(source, (2e9, 2e9))
        digest = file_digest(str(source))
        assert digest is not None
        return replace(plain_run(), sources=(SourceFile(path=str(source), sha256=digest),))

    measured(FakeEngine(edits_meanwhile), request())
    engine = FakeEngine(quick)
    measured(engine, request())
    assert engine.requests


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\x00", None])
def test_damaged_file_counts_as_absent(cache: Path, damage: bytes | None) -> None:
    measured(FakeEngine(quick), request())
    (file,) = (cache / "breakeven" / "runs").iterdir()
    file.write_bytes(file.read_bytes()[:-20] if damage is None else damage)
    engine = FakeEngine(quick)
    (done,) = measured(engine, request())
    assert len(engine.requests) == 1
    assert isinstance(done.answer, PlainRun)


def test_fresh_sweep_measures_all_once_and_is_kept() -> None:
    measured(FakeEngine(quick), request())
    engine = FakeEngine(lambda _: plain_run(2_000_000))
    kept = RunCache(engine, is_fresh=True)
    list(kept.measure([request()]))
    list(kept.measure([request()]))
    assert len(engine.requests) == 1
    (done,) = measured(FakeEngine(quick), request())
    assert isinstance(done.answer, PlainRun)
    assert done.answer.measurement.median_ns == 2_000_000


def test_answers_are_kept_one_by_one() -> None:
    requests = [request(configuration=Configuration(num_threads=n)) for n in (1, 2, 3)]
    answers = RunCache(FakeEngine(quick)).measure(requests)
    next(answers)
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    engine = FakeEngine(quick)
    assert len(measured(engine, *requests)) == 3
    assert engine.requests == requests[2:]


def test_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(blocked / name))
    engine = FakeEngine(quick)
    kept = RunCache(engine)
    assert len(list(kept.measure([request()]))) == 1
    assert len(list(kept.measure([request()]))) == 1
    assert len(engine.requests) == 1


def test_failure_is_an_answer_and_is_not_kept() -> None:
    engine = FakeEngine(lambda _: failure())
    for _ in range(2):
        (done,) = measured(engine, request())
        assert isinstance(done.answer, RunFailure)
    assert len(engine.requests) == 2


def disturbed(step_ns: int) -> PlainRun:
    run = plain_run(step_ns)
    return replace(
        run, measurement=Measurement(samples_ns=(step_ns,) * 9, waited_ns=(step_ns // 2,) * 9)
    )


def test_disturbed_run_is_not_kept() -> None:
    measured(FakeEngine(lambda _: disturbed(2_000_000)), request())
    fresh = FakeEngine(quick)
    measured(fresh, request())
    assert len(fresh.requests) == 1
