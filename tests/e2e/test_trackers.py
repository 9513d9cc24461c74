"""What a script logs while it is checked: nothing, unless that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import CheckRun

CheckScript = Callable[..., CheckRun]

# Stands for a tracker whose server is the file `MARKER_FILE`, which is written for real.
WANDB = """
import os

class Run:
    def __init__(self, mode):
        self.mode = mode

    def log(self, values):
        if self.mode != "disabled":
            with open(os.environ["MARKER_FILE"], "a") as server:
                print(values, file=server)

def init(mode=None):
    return Run(mode or os.environ.get("WANDB_MODE"))
"""
SCRIPT = """
import torch
import wandb

run = wandb.init()
model = torch.nn.Linear(10, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100_000):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 10)).sum()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()})
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a script that logs to a tracker that is installed."""
    package = tmp_path / "site-packages" / "wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(WANDB)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return script


@pytest.mark.slow
def test_trackers_log_nothing(run_check: CheckScript, script: Path, marker: Path) -> None:
    run = run_check(script)
    assert run.returncode == 0, run.stderr
    assert not marker.exists()


@pytest.mark.full
def test_trackers_log_where_asked(run_check: CheckScript, script: Path, marker: Path) -> None:
    run = run_check(script, "--keep-trackers")
    assert run.returncode == 0, run.stderr
    assert marker.exists()
