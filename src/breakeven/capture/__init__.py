"""Run the user's training script as it is, and record a step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from breakeven.capture._end_request import EndRequest as EndRequest
from breakeven.capture._end_request import become_script as become_script
from breakeven.capture._end_request import settings_text as settings_text
from breakeven.capture._keep import KEEP_NOTHING as KEEP_NOTHING
from breakeven.capture._keep import Keep as Keep
from breakeven.capture._launcher import Launcher as Launcher
from breakeven.capture._protocol import Answer as Answer
from breakeven.capture._protocol import FailureKind as FailureKind
from breakeven.capture._protocol import HostRun as HostRun
from breakeven.capture._protocol import LoaderUse as LoaderUse
from breakeven.capture._protocol import NumbersRun as NumbersRun
from breakeven.capture._protocol import OwnProcesses as OwnProcesses
from breakeven.capture._protocol import PlainRun as PlainRun
from breakeven.capture._protocol import ProbeRun as ProbeRun
from breakeven.capture._protocol import RunFailure as RunFailure
from breakeven.capture._protocol import RunRequest as RunRequest
from breakeven.capture._protocol import SourceFile as SourceFile
from breakeven.capture._protocol import Target as Target
from breakeven.capture._protocol import TargetKind as TargetKind
from breakeven.capture._protocol import ThreadTrial as ThreadTrial
from breakeven.capture._protocol import TracedRun as TracedRun
from breakeven.capture._script_process import run_on_pretended_gpus as run_on_pretended_gpus
from breakeven.capture._script_process import run_script as run_script
from breakeven.capture._source_files import file_digest as file_digest
from breakeven.capture._target import find_target as find_target
from breakeven.capture._turns import alternate as alternate

if TYPE_CHECKING:
    from breakeven.capture._fake_session import FakeSession as FakeSession
    from breakeven.capture._fake_session import FakeStep as FakeStep
    from breakeven.capture._in_process import Recording as Recording
    from breakeven.capture._in_process import record_steps as record_steps
    from breakeven.capture._in_process import time_step as time_step
    from breakeven.capture._in_process import trace_step as trace_step
    from breakeven.capture._pretended_gpus import pretended_gpus as pretended_gpus

# These run in the caller's process and need torch there; the command line does not.
_MODULES = {
    "FakeSession": "_fake_session",
    "FakeStep": "_fake_session",
    "pretended_gpus": "_pretended_gpus",
    "Recording": "_in_process",
    "record_steps": "_in_process",
    "time_step": "_in_process",
    "trace_step": "_in_process",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"breakeven.capture.{_MODULES[name]}"), name)
