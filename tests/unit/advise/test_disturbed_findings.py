"""What is said of findings if other work disturbed a measurement."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from breakeven.advise.diagnosis import disturbed_findings
from breakeven.capture import PlainRun
from breakeven.studies.explain import try_cpu_settings
from breakeven.studies.runner import Runner
from breakeven.timing import CpuFacts, Estimate, Measurement, Source
from breakeven.trace import Configuration, RunFacts, StepTrace
from factories.steps import HOST, op

MS = 1_000_000


@pytest.mark.parametrize(
    ("recorded", "tried", "told"),
    [(0.0, None, ""), (0.15, 0.1, ""), (0.6, None, "60 %"), (0.2, 0.5, "50 %")],
)
def test_largest_load_is_told(recorded: float, tried: float | None, told: str) -> None:
    estimate = Estimate(value_ns=MS, low_ns=MS, high_ns=MS, source=Source.MEASURED)
    cpu = tried and CpuFacts(
        name="Made-up CPU",
        estimate=estimate,
        num_threads=8,
        num_cores=8,
        load_fraction=tried,
    )
    caveats = disturbed_findings(RunFacts(load_fraction=recorded), cpu or None)
    assert [caveat.code for caveat in caveats] == ["disturbed-findings"] * bool(told)
    assert all(told in caveat.message for caveat in caveats)


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

    class MadeUpRunner:
        def time_under(self, configuration: Configuration) -> PlainRun:
            return run(configuration.num_threads, 0.3 if configuration.num_threads == 1 else 0.1)

    trace = StepTrace(events=(op(100),))
    trace = replace(trace, facts=replace(trace.facts, num_cores=8))
    facts = try_cpu_settings(cast(Runner, MadeUpRunner()), run(8, 0.2), trace, HOST)

    assert facts is not None
    assert [trial.setting for trial in facts.trials] == ["threads=1", "threads=4"]
    assert facts.load_fraction == 0.3
