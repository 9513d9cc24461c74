"""Why torch is not there: each cause by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from breakeven.capture import Launcher
from breakeven.capture.process import run_processes
from breakeven.errors import BreakevenError


def test_server_that_was_killed_is_no_fault_of_torch() -> None:
    with Launcher() as launcher:
        launcher._processes.process.send_signal(signal.SIGKILL)
        with pytest.raises(BreakevenError) as caught:
            launcher.ready()
    assert caught.value.message == "the process that imports torch was ended by signal SIGKILL"
    assert "out of memory" in (caught.value.hint or "")


def test_torch_that_takes_too_long_is_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_processes, "START_LIMIT_S", 0.0)
    with Launcher() as launcher:
        with pytest.raises(BreakevenError, match=r"was not imported by .* within 0 s"):
            launcher.ready()
        launcher._processes.process.kill()


def test_torch_that_cannot_be_imported_is_told_by_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: file too short')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Launcher() as launcher, pytest.raises(BreakevenError) as caught:
        launcher.ready()
    assert caught.value.message.endswith("ImportError: libtorch.so: file too short")
    assert "import torch" in (caught.value.hint or "")
