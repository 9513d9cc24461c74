"""The common start of every study: its target, this machine, and a process with torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

from breakeven.calibrate import (
    Speed,
    anchors_of,
    check_host_name,
    find_hosts,
    in_measured_machines,
    read_speeds,
)
from breakeven.capture import KEEP_NOTHING, Keep, Launcher, Ready, Target, find_target
from breakeven.device import AUTO, DeviceSpec, HostSpec
from breakeven.errors import Caveat, StoredDataError, UsageError
from breakeven.progress import Progress, SilentProgress
from breakeven.report import (
    RECORDING_VERSION,
    CheckReport,
    ExplainReport,
    RecordedStep,
    read_document,
    report_command,
)
from breakeven.simulate import Program, build_program
from breakeven.studies.host_work import host_for_prediction
from breakeven.studies.measured_step import MeasuredStep, TrainingLength, steps_per_epoch
from breakeven.studies.runner import Runner


class StudyOptions(TypedDict, total=False):
    """How a study runs its target. Every option may be left out.

    Args:
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run the target as ``python -m`` does.
        host: The host of the GPUs: ``auto`` (the default), ``here``, a kind of machine, or a CPU's
            name.
        measured: Speeds of the step on GPUs elsewhere: ``T4: 340 it/s``, ``colab T4: 45 s/epoch``.
        time_limit_s: Limit of each run, in seconds; 300 by default.
        keep: Side effects of the target that are real; by default none.
        progress: Progress callback.
        launcher: Starts the processes of several studies, instead of ``keep``. By default each
            study has its own, which takes some seconds to import torch.
    """

    arguments: Sequence[str]
    is_module: bool
    host: str
    measured: Sequence[str]
    time_limit_s: float
    keep: Keep
    progress: Progress | None
    launcher: Launcher | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A target, this machine, and a runner for both; made by `start_study`.

    Args:
        target: The target to run.
        runner: Runs it.
        launcher: Starts the processes.
        ready: Facts about torch and this machine from the first process.
        devices: GPUs to predict.
        host: The host that issues their work.
        here: This machine, with its costs.
        speeds: Speeds of the step on GPUs elsewhere, by the user's words.
        progress: Progress callback.
    """

    target: Target
    runner: Runner
    launcher: Launcher
    ready: Ready
    devices: tuple[DeviceSpec, ...]
    host: HostSpec
    here: HostSpec
    speeds: Mapping[str, Speed]
    progress: Progress

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return the caveats that are known before any run."""
        return *self.ready.caveats, *self.target.caveats


@contextmanager
def start_study(
    target: str,
    *,
    devices: Sequence[DeviceSpec] = (),
    budget_s: float = 1.0,
    **options: Unpack[StudyOptions],
) -> Iterator[Study]:
    """Check the arguments, start torch, and measure this machine before any run.

    Leaving the context ends all processes.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        devices: GPUs to predict.
        budget_s: Seconds of timed steps that suffice if steps are short.
        **options: Of the runs; see `StudyOptions`.

    Raises:
        UsageError: If torchrun started this process.
        BreakevenError: If a host is unknown, a speed is invalid, or there is no such target.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "torchrun started breakeven, which runs one process of the script, alone",
            hint="leave torchrun out: RANK=0 LOCAL_RANK=0 WORLD_SIZE=N breakeven ..., with the "
            "number of processes as N",
        )
    if unknown := options.keys() - StudyOptions.__annotations__.keys():
        raise TypeError(f"a study has no option {min(unknown)}")
    host = options.get("host", AUTO)
    check_host_name(host)
    speeds = read_speeds(options.get("measured", ()))
    found = find_target(
        target, options.get("arguments", ()), is_module=options.get("is_module", False)
    )
    progress = options.get("progress") or SilentProgress()
    time_limit_s = options.get("time_limit_s", 300.0)
    launcher = options.get("launcher")
    own = nullcontext(launcher) if launcher else Launcher(options.get("keep", KEEP_NOTHING))
    with own as processes:
        progress.begin("starting torch")
        ready = processes.ready()
        kinds = {one.device.id: one.kind for one in speeds.values() if one.kind}
        fed_by, here = find_hosts(host, processes, kinds)
        yield Study(
            target=found,
            runner=Runner(processes, found, time_limit_s, progress, budget_s=budget_s),
            launcher=processes,
            ready=ready,
            devices=tuple(devices),
            host=fed_by,
            here=here,
            speeds=speeds,
            progress=progress,
        )


def host_as_told(study: Study, step: MeasuredStep) -> tuple[HostSpec, tuple[Caveat, ...]]:
    """Return the host of the GPUs, adjusted to speeds measured elsewhere, and caveats on these.

    Args:
        study: The study of the step.
        step: The step on this machine.

    Raises:
        UsageError: If a speed has an unknown unit of steps, or is far from the prediction.
    """
    host = in_measured_machines(study.host)
    if not study.speeds:
        return host, ()
    size, per_epoch = step.program.trace.batch_size, steps_per_epoch(step.as_set.loader)
    epoch = TrainingLength(num_epochs=1)
    counts = {"sample": size and 1 / size, "epoch": epoch.steps(per_epoch)}
    seen = host_for_prediction(step.program, step.plain, host, study.here)
    new, told = anchors_of(study.speeds, step.program, seen, study.target.label, counts)
    return in_measured_machines(study.host, new), told


# The file of a run that check or explain stored, or its report.
StoredRun = str | os.PathLike[str] | CheckReport | ExplainReport


def read_recorded(
    run: StoredRun, command: str
) -> tuple[CheckReport | ExplainReport, RecordedStep, Program]:
    """Return a stored run of ``breakeven check`` or ``explain``, its recording, and its kernels.

    Args:
        run: The file, or the report itself.
        command: The command that reads it, for errors.

    Raises:
        StoredDataError: If the file cannot be read, is cut off, has another version, was changed by
            hand, or holds no recorded step.
    """
    is_file = isinstance(run, str | os.PathLike)
    report = read_document(run) if is_file else run
    path = run if is_file else "the report"
    if not isinstance(report, CheckReport | ExplainReport):
        raise StoredDataError(
            f"{path} is a run of breakeven {report_command(report)}, which records no step",
            hint=f"{command} reads what breakeven check or explain wrote with -o FILE",
        )
    recording = report.recording
    again = f"use the script itself: breakeven {command} TARGET"
    if recording is None:
        raise StoredDataError(
            f"{path} holds no recorded step: it was printed with --json, or written by an "
            "earlier breakeven",
            hint=f"write it with -o FILE, or {again}",
        )
    if recording.version != RECORDING_VERSION:
        raise StoredDataError(
            f"{path} holds a step recorded in version {recording.version}; this breakeven reads "
            f"version {RECORDING_VERSION}",
            hint=again,
        )
    if not recording.is_whole:
        raise StoredDataError(
            f"{path} was edited or damaged: its recorded step has changed", hint=again
        )
    try:
        return report, recording, build_program(recording.trace)
    # The digest is right, so the file was not edited: another breakeven recorded a step that this
    # one cannot price, or the file was forged.
    except (LookupError, TypeError, ValueError, ArithmeticError, AssertionError) as error:
        raise StoredDataError(
            f"{path} holds a step that cannot be simulated: {type(error).__name__}: {error}",
            hint=f"use the script itself: breakeven {command} {report.target}",
        ) from error
