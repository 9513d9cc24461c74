"""One run in a process of its own that imports torch anew, where processes cannot be forked.

Started as ``python -P -m breakeven.capture.process.spawned_run KIND KEEP``. With ``ready`` it says
``Ready``, and ends. With ``run`` it says ``Started`` and reads a request from its standard input;
the turns of a run that takes turns come there too, and with the end of the input everything ends,
since the parent is gone. Messages go to standard output, and what the script prints to standard
error.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec

from breakeven.capture.process.ending import end_all_with_this_process
from breakeven.errors import Caveat

_SPAWNED = Caveat(
    code="spawned",
    message="this system cannot fork a process that has imported torch: each run of the script "
    "imports it anew, which takes longer; it has no terminal, what it writes past Python's own "
    "functions is real, and a program that makes itself a daemon outlives the run",
)

# Not the stand-in that a script is given for it.
_exit = os._exit


def main() -> None:
    """Say what is here, or answer one request."""
    end_all_with_this_process()
    request_fd, answer_fd = _take_streams()
    # What torch prints while it is imported is no answer.
    from breakeven.capture.answers import Started
    from breakeven.capture.pretend.device_functions import device_functions
    from breakeven.capture.process.child_run import answer, ready, send
    from breakeven.capture.protect.scratch import Scratch
    from breakeven.capture.requests import Keep, Request

    if sys.argv[1] == "ready":
        send(answer_fd, ready((_SPAWNED,)))
        _exit(0)  # an orderly end of torch takes most of a second
    device_functions()  # every run needs to know them
    send(answer_fd, Started(process=os.getpid()))
    with open(request_fd, "rb", buffering=0, closefd=False) as requests:
        line = requests.readline()
    if not line:
        _exit(0)  # there is nobody any more
    request = msgspec.json.decode(line, type=Request)
    keep = msgspec.json.decode(sys.argv[2], type=Keep)
    layer = Scratch(Path(os.environ["TMPDIR"]), keep, may_fork=False).layer_for(request)
    answer(request, keep, layer, answer_fd, _turns_from(request_fd))


def _take_streams() -> tuple[int, int]:
    """Return where requests come from and answers go to, and leave the script other streams."""
    request_fd, answer_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return request_fd, answer_fd


def _turns_from(request_fd: int) -> int:
    """Return where the turns come from; everything ends when the parent does."""
    turn_fd, relay_fd = os.pipe()

    def relay() -> None:
        while turn := os.read(request_fd, 1):
            os.write(relay_fd, turn)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        _exit(1)

    threading.Thread(target=relay, daemon=True).start()
    return turn_fd


if __name__ == "__main__":
    main()
