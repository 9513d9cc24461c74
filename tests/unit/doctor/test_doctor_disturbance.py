"""Findings of a machine that other work disturbed."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.capture import PlainRun
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.doctor import Case, diagnose, examine
from breakeven.explain.target import try_cpu_settings
from breakeven.session import Runs
from breakeven.timing import CpuFacts, CpuTrial, Estimate, Measurement, Source
from breakeven.trace import (
    Configuration,
    DeviceFault,
    Event,
    HostWork,
    Phase,
    RunFacts,
    StepTrace,
    Sync,
)
from factories.layers import linear
from factories.steps import GPU, HOST, MadeUpCosts, at, op

MS = 1_000_000


def script(ms: float) -> HostWork:
    return HostWork(kind="script", duration_ns=round(ms * MS), phase=Phase.FORWARD, location=at(4))


def step(*events: Event, load: float = 0.0) -> StepTrace:
    return StepTrace(events=events, facts=RunFacts(load_fraction=load))


def codes(trace: StepTrace, **known: object) -> list[str]:
    examined = examine(Case.of(trace, GPU, HOST, costs=MadeUpCosts(), **known))
    return [one.finding.code for one in examined.found]


@pytest.mark.parametrize(
    ("ms", "load", "found"),
    [
        (5, 0.0, ["HOST001"]),
        (5, 0.15, ["HOST001"]),  # as busy as a machine may be
        (5, 0.6, []),  # another process's turn, for all that is known
        (100, 0.6, ["HOST001"]),
    ],
)
def test_pauses_of_a_disturbed_recording(ms: float, load: float, found: list[str]) -> None:
    assert codes(step(op(10 * MS, host_ns=1000), script(ms), load=load)) == found


def test_gain_that_a_disturbance_may_explain_is_in_the_interval() -> None:
    # 110 ms of pauses beside 100 of the device, of which 100 ms at two fifths of the speed remain.
    events = (op(100 * MS, host_ns=1000), Sync(kind="item"), script(110))
    quiet = examine(Case.of(step(*events), GPU, HOST, costs=MadeUpCosts())).found
    disturbed = examine(Case.of(step(*events, load=0.6), GPU, HOST, costs=MadeUpCosts())).found
    before = next(one.finding for one in quiet if one.finding.code == "HOST001")
    after = next(one.finding for one in disturbed if one.finding.code == "HOST001")

    assert after.gain_fraction == before.gain_fraction == pytest.approx(110 / 210, rel=0.01)
    assert after.gain_low_fraction <= 40 / 140 < before.gain_low_fraction
    assert after.gain_high_fraction == before.gain_high_fraction


def test_what_rests_on_no_measurement_stays() -> None:
    trace = replace(
        step(op(100, host_ns=90), Sync(kind="item", location=at(7)), load=0.9),
        faults=(DeviceFault(message="the target is still on the CPU", location=at(5)),),
    )
    assert codes(trace) == ["DEV001", "SYNC001"]


def threads(ms: float, load: float) -> CpuFacts:
    """Return a step of 10 ms on 8 threads, and one on a single thread."""

    def estimate(own_ms: float) -> Estimate:
        return Estimate(
            value_ns=own_ms * MS,
            low_ns=own_ms * 0.95 * MS,
            high_ns=own_ms * 1.05 * MS,
            source=Source.MEASURED,
        )

    return CpuFacts(
        name="Made-up CPU",
        estimate=estimate(10),
        num_threads=8,
        num_cores=8,
        trials=(CpuTrial(setting="threads=1", estimate=estimate(ms)),),
        load_fraction=load,
    )


@pytest.mark.parametrize(
    ("ms", "load", "found"),
    [
        (7, 0.0, ["CPU001"]),
        (7, 0.5, []),  # as much as others may have added to the 10 ms
        (4, 0.5, ["CPU001"]),
    ],
)
def test_trials_beside_a_disturbed_step(ms: float, load: float, found: list[str]) -> None:
    assert codes(step(op(100, host_ns=90)), cpu=threads(ms, load)) == found


@pytest.mark.parametrize(
    ("batch", "width", "load", "is_found"),
    [(128, 768, 0.0, True), (128, 768, 0.7, False), (16, 64, 0.7, True)],
)
def test_launches_of_a_host_that_was_measured_under_load(
    batch: int, width: int, load: float, is_found: bool
) -> None:
    trace = StepTrace(events=linear(batch=batch, inputs=width, outputs=width) * 20)
    host = replace(reference_host(), load_fraction=load)
    examined = examine(Case.of(trace, find_device("A100 SXM4 80GB"), host))
    found = [one.finding.code for one in examined.found]

    assert ("LAUNCH001" in found) is is_found
    assert examined.num_withheld > 0 or is_found


def test_withheld_findings_are_counted_once() -> None:
    quiet = examine(
        Case.of(step(op(10 * MS, host_ns=1000), script(5)), GPU, HOST, costs=MadeUpCosts())
    )
    busy = examine(
        Case.of(
            step(op(10 * MS, host_ns=1000), script(5), load=0.5), GPU, HOST, costs=MadeUpCosts()
        )
    )
    both = msgspec.structs.replace(step(script(5), load=0.5))
    two = examine(Case.of(both, GPU, HOST, costs=MadeUpCosts(), cpu=threads(7, 0.5)))

    assert quiet.caveats == ()
    assert [caveat.message for caveat in busy.caveats] == [
        "1 finding rests on a measurement that other work on this machine disturbed, and is not "
        "shown; try again when it is idle"
    ]
    assert [caveat.message for caveat in two.caveats] == [
        "2 findings rest on a measurement that other work on this machine disturbed, and are not "
        "shown; try again when it is idle"
    ]


def test_quiet_machine_changes_nothing() -> None:
    trace = step(op(100, host_ns=90), Sync(kind="item", location=at(7)), script(30))
    facts = {"costs": MadeUpCosts(), "cpu": threads(7, 0.1)}
    assert examine(Case.of(trace, GPU, HOST, **facts)).found == diagnose(
        Case.of(trace, GPU, HOST, **facts)
    )


def test_trials_tell_the_largest_load_of_any_of_them() -> None:
    def run(num_threads: int, load: float) -> PlainRun:
        return PlainRun(
            measurement=Measurement(samples_ns=(MS,) * 9),
            processor="Made-up CPU",
            precision="fp32",
            num_threads=num_threads,
            peak_memory_bytes=0,
            load_fraction=load,
        )

    class MadeUpRuns:
        def measure_under(self, configuration: Configuration) -> PlainRun:
            return run(configuration.num_threads, 0.3 if configuration.num_threads == 1 else 0.1)

    trace = step(op(100), load=0.0)
    trace = replace(trace, facts=replace(trace.facts, num_cores=8))
    facts = try_cpu_settings(cast(Runs, MadeUpRuns()), run(8, 0.2), trace, HOST)

    assert facts is not None
    assert [trial.setting for trial in facts.trials] == ["threads=1", "threads=4"]
    assert facts.load_fraction == 0.3
