"""An explanation of a recorded step, whether it was recorded just now or long ago."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.check import step_summary
from breakeven.device import DeviceSpec
from breakeven.doctor import Diagnosed, Sources, all_rules, diagnose, examine
from breakeven.errors import BreakevenError, Caveat
from breakeven.explain.plan import cumulative_plan
from breakeven.explain.timeline import critical_timeline, shortened
from breakeven.simulate import WhatIf, build_program, predict_steps
from breakeven.trace import ScaledTrace, ScalingError
from breakeven.verdict import (
    EXPLAIN_SCHEMA_VERSION,
    DeviceResult,
    ExplainReport,
    HostSummary,
    ProgramFacts,
    Recording,
    decide,
    device_result,
    program_of,
)

# Spans of a timeline that a report keeps; a trace file for a viewer gets all of them.
_MAX_SPANS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be explained.

    Args:
        target: As the user wrote it.
        recording: The step.
        host: The machine that feeds the devices.
        measured: Results of the devices that were there, the CPU first.
        devices: GPUs to predict.
        explained: The one whose step is taken apart; None for the first.
        rules: Codes of the rules whose findings are wanted; None for all.
        caveats: What holds for all figures.
        program: What the script does besides its steps; None where that was not stored.
        num_steps: Steps of the training; None where it is not known how long it is.
    """

    target: str
    recording: Recording
    host: HostSummary
    measured: tuple[DeviceResult, ...]
    devices: tuple[DeviceSpec, ...]
    explained: DeviceSpec | None = None
    rules: frozenset[str] | None = None
    caveats: tuple[Caveat, ...] = ()
    program: ProgramFacts | None = None
    num_steps: int | None = None


def explain(question: Question) -> ExplainReport:
    """Return the explanation."""
    recording, host = question.recording, question.recording.host
    trace = recording.trace
    device = question.explained or question.devices[0]
    predictions = predict_steps(trace, question.devices, host)
    explained = predictions[question.devices.index(device)]
    results = (*question.measured, *map(device_result, predictions))
    sources = Sources.of(recording.sources)
    examined = examine(
        trace, device, host, sources=sources, scaled=_scaled(recording), cpu=recording.cpu
    )
    diagnosed = examined.found
    wanted = [one for one in diagnosed if _is_wanted(one, question.rules)]
    program = build_program(trace)
    what_if = WhatIf(program, device, host)
    verdict = decide(results, predictions=predictions)
    timeline, caveat = shortened(critical_timeline(program, what_if), _MAX_SPANS)
    return ExplainReport(
        schema_version=EXPLAIN_SCHEMA_VERSION,
        target=question.target,
        host=question.host,
        step=step_summary(trace, explained),
        device=device.name,
        results=results,
        verdict=verdict,
        step_ns=explained.estimate.value_ns,
        low_ns=explained.estimate.low_ns,
        high_ns=explained.estimate.high_ns,
        bound=explained.bound,
        host_busy_ns=explained.host_ns,
        device_busy_ns=explained.device_busy_ns,
        attribution=what_if.attribution(),
        timeline=timeline,
        findings=tuple(one.finding for one in wanted),
        plan=cumulative_plan(
            trace,
            wanted,
            measured=question.measured,
            devices=question.devices,
            host=host,
            again=lambda changed: diagnose(changed, device, host, sources=sources),
        ),
        num_suppressed=len(diagnosed) - len(wanted),
        caveats=(*question.caveats, *examined.caveats, *((caveat,) if caveat else ())),
        recording=recording,
        program=question.program
        and program_of(verdict, results, question.program, question.num_steps),
    )


def chosen_rules(names: Sequence[str]) -> frozenset[str] | None:
    """Return the codes of the rules that are meant; None for all, where none is named.

    Args:
        names: Codes (``SYNC001``) or causes (``SYNC_ITEM``), in any case.

    Raises:
        BreakevenError: There is no such rule.
    """
    if not names:
        return None
    known: dict[str, set[str]] = {}
    for rule in all_rules():
        known.setdefault(rule.code.upper(), set()).add(rule.code)
        known.setdefault(rule.cause.upper(), set()).add(rule.code)
    codes: set[str] = set()
    for name in names:
        if name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=3)
            meant = f"did you mean {' or '.join(close)}? " if close else ""
            raise BreakevenError(
                f"there is no rule {name!r}", hint=f"{meant}all rules: breakeven rules"
            )
        codes |= known[name.upper()]
    return frozenset(codes)


def _is_wanted(one: Diagnosed, codes: frozenset[str] | None) -> bool:
    return codes is None or one.finding.code in codes


def _scaled(recording: Recording) -> ScaledTrace | None:
    if recording.other_size is None:
        return None
    try:
        return ScaledTrace(recording.trace, recording.other_size)
    except ScalingError:  # it was the same step when it was recorded, by an earlier breakeven
        return None
