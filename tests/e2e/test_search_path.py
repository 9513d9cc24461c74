"""What lies in the current folder stands for no module but the script's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
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
    (tmp_path / "work").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "beside.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def poisoned(folder: Path) -> Path:
    for name in POISON:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    return folder


def printed_by_both(target: str, *arguments: str, is_module: bool = False) -> tuple[str, str]:
    """Return what a script prints under plain Python, and in a run of a check."""
    start = ["-m", target] if is_module else [target]
    # Python has its own path in argv as it was called, and the server that of this process.
    plain = subprocess.run(
        [sys.executable, *start, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    with Launcher() as launcher:
        found = find_target(target, arguments, is_module=is_module)
        launcher.run(RunRequest(target=found, is_traced=False, time_limit_s=60.0))
        return plain.stdout, launcher.output


@pytest.mark.parametrize("is_safe", [False, True], ids=["usual path", "PYTHONSAFEPATH"])
@pytest.mark.parametrize("kind", ["script", "link", "module"])
def test_surroundings_are_those_of_plain_python(
    kind: str, is_safe: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "beside.py").write_text("")
    (folder / "train.py").write_text(SURROUNDINGS)
    project = folder.parent / "project"
    (project / "train.py").write_text(SURROUNDINGS)
    (folder / "link.py").symlink_to(project / "train.py")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "beside.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{elsewhere}")
    if is_safe:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
        # Where `-m` finds it then.
        (elsewhere / "train.py").write_text(SURROUNDINGS)
    target = {"script": "train.py", "link": "link.py", "module": "train"}[kind]
    plain, ours = printed_by_both(target, "--lr", "ä b", is_module=kind == "module")
    assert ours == plain


def test_parts_of_a_package_are_found_as_by_plain_python(folder: Path) -> None:
    (folder / "lab").mkdir()
    (folder / "lab" / "__init__.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    (folder / "lab" / "other.py").write_text("")
    (folder / "lab" / "train.py").write_text(
        "import sys\nfrom . import other\nfrom lab import other as top\n"
        "print(top is other, __name__, __file__, __package__, __spec__.name, sys.argv, sys.path)\n"
    )
    plain, ours = printed_by_both("lab.train", "--lr", "1", is_module=True)
    assert ours == plain


@pytest.mark.parametrize(
    "text", ["import statistics\nstatistics.VALUE", "from statistics import VALUE"]
)
def test_own_module_that_is_imported_already_is_to_be_renamed(folder: Path, text: str) -> None:
    (folder / "statistics.py").write_text("VALUE = 'its own'\n")
    (folder / "train.py").write_text(text)
    with Launcher() as launcher:
        target = find_target("train.py", ())
        failure = launcher.run(RunRequest(target=target, is_traced=False, time_limit_s=60.0))
    assert isinstance(failure, RunFailure)
    hint = script_error(failure, target, "").hint
    assert hint is not None
    assert hint.startswith(f"rename {folder / 'statistics.py'}: another module of its name")


def environment(cache: Path) -> Mapping[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}


def run_breakeven(
    *arguments: str, cache: Path, program: tuple[str, ...] = (str(BREAKEVEN),)
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program, *arguments],
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


COMMANDS = {
    "check": ("check", "{script}", "--json"),
    "calibrate": ("calibrate", "--json"),
    "explain": ("explain", "{script}", "--json"),
    "run": ("run", "{script}", "--budget", "4s", "-q"),
    "sweep": ("sweep", "{script}", "--over", "threads=1", "--json"),
    "tune": ("tune", "{script}", "--budget", "4s", "--json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(COMMANDS, "check"))
def test_current_folder_has_no_say(name: str, poisoned: Path, tmp_path: Path) -> None:
    script = poisoned.parent / "project" / "train.py"
    script.write_text(TRAINING)
    words = (word.format(script=script) for word in COMMANDS[name])
    ended = run_breakeven(*words, cache=tmp_path / "cache")
    assert ended.returncode == 0, ended.stderr
    assert "the wrong" not in ended.stderr
    if "--json" in COMMANDS[name]:
        assert json.loads(ended.stdout)


def test_current_folder_has_no_say_in_a_short_command(poisoned: Path, tmp_path: Path) -> None:
    # Python itself imports these on the way to `-m`.
    for name in ("types", "enum"):
        (poisoned / f"{name}.py").unlink()
    for program in ((str(BREAKEVEN),), (sys.executable, "-m", "breakeven")):
        ended = run_breakeven("devices", "a100", cache=tmp_path / "cache", program=program)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_current_folder_has_no_say_where_models_are_traced(
    poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "cache"))
    case = StepCase(
        phase=TimedPhase.INFERENCE, workload="breakeven:mlp?input=4&width=4&depth=2&classes=2"
    )
    assert isinstance(trace_cases([case], num_processes=1)[case], ScaledTrace)
