"""Processes that the script itself starts, whose training steps are invisible."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from breakeven.capture.failures import source_line
from breakeven.capture.location import is_user_file, locate
from breakeven.capture.messages import OwnProcesses
from breakeven.configure import Patches
from breakeven.trace import Location

# Keep the original: a script may replace it.
_getpid = os.getpid
# Processes that libraries start for other work than training.
_LIBRARY_WORK = (
    "torch.utils.data.", "multiprocessing.managers", "multiprocessing.resource",
    "breakeven.capture.record.loader_facts",
)  # fmt: skip
_PYTHON_PROGRAMS = ("python", "torchrun", "accelerate", "deepspeed")


class ProcessWatch(Patches):
    """Inside, notes the lines that start processes."""

    def __init__(self) -> None:
        super().__init__()
        self._process = _getpid()
        self._num_started = 0
        self._location: Location | None = None
        self._function = ""

    def _apply(self) -> None:
        start, popen = BaseProcess.start, subprocess.Popen.__init__

        @functools.wraps(start)
        def start_noted(process: BaseProcess) -> None:
            target = getattr(process, "_target", None)
            while isinstance(target, functools.partial):
                target = target.func
            if not str(getattr(target, "__module__", "")).startswith(_LIBRARY_WORK):
                self._note(_function_of(process))
            start(process)

        @functools.wraps(popen)
        def popen_noted(process: Any, args: Any, *others: Any, **options: Any) -> None:
            if _is_python(args):
                self._note("")
            popen(process, args, *others, **options)

        self.replace(BaseProcess, "start", start_noted)
        self.replace(subprocess.Popen, "__init__", popen_noted)

    @property
    def is_own(self) -> bool:
        """Return whether this is the script's own process, not one that it forked."""
        return _getpid() == self._process

    def found(self) -> OwnProcesses | None:
        """Return the facts about the processes; None if the script started none."""
        if self._location is None:
            return None
        return OwnProcesses(
            num_started=self._num_started,
            location=self._location,
            source=source_line(self._location),
            function=self._function,
        )

    def _note(self, function: str) -> None:
        location = locate(sys._getframe(1))
        if location is not None and self.is_own:
            self._num_started += 1
            self._location, self._function = location, function or self._function


def _function_of(process: BaseProcess) -> str:
    """Return ``train.py:train`` if the process runs a function of the user, else nothing."""
    function = getattr(process, "_target", None)
    if getattr(function, "__module__", "") == "torch.multiprocessing.spawn":
        function = next(iter(getattr(process, "_args", ())), None)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", "")
    if code is None or not name.isidentifier() or not is_user_file(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{name}"


def _is_python(command: Any) -> bool:
    first = command[0] if isinstance(command, list | tuple) and command else command
    words = os.fsdecode(first).split() if isinstance(first, str | bytes | os.PathLike) else []
    return bool(words) and Path(words[0]).name.startswith(_PYTHON_PROGRAMS)
