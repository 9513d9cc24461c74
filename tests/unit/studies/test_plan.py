from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from breakeven.advise import Diagnosis, Match
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import CAPTURED, Edit, Finding, Severity, build_program
from breakeven.studies.comparison import compare_devices
from breakeven.studies.explanation import cumulative_plan
from breakeven.trace import Event, HostWork, ModelCall, Op, RunFacts, StepTrace, TensorSpec
from breakeven.verdict import PlanStep
from factories.reports import MS, cpu

HOST = reference_host()
T4 = find_device("T4")


def product(width: int) -> Op:
    sides = TensorSpec(shape=(width, width), dtype="float32", device="cuda:0")
    return Op(name="aten.mm.default", inputs=(sides, sides), outputs=(sides,))


TRACE = StepTrace(
    events=(product(4096), product(4096), HostWork(kind="script", duration_ns=20_000_000))
)


def fix(
    code: str, replaced: dict[int, tuple[Event, ...]], severity: Severity = Severity.HIGH,
    **options,
) -> Diagnosis:  # fmt: skip
    return Diagnosis(
        finding=Finding(
            code=code, cause=code, title=code, file="t.py", line=3, share_fraction=0.5,
            gain_fraction=0.5, fix="", severity=severity, fixed_ns=1.0,
        ),
        match=Match(title=code, fix="", edit=Edit(replaced=replaced), **options),
    )  # fmt: skip


def plan(*fixes: Diagnosis, again: Sequence[Diagnosis] = ()) -> tuple[PlanStep, ...]:
    measured = (cpu(60 * MS, 59 * MS, 61 * MS),)
    step = compare_devices(build_program(TRACE), (T4,), HOST, measured)
    return cumulative_plan(step, fixes, again=lambda *_: again)


def times(steps: tuple[PlanStep, ...]) -> list[float]:
    return [step.results[-1].step_ns for step in steps]


def test_fixes_of_different_events_are_applied_together() -> None:
    steps = plan(fix("A", {0: ()}), fix("B", {1: ()}))

    assert [step.code for step in steps] == ["", "A", "B"]
    as_is, one, both = times(steps)
    assert as_is > one > both


def test_a_fix_of_changed_events_is_found_again_in_the_changed_step() -> None:
    # A halves the first product, B was to fuse both into one: what is left of B is asked anew.
    fused = product(1024)
    steps = plan(
        fix("A", {0: (product(2048),)}),
        fix("B", {0: (fused,), 1: ()}),
        again=(fix("B", {0: (fused,), 1: (), 2: ()}),),
    )

    assert [step.code for step in steps] == ["", "A", "B"]
    (alone,) = plan(fix("C", {0: (fused,), 1: (), 2: ()}))[1:]
    assert times(steps)[-1] == pytest.approx(alone.results[-1].step_ns)


@pytest.mark.parametrize("again", [(), (fix("B", {0: ()}, Severity.INFO),)])
def test_a_finding_that_is_gone_is_no_part_of_the_plan(again: tuple[Diagnosis, ...]) -> None:
    steps = plan(fix("A", {0: ()}), fix("B", {0: (product(8),), 1: ()}), again=again)

    assert [step.code for step in steps] == ["", "A"]


def test_work_of_the_host_that_a_fix_removes_is_taken_off_the_cpu_too() -> None:
    steps = plan(fix("A", {2: ()}), fix("B", {1: ()}))

    cpus = [step.results[0] for step in steps]
    assert [result.step_ns / MS for result in cpus] == pytest.approx([60, 40, 40])
    assert [result.source for result in cpus] == ["measured", "predicted", "predicted"]


def test_a_step_that_is_captured_stays_so() -> None:
    steps = plan(fix("A", {}, scenario=CAPTURED), fix("B", {1: ()}))

    assert times(steps)[1] < times(steps)[0]
    assert times(steps)[2] < times(steps)[1]


def test_findings_without_a_simulated_gain_are_left_out() -> None:
    gone = fix("A", {0: ()})
    wrong = Diagnosis(finding=replace(gone.finding, severity=Severity.ERROR), match=gone.match)
    assert [step.code for step in plan(wrong)] == [""]


def test_calls_of_models_are_where_their_events_are() -> None:
    call = ModelCall(
        model="Net", location=None, stack=-1, is_training=False, has_grad=False,
        is_used_in_backward=False, first_event=1, num_events=2,
    )  # fmt: skip
    trace = replace(TRACE, facts=RunFacts(model_calls=(call,)))

    (moved,) = Edit(replaced={0: (), 2: ()}).apply(trace).facts.model_calls
    assert (moved.first_event, moved.num_events) == (0, 1)
    (moved,) = Edit(replaced={0: (product(1),) * 3}).apply(trace).facts.model_calls
    assert (moved.first_event, moved.num_events) == (3, 2)
