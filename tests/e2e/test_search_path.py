"""What lies in the current folder stands for no module but the script's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from check_process import BREAKEVEN

from breakeven.capture import Launcher, RunFailure, RunRequest, find_target, script_error
from breakeven.trace import ScaledTrace, StepCase, TimedPhase
from breakeven.workloads import trace_cases
from factories.sampled import sampled

# Modules that Python, torch or breakeven import themselves, by their usual names.
POISON = ("json", "torch", "random", "numpy", "types", "signal", "msgspec", "select", "enum")

SURROUNDINGS = """
import builtins, inspect, pickle, sys, threading
print(__name__, __file__, __spec__ and __spec__.origin, __package__, sorted(globals()))
print(__builtins__ is builtins)
print(sys.argv, sys.path, sys.orig_argv, type(__loader__))
print(sys.stdin.name, sys.stdin.mode, sys.stdin is sys.__stdin__, sys.stdin.read() == "")
import beside
print(beside.__file__)
class Own:
    pass
print(pickle.loads(pickle.dumps(Own())).__class__ is Own, inspect.getsource(Own))
print(sys.modules["__main__"].Own is Own, threading.current_thread().name)
"""
PART = """
import sys
from . import beside
from lab import beside as top
print(top is beside, __name__, __file__, __package__, __spec__.name, sys.argv, sys.path)
"""
TRAINING = """
import sys
import torch
import beside
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10_000):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, whose script is in another one."""
    for name in ("work", "project", "elsewhere", "work/lab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def poisoned(folder: Path) -> Path:
    for name in POISON:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    return folder


@pytest.mark.parametrize("is_safe", [False, True], ids=["usual path", "PYTHONSAFEPATH"])
def test_surroundings_are_those_of_plain_python(
    is_safe: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = folder.parent / "project", folder.parent / "elsewhere"
    # Where `-m` finds modules with PYTHONSAFEPATH.
    for place in (folder, project, elsewhere):
        (place / "train.py").write_text(SURROUNDINGS)
    (folder / "link.py").symlink_to(project / "train.py")
    (folder / "lab" / "__init__.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    (folder / "lab" / "train.py").write_text(PART)
    (elsewhere / "lab").symlink_to(folder / "lab")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{elsewhere}")
    if is_safe:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with Launcher() as launcher:
        for target in ("train.py", "link.py", "train", "lab.train"):
            is_module = not target.endswith(".py")
            start = ["-m", target] if is_module else [target]
            # Python has its own path in argv as it was called, and the server that of this process.
            plain = subprocess.run(
                [sys.executable, *start, "--lr", "ä b"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
            )
            found = find_target(target, ("--lr", "ä b"), is_module=is_module)
            launcher.run(RunRequest(target=found, is_traced=False, time_limit_s=60.0))
            assert launcher.output == plain.stdout, target


def test_own_module_that_is_imported_already_is_to_be_renamed(folder: Path) -> None:
    (folder / "statistics.py").write_text("VALUE = 'its own'\n")
    with Launcher() as launcher:
        for text in ("import statistics\nstatistics.VALUE", "from statistics import VALUE"):
            (folder / "train.py").write_text(text)
            target = find_target("train.py", ())
            failure = launcher.run(RunRequest(target=target, is_traced=False, time_limit_s=60.0))
            assert isinstance(failure, RunFailure)
            hint = script_error(failure, target, "").hint or ""
            own = folder / "statistics.py"
            assert hint.startswith(f"rename {own}: another module of its name")


COMMANDS = {
    "check": ("check", "{script}", "--json"),
    "calibrate": ("calibrate", "--json"),
    "explain": ("explain", "{script}", "--json"),
    "run": ("run", "{script}", "--budget", "4s", "-q"),
    "sweep": ("sweep", "{script}", "--over", "threads=1", "--json"),
    "tune": ("tune", "{script}", "--budget", "4s", "--json"),
}


def run_breakeven(
    *arguments: str, cache: Path, program: tuple[str, ...] = (str(BREAKEVEN),)
) -> str:
    """Return what a command that succeeds prints."""
    ended = subprocess.run(
        [*program, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "the wrong" not in ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(COMMANDS, "check"))
def test_current_folder_has_no_say(name: str, poisoned: Path, tmp_path: Path) -> None:
    script = poisoned.parent / "project" / "train.py"
    script.write_text(TRAINING)
    words = (word.format(script=script) for word in COMMANDS[name])
    printed = run_breakeven(*words, cache=tmp_path / "cache")
    assert "--json" not in COMMANDS[name] or json.loads(printed)


def test_current_folder_has_no_say_in_a_short_command(poisoned: Path, tmp_path: Path) -> None:
    # Python itself imports these on the way to `-m`.
    for name in ("types", "enum"):
        (poisoned / f"{name}.py").unlink()
    for program in ((str(BREAKEVEN),), (sys.executable, "-m", "breakeven")):
        assert run_breakeven("devices", "a100", cache=tmp_path / "cache", program=program)


def test_current_folder_has_no_say_where_models_are_traced(
    poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "cache"))
    case = StepCase(
        phase=TimedPhase.INFERENCE, workload="breakeven:mlp?input=4&width=4&depth=2&classes=2"
    )
    assert isinstance(trace_cases([case], num_processes=1)[case], ScaledTrace)
