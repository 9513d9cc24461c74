"""The process made for a run: how it ends, and what it does if the script has taken its pipe."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.capture.messages import PIPE_CLOSED_STATUS, Message, StepCount
from breakeven.capture.process import child_run
from breakeven.capture.process.child_run import AnswerPipe, ChildRun


class Ended(BaseException):
    """Stands for the end of the process."""


class Left:
    """What a script leaves in a cycle, such as the iterator of a DataLoader."""

    def __init__(self, finalized: list[str]) -> None:
        self.me, self.finalized = self, finalized

    def __del__(self) -> None:
        self.finalized.append("waits for its processes")


@pytest.fixture(autouse=True)
def collection_as_it_was() -> Iterator[None]:
    """Undo what the process that ends would take with it."""
    thresholds = gc.get_threshold()
    gc.enable()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.fixture(autouse=True)
def no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(child_run, "_exit", end)


def test_no_finalizer_of_the_script_runs_before_the_answer() -> None:
    finalized: list[str] = []
    sent: list[Any] = []

    def result() -> RunFailure:
        """Allocate, as what takes medians does."""
        gc.set_threshold(1)
        kept = [[number] for number in range(1_000)]
        sent.append((len(kept), list(finalized)))
        return RunFailure(kind=FailureKind.EXIT, message="0")

    run = cast("Any", object.__new__(ChildRun))
    run._ending = threading.Lock()
    run._session = SimpleNamespace(result=result)
    run._processes = SimpleNamespace(is_own=True, found=lambda: None)
    run._send = sent.append
    gc.collect()
    Left(finalized)
    with pytest.raises(Ended):
        run._finish()

    assert sent[0] == (1_000, [])
    assert isinstance(sent[1], RunFailure)


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Return both ends of a pipe, reading end first."""
    reading, writing = os.pipe()
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            continue  # the test has closed it


def test_messages_come_out_as_they_are_sent(ends: tuple[int, int]) -> None:
    reading, writing = ends
    messages = [StepCount(num_steps=count) for count in (1, 2)]
    pipe = AnswerPipe(writing)
    for message in messages:
        pipe.send(message)
    lines = filter(None, os.read(reading, 10_000).splitlines())
    assert [msgspec.json.decode(line, type=Message) for line in lines] == messages


def test_process_ends_where_the_pipe_was_closed(ends: tuple[int, int]) -> None:
    pipe = AnswerPipe(ends[1])
    os.close(ends[1])
    with pytest.raises(Ended) as ended:
        pipe.send(StepCount(num_steps=1))
    assert ended.value.args == (PIPE_CLOSED_STATUS,)


def test_file_that_got_the_number_of_the_pipe_is_not_written_to(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    pipe = AnswerPipe(ends[1])
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        os.dup2(file.fileno(), ends[1])
    with pytest.raises(Ended):
        pipe.send(StepCount(num_steps=1))
    assert path.read_bytes() == b""


def test_message_begins_a_line_whatever_the_script_has_written(ends: tuple[int, int]) -> None:
    reading, writing = ends
    pipe = AnswerPipe(writing)
    os.write(writing, b"half a line of the script's")
    pipe.send(StepCount(num_steps=1))
    *_, line = os.read(reading, 10_000).splitlines()
    assert msgspec.json.decode(line, type=Message) == StepCount(num_steps=1)


def test_functions_that_a_script_replaces_are_not_asked(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = AnswerPipe(ends[1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", None)
        patch.setattr(os, "fstat", None)
        pipe.send(StepCount(num_steps=1))
    assert b"step" in os.read(ends[0], 10_000)
