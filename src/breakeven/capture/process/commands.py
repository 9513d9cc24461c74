"""The commands of Python that run our own modules; one of them becomes the script.

Imports little: a script that ``breakeven run`` starts waits for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from breakeven.capture.requests import EndRequest
from breakeven.trace import Configuration


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
