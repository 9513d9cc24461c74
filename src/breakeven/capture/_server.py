"""The process that imports torch once and forks a fresh child for every run.

Started as ``python -P -m breakeven.capture._server``; reads requests from the file descriptor in
``sys.argv[1]``, and hands to the children ``sys.argv[2]`` for their answers and ``sys.argv[3]`` for
the turns of those that take turns with another run. It never runs code of the user, so every child
starts from the same clean state without paying for the import again.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from typing import NoReturn

# Ask the driver's management library: asking CUDA itself would initialise it, and a process that
# has done so cannot be forked.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import msgspec
import torch
import torch._dynamo  # every torch.optim needs it; importing it takes as long as torch itself

from breakeven.capture._child_run import ChildRun
from breakeven.capture._device_functions import device_functions
from breakeven.capture._protocol import (
    Ended,
    HostRequest,
    HostRun,
    Ready,
    Request,
    Started,
)
from breakeven.capture._script_terminal import TerminalState
from breakeven.capture._turns import can_take_long_turns
from breakeven.measure import OtherLoad, measure_host
from breakeven.processor import cpu_name

_POLL_S = 0.02


def main() -> None:
    """Serve requests until the parent closes its end."""
    request_fd, answer_fd, turn_fd = map(int, sys.argv[1:4])
    terminal = TerminalState(0)
    # Ctrl-C is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _send(
        answer_fd,
        Ready(
            torch_version=str(torch.__version__),
            processor=cpu_name(),
            has_cuda=torch.cuda.is_available(),
            can_take_long_turns=can_take_long_turns(),
        ),
    )
    device_functions()  # every run needs to know them
    with os.fdopen(request_fd, "rb", buffering=0) as requests:
        for line in requests:
            request = msgspec.json.decode(line, type=Request)
            terminal.restore()
            child = os.fork()
            if child == 0:
                requests.close()
                _become_child(request, answer_fd, turn_fd)
            _send(answer_fd, Started(process=child))
            status = _wait(child, requests.fileno())
            _send(answer_fd, Ended(exit_code=os.waitstatus_to_exitcode(status)))
    _end()


def _become_child(request: Request, answer_fd: int, turn_fd: int) -> None:
    # The script and all that it starts can be ended as one group. Not as a session: its leader
    # would get the terminal as its own by opening it, and hang it up for all by its end.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.set_inheritable(answer_fd, False)
    os.set_inheritable(turn_fd, False)
    if isinstance(request, HostRequest):
        load = OtherLoad()
        calibration = measure_host(num_rounds=request.num_rounds)
        _send(answer_fd, HostRun(calibration=calibration, other_load_fraction=load.fraction()))
        os._exit(0)
    if not request.on_cuda:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    ChildRun(request, answer_fd, turn_fd).run()


def _wait(child: int, parent_fd: int) -> int:
    """Wait for the child; end it when the parent is gone."""
    while True:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            _end_group(child)  # data loader workers, for instance
            return status
        readable, _, _ = select.select([parent_fd], [], [], _POLL_S)
        if readable:  # nothing is asked while a run is on, so this is the end of the file
            _end_group(child)
            _end()


def _end() -> NoReturn:
    """End at once: an orderly end of torch takes most of a second.

    The folder of temporary files is the parent's to remove, which may have been killed, though.
    """
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    os._exit(0)


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _send(fd: int, message: Ready | Started | HostRun | Ended) -> None:
    os.write(fd, msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    main()
