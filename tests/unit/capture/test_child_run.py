"""The end of a run, in the process made for it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from breakeven.capture import FailureKind, RunFailure
from breakeven.capture.process import child_run
from breakeven.capture.process.child_run import ChildRun


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


def test_no_finalizer_of_the_script_runs_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(child_run, "_exit", end)
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
