"""What a script writes while it is checked: seen by itself, reported, and gone afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from check_process import SCRIPTS, CheckRun, can_overlay

from factories.sampled import sampled

WANTED = "BREAKEVEN_WRITE_PROTECTION"
SCRIPT = SCRIPTS / "writes_files.py"
CheckScript = Callable[..., CheckRun]


@pytest.fixture
def state(work_folder: Path) -> dict[Path, bytes]:
    """Put files into the working directory, and return what it holds."""
    for name, text in {
        "best.pt": "goodgood",
        "log.txt": "first",
        "old.txt": "old",
        "data/a": "a",
        "kept/c": "c",
        "kept2/d": "d",
    }.items():
        file = work_folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return contents(work_folder)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def written(run: CheckRun) -> dict[str, str]:
    return {Path(each["path"]).name: each["change"] for each in run.document["writes"]["files"]}


@pytest.mark.slow
@pytest.mark.parametrize("protection", sampled(["overlay", "redirected"], "overlay"))
def test_writes_are_seen_by_the_script_and_gone_afterwards(
    run_check: CheckScript,
    work_folder: Path,
    state: dict[Path, bytes],
    protection: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if protection == "overlay" and not can_overlay():
        pytest.skip("this system allows no mount namespace")
    monkeypatch.setenv(WANTED, protection)
    # Programs that the script starts are seen by the one, and not by the other.
    arguments = ("--programs",) if protection == "overlay" else ()
    run = run_check(SCRIPT, arguments=arguments)
    assert run.returncode == 0, run.stderr
    assert contents(work_folder) == state
    assert run.document["writes"]["protection"] == protection
    found = written(run)
    assert found["best.pt"] == found["log.txt"] == "changed"
    assert found["old.txt"] == "deleted"
    assert found["array.npy"] == found["data.sqlite"] == found["a.txt"] == "created"
    assert not any("breakeven-" in each["path"] for each in run.document["writes"]["files"])


@pytest.mark.slow
def test_writes_are_real_where_asked(
    run_check: CheckScript, work_folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    (work_folder / "kept").mkdir()
    run = run_check(script, "--keep-writes-in", "kept", new_files=["kept/model.pt"])
    assert written(run) == {"model.pt": "created"}
    assert run.document["writes"]["files"][0]["path"] == str(work_folder / "model.pt")
    run = run_check(script, "--keep-writes", new_files=["model.pt"])
    assert run.document["writes"] == {
        "protection": "none",
        "files": [],
        "num_files": 0,
        "num_bytes": 0,
    }


SAVES = """
import torch

model = torch.nn.Linear(10, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 10)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    torch.save(model.state_dict(), "kept/model.pt")
"""
