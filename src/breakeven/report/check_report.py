"""The answer to `breakeven check`, as values: what the JSON document and every renderer show.

The JSON schema is generated from these types, so a changed key is a changed contract: raise
``SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.report.recording import RecordedStep
from breakeven.simulate import Finding
from breakeven.trace import FileWrites
from breakeven.verdict.compiled import CapturedStep, CompiledSteps
from breakeven.verdict.generated import GeneratedStep
from breakeven.verdict.program_summary import ProgramSummary
from breakeven.verdict.report import (
    Crossover,
    Curve,
    HostSummary,
    NoCrossover,
    StepSummary,
    Verdict,
)
from breakeven.verdict.results import DeviceResult

SCHEMA_VERSION = 3


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `breakeven check` found out.

    Args:
        schema_version: Raised when a key goes away or changes its meaning.
        target: What was checked, as it was given.
        host: The machine that feeds the devices.
        step: The recorded step.
        results: One for each device, those that are here first.
        verdict: Where to train.
        crossover: From which batch size on a GPU wins, or why that is not told.
        findings: What costs time on a GPU, lines that would raise first, then by gain.
        caveats: Reasons to trust all figures less; those of one device are in its result.
        curves: Step times along the batch size; empty where it was not varied.
        recording: The step itself, in stored runs only: `explain` reads it.
        program: The whole training, which is more than its steps; null in older reports.
        writes: What a run of the script wrote, and what became of that; null where it did not run,
            and in older reports.
        generated: This CPU's step as generated code; null where there is none, and in older
            reports. The verdict does not count it: the script is judged as it is.
        generated_crossover: From which batch size on a GPU wins against that; null where it gains
            nothing, and where no DataLoader sets the size.
        absent_cpus: The step on CPUs that were named and are not here, predicted from this one's;
            empty in older reports. The verdict does not count them: GPUs are compared with this
            CPU.
        compiled: The step as ``torch.compile`` would make it; null where nobody asked for that, and
            in older reports. The verdict does not count it.
        captured: The step of the fastest GPU as one CUDA graph, where the host decides how long it
            takes; else null, as in older reports. The verdict does not count it.
    """

    schema_version: int
    target: str
    host: HostSummary
    step: StepSummary
    results: tuple[DeviceResult, ...]
    verdict: Verdict
    crossover: Crossover | NoCrossover
    findings: tuple[Finding, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    curves: tuple[Curve, ...] = ()
    recording: RecordedStep | None = None
    program: ProgramSummary | None = None
    writes: FileWrites | None = None
    generated: GeneratedStep | None = None
    generated_crossover: Crossover | NoCrossover | None = None
    absent_cpus: tuple[DeviceResult, ...] = ()
    compiled: CompiledSteps | None = None
    captured: CapturedStep | None = None
