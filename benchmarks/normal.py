"""How often `breakeven normal` is right about steps whose speed is known.

``python benchmarks/normal.py TABLE.csv ... -o RESULT.json`` predicts each row of one GPU by a
calibration without its source, and judges the measured time as if a user had seen it: unchanged,
2 and 4 times as long, with a loader whose workers take 1.5 to 4 times as long as here, and the time
of the same step in float64 or without tensor cores. The tables are as for `breakeven validate`. The
decision rule was chosen on the sources in ``TUNED_ON`` alone, so only the other half of the result
is a test.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from breakeven.calibrate.elsewhere import (
    PASS_LOG_SIGMA,
    HostAnchor,
    backward_fraction,
    combined,
    factor_shown,
    predictor,
)
from breakeven.cli.progress import show_progress
from breakeven.device import FeedingHost, HostKind, known_device
from breakeven.report import LeaveOut
from breakeven.report.normal_report import Pace, SlowCause, Suspect
from breakeven.simulate import Bound, Program, StepPrediction, predict_steps
from breakeven.studies.normal import added_times, compared, with_suspects
from breakeven.timing import Estimate, Source
from breakeven.trace import HostWork, StepTrace
from breakeven.validate import MeasuredRow
from breakeven.validate.table import read_what_is_readable
from breakeven.validate.traced_rows import Place, Places, TracedRows

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lab.held_out import HeldOutPredictor

TUNED_ON = ("jcjohnson", "lambda")
_DEVICE_BOUND = (Bound.COMPUTE, Bound.MEMORY, Bound.LATENCY)
# Rows on which a cause is planted, drawn by chance, since each takes long.
_MOST = 120
# The loader's time over the row's, and its time there over its time here.
_LOADERS, _LOADER_THERE = (0.7, 1.0, 1.5), (1.5, 4.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row, its step, and its machine under a calibration without its source."""

    row: MeasuredRow
    program: Program
    place: Place

    @cached_property
    def predicted(self) -> StepPrediction:
        """The step on its machine."""
        return predict_steps(self.program, (self.place.device,), self.place.host)[0]

    @cached_property
    def added(self) -> dict[SlowCause, Any]:
        """What each cause may add to it."""
        return dict(added_times(self.program, self.place.device, self.place.host, self.predicted))

    def pace(self, time_ns: float, predicted: StepPrediction | None = None) -> Pace:
        """Return whether a time of the step is normal."""
        return compared(predicted or self.predicted, _given(time_ns)).pace

    def suspects(self, time_ns: float) -> tuple[Suspect, ...] | None:
        """Return what is named for a time of the step; None if it is not slow."""
        judged = compared(self.predicted, _given(time_ns))
        return with_suspects(judged, self.added).suspects if judged.pace is Pace.SLOW else None

    @cached_property
    def backward_fraction(self) -> float:
        """Return the share of the backward pass in the host's work."""
        return backward_fraction(self.program, self.place.host)

    def fed_by(self, kind: HostKind) -> FeedingHost:
        """Return its host in a kind of machine of which other steps are known."""
        return FeedingHost.of(replace(self.place.host, log_sigma=PASS_LOG_SIGMA), kind)

    @property
    def machine(self) -> tuple[str, ...]:
        """What tells the row's machine; many tables do not name the host."""
        return (self.row.source, self.row.host, self.row.framework, self.row.device)


def _given(time_ns: float) -> Estimate:
    return Estimate(value_ns=time_ns, low_ns=time_ns, high_ns=time_ns, source=Source.MEASURED)


def read_cases(tables: Sequence[Path]) -> Iterator[Case]:
    """Yield the rows of one GPU that can be predicted."""
    rows, _ = read_what_is_readable(*tables)
    rows = [one for one in rows if one.num_devices == 1 and known_device(one.device)]
    with show_progress(sys.stderr, is_quiet=False) as progress:
        progress.begin("tracing steps")
        steps = TracedRows.of(rows, progress=progress)
        predictor_of = HeldOutPredictor(LeaveOut.SOURCE, progress=progress)
        for calibration, _, members in predictor_of.calibrations(steps, num_predicted=len(rows)):
            places = Places(calibration)
            for position in members:
                step, row = steps.steps[position], rows[position]
                if isinstance(step, StepTrace):
                    place = places.of(row)
                    program = steps.model(step).program.with_costs(place.costs)
                    yield Case(row=row, program=program, place=place)


def anchored(case: Case, known: Sequence[Case]) -> StepPrediction:
    """Predict a step with what the times of others on the same machine show of the host."""
    kind = HostKind(
        id="row", name="the row's machine", machines=(), factor=1.0, handoff_ns=0.0,
        log_sigma=case.place.host.log_sigma, is_spread_borrowed=False,
    )  # fmt: skip
    anchors: list[HostAnchor] = []
    for by in known:
        predicted = predictor(by.program, by.place.device, by.fed_by(kind))
        if found := factor_shown(by.row.value_ns, kind, predicted):
            anchors.append(
                HostAnchor(
                    date="", said="", target="", factor=found[0], log_sigma=found[1],
                    backward_fraction=by.backward_fraction,
                )
            )  # fmt: skip
    if anchors:
        factor, log_sigma = combined(kind, anchors, case.backward_fraction)
        kind = replace(kind, factor=factor, log_sigma=log_sigma)
    return predict_steps(case.program, (case.place.device,), case.fed_by(kind))[0]


