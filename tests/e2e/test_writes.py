"""What a script writes and logs while it is checked: seen by itself, reported, gone afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import SCRIPTS, CheckRun, can_overlay

from factories.sampled import sampled

pytestmark = pytest.mark.slow

CheckScript = Callable[..., CheckRun]

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
    torch.save(model.state_dict(), "model.pt")
    torch.save(model.state_dict(), "kept/model.pt")
"""
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


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def written(run: CheckRun) -> dict[str, str]:
    assert run.returncode == 0, run.stderr
    return {Path(each["path"]).name: each["change"] for each in run.document["writes"]["files"]}


@pytest.mark.parametrize("protection", sampled(["overlay", "redirected"], "overlay"))
def test_writes_are_seen_by_the_script_and_gone_afterwards(
    run_check: CheckScript, work_folder: Path, protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if protection == "overlay" and not can_overlay():
        pytest.skip("this system allows no mount namespace")
    for name, text in {
        "best.pt": "goodgood", "log.txt": "first", "old.txt": "old", "data/a": "a",
        "kept/c": "c", "kept2/d": "d",
    }.items():  # fmt: skip
        (work_folder / name).parent.mkdir(exist_ok=True)
        (work_folder / name).write_text(text)
    before = contents(work_folder)
    monkeypatch.setenv("BREAKEVEN_WRITE_PROTECTION", protection)
    # Programs that the script starts are seen by the one, and not by the other.
    arguments = ("--programs",) if protection == "overlay" else ()
    run = run_check(SCRIPTS / "writes_files.py", arguments=arguments)
    found = written(run)
    assert contents(work_folder) == before
    assert run.document["writes"]["protection"] == protection
    assert found["best.pt"] == found["log.txt"] == "changed"
    assert found["old.txt"] == "deleted"
    assert found["array.npy"] == found["data.sqlite"] == found["a.txt"] == "created"
    assert not any("breakeven-" in each["path"] for each in run.document["writes"]["files"])


def test_writes_and_trackers_are_real_where_asked(
    run_check: CheckScript,
    work_folder: Path,
    tmp_path: Path,
    marker: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, package = tmp_path / "saves.py", tmp_path / "site-packages" / "wandb"
    script.write_text(SCRIPT)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(WANDB)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    (work_folder / "kept").mkdir()
    run = run_check(script, "--keep-writes-in", "kept", new_files=["kept/model.pt"])
    assert written(run) == {"model.pt": "created"}
    assert run.document["writes"]["files"][0]["path"] == str(work_folder / "model.pt")
    assert not marker.exists()
    run = run_check(script, "--keep-writes", "--keep-trackers", new_files=["model.pt"])
    assert written(run) == {}
    assert run.document["writes"]["protection"] == "none"
    assert run.document["writes"]["num_files"] == run.document["writes"]["num_bytes"] == 0
    assert marker.exists()
