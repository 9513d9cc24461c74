"""breakeven where there is no fork, no group of processes, no /proc, and no terminal to make.

`without_posix` hides them from its code, in every process; what replaces them is that of Windows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from factories.processes import is_running, wait_until

ROOT = Path(__file__).parents[2]
HIDING = Path(__file__).with_name("without_posix")

# But for what is run and not imported: scripts, and the server that forks.
IMPORT_ALL = """
import importlib, pkgutil, breakeven
for module in pkgutil.walk_packages(breakeven.__path__, "breakeven."):
    if ".scripts." not in module.name and not module.name.endswith(("__main__", ".server")):
        importlib.import_module(module.name)
        print(module.name)
"""


def run(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def hidden(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process from which they are hidden."""
    path = os.pathsep.join(filter(None, (str(HIDING), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ, "PYTHONPATH": path, "USERNAME": "somebody", "XDG_CACHE_HOME": str(tmp_path),
    }  # fmt: skip


def test_what_is_hidden_is_hidden_from_breakeven_alone(hidden: dict[str, str]) -> None:
    text = """
import os
from breakeven import processor
looked = compile("found = hasattr(os, 'fork'), Path('/proc').exists()", processor.__file__, "exec")
exec(looked, vars(processor))
print(hasattr(os, "fork"), *processor.found)
"""
    assert run("-c", text, environment=hidden).stdout == "True False False\n"


@pytest.mark.slow
def test_every_module_can_be_imported(hidden: dict[str, str]) -> None:
    done = run("-c", IMPORT_ALL, environment=hidden)
    assert done.returncode == 0, done.stderr
    assert "breakeven.capture.process.launcher" in done.stdout.splitlines()


@pytest.mark.parametrize("arguments", [("--help",), ("devices",)])
def test_what_needs_no_run_answers_as_ever(
    arguments: tuple[str, ...], hidden: dict[str, str]
) -> None:
    command = ("-m", "breakeven", *arguments)
    told = run(*command, environment=hidden)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == run(*command, environment=dict(os.environ)).stdout


@pytest.mark.slow
def test_a_script_is_checked(hidden: dict[str, str]) -> None:
    done = run("-m", "breakeven", "check", "examples/disc_mlp.py", "--json", environment=hidden)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    codes = {caveat["code"] for caveat in report["caveats"]}
    assert "spawned" in codes
    cpu = next(result for result in report["results"] if result["kind"] == "cpu")
    assert cpu["source"] == "measured"
    assert cpu["step_ns"] > 0
    assert cpu["peak_memory_bytes"] == 1 << 30  # what the made-up kernel32 says
    assert sum(result["kind"] == "gpu" for result in report["results"]) == 6


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows ends jobs by itself")
def test_a_spawned_run_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    told = tmp_path / "process"
    script.write_text(
        textwrap.dedent(f"""
        import os, time
        with open({str(told)!r} + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.replace({str(told)!r} + ".new", {str(told)!r})
        time.sleep(600)
        """)
    )
    command = [sys.executable, "-m", "breakeven", "check", "--keep-writes", str(script)]
    with subprocess.Popen(
        command, env={**os.environ, "BREAKEVEN_SPAWN": "1"}, stderr=subprocess.DEVNULL
    ) as checking:
        wait_until(told.exists)
        checking.kill()
    process = int(told.read_text())
    wait_until(lambda: not is_running(process), limit_s=30)
