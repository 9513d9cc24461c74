"""Findings in the scripts of ``tests/corpus``, by line: of a sample, each; of all, their rates."""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
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
# The scripts end themselves, most within seconds; machines are busy at times.
_LIMIT_S = 300.0
_NUM_AT_ONCE = 2
# Lines and causes do not depend on how exactly the step is timed.
_BUDGET_S = 0.3

# Faults that this machine may not have: few processors, or fast subnormal numbers; or that other
# work on it hides, beside which few threads wait like many. Rates of the whole corpus count all.
_BY_MACHINE = {"THREADS_SMALL", "THREADS_OVER", "DENORMALS"}

Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found in one script, and what that is worth.

    Args:
        script: The script.
        places: Cause and line of each finding of a scored cause, each once.
        failure: Why there are no findings.
    """

    script: CorpusScript
    places: tuple[Place, ...] = ()
    failure: str = ""

    @property
    def missed(self) -> tuple[Fault, ...]:
        """Return the faults that no finding points at."""
        return tuple(
            fault
            for fault in self.script.faults
            if not any(fault.is_found_by(*place) for place in self.places)
        )

    @property
    def true_places(self) -> tuple[Place, ...]:
        """Return the findings of faults."""
        faults = self.script.faults
        return tuple(p for p in self.places if any(fault.is_found_by(*p) for fault in faults))

    @property
    def false_places(self) -> tuple[Place, ...]:
        """Return the findings that are neither of a fault nor accepted."""
        true = self.true_places
        return tuple(p for p in self.places if p not in true and p[0] not in self.script.accepted)


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, ...]:
    """Explain every script once; ``BREAKEVEN_CORPUS`` names a part of them, such as ``sync/``."""
    wanted = os.environ.get("BREAKEVEN_CORPUS", "")
    scripts = [script for script in read_corpus() if wanted in script.name]
    with ExitStack() as stack:
        launchers: SimpleQueue[Launcher] = SimpleQueue()
        for _ in range(_NUM_AT_ONCE):
            launchers.put(stack.enter_context(Launcher()))
        with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
            # The first alone: asked for the same type by two threads at once, and never before,
            # msgspec may crash.
            first = _explain_in_turn(launchers, scripts[0])
            return (first, *pool.map(partial(_explain_in_turn, launchers), scripts[1:]))


def _explain_in_turn(launchers: SimpleQueue[Launcher], script: CorpusScript) -> Outcome:
    launcher = launchers.get()
    try:
        return _explain(launcher, script)
    finally:
        launchers.put(launcher)


def _explain(launcher: Launcher, script: CorpusScript) -> Outcome:
    try:
        report = explain_target(
            str(script.path),
            devices=(script.device,),
            host="reference",
            time_limit_s=_LIMIT_S,
            tries_cpu=script.needs_cpu_trials,
            budget_s=_BUDGET_S,
            launcher=launcher,
        )
    except BreakevenError as error:
        return Outcome(script=script, failure=str(error))
    places = dict.fromkeys(
        (finding.cause, _line_in(script.path, finding.file, finding.line))
        for finding in report.findings
        if finding.cause in SCORED_CAUSES
    )
    return Outcome(script=script, places=tuple(places))


def _line_in(path: Path, file: str | None, line: int | None) -> int | None:
    """Return the line of a finding; one in another file is at no line of the script."""
    return line if file is not None and Path(file).resolve() == path.resolve() else None


@pytest.mark.parametrize(
    "script",
    [pytest.param(script, id=script.name) for script in read_corpus() if script.name in SAMPLE],
)
def test_script_of_the_sample(launcher: Launcher, script: CorpusScript) -> None:
    outcome = _explain(launcher, script)
    assert outcome.failure == ""
    missed = [fault for fault in outcome.missed if not fault.causes <= _BY_MACHINE]
    assert (missed, outcome.false_places) == ([], ()), outcome.places


# All scripts are run within the first test of them.
@pytest.mark.full
@pytest.mark.timeout(2400)
def test_every_script_is_explained(outcomes: tuple[Outcome, ...]) -> None:
    assert {o.script.name: o.failure for o in outcomes if o.failure} == {}


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_faults_are_found_at_their_lines(outcomes: tuple[Outcome, ...]) -> None:
    num_faults = sum(len(o.script.faults) for o in outcomes)
    num_missed = sum(len(o.missed) for o in outcomes)
    assert num_faults > 0
    recall = 1 - num_missed / num_faults
    print(f"recall {recall:.1%} of {num_faults} faults")
    assert recall >= _MIN_RECALL, f"recall {recall:.1%} of {num_faults}\n{_table(outcomes)}"


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_what_is_found_is_true(outcomes: tuple[Outcome, ...]) -> None:
    num_true = sum(len(o.true_places) for o in outcomes)
    num_false = sum(len(o.false_places) for o in outcomes)
    assert num_true > 0
    precision = num_true / (num_true + num_false)
    print(f"precision {precision:.1%} of {num_true + num_false} findings\n{_table(outcomes)}")
    assert precision >= _MIN_PRECISION, (
        f"precision {precision:.1%} of {num_true + num_false}\n{_table(outcomes)}"
    )


def _table(outcomes: tuple[Outcome, ...]) -> str:
    """Return recall by cause, then each miss and each false alarm on a line."""
    found: dict[str, int] = defaultdict(int)
    all_faults: dict[str, int] = defaultdict(int)
    false: dict[str, int] = defaultdict(int)
    lines: list[str] = []
    for outcome in outcomes:
        name = outcome.script.name
        for fault in outcome.script.faults:
            label = "/".join(sorted(fault.causes))
            all_faults[label] += 1
            found[label] += fault not in outcome.missed
        lines += [f"missed  {'/'.join(sorted(f.causes))} {name}:{f.line}" for f in outcome.missed]
        for cause, line in outcome.false_places:
            false[cause] += 1
            lines.append(f"false   {cause} {name}:{line}")
        if outcome.failure:
            lines.append(f"failed  {name}: {outcome.failure}")
    causes = sorted(all_faults.keys() | false.keys())
    counts = [f"{c}: {found[c]} of {all_faults[c]} found, {false[c]} false" for c in causes]
    return "\n".join([*counts, *sorted(lines)])
