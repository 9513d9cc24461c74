"""Run a script to its end in a process of its own, and return what it printed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from breakeven.capture.process.descendants import RUN_VARIABLE, end_run
from breakeven.capture.process.process_tree import OF_ITS_OWN, end_tree
from breakeven.errors import BreakevenError, ScriptError

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
    # -P: no file in the current folder takes the place of a module of Python's or torch's.
    command = ["-P", "-m", "breakeven.capture.gpu_stand_ins", str(num_devices)]
    return _run([*command, str(script), *arguments], script, time_limit_s)


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
    return _run([str(script), *arguments], script, time_limit_s)


def _run(command: Sequence[str], script: Path, time_limit_s: float) -> str:
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        [sys.executable, *command],
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
