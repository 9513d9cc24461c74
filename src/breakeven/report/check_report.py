"""The answer to `breakeven check`, as values: the content of its JSON and of every renderer.

The JSON schema is generated from these types, so a changed key breaks the contract: raise
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
from breakeven.verdict.program import ProgramSummary
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
    """The result of `breakeven check`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        target: The script or module, as given.
        host: The machine that feeds the devices.
        step: The recorded step.
        results: One result for each device; devices of this machine come first.
        verdict: Where to train.
        crossover: The batch size from which a GPU wins, or the reason why there is none.
        findings: Lines that cost time on a GPU; lines that would raise an error come first, then by
            gain.
        caveats: Reasons to trust all figures less; each result has its own.
        curves: Step times along the batch size; empty if it was not varied.
        recording: The recorded step, for `explain`; only in stored runs.
        program: The whole training, which is more than its steps; null in older reports.
        writes: Files that a run of the script wrote, and what happened to them; null if it did not
            run, and in older reports.
        generated: This CPU's step as generated code; null if there is none, and in older reports.
            The verdict ignores it: it judges the unchanged script.
        generated_crossover: The batch size from which a GPU beats generated code; null if generated
            code gains nothing, or if no DataLoader sets the size.
        absent_cpus: The step on the requested CPUs of other machines, predicted from this CPU;
            empty in older reports. The verdict ignores them: it compares GPUs with this CPU.
        compiled: The step under ``torch.compile``; null if not requested, and in older reports. The
            verdict ignores it.
        captured: The step of the fastest GPU as one CUDA graph, if the step is host-bound; else
            null, as in older reports. The verdict ignores it.
        command: The command that made the report, without options of output; empty if no command
            did, and in older reports.
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
    command: str = ""
