"""The CPU that is compared is never slower than any number of threads that was measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.capture import PlainRun, ThreadTrial
from breakeven.progress import SilentProgress
from breakeven.studies.measured_step import at_best_thread_count, measure_target
from breakeven.studies.runner import Runner
from breakeven.timing import Measurement
from breakeven.verdict import decide
from factories.reports import gpu_wins
from factories.runs import SCRIPT, ScriptedLauncher, plain_run, traced_run

GPU = next(result for result in gpu_wins().results if result.kind == "gpu")


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    step_ns = draw(st.integers(1_000, 1_000_000_000))
    waited_ns = (step_ns // 2,) * 9 if draw(st.booleans()) else ()
    return Measurement(samples_ns=(step_ns,) * 9, waited_ns=waited_ns)


@st.composite
def runs_on_threads(draw: st.DrawFn) -> PlainRun:
    numbers = draw(st.lists(st.integers(1, 15), max_size=3, unique=True))
    trials = [ThreadTrial(num_threads=each, measurement=draw(measurements())) for each in numbers]
    as_set = replace(plain_run(), num_threads=16, measurement=draw(measurements()))
    return replace(as_set, trials=tuple(trials))


@given(runs_on_threads())
def test_no_number_of_threads_is_faster_than_the_compared_cpu(run: PlainRun) -> None:
    measured = [run.measurement, *(trial.measurement for trial in run.trials)]
    fastest_ns = min(each.median_ns for each in measured)
    # A second recording is made of a step that is shorter than its operators.
    launcher = ScriptedLauncher([traced_run(), run, traced_run()])
    found = measure_target(Runner(launcher, SCRIPT, 60.0, SilentProgress()))
    verdict = decide([*found.results, GPU])
    named = (verdict.device, verdict.over)
    (compared,) = [result for result in found.results if result.device in named]
    assert compared.step_ns == fastest_ns
    # What the prediction rests on is about as fast.
    assert at_best_thread_count(run).measurement.median_ns <= 1.1 * fastest_ns
