"""What a node of a Ray cluster makes of a task, without Ray."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.capture import FailureKind, Keep, RunFailure, RunRequest, file_digest, find_target
from breakeven.errors import BreakevenError
from breakeven.studies import ray_node
from breakeven.studies.ray_node import (
    NodeAnswer,
    NodePlace,
    NodeRefusal,
    NodeRun,
    NodeTask,
    run_on_node,
)


class FakeLauncher:
    """Answers each run with where it was started; knows how many were made."""

    made: list[FakeLauncher]

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.made.append(self)
        self.is_closed = False
        self.output = f"{Path.cwd()} {os.environ.get('OMP_NUM_THREADS')}"

    def run(self, request: RunRequest, tell: object) -> RunFailure:
        return RunFailure(kind=FailureKind.NO_STEP, message=request.target.label)

    def close(self) -> None:
        self.is_closed = True


class BrokenLauncher(FakeLauncher):
    def ready(self) -> None:
        raise BreakevenError("torch could not be imported by python")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FakeLauncher]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(FakeLauncher, "made", [], raising=False)
    monkeypatch.setattr(ray_node, "Launcher", FakeLauncher)
    monkeypatch.setattr(ray_node, "_WARM", ray_node._WarmLauncher())
    return FakeLauncher.made


@pytest.fixture
def task(tmp_path: Path) -> NodeTask:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    request = RunRequest(target=find_target(str(script)), is_traced=False, time_limit_s=9.0)
    place = NodePlace(raw_folder=os.fsencode(tmp_path), settings={"OMP_NUM_THREADS": "7"})
    digest = file_digest(str(script))
    assert digest is not None
    return NodeTask(request=request, place=place, target_sha256=digest)


def measure(task: NodeTask) -> NodeAnswer:
    answer = ray_node.measure(msgspec.json.encode(task))
    return msgspec.json.decode(answer, type=NodeAnswer)


def refusal_of(answer: NodeAnswer) -> str:
    assert isinstance(answer, NodeRefusal)
    return answer.message


def test_a_run_finds_folder_and_settings_of_where_it_comes_from(
    task: NodeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray sets it
    before = Path.cwd()
    answer = measure(task)
    assert isinstance(answer, NodeRun)
    assert answer.output == f"{task.place.folder} 7"
    assert (Path.cwd(), os.environ["OMP_NUM_THREADS"]) == (before, "1")

    unset = replace(task, place=replace(task.place, settings={}))
    answer = measure(unset)
    assert isinstance(answer, NodeRun)
    assert answer.output.endswith(" None")


def test_torch_is_started_once_for_tasks_of_one_place(
    task: NodeTask, made: list[FakeLauncher], tmp_path: Path
) -> None:
    measure(task)
    measure(task)
    assert len(made) == 1
    assert made[0].keep == task.place.keep
    (tmp_path / "other").mkdir()
    measure(replace(task, place=NodePlace(raw_folder=os.fsencode(tmp_path / "other"), settings={})))
    assert [launcher.is_closed for launcher in made] == [True, False]


def test_missing_and_other_files_are_refused(task: NodeTask, made: list[FakeLauncher]) -> None:
    path = task.request.target.path
    assert refusal_of(measure(replace(task, target_sha256="0"))) == f"has another version of {path}"
    Path(path).unlink()
    assert refusal_of(measure(task)) == f"has no file {path}"
    assert made == []


def test_a_missing_folder_is_refused(task: NodeTask) -> None:
    nowhere = NodePlace(raw_folder=b"/no/such/folder", settings={})
    assert "has no folder /no/such/folder" in refusal_of(measure(replace(task, place=nowhere)))


def test_no_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "Launcher", BrokenLauncher)
    answer = ray_node.describe(msgspec.json.encode(NodePlace.here()))
    message = refusal_of(msgspec.json.decode(answer, type=NodeAnswer))
    assert message == "cannot run it: torch could not be imported by python"
    assert all(launcher.is_closed for launcher in FakeLauncher.made)


def test_priority_that_cannot_be_raised_is_a_caveat(
    task: NodeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpriority", lambda _, process: 0 if process else 15)

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    measure(task)
    assert [caveat.code for caveat in ray_node._WARM.caveats] == ["low-priority"]


def test_another_version_of_breakeven_is_refused() -> None:
    other = msgspec.json.decode(run_on_node("describe", "9.9.9", b""), type=NodeAnswer)
    assert "and here is 9.9.9" in refusal_of(other)
