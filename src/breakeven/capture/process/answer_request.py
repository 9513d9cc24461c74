"""Do what a request asks for, in the process that was made for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import numpy.ma  # noqa: F401 - what takes a median needs it, when a script may hide it
import torch
import torch._dynamo  # every torch.optim needs it; importing it takes as long as torch itself

from breakeven.capture.answers import HostRun, Ready
from breakeven.capture.process.answer_pipe import send
from breakeven.capture.process.child_run import ChildRun
from breakeven.capture.process.failure_facts import internal_failure
from breakeven.capture.protect.quiet_trackers import QuietTrackers
from breakeven.capture.protect.scratch import Layer
from breakeven.capture.requests import HostRequest, Keep, Request
from breakeven.capture.sessions.gpu_here import gpu_here
from breakeven.capture.sessions.turns import can_take_long_turns
from breakeven.errors import Caveat
from breakeven.measure import OtherLoad, measure_host
from breakeven.processor import cpu_name

# CUDA's own, and that of AMD's runtime, which reads both.
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def ready(caveats: tuple[Caveat, ...] = ()) -> Ready:
    """Return what is known of torch and of this machine.

    Args:
        caveats: What this system cannot do.
    """
    return Ready(
        torch_version=str(torch.__version__),
        processor=cpu_name(),
        gpu=gpu_here(),
        can_take_long_turns=can_take_long_turns(),
        caveats=caveats,
    )


def answer(
    request: Request, keep: Keep, layer: Layer | None, answer_fd: int, turn_fd: int
) -> NoReturn:
    """Do it, send the answer, and end the process.

    Args:
        request: What is asked for.
        keep: What of the script's side effects is to be real.
        layer: Where the script writes to.
        answer_fd: File descriptor for messages to the parent.
        turn_fd: File descriptor for the turns of a run that takes turns.
    """
    if isinstance(request, HostRequest):
        load = OtherLoad()
        calibration = measure_host(num_rounds=request.num_rounds)
        send(answer_fd, HostRun(calibration=calibration, other_load_fraction=load.fraction()))
        os._exit(0)
    if not request.on_gpu:
        os.environ.update(dict.fromkeys(_VISIBLE_DEVICES, ""))
    if layer is not None:
        try:
            layer.enter()
        except OSError:
            send(answer_fd, internal_failure())
            os._exit(0)
    # Of its own: in a folder with the experiments of the run before, a script may make none anew.
    folder = Path(os.environ["TMPDIR"], f"trackers-{os.getpid()}")
    trackers = None if keep.trackers else QuietTrackers(folder)
    ChildRun(request, answer_fd, turn_fd, trackers).run()
