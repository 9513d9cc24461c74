"""The process that imports torch once and forks a fresh child for every run.

Started as ``python -P -m breakeven.capture.process.server``; reads requests from the descriptor in
``sys.argv[1]``, and hands to the children ``sys.argv[2]`` for their answers and ``sys.argv[3]`` for
the turns of those that take turns with another run. ``sys.argv[4]`` says what of their side effects
is real. It never runs code of the user, so every child starts from the same clean state without
paying for the import again.
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

from breakeven.capture.protect.scratch import Scratch, remove_tree

_WATCH_POLL_S = 0.1


class _ParentWatch:
    """Looks in a thread for the end of a pipe, on which nothing comes meanwhile.

    Args:
        fd: Where requests will come.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more: a process with a second thread must not be forked."""
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_WATCH_POLL_S):
            if select.select([self._fd], [], [], 0.0)[0]:
                _end_at_once()


def _end_at_once() -> NoReturn:
    """End this process: an orderly end of torch takes most of a second.

    The folder of temporary files is the parent's to remove, which may have been killed, though.
    """
    remove_tree(Path(os.environ["TMPDIR"]))
    os._exit(0)


# What follows takes seconds, and many more where the disk is slow.
_watch = _ParentWatch(int(sys.argv[1]))
# Ask the driver's management library: asking CUDA itself would initialise it, and a process that
# has done so cannot be forked.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import msgspec

from breakeven.capture.answers import Ended, Started
from breakeven.capture.pretend.device_functions import device_functions
from breakeven.capture.process.child_run import answer, ready, send
from breakeven.capture.process.ending import adopt_orphans, end_descendants, end_with_parent
from breakeven.capture.process.script_output import TerminalState
from breakeven.capture.requests import Keep, Request

_POLL_S = 0.02


def main() -> None:
    """Serve requests until the parent closes its end."""
    request_fd, answer_fd, turn_fd = map(int, sys.argv[1:4])
    keep = msgspec.json.decode(sys.argv[4], type=Keep)
    _watch.stop()
    terminal = TerminalState(0)
    adopts = adopt_orphans()
    # What asks a program to end is the parent's to handle.
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in asking}
    # A child tells what is here: to ask GPUs of some kinds is to use them, and who has used them
    # cannot be forked.
    own, child = os.getpid(), os.fork()
    if child == 0:
        end_with_parent(own)
        send(answer_fd, ready())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("torch could not ask which GPUs are here")
    device_functions()  # every run needs to know them
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
                # The script and all that it starts can be ended as one group. Not as a session: its
                # leader would get the terminal as its own by opening it, and hang it up by its end.
                os.setpgid(0, 0)
                os.set_inheritable(answer_fd, False)
                os.set_inheritable(turn_fd, False)
                answer(request, keep, layer, answer_fd, turn_fd)
            send(answer_fd, Started(process=child))
            status = _wait(child, requests.fileno(), adopts=adopts)
            writes = layer.writes() if layer is not None else None
            if layer is not None:
                layer.remove()
            send(answer_fd, Ended(exit_code=os.waitstatus_to_exitcode(status), writes=writes))
    _end_at_once()


def _wait(child: int, parent_fd: int, *, adopts: bool) -> int:
    """Wait for the child, and end all that it leaves; also when the parent is gone."""
    while True:
        finished, status = os.waitpid(-1, os.WNOHANG)
        if finished == child:
            _end_run(child, adopts=adopts)  # data loader workers, for instance
            return status
        if finished:  # an orphan
            continue
        readable, _, _ = select.select([parent_fd], [], [], _POLL_S)
        if readable:  # nothing is asked while a run is on, so this is the end of the file
            _end_run(child, adopts=adopts)
            _end_at_once()


def _end_run(leader: int, *, adopts: bool) -> None:
    if adopts:
        end_descendants()
        return
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    main()
