"""Run a script to its end: in a process of its own, or in the place of this one."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from breakeven.capture.process.ending import OF_ITS_OWN, RUN_VARIABLE, end_run, end_tree
from breakeven.capture.process.run_processes import python_command
from breakeven.capture.requests import EndRequest
from breakeven.errors import BreakevenError, ScriptError
from breakeven.trace import Configuration

_KEPT_CHARACTERS = 4_000


def run_on_pretended_gpus(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    num_devices: int = 1,
    time_limit_s: float = 120.0,
) -> str:
    """Run a script to its end on GPUs that are not there, and return what it printed.

    See `pretended_gpus` for what it meets.

    Args:
        script: Its file.
        arguments: ``sys.argv[1:]`` of the script.
        num_devices: How many GPUs there are.
        time_limit_s: When it is ended.

    Raises:
        ScriptError: It failed.
        BreakevenError: It did not end in time.
    """
    command = python_command("pretend.pretended_cuda", str(num_devices), str(script), *arguments)
    return _run(command, script, time_limit_s)


def run_script(
    script: Path,
    arguments: Sequence[str] = (),
    *,
    time_limit_s: float = 120.0,
) -> str:
    """Run a script to its end as it is, and return what it printed.

    Args:
        script: Its file.
        arguments: ``sys.argv[1:]`` of the script.
        time_limit_s: When it is ended.

    Raises:
        ScriptError: It failed.
        BreakevenError: It did not end in time.
    """
    return _run([sys.executable, str(script), *arguments], script, time_limit_s)


def _run(command: Sequence[str], script: Path, time_limit_s: float) -> str:
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env={**os.environ, RUN_VARIABLE: mark},
        **OF_ITS_OWN,
    )
    try:
        output, complaints = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        raise BreakevenError(
            f"{script.name} did not end within {time_limit_s:g} s", hint="raise --time-limit"
        ) from None
    finally:
        if process.poll() is None:
            end_tree(process)
            process.communicate()
        end_run(mark)
    if process.returncode:
        last = (complaints.strip() or output.strip() or "no message").splitlines()[-1]
        raise ScriptError(
            f"{script.name} ended with status {process.returncode}: {last}",
            hint=f"run it by itself: python {script}",
            output=(output + complaints)[-_KEPT_CHARACTERS:],
        )
    return output


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
