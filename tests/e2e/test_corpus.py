"""Findings in the scripts of ``tests/corpus``, by line: of a sample, each; of all, their rates."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from breakeven.capture import Launcher
from breakeven.errors import BreakevenError
from breakeven.studies import explain_target
from corpus_markers import SAMPLE, SCORED_CAUSES, CorpusScript, Fault, read_corpus

pytestmark = pytest.mark.slow
_MIN_RECALL = 0.9
_MIN_PRECISION = 0.9
_NUM_AT_ONCE = 2

# Faults that this machine may not have: few processors, or fast subnormal numbers; or that other
# work on it hides, beside which few threads wait like many. Rates of the whole corpus count all.
_BY_MACHINE = {"THREADS_SMALL", "THREADS_OVER", "DENORMALS"}

Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found in one script, and what that is worth.

    Args:
        name: The script.
        failure: Why there are no findings.
        missed: The faults that no finding points at.
        true: Cause and line of each finding of a fault, each once.
        false: Those that are neither of a fault nor accepted.
    """

    name: str
    failure: str = ""
    missed: tuple[Fault, ...]
    true: tuple[Place, ...] = ()
    false: tuple[Place, ...] = ()


def outcome_of(launcher: Launcher, script: CorpusScript) -> Outcome:
    try:
        report = explain_target(
            str(script.path),
            devices=(script.device,),
            host="reference",
            # The scripts end themselves, most within seconds; machines are busy at times.
            time_limit_s=300.0,
            tries_cpu=script.needs_cpu_trials,
            # Lines and causes do not depend on how exactly the step is timed.
            budget_s=0.3,
            launcher=launcher,
        )
    except BreakevenError as error:
        return Outcome(name=script.name, failure=str(error), missed=script.faults)

    def line_of(file: str | None, line: int | None) -> int | None:
        """Return the line of a finding; one in another file is at no line of the script."""
        return line if file and Path(file).resolve() == script.path.resolve() else None

    places = dict.fromkeys(
        (finding.cause, line_of(finding.file, finding.line))
        for finding in report.findings
        if finding.cause in SCORED_CAUSES
    )
    faults = script.faults
    true = [place for place in places if any(fault.is_found_by(*place) for fault in faults)]
    false = [place for place in places if place not in true and place[0] not in script.accepted]
    missed = [fault for fault in faults if not any(fault.is_found_by(*place) for place in places)]
    return Outcome(name=script.name, missed=tuple(missed), true=tuple(true), false=tuple(false))


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, id=script.name) for script in read_corpus() if script.name in SAMPLE],
)
def test_script_of_the_sample(launcher: Launcher, script: CorpusScript) -> None:
    outcome = outcome_of(launcher, script)
    assert outcome.failure == ""
    missed = [fault for fault in outcome.missed if not fault.causes <= _BY_MACHINE]
    assert (missed, outcome.false) == ([], ()), outcome.true


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_faults_are_found_and_what_is_found_is_true() -> None:
    """Explain every script once; ``BREAKEVEN_CORPUS`` names a part of them, such as ``sync/``."""
    wanted = os.environ.get("BREAKEVEN_CORPUS", "")
    scripts = [script for script in read_corpus() if wanted in script.name]
    launchers: SimpleQueue[Launcher] = SimpleQueue()

    def explained(script: CorpusScript) -> Outcome:
        launcher = launchers.get()
        try:
            return outcome_of(launcher, script)
        finally:
            launchers.put(launcher)

    with ExitStack() as stack, ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        for _ in range(_NUM_AT_ONCE):
            launchers.put(stack.enter_context(Launcher()))
        # The first alone: asked for the same type by two threads at once, and never before,
        # msgspec may crash.
        outcomes = [explained(scripts[0]), *pool.map(explained, scripts[1:])]

    num_faults = sum(len(script.faults) for script in scripts)
    num_true, num_false = (sum(len(getattr(o, k)) for o in outcomes) for k in ("true", "false"))
    recall = 1 - sum(len(o.missed) for o in outcomes) / num_faults
    precision = num_true / (num_true + num_false)
    table = (
        f"recall {recall:.1%} of {num_faults} faults, precision {precision:.1%} of "
        f"{num_true + num_false} findings\n{by_cause(scripts, outcomes)}"
    )
    print(table)
    assert [o.name for o in outcomes if o.failure] == [], table
    assert recall >= _MIN_RECALL, table
    assert precision >= _MIN_PRECISION, table


def by_cause(scripts: list[CorpusScript], outcomes: list[Outcome]) -> str:
    """Return recall by cause, then each failure, miss and false alarm on a line."""

    def label(fault: Fault) -> str:
        return "/".join(sorted(fault.causes))

    faults = Counter(label(fault) for script in scripts for fault in script.faults)
    missed = Counter(label(fault) for o in outcomes for fault in o.missed)
    false = Counter(cause for o in outcomes for cause, _ in o.false)
    lines = [
        f"{cause}: {faults[cause] - missed[cause]} of {faults[cause]} found, {false[cause]} false"
        for cause in sorted(faults | false)
    ]
    for o in outcomes:
        lines += [f"failed  {o.name}: {o.failure}"] if o.failure else []
        lines += [f"missed  {label(fault)} {o.name}:{fault.line}" for fault in o.missed]
        lines += [f"false   {cause} {o.name}:{line}" for cause, line in o.false]
    return "\n".join(lines)
