"""A session about a target, whose runs are scripted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Self

import pytest

from breakeven.check import check_target
from breakeven.cost import reference_host
from breakeven.errors import Caveat
from breakeven.explain import explain_target
from breakeven.session import Session
from breakeven.session import session as module
from factories.runs import Answer, ProgressLog, ScriptedLauncher, plain_run, traced_run

OLD_TORCH = Caveat(code="old-torch", message="this torch is old")


class ReadyLauncher(ScriptedLauncher):
    """A launcher on a machine with torch and, where it has a name, a GPU."""

    def __init__(self, *answers: Answer, gpu: str = "") -> None:
        super().__init__(answers)
        self.quiet_trackers = ("wandb",)
        self.num_entered = 0
        self._ready = SimpleNamespace(gpu=gpu, torch_version="2.13.0", caveats=(OLD_TORCH,))

    def __enter__(self) -> Self:
        self.num_entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ready(self) -> SimpleNamespace:
        return self._ready


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    host = reference_host()
    monkeypatch.setattr(module, "find_hosts", lambda *_: (host, host))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_each_figure_is_found_when_it_is_asked_for_and_once(script: str) -> None:
    launcher = ReadyLauncher(traced_run(), plain_run(), plain_run(700_000), gpu="A GPU")
    with Session(script, devices=("t4",), launcher=launcher) as session:
        assert launcher.requests == []
        assert session.step is session.step
        assert [result.kind.value for result in session.measured] == ["cpu", "gpu"]
        assert session.step.compared.results[:2] == session.measured
        assert session.batch_sizes is None
    assert [request.is_traced for request in launcher.requests] == [True, False, False]
    # Whose launcher it is ends it.
    assert launcher.num_entered == 0


def test_check_and_explain_are_one_procedure(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = ReadyLauncher(traced_run(), plain_run())
    monkeypatch.setattr(module, "Launcher", lambda _: launcher)
    log = ProgressLog()
    check = check_target(script, devices=("t4", "l4"), progress=log)
    assert (launcher.num_entered, log.has_ended) == (1, True)
    again = ReadyLauncher(traced_run(), plain_run())
    explanation = explain_target(script, devices=("t4", "l4"), tries_cpu=False, launcher=again)
    assert explanation.results == check.results
    assert explanation.verdict == check.verdict
    assert explanation.program == check.program
    for report in (check, explanation):
        assert OLD_TORCH in report.caveats
        assert report.quiet_trackers == ("wandb",)
        assert report.host.torch_version == "2.13.0"
