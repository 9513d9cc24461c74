"""The answer to `breakeven explain`, as values."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.report.recording import RecordedStep
from breakeven.simulate import Attribution, Bound, Finding, Side
from breakeven.trace import FileWrites
from breakeven.verdict.program_summary import ProgramSummary
from breakeven.verdict.report import HostSummary, StepSummary, Verdict
from breakeven.verdict.results import DeviceResult, Nanoseconds

EXPLAIN_SCHEMA_VERSION = 3

HOST_TRACK = "host"
DEVICE_TRACK = "device"


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happens on one of the two timelines, from when to when.

    Args:
        track: ``host`` or ``device``.
        name: Operator, copy, wait or kind of host work: ``aten.addmm.default``.
        cause: As in an attribution: ``dispatcher``, ``device-gemm``, ``sync``, ...
        phase: Part of the step.
        module: Dotted path of the module; empty outside of modules.
        file: The user's file; null where there is none.
        line: Its line.
        start_ns: Since the step began on the host; a device may lag behind into the next step.
        end_ns: End.
        is_critical: Whether the end of the step waits for some of it.
    """

    track: str
    name: str
    cause: str
    phase: str
    module: str
    file: str | None
    line: int | None
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    is_critical: bool


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step on every device after one more fix; the first entry is the step as it is.

    Args:
        code: Rule of the finding that was fixed; empty for the step as it is.
        title: What was fixed, in one line.
        file: The user's file; null where the finding has no line.
        line: Its line.
        side: Whose step the fix changes.
        results: One for each device, as in a check.
        verdict: Where to train then.
    """

    code: str
    title: str
    file: str | None
    line: int | None
    side: Side
    results: tuple[DeviceResult, ...]
    verdict: Verdict


class ExplainReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven explain` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        target: What was explained, as it was given.
        host: The machine that feeds the devices.
        step: The recorded step.
        device: The GPU whose step is taken apart.
        results: One for each device, those that are here first.
        verdict: Where to train.
        step_ns: The step on ``device``, predicted.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        bound: What limits it.
        host_busy_ns: The host's own work within the step.
        device_busy_ns: Kernels and copies within it.
        attribution: The step taken apart; its parts add up to it.
        timeline: Both timelines of one step, in the order of the start; long steps are cut to the
            longest spans, and a caveat says so.
        findings: What costs time, lines that would raise first, then by gain.
        plan: The step on every device after one fix after another.
        num_suppressed: Findings left out because other rules than those asked for found them.
        caveats: Reasons to trust all figures less.
        recording: The step itself, in stored runs only.
        program: The whole training, which is more than its steps; null in older reports.
        writes: What a run of the script wrote, and what became of that; null where it did not run,
            and in older reports.
    """

    schema_version: int
    target: str
    host: HostSummary
    step: StepSummary
    device: str
    results: tuple[DeviceResult, ...]
    verdict: Verdict
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    bound: Bound
    host_busy_ns: Nanoseconds
    device_busy_ns: Nanoseconds
    attribution: Attribution
    timeline: tuple[TimelineSpan, ...]
    findings: tuple[Finding, ...] = ()
    plan: tuple[PlanStep, ...] = ()
    num_suppressed: int = 0
    caveats: tuple[Caveat, ...] = ()
    recording: RecordedStep | None = None
    program: ProgramSummary | None = None
    writes: FileWrites | None = None
