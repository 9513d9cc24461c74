"""Scripts that ask their terminal: they have one in a check where the check has one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from check_process import BREAKEVEN, TAG_NAME, end_leftovers
from script_runs import request_of

from breakeven.capture import FailureKind, Launcher, PlainRun, RunFailure

ROWS, COLUMNS = 33, 117

ASKS = """
import os, sys
print(os.popen('stty size 2>/dev/null', 'r').read().split())
print(*(os.isatty(fd) for fd in (0, 1, 2)), *(s.isatty() for s in (sys.stdin, sys.stdout)))
try:
    print(tuple(os.get_terminal_size()))
except OSError as error:
    print(error)
"""
# As in much-copied training code, a progress bar asks for the width.
TRAINING = """
import os, sys
import torch
_, width = os.popen('stty size', 'r').read().split()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    sys.stdout.write('\\r' + '=' * (int(width) - 10) + '\\b' * 5 + str(step))
    sys.stdout.flush()
"""


@contextlib.contextmanager
def terminal_as_input() -> Iterator[int]:
    """Let standard input be a terminal inside; its other end is given."""
    before = os.dup(0)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    os.dup2(theirs, 0)
    os.close(theirs)
    try:
        yield ours
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(ours)


@pytest.fixture
def terminal() -> Iterator[int]:
    with terminal_as_input() as ours:
        yield ours


@pytest.fixture(scope="module")
def at_terminal() -> Iterator[Launcher]:
    with pytest.MonkeyPatch.context() as patch, terminal_as_input():
        patch.setenv("TERM", "xterm")
        launcher = Launcher()
    with launcher:
        yield launcher


Run = Callable[..., tuple[PlainRun | RunFailure, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a script, and returns the answer and what it printed."""
    path = tmp_path / "script.py"

    def run_in(launcher: Launcher, text: str) -> tuple[PlainRun | RunFailure, str]:
        path.write_text(textwrap.dedent(text))
        answer = launcher.run(request_of(path, time_limit_s=20.0))
        assert isinstance(answer, PlainRun | RunFailure)
        return answer, launcher.output

    return run_in


AT_TERMINAL = f"['{ROWS}', '{COLUMNS}']\nTrue True True True True\n({COLUMNS}, {ROWS})\n"
AT_PIPE = "[]\nFalse False False False False\n[Errno 25] Inappropriate ioctl for device\n"


def test_script_sees_a_terminal_where_there_is_one(
    run: Run, at_terminal: Launcher, launcher: Launcher
) -> None:
    assert run(at_terminal, ASKS)[1] == AT_TERMINAL
    assert run(launcher, ASKS)[1] == AT_PIPE


def test_step_of_a_script_with_a_progress_bar_is_timed(run: Run, at_terminal: Launcher) -> None:
    answer, output = run(at_terminal, TRAINING)
    assert isinstance(answer, PlainRun)
    # Nothing of it steers the user's terminal.
    assert "\b" not in output
    assert re.search(r"\r=+\d+$", output)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what is open in /proc")
def test_nothing_is_left_open(launcher: Launcher) -> None:
    assert launcher.ready()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers
    with terminal_as_input(), Launcher() as launcher:
        assert launcher.ready()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


ENDS_OF_INPUT = {
    "read": "import sys; print(repr(sys.stdin.read()), repr(sys.stdin.read()))",
    "input": "input('name? ')",
    "password": "import getpass, warnings\nwarnings.simplefilter('ignore')\ngetpass.getpass()",
}


@pytest.mark.parametrize("name", ENDS_OF_INPUT)
def test_nobody_types(name: str, run: Run, at_terminal: Launcher) -> None:
    answer, output = run(at_terminal, ENDS_OF_INPUT[name])
    assert isinstance(answer, RunFailure)
    assert answer.kind is not FailureKind.TIME_LIMIT, output
    if name == "read":
        assert output == "'' ''\n"
    if name in ("input", "password"):
        assert answer.exception == "EOFError"
    assert run(at_terminal, ASKS)[1] == AT_TERMINAL


AWKWARD = {
    "ends in a thread": "import os, threading\nthreading.Thread(target=exit, args=[3]).start()",
    "outlives its end": """
        import os, time
        if os.fork() == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(3)
            finally:
                os._exit(0)
    """,
    "opens its terminal by name": """
        import os
        if os.isatty(0):
            os.open(os.ttyname(0), os.O_RDWR)
    """,
    "signals its group": """
        import os, signal
        for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)
            os.killpg(0, number)
    """,
}


# What else a script may do is tried without a terminal, by the hostile scripts.
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_script_leaves_the_next_run_as_it_was(
    name: str, run: Run, at_terminal: Launcher
) -> None:
    answer, _ = run(at_terminal, AWKWARD[name])
    assert isinstance(answer, RunFailure)
    assert answer.kind is FailureKind.NO_STEP, answer
    assert run(at_terminal, ASKS)[1] == AT_TERMINAL


@pytest.mark.slow
def test_check_at_a_terminal_answers_on_stdout_alone(terminal: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), TAG_NAME: str(tmp_path)}
    ended = subprocess.run(
        [str(BREAKEVEN), "check", str(script), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["results"]
    assert end_leftovers(str(tmp_path)) == []


def test_ctrl_c_at_a_terminal_leaves_nobody(terminal: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    script = tmp_path / "train.py"
    script.write_text(
        f"import time, pathlib\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(600)"
    )
    # The terminal is the controlling one of the command, as it is for users: ^C is typed.
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.dup2(0, 1)
            os.dup2(0, 2)
            os.environ[TAG_NAME] = str(tmp_path)
            os.execv(BREAKEVEN, [str(BREAKEVEN), "check", str(script), "--keep-writes"])
        finally:
            os._exit(99)
    deadline_s = time.monotonic() + 240
    shown = b""
    os.set_blocking(terminal, False)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < deadline_s, shown
        with contextlib.suppress(OSError):
            shown += os.read(terminal, 1 << 16)
        if marker.exists():
            marker.unlink()
            os.write(terminal, b"\x03")
        time.sleep(0.02)
    assert b"interrupted" in shown
    assert b"Traceback" not in shown
    assert end_leftovers(str(tmp_path)) == []
