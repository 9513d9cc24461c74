"""Explain a run that was stored: on the devices that it had, or on others."""

from __future__ import annotations

import os
from collections.abc import Sequence

from breakeven.device import DeviceSpec, find_device, select_devices
from breakeven.errors import Caveat, StoredDataError
from breakeven.explain.explanation import chosen_rules, explained
from breakeven.report import read_document, report_command
from breakeven.session import ComparedStep
from breakeven.simulate import Program, build_program
from breakeven.timing import Source
from breakeven.verdict import (
    RECORDING_VERSION,
    CheckReport,
    DeviceKind,
    DeviceResult,
    ExplainReport,
    RecordedStep,
    facts_of,
)

_NO_CPU_TRIALS = Caveat(
    code="no-cpu-trials",
    message="the step was not measured under other settings of the CPU, as `explain` of a script "
    "does; findings that need that were not looked for",
)
_NO_SOURCE = Caveat(
    code="no-source",
    message="the stored run holds no source of the script: its lines are not shown, and findings "
    "that only the source shows were not looked for",
)
# Those that each explanation adds by itself.
_OWN_CAVEATS = frozenset(
    {"timeline-cut", "disturbed-findings", _NO_CPU_TRIALS.code, _NO_SOURCE.code}
)


def explain_run(
    path: str | os.PathLike[str], *, devices: Sequence[str] = (), rules: Sequence[str] = ()
) -> ExplainReport:
    """Explain the run in ``path``, as ``breakeven check`` or ``explain`` wrote it with ``-o``.

    Nothing is run or measured again: the host is that of the stored run.

    Args:
        path: The file.
        devices: Names of GPUs; the step is taken apart on the first. By default those of the
            stored run, and the step of the one that its verdict was about.
        rules: Codes or causes of the rules whose findings are wanted; all by default.

    Raises:
        BreakevenError: A device or rule is unknown.
        StoredDataError: The file cannot be read, is cut off, of another version, was changed by
            hand, or holds no recorded step.
    """
    wanted = chosen_rules(rules)
    report = read_document(path)
    if not isinstance(report, CheckReport | ExplainReport):
        raise StoredDataError(
            f"{path} is a run of breakeven {report_command(report)}, which records no step",
            hint="explain reads what breakeven check or explain wrote with -o FILE",
        )
    recording = _ensure_recording(path, report.recording)
    measured = tuple(result for result in report.results if result.source is Source.MEASURED)
    device, specs = _devices(report, devices)
    step = ComparedStep(
        program=_priced(path, report.target, recording),
        devices=specs,
        host=recording.host,
        measured=measured,
        sources=recording.sources,
    )
    return explained(
        step,
        device or specs[0],
        target=report.target,
        host=report.host,
        recording=recording,
        rules=wanted,
        caveats=(
            *(c for c in report.caveats if c.code not in _OWN_CAVEATS),
            *_missing(recording),
        ),
        program=facts_of(report.program) if report.program else None,
        num_steps=report.program.num_steps if report.program else None,
    )


def _missing(recording: RecordedStep) -> tuple[Caveat, ...]:
    no_trials = () if recording.cpu is not None else (_NO_CPU_TRIALS,)
    return no_trials if recording.sources else (*no_trials, _NO_SOURCE)


def _priced(path: str | os.PathLike[str], target: str, recording: RecordedStep) -> Program:
    """Return the step with its kernels, where every operator can be lowered.

    The digest holds, so nobody edited it: another breakeven recorded what this one cannot price,
    or somebody made the file up.
    """
    try:
        return build_program(recording.trace)
    except (LookupError, TypeError, ValueError, ArithmeticError, AssertionError) as error:
        raise StoredDataError(
            f"{path} holds a step that cannot be simulated: {type(error).__name__}: {error}",
            hint=_rerun(target),
        ) from error


def _ensure_recording(path: str | os.PathLike[str], recording: RecordedStep | None) -> RecordedStep:
    if recording is None:
        raise StoredDataError(
            f"{path} holds no recorded step: it was printed with --json, or written by an "
            "earlier breakeven",
            hint="write it with -o FILE, or explain the script itself: breakeven explain TARGET",
        )
    if recording.version != RECORDING_VERSION:
        raise StoredDataError(
            f"{path} holds a step recorded in version {recording.version}; this breakeven reads "
            f"version {RECORDING_VERSION}",
            hint="explain the script itself: breakeven explain TARGET",
        )
    if not recording.is_whole:
        raise StoredDataError(
            f"{path} was edited or damaged: its recorded step is not what was written",
            hint="explain the script itself: breakeven explain TARGET",
        )
    return recording


def _devices(
    report: CheckReport | ExplainReport, names: Sequence[str]
) -> tuple[DeviceSpec | None, tuple[DeviceSpec, ...]]:
    """Return the device that is taken apart (None for the first), and all to predict."""
    if names:
        return None, select_devices(names)
    predicted = [result for result in report.results if _is_predicted_gpu(result)]
    specs = select_devices([result.device for result in predicted])
    if isinstance(report, ExplainReport):
        return find_device(report.device), specs
    named = (report.verdict.device, report.verdict.over)
    return next((spec for spec in specs if spec.name in named), None), specs


def _is_predicted_gpu(result: DeviceResult) -> bool:
    return result.kind is DeviceKind.GPU and result.source is Source.PREDICTED


def _rerun(target: str) -> str:
    return f"explain the script itself: breakeven explain {target}"
