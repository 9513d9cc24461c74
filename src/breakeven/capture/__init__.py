"""Runs of the user's unmodified training script, and recordings of its steps.

A `Launcher` (in ``process``) sends a request to a process that it started, and receives an answer.
That process isolates the script's files, trackers and services (``protect``). It runs the script
inside a session of the requested kind (``sessions``). Sessions that record a step use ``record``
for its operators and loaders, and ``pretend`` for an absent GPU.
"""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.capture.failures import failure_of as failure_of
    from breakeven.capture.failures import script_error as script_error
    from breakeven.capture.location import file_digest as file_digest
    from breakeven.capture.location import name_cells as name_cells
    from breakeven.capture.messages import KEEP_NOTHING as KEEP_NOTHING
    from breakeven.capture.messages import Answer as Answer
    from breakeven.capture.messages import FailureKind as FailureKind
    from breakeven.capture.messages import Gap as Gap
    from breakeven.capture.messages import HostRun as HostRun
    from breakeven.capture.messages import Keep as Keep
    from breakeven.capture.messages import LoaderUse as LoaderUse
    from breakeven.capture.messages import NumbersRun as NumbersRun
    from breakeven.capture.messages import OtherWork as OtherWork
    from breakeven.capture.messages import OwnProcesses as OwnProcesses
    from breakeven.capture.messages import PlainRun as PlainRun
    from breakeven.capture.messages import Ready as Ready
    from breakeven.capture.messages import RunFailure as RunFailure
    from breakeven.capture.messages import RunRequest as RunRequest
    from breakeven.capture.messages import SourceFile as SourceFile
    from breakeven.capture.messages import ThreadTrial as ThreadTrial
    from breakeven.capture.messages import TracedRun as TracedRun
    from breakeven.capture.pretend.fake_cuda import fake_gpus as fake_gpus
    from breakeven.capture.pretend.fake_session import FakeSession as FakeSession
    from breakeven.capture.process.launcher import Launcher as Launcher
    from breakeven.capture.process.launcher import run_on_fake_gpus as run_on_fake_gpus
    from breakeven.capture.process.launcher import run_script as run_script
    from breakeven.capture.process.run_to_end import EndRequest as EndRequest
    from breakeven.capture.process.run_to_end import become_script as become_script
    from breakeven.capture.process.run_to_end import go_on_as_script as go_on_as_script
    from breakeven.capture.process.run_to_end import settings_text as settings_text
    from breakeven.capture.sessions.in_process import FirstSteps as FirstSteps
    from breakeven.capture.sessions.in_process import Recording as Recording
    from breakeven.capture.sessions.in_process import TrainingLoop as TrainingLoop
    from breakeven.capture.sessions.in_process import kept_training as kept_training
    from breakeven.capture.sessions.in_process import record_steps as record_steps
    from breakeven.capture.sessions.in_process import step_name as step_name
    from breakeven.capture.sessions.in_process import time_step as time_step
    from breakeven.capture.sessions.in_process import trace_step as trace_step
    from breakeven.capture.sessions.interleaved_runs import alternate as alternate
    from breakeven.capture.target import Target as Target
    from breakeven.capture.target import TargetKind as TargetKind
    from breakeven.capture.target import find_target as find_target

__getattr__ = exported_on_use(__name__)
