"""Ask for a run of the script to its end, which takes the place of this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from breakeven.trace import Configuration

_RUNNER = "breakeven.capture.process.run_to_end"


class EndRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a script is run to its end.

    Args:
        is_module: The target is the name of a module.
        device: Where the step runs; for ``cpu``, CUDA is hidden.
        has_cuda: Have CUDA calls run by the CPU, and let ``torch.cuda.is_available()`` say yes, for
            scripts that refuse to run without a GPU.
        configuration: Settings in effect around the script.
        num_steps: Steps that the run will have; 0 where that is not known.
        is_quiet: Write nothing of breakeven's own.
    """

    is_module: bool
    device: Literal["cpu", "gpu"]
    has_cuda: bool
    configuration: Configuration
    num_steps: int
    is_quiet: bool


def become_script(request: EndRequest, target: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by one that runs the script to its end.

    On Windows, where a process that is replaced ends for whoever waits for it, it stays and waits.

    Args:
        request: How.
        target: Path of the script, or name of the module.
        arguments: ``sys.argv[1:]`` of the script.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # -P: no file in the current folder takes the place of a module of Python's or torch's before
    # the script is reached.
    command = [sys.executable, "-P", "-m", _RUNNER]
    request_text = msgspec.json.encode(request).decode()
    command += [request_text, target, *arguments]
    if not hasattr(os, "fork"):
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


def settings_text(configuration: Configuration) -> str:
    """Return a configuration in one line: ``num_threads=1, optimizer=fused``."""
    changes = (
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in configuration.changes.items()
    )
    return ", ".join(changes) or "as the script is"