def with_loader(case: Case, loader_ns: float) -> Case:
    """Return a case whose script loads batches in two workers, while the step runs."""
    trace, lowerings = case.program.trace, case.program.lowerings
    work = HostWork(kind="data", duration_ns=round(2 * loader_ns), num_workers=2)
    program = Program(
        trace=replace(trace, events=(work, *trace.events)),
        lowerings=(None, *lowerings),
        costs=case.program.costs,
    )
    return Case(row=case.row, program=program, place=case.place)


def planted(cases: Sequence[Case]) -> Iterator[tuple[str, Case, float, SlowCause]]:
    """Yield cases with a time of a known cause: its name, case, time and cause."""
    chance = random.Random(1)
    for case in chance.sample(cases, min(_MOST, len(cases))):
        loader_ns = chance.choice(_LOADERS) * case.row.value_ns
        there_ns = loader_ns * chance.uniform(*_LOADER_THERE)
        slow_ns = max(case.row.value_ns, there_ns)
        yield "loader", with_loader(case, loader_ns), slow_ns, SlowCause.LOADER
    same: defaultdict[tuple[object, ...], dict[str, Case]] = defaultdict(dict)
    for case in cases:
        row = case.row
        key = (*case.machine, row.workload, row.batch_size, row.phase, row.optimizer)
        same[key][str(row.precision)] = case
    pairs: list[tuple[str, Case, float, SlowCause]] = []
    for each in same.values():
        for name, case in each.items():
            if name == "fp32" and "fp64" in each:
                pairs.append(("float64", case, each["fp64"].row.value_ns, SlowCause.FLOAT64))
            if name in ("tf32", "amp-fp16", "fp16", "amp-bf16") and "fp32" in each:
                slow_ns = each["fp32"].row.value_ns
                pairs.append(("no tensor cores", case, slow_ns, SlowCause.NO_TENSOR_CORES))
    yield from chance.sample(pairs, min(2 * _MOST, len(pairs)))


def figures(cases: Sequence[Case]) -> dict[str, dict[str, float | int]]:
    """Return how often the answer is right, by test."""
    answers: defaultdict[str, list[bool]] = defaultdict(list)
    named: defaultdict[str, Counter[str]] = defaultdict(Counter)
    launching: defaultdict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        pace = case.pace(case.row.value_ns)
        answers["unchanged: normal"].append(pace is Pace.NORMAL)
        answers["unchanged: slow"].append(pace is Pace.SLOW)
        answers["unchanged: fast"].append(pace is Pace.FAST)
        if case.predicted.bound in _DEVICE_BOUND:
            is_found = case.pace(2 * case.row.value_ns) is Pace.SLOW
            answers["device-bound, 2 times as long: slow"].append(is_found)
        elif case.predicted.bound is Bound.LAUNCH:
            is_found = case.pace(4 * case.row.value_ns) is Pace.SLOW
            answers["launch-bound, 4 times as long: slow"].append(is_found)
            launching[case.machine].append(case)
    chance = random.Random(2)
    groups = [
        (case, chance.sample(others, 3))
        for same in launching.values()
        for case in same
        if len(others := [one for one in same if one.row.workload != case.row.workload]) >= 3
    ]
    tests = [
        (f"{num_known} other steps of the machine known", case, others[:num_known])
        for case, others in chance.sample(groups, min(_MOST, len(groups)))
        for num_known in (1, 3)
    ]
    training = [
        ("a training step, another of the machine known", case, (other,))
        for same in launching.values()
        for case, other in itertools.permutations(same, 2)
        if case.backward_fraction and other.backward_fraction
        and case.row.workload != other.row.workload
    ]  # fmt: skip
    tests += chance.sample(training, min(_MOST, len(training)))
    for name, case, others in tests:
        predicted = anchored(case, others)
        pace = case.pace(case.row.value_ns, predicted)
        answers[f"launch-bound, {name}, unchanged: normal"].append(pace is Pace.NORMAL)
        pace = case.pace(2 * case.row.value_ns, predicted)
        answers[f"launch-bound, {name}, 2 times as long: slow"].append(pace is Pace.SLOW)
    for name, case, slow_ns, cause in planted(cases):
        suspects = case.suspects(slow_ns)
        answers[f"{name}: slow"].append(suspects is not None)
        if suspects is not None:
            first = suspects[0].cause if suspects else "nothing"
            answers[f"{name}, if slow: named first"].append(first is cause)
            named[f"{name}, if slow: first"][str(first)] += 1
    shares = {
        name: {"share": round(sum(found) / len(found), 4), "rows": len(found)}
        for name, found in answers.items()
    }
    return {**shares, **{name: dict(counts) for name, counts in named.items()}}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figures of both halves of the sources."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", metavar="TABLE.csv", type=Path, nargs="+")
    parser.add_argument("-o", "--output", metavar="RESULT.json", type=Path)
    args = parser.parse_args(argv)
    cases = list(read_cases(args.tables))
    result = {}
    for half in ("tuned on", "tested on"):
        some = [one for one in cases if (one.row.source in TUNED_ON) == (half == "tuned on")]
        result[half] = {
            "sources": dict(Counter(one.row.source for one in some)), **figures(some)
        }  # fmt: skip
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.output is not None:
        args.output.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
