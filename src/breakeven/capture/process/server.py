"""The processes that import torch and run the target, forked if possible.

``python -P -m breakeven.capture.process.server fork KEEP REQUESTS ANSWERS TURNS`` imports torch
once, and forks a child for every run. It reads requests from the first descriptor. The children
send answers to the second; if they take turns with another run, they read from the third. The
server never runs the user's code, so every child starts from the same clean state.

``... ready KEEP`` sends ``Ready``, and ends. ``... once KEEP`` does one run on systems that cannot
fork. It sends ``Started``, and reads a request and turns from standard input. At the end of the
input the parent has ended, so all processes end. Messages go to standard output; the script's
output goes to standard error.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from breakeven.capture.process.children import (
    adopt_orphans,
    end_all_with_this_process,
    end_descendants,
    end_with_parent,
)
from breakeven.capture.process.script_output import TerminalState
from breakeven.capture.protect.scratch import Scratch, remove_tree
from breakeven.errors import Caveat

_WATCH_POLL_S = 0.1
_POLL_S = 0.02
_SPAWNED = Caveat(
    code="spawned",
    message="this system cannot fork a process that has imported torch: each run of the script "
    "imports it again and takes longer; it has no terminal, writes by native code and other "
    "programs are real, and daemons outlive the run",
)
# Keep the original: the script gets a stand-in.
_exit = os._exit


def serve(keep_text: str, request_fd: int, answer_fd: int, turn_fd: int) -> NoReturn:
    """Fork a process for each request until the parent closes the request pipe."""
    # Importing torch takes seconds, and many more if the disk is slow.
    is_imported = threading.Event()
    watch = threading.Thread(target=_watch_parent, args=(request_fd, is_imported), daemon=True)
    watch.start()
    # Query the driver's management library: querying CUDA itself would initialize it, and an
    # initialized process cannot fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    from breakeven.capture.messages import Ended, Keep, Request, Started
    from breakeven.capture.pretend.device_functions import device_functions
    from breakeven.capture.process.child_run import answer, ready, send

    is_imported.set()
    watch.join()  # a process with a second thread must not fork
    keep = msgspec.json.decode(keep_text, type=Keep)
    terminal = TerminalState(0)
    adopts = adopt_orphans()
    # Ignore requests to end: the parent handles them.
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in asking}
    # Look for GPUs in a child: querying some types initializes them, and an initialized process
    # cannot fork.
    own, child = os.getpid(), os.fork()
    if child == 0:
        end_with_parent(own)
        send(answer_fd, ready())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("torch could not ask which GPUs are here")
    device_functions()  # fill the cache that every run needs
    scratch = Scratch(Path(os.environ["TMPDIR"]), keep)
    with os.fdopen(request_fd, "rb", buffering=0) as requests:
        for line in requests:
            request = msgspec.json.decode(line, type=Request)
            terminal.restore()
            layer = scratch.layer_for(request)
            child = os.fork()
            if child == 0:
                end_with_parent(own)
                requests.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                # A group lets us end the script with all that it starts. A session would not do:
                # its leader, on opening the terminal, would own it, and at its end hang it up.
                os.setpgid(0, 0)
                os.set_inheritable(answer_fd, False)
                os.set_inheritable(turn_fd, False)
                answer(request, keep, layer, answer_fd, turn_fd)
            send(answer_fd, Started(process=child))
            status = _wait(child, requests.fileno(), adopts=adopts)
            writes = None
            if layer is not None:
                writes = layer.writes()
                layer.remove()
            send(answer_fd, Ended(exit_code=os.waitstatus_to_exitcode(status), writes=writes))
    _end_at_once()


def _watch_parent(request_fd: int, is_imported: threading.Event) -> None:
    """End this process with its parent, which sends no request before the import is done."""
    while not is_imported.wait(_WATCH_POLL_S):
        if select.select([request_fd], [], [], 0.0)[0]:
            _end_at_once()


def _wait(child: int, parent_fd: int, *, adopts: bool) -> int:
    """Wait for the child, or for the parent's end, and end all remaining processes."""
    while True:
        finished, status = os.waitpid(-1, os.WNOHANG)
        if finished and finished != child:  # an orphan
            continue
        # The parent sends nothing during a run, so readable data means the end of the file.
        is_orphaned = not finished and bool(select.select([parent_fd], [], [], _POLL_S)[0])
        if finished or is_orphaned:  # other processes may remain, such as a loader's workers
            if adopts:
                end_descendants()
            else:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
        if is_orphaned:
            _end_at_once()
        if finished:
            return status


def _end_at_once() -> NoReturn:
    """End this process at once: torch's orderly exit takes most of a second.

    The parent owns the folder of temporary files, but may have been killed.
    """
    remove_tree(Path(os.environ["TMPDIR"]))
    os._exit(0)


def run_once(keep_text: str, *, is_run: bool) -> NoReturn:
    """Serve one request, or report what is here."""
    end_all_with_this_process()
    # The script gets other streams, since torch's output during its import is no message.
    request_fd, answer_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    from breakeven.capture.messages import Keep, Request, Started
    from breakeven.capture.pretend.device_functions import device_functions
    from breakeven.capture.process.child_run import answer, ready, send

    if not is_run:
        send(answer_fd, ready((_SPAWNED,)))
        _exit(0)  # torch's orderly exit takes most of a second
    device_functions()  # fill the cache that every run needs
    send(answer_fd, Started(process=os.getpid()))
    with open(request_fd, "rb", buffering=0, closefd=False) as requests:
        line = requests.readline()
    if not line:
        _exit(0)  # the parent has ended
    request = msgspec.json.decode(line, type=Request)
    keep = msgspec.json.decode(keep_text, type=Keep)
    layer = Scratch(Path(os.environ["TMPDIR"]), keep, may_fork=False).layer_for(request)
    turn_fd, relay_fd = os.pipe()

    def relay_turns() -> None:
        while turn := os.read(request_fd, 1):
            os.write(relay_fd, turn)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        _exit(1)

    threading.Thread(target=relay_turns, daemon=True).start()
    answer(request, keep, layer, answer_fd, turn_fd)


if __name__ == "__main__":
    kind, keep_text, *descriptors = sys.argv[1:]
    if kind == "fork":
        serve(keep_text, *map(int, descriptors))
    run_once(keep_text, is_run=kind == "once")
