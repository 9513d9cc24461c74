"""What a plain run says of threads and of the user's own files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from check_process import SCRIPTS

from breakeven.capture import Launcher, PlainRun, RunRequest, find_target
from breakeven.trace import Configuration


def run(launcher: Launcher, script: Path, *, threads: int = 0) -> PlainRun:
    target = find_target(str(script))
    answer = launcher.run(
        RunRequest(
            target=target,
            is_traced=False,
            time_limit_s=60,
            budget_s=0.05,
            configuration=Configuration(num_threads=threads),
        )
    )
    assert isinstance(answer, PlainRun), answer
    return answer


STEPS = """
import torch
from own import width
{extra}
model = torch.nn.Linear(width, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
"""


def test_run_names_the_files_of_the_user_and_what_they_held(
    launcher: Launcher, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("width = 8\n")
    (tmp_path / "unused.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text(STEPS.format(extra=""))
    answer = run(launcher, script)
    assert {source.path: source.sha256 for source in answer.sources} == {
        str(file.resolve()): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (tmp_path / "own.py", script)
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_script_runs_on_the_threads_asked_for(
    launcher: Launcher, tmp_path: Path, threads: int
) -> None:
    (tmp_path / "own.py").write_text("width = 8\n")
    script = tmp_path / "train.py"
    script.write_text(STEPS.format(extra=""))
    answer = run(launcher, script, threads=threads)
    assert answer.num_threads == threads
    assert "own-threads" not in {caveat.code for caveat in answer.caveats}


def test_script_that_sets_its_threads_itself_is_told_of(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("width = 8\n")
    script = tmp_path / "train.py"
    script.write_text(STEPS.format(extra="torch.set_num_threads(1)"))
    answer = run(launcher, script, threads=2)
    assert answer.num_threads == 1
    assert "own-threads" in {caveat.code for caveat in answer.caveats}
    alone = run(launcher, script)
    assert "own-threads" not in {caveat.code for caveat in alone.caveats}


def test_files_of_libraries_are_not_the_users(launcher: Launcher) -> None:
    answer = run(launcher, SCRIPTS / "sweep_loader.py")
    assert [Path(source.path).name for source in answer.sources] == ["sweep_loader.py"]
