"""What a finding predicts for its fix, against the mended script recorded or timed again."""

from __future__ import annotations

import re

import pytest
from check_process import SCRIPTS, line_of
from msgspec.structs import replace
from script_runs import recorded, timed

from breakeven.advise import RuleInput, diagnose
from breakeven.capture import Launcher, TracedRun
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import Bound, Side, predict_steps
from breakeven.source import Sources
from breakeven.studies import explain_target
from breakeven.studies.measured_step import measure_target
from breakeven.studies.study import start_study
from breakeven.trace import HostWork
from factories.sampled import sampled

pytestmark = pytest.mark.slow

SCRIPT = SCRIPTS / "fixes.py"
# Each function without arguments is a fault, named like its cause.
CAUSES = [name.upper() for name in re.findall(r"^def (\w+)\(\):", SCRIPT.read_text(), re.MULTILINE)]

# One of each kind of edit: a read, a copy, an optimizer, a loop, a format, a layer, other work.
SAMPLE = ("SYNC_ITEM", "H2D_CREATE", "ZERO_GRAD", "TIME_LOOP", "FP64", "CONV_BIAS", "EVAL_OFTEN")


def without_pauses(run: TracedRun) -> TracedRun:
    """Leave out what looks like work of the script; none of these scripts does any."""
    events = tuple(
        event
        for event in run.trace.events
        if not (isinstance(event, HostWork) and event.kind == "script")
    )
    return replace(run, trace=replace(run.trace, events=events))


@pytest.mark.parametrize("cause", sampled(CAUSES, *SAMPLE))
def test_mended_script_takes_what_the_finding_predicted(launcher: Launcher, cause: str) -> None:
    device, host = find_device("A100 SXM4 80GB"), reference_host()
    found, times = [], []
    for arguments in ((cause,), (cause, "--fixed")):
        run = without_pauses(recorded(launcher, SCRIPT, *arguments, time_limit_s=120))
        sources = Sources.of(run.sources)
        diagnosed = diagnose(RuleInput.of(run.trace, device, host, sources=sources))
        found.append([one.finding for one in diagnosed if one.finding.cause == cause])
        times += predict_steps(run.trace, (device,), host)
    before_ns, after_ns = (each.estimate.value_ns for each in times)
    faulty, mended = found
    assert faulty
    best = max(faulty, key=lambda finding: finding.gain_fraction)
    assert best.fixed_low_ns is not None
    assert best.fixed_high_ns is not None
    print(
        f"{cause}: {before_ns / 1e3:.1f} us, predicted {best.fixed_ns / 1e3:.1f} "
        f"({best.fixed_low_ns / 1e3:.1f}-{best.fixed_high_ns / 1e3:.1f}), "
        f"mended {after_ns / 1e3:.1f}"
    )
    assert best.fixed_low_ns <= after_ns <= best.fixed_high_ns
    assert mended == []


@pytest.mark.timing
@pytest.mark.usefixtures("slow_subnormals")
def test_flushing_denormals_gains_what_was_predicted(launcher: Launcher) -> None:
    script = SCRIPTS / "denormals.py"
    report = explain_target(str(script), devices=("T4",), host="reference", launcher=launcher)
    mended = timed(launcher, script, "--fixed", budget_s=1.0)
    (finding,) = (each for each in report.findings if each.cause == "DENORMALS")
    gained = 1 - mended.measurement.estimate.value_ns / report.results[0].step_ns
    print(f"predicted {finding.gain_fraction:.2f}, measured {gained:.2f}")
    assert finding.side is Side.CPU
    assert gained > 0
    # Both are measured in processes of their own, on a machine that others use too.
    assert finding.gain_fraction == pytest.approx(gained, abs=0.25)


# Scripts whose DataLoader limits the step on any GPU.


@pytest.mark.parametrize(
    ("name", "device"), [("augments_in_workers.py", "T4"), ("rows_in_workers.py", "RTX 4090")]
)
def test_the_loader_that_limits_a_step_is_the_first_finding(name: str, device: str) -> None:
    path = SCRIPTS / name
    report = explain_target(str(path), devices=(device,), budget_s=0.3, tries_cpu=False)
    assert report.bound is Bound.HOST_DATA
    first = report.findings[0]
    assert (first.cause, first.line) == ("TRANSFORM_CPU", line_of(path, "# here"))
    assert "of a processor for each sample" in first.title
    assert "keep them" in first.fix


def test_pictures_that_the_loop_reads_one_by_one_are_found_at_their_line() -> None:
    path = SCRIPTS / "reads_pictures_in_loop.py"
    with start_study(str(path), devices=[find_device("T4")], budget_s=0.3) as study:
        step = measure_target(study.runner)
    # On a busy machine a report withholds what it cannot be sure of.
    sources = Sources.of(step.traced.sources)
    found = diagnose(RuleInput.of(step.program, study.devices[0], study.here, sources=sources))
    assert (found[0].finding.cause, found[0].finding.line) == ("ENV_BOUND", line_of(path, "# here"))
