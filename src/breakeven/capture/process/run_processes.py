"""Where the processes of runs come from, and what they say."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec

from breakeven.capture.answers import Message, Ready, Started
from breakeven.capture.process.ending import RUN_VARIABLE
from breakeven.capture.process.script_output import ScriptOutput
from breakeven.capture.requests import Request
from breakeven.errors import BreakevenError

START_LIMIT_S = 120.0
# How often it is looked after whether a process lives.
POLL_S = 0.2
_First = TypeVar("_First", Ready, Started)
_MESSAGES = msgspec.json.Decoder(Message)


class RunProcesses(ABC):
    """Makes a process for each run, one at a time, and receives its messages.

    Args:
        output: What scripts print.
    """

    # Imports torch, and answers for the run.
    process: subprocess.Popen[Any]

    def __init__(self, output: ScriptOutput) -> None:
        self.output = output
        self._ready: Ready | None = None

    def ready(self) -> Ready:
        """Wait until torch is imported, and return what is said of it."""
        if self._ready is None:
            self._ready = self._first_message(Ready)
        return self._ready

    def _first_message(self, kind: type[_First]) -> _First:
        """Wait for a process that imports torch to speak.

        Raises:
            BreakevenError: It was ended, is late, or failed.
        """
        message = self.receive(monotonic() + START_LIMIT_S)
        if isinstance(message, kind):
            return message
        status = self.process.poll()
        if status is None:
            told = f"torch was not imported by {sys.executable} within {START_LIMIT_S:g} s"
            hint = "try again when the machine, or the disk that torch lies on, is less busy"
        elif status < 0:
            name = signal.Signals(-status).name
            told = f"the process that imports torch was ended by signal {name}"
            hint = "the machine may be out of memory; or somebody has ended it: try again"
        else:
            last = "".join(f": {line}" for line in self.output.text().strip().splitlines()[-1:])
            told = f"torch could not be imported by {sys.executable}{last}"
            hint = "run `python -c 'import torch'` with the same Python"
        raise BreakevenError(told, hint=hint)

    @abstractmethod
    def begin(self, request: Request) -> None:
        """Have a request answered by a process of its own."""

    @abstractmethod
    def receive(self, deadline_s: float) -> Message | None:
        """Return the next message, or None when the deadline passes first.

        ``Ended`` is the last of a run.

        Args:
            deadline_s: By `monotonic`.
        """

    @abstractmethod
    def give_turn(self) -> None:
        """Let the run that waits for its turn go on."""

    @abstractmethod
    def end_run(self) -> None:
        """End the script's own process; whatever it has started ends with it."""

    @abstractmethod
    def close(self) -> None:
        """End every process."""


def parse(line: bytes | bytearray) -> Message | None:
    """Return a message; None for a line that is empty, or that a script has written."""
    with suppress(ValueError):
        return _MESSAGES.decode(line)
    return None


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules.

    No file in the current folder takes the place of a module of Python's or torch's.
    """
    return [sys.executable, "-P", "-m", f"breakeven.capture.{module}", *arguments]


def run_environment(scratch: Path) -> dict[str, str]:
    """Return the variables of the processes in which targets run.

    Args:
        scratch: Folder of their temporary files, which marks them too.
    """
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "TMPDIR": str(scratch),
        RUN_VARIABLE: str(scratch),
        # What is compiled once is there for every later run, as it is under plain Python.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        or f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}",
    }
