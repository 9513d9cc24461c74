"""Processes of scripts, run to their end; and why torch is not there."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from breakeven.capture import Launcher, run_on_fake_gpus, run_script
from breakeven.capture.process import run_processes
from breakeven.errors import BreakevenError, ScriptError


def _script(folder: Path, text: str) -> Path:
    script = folder / "a script.py"
    script.write_text(text)
    return script


def test_script_runs_to_its_end_on_fake_gpus(tmp_path: Path) -> None:
    text = "import sys, torch\nprint(sys.argv[1:], torch.ones(1).to('cuda:1').device)\n"
    script = _script(tmp_path, text)
    assert run_on_fake_gpus(script, ["a", "-b"], num_devices=2) == "['a', '-b'] cuda:1\n"


def test_files_of_the_current_folder_do_not_stand_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "torch.py").write_text("raise RuntimeError('not the torch that was meant')\n")
    monkeypatch.chdir(folder)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    script = _script(tmp_path, "import beside, torch\nprint(beside.NAME, torch.ones(1).sum())\n")
    assert run_on_fake_gpus(script).startswith("beside ")


def test_failure_names_the_script_and_its_last_line(tmp_path: Path) -> None:
    script = _script(tmp_path, "print('so far')\nraise ValueError('bad \\udcff luck')\n")
    with pytest.raises(
        ScriptError, match=r"a script\.py ended with status 1: ValueError"
    ) as caught:
        run_script(script)
    assert "so far" in caught.value.output


def test_script_that_does_not_end_is_ended(tmp_path: Path) -> None:
    script = _script(tmp_path, "import time\ntime.sleep(600)\n")
    with pytest.raises(BreakevenError, match=r"did not end within 1 s"):
        run_script(script, time_limit_s=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("fails", [False, True])
def test_helpers_of_the_script_end_with_it(tmp_path: Path, fails: bool) -> None:
    text = (
        "import subprocess, sys\n"
        "quiet = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)\n"
        "helper = subprocess.Popen(['sleep', '60'], start_new_session=True, **quiet)\n"
        "print(helper.pid)\n"
        f"sys.exit({int(fails)})\n"
    )
    script = _script(tmp_path, text)
    if fails:
        with pytest.raises(ScriptError) as caught:
            run_script(script)
        printed = caught.value.output
    else:
        printed = run_script(script)
    command = Path(f"/proc/{int(printed)}/cmdline")
    # Of one that has ended, and is not taken note of yet, it is empty.
    assert not command.exists() or command.read_bytes() == b""


def test_server_that_was_killed_is_no_fault_of_torch() -> None:
    with Launcher() as launcher:
        launcher._processes.process.send_signal(signal.SIGKILL)
        with pytest.raises(BreakevenError) as caught:
            launcher.ready()
    assert caught.value.message == "the process that imports torch was ended by signal SIGKILL"
    assert "memory may have run out" in (caught.value.hint or "")


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
