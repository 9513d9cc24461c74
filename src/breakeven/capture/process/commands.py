"""The commands of Python that run our own modules; one of them becomes the script.

Imports little: a script that ``breakeven run`` starts waits for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn

import msgspec

from breakeven.trace import Configuration


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
        pays_after_s: What costs time once, such as compiling, begins when steps have gone on for so
            long; 0 for at once.
        pays_after_steps: And not before so many of them.
    """

    is_module: bool
    device: Literal["cpu", "gpu"]
    has_cuda: bool
    configuration: Configuration
    num_steps: int
    is_quiet: bool
    pays_after_s: float = 0.0
    pays_after_steps: int = 0


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules.

    No file in the current folder takes the place of a module of Python's or torch's.
    """
    return [sys.executable, "-P", "-m", f"breakeven.capture.{module}", *arguments]


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
    request_text = msgspec.json.encode(request).decode()
    command = python_command("process.run_to_end", request_text, target, *arguments)
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
