"""The answer to `breakeven explain`, as values."""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.report.recording import RecordedStep
from breakeven.simulate import Attribution, Bound, Finding, Side
from breakeven.trace import FileWrites
from breakeven.verdict.program import ProgramSummary
from breakeven.verdict.report import HostSummary, StepSummary, Verdict
from breakeven.verdict.results import DeviceResult, Nanoseconds

EXPLAIN_SCHEMA_VERSION = 3

HOST_TRACK = "host"
DEVICE_TRACK = "device"


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A span of one of the two timelines.

    Args:
        track: ``host`` or ``device``.
        name: Operator, copy, wait or kind of host work: ``aten.addmm.default``.
        cause: Cause, as in an attribution: ``dispatcher``, ``device-gemm``, ``sync``, ...
        phase: Part of the step.
        module: Dotted path of the module; empty outside modules.
        file: File of the user's code; null if none.
        line: Its line.
        start_ns: Start, relative to the step's start on the host; a device may lag into the next
            step.
        end_ns: End, on the same scale.
        is_critical: Whether part of it is on the critical path of the step.
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
    """The step on every device after one more fix; the first entry is the unchanged step.

    Args:
        code: Rule of the fixed finding; empty for the unchanged step.
        title: The fix, in one line.
        file: File of the user's code; null if the finding has no line.
        line: Its line.
        side: The side whose step the fix changes.
        results: One result for each device, as in a check.
        verdict: Where to train after the fix.
    """

    code: str
    title: str
    file: str | None
    line: int | None
    side: Side
    results: tuple[DeviceResult, ...]
    verdict: Verdict


class ExplainReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven explain`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        target: The script or module, as given.
        host: The machine that feeds the devices.
        step: The recorded step.
        device: The GPU whose step is broken down.
        results: One result for each device; devices of this machine come first.
        verdict: Where to train.
        step_ns: Predicted step time on ``device``.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        bound: The bottleneck of the step.
        host_busy_ns: The host's own work within the step.
        device_busy_ns: Time of kernels and copies within the step.
        attribution: The breakdown of the step; its parts add up to the step time.
        timeline: Both timelines of one step, by start; a long step keeps only its longest spans,
            and a caveat says so.
        findings: Lines that cost time; lines that would raise an error come first, then by gain.
        plan: The step on every device as fixes are added one by one.
        num_suppressed: Findings left out because their rules were not requested.
        caveats: Reasons to trust all figures less.
        recording: The recorded step; only in stored runs.
        program: The whole training, which is more than its steps; null in older reports.
        writes: Files that a run of the script wrote, and what happened to them; null if it did not
            run, and in older reports.
        command: The command that made the report, without options of output; empty if no command
            did, and in older reports.
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
    command: str = ""
