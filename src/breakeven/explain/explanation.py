"""An explanation of a recorded step, whether it was recorded just now or long ago."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from breakeven.device import DeviceSpec
from breakeven.doctor import all_rules
from breakeven.errors import BreakevenError, Caveat
from breakeven.explain.plan import cumulative_plan
from breakeven.explain.timeline import critical_timeline, shortened
from breakeven.session import ComparedStep
from breakeven.simulate import WhatIf
from breakeven.trace import ScaledTrace, ScalingError
from breakeven.verdict import (
    EXPLAIN_SCHEMA_VERSION,
    ExplainReport,
    HostSummary,
    ProgramFacts,
    RecordedStep,
    program_of,
)

# Spans of a timeline that a report keeps; a trace file for a viewer gets all of them.
_MAX_SPANS = 4000


def explained(
    step: ComparedStep,
    device: DeviceSpec,
    *,
    target: str,
    host: HostSummary,
    recording: RecordedStep,
    rules: frozenset[str] | None = None,
    caveats: tuple[Caveat, ...] = (),
    program: ProgramFacts | None = None,
    num_steps: int | None = None,
) -> ExplainReport:
    """Return the explanation of a step.

    Args:
        step: The step.
        device: The one of its devices on which it is taken apart.
        target: As the user wrote it.
        host: What issues the work.
        recording: The step as it is stored, with what was measured of it on the CPU.
        rules: Codes of the rules whose findings are wanted; None for all.
        caveats: What holds for all figures.
        program: What the script does besides its steps; None where that was not stored.
        num_steps: Steps of the training; None where it is not known how long it is.
    """
    prediction = step.prediction_on(device)
    examined = step.examined_on(device, scaled=_scaled(recording), cpu=recording.cpu)
    wanted = [one for one in examined.found if rules is None or one.finding.code in rules]
    what_if = WhatIf(step.program, device, step.host)
    timeline, cut = shortened(critical_timeline(step.program, what_if), _MAX_SPANS)
    return ExplainReport(
        schema_version=EXPLAIN_SCHEMA_VERSION,
        target=target,
        host=host,
        step=step.summary_on(device),
        device=device.name,
        results=step.results,
        verdict=step.verdict,
        step_ns=prediction.estimate.value_ns,
        low_ns=prediction.estimate.low_ns,
        high_ns=prediction.estimate.high_ns,
        bound=prediction.bound,
        host_busy_ns=prediction.host_ns,
        device_busy_ns=prediction.device_busy_ns,
        attribution=what_if.attribution(),
        timeline=timeline,
        findings=tuple(one.finding for one in wanted),
        plan=cumulative_plan(
            step, wanted, again=lambda changed: step.diagnosed_again(changed, device)
        ),
        num_suppressed=len(examined.found) - len(wanted),
        caveats=(*caveats, *examined.caveats, *((cut,) if cut else ())),
        recording=recording,
        program=program and program_of(step.verdict, step.results, program, num_steps),
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


def _scaled(recording: RecordedStep) -> ScaledTrace | None:
    if recording.other_size is None:
        return None
    try:
        return ScaledTrace(recording.trace, recording.other_size)
    except ScalingError:  # it was the same step when it was recorded, by an earlier breakeven
        return None
