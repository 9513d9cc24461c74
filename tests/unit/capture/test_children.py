"""Processes end together with all that they start, however far that has gone from them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from breakeven.capture.process.children import (
    OF_ITS_OWN,
    RUN_VARIABLE,
    end_all_with_this_process,
    end_run,
    end_tree,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who descends from whom")

# Defines `helper(*parts)`: each part forks away from the one before, the last one stays. The
# number of the last process is written to a file that both know.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
from breakeven.capture.process.children import adopt_orphans, end_descendants

note = Path(sys.argv[1])

def noted():
    while not note.exists() or not note.read_text():
        time.sleep(0.001)
    return int(note.read_text())

def stay():
    partial = note.with_suffix(".partial")
    partial.write_text(str(os.getpid()))
    partial.replace(note)
    while True:
        time.sleep(1)

def fork(then):
    if os.fork() == 0:
        then()
        os._exit(0)

assert adopt_orphans()
{start}
process = noted()
end_descendants()
try:
    os.waitpid(-1, os.WNOHANG)
    sys.exit("there is a child left")
except ChildProcessError:
    print(process)
"""
DOUBLE_FORK = "fork(lambda: (os.setsid(), fork(stay)))"
HELPERS = {
    "a child": "fork(stay)",
    "double fork into another session": DOUBLE_FORK,
    "deaf to signals": (
        "fork(lambda: ([signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)], stay()))"
    ),
    "stopped": (
        "fork(lambda: (os.setsid(), fork(stay)))\nos.kill(noted(), signal.SIGSTOP)"
    ),
    "a subreaper of its own": "fork(lambda: (adopt_orphans(), fork(lambda: fork(stay)), stay()))",
    "a program": "subprocess.Popen(['sh', '-c', f'echo $$ > {note}; exec sleep 60'])",
    # Each generation ends after it has forked the next: it is never the same process.
    "forks on and on": """
def flee():
    for _ in range(1_000):
        if os.fork():
            os._exit(0)
        os.setsid()
    stay()
note.write_text(str(os.getpid()))
fork(flee)
""",
    "a tree": (
        "fork(lambda: ([fork(lambda: (fork(lambda: time.sleep(60)), time.sleep(60)))"
        " for _ in range(20)], stay()))"
    ),
}  # fmt: skip


def is_there(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def rid_of(start: str, note: Path) -> int:
    """Return the process that a program has started in this way, and got rid of."""
    command = [sys.executable, "-c", PROGRAM.format(start=start), str(note)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@on_linux
@pytest.mark.parametrize("start", HELPERS.values(), ids=HELPERS)
def test_no_helper_is_left(start: str, tmp_path: Path) -> None:
    assert not is_there(rid_of(start, tmp_path / "note"))


@on_linux
def test_who_tidies_up_shared_memory_is_let_do_so(tmp_path: Path) -> None:
    # Its owner is killed, and it is asked to end in the same way.
    start = """
def hold():
    from multiprocessing import get_context
    held = get_context("spawn").Semaphore()
    (note.parent / "name").write_text("sem." + held._semlock.name.lstrip("/"))
    stay()
fork(hold)
"""
    rid_of(start, tmp_path / "note")
    assert not Path("/dev/shm", (tmp_path / "name").read_text()).exists()


@on_linux
def test_a_run_is_known_by_its_mark(tmp_path: Path) -> None:
    mark, other = str(tmp_path / "one"), str(tmp_path / "other")
    processes = {
        each: subprocess.Popen(["sleep", "60"], env={RUN_VARIABLE: each}, start_new_session=True)
        for each in (mark, other)
    }
    try:
        for process in processes.values():
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                time.sleep(0.001)  # it is becoming the program
        end_run(mark)
        assert processes[mark].wait(timeout=5) == -9
        assert processes[other].poll() is None
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@on_linux
def test_child_ends_with_its_parent(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, signal, sys, time
        from breakeven.capture.process.children import end_with_parent
        parent, child = os.getpid(), os.fork()
        if child == 0:
            end_with_parent(parent)
            print(os.getpid(), flush=True)
            time.sleep(60)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline_s = time.monotonic() + 5.0
    while is_there(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# It prints the id of a process that it starts, and waits for it.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


class Function:
    """One of kernel32, which takes note of its calls."""

    def __init__(self, name: str, result: int, calls: list[tuple[Any, ...]]) -> None:
        self._name, self._result, self._calls = name, result, calls
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> int:
        values = tuple(getattr(argument, "value", argument) for argument in arguments)
        self._calls.append((self._name, *values))
        assert self._result < 2**31 or self.restype is ctypes.c_void_p, "the handle would be cut"
        return self._result


class Kernel32:
    """Makes jobs, whose handles do not fit into 32 bits."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        results = {"CreateJobObjectW": 2**40, "GetCurrentProcess": 2**64 - 1}
        for name in (*results, "SetInformationJobObject", "AssignProcessToJobObject"):
            setattr(self, name, Function(name, results.get(name, 1), self.calls))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no groups of processes")
def test_what_a_process_started_ends_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, **OF_ITS_OWN
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        end_tree(process)
        # The end of the file: nobody has it open any more, the child included.
        assert process.stdout.read() == ""
    end_tree(process)  # a second time does nothing


def test_without_groups_the_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg", raising=False)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        end_tree(process)
    assert process.returncode != 0


def test_on_windows_a_process_is_alone_to_hold_the_job_that_ends_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel32()
    monkeypatch.setattr(ctypes, "WinDLL", {"kernel32": kernel}.__getitem__, raising=False)
    end_all_with_this_process()
    create, limit, process, assign = kernel.calls
    assert create == ("CreateJobObjectW", None, None)
    assert limit[:3] == ("SetInformationJobObject", 2**40, 9)
    assert limit[3]._obj.flags == 0x2000
    assert limit[4] == ctypes.sizeof(limit[3]._obj) == 144  # as Windows has it, on 64 bits
    assert process == ("GetCurrentProcess",)
    assert assign == ("AssignProcessToJobObject", 2**40, 2**64 - 1)
