"""Helpers that a script may start, each in a program of its own that must get rid of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from breakeven.capture.process.children import RUN_VARIABLE, end_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who descends from whom")

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


@pytest.mark.parametrize("start", HELPERS.values(), ids=HELPERS)
def test_no_helper_is_left(start: str, tmp_path: Path) -> None:
    program = PROGRAM.format(start=start)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "note")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 0, ended.stderr
    assert not is_there(int(ended.stdout))


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
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(start=start), str(tmp_path / "note")],
        check=True,
        capture_output=True,
    )
    assert not Path("/dev/shm", (tmp_path / "name").read_text()).exists()


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
