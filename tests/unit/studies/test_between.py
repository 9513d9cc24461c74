"""What lies between two steps, priced on each device like a step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import Gap, PlainRun, TracedRun
from breakeven.device import find_device
from breakeven.studies.host_work import RecordedGap, before_step, recorded_gap
from breakeven.studies.measured_step import MeasuredStep, measured_step, program_facts, step_caveats
from breakeven.timing import Estimate, Source
from breakeven.trace import (
    Copy,
    Event,
    HostWork,
    Location,
    ModelCall,
    Op,
    Phase,
    RunFacts,
    Sync,
    TensorSpec,
)
from breakeven.verdict import BetweenTime
from factories.hosts import HOST
from factories.runs import plain_run, traced_run

MS = 1_000_000
GPU = find_device("rtx-4090")
SPEC = TensorSpec(shape=(1, 64), dtype="float32", device="cuda:0")


def op(host_us: int, phase: Phase = Phase.FORWARD, elements: int = 64) -> Op:
    spec = replace(SPEC, shape=(1, elements))
    return Op(
        name="aten.tanh.default",
        inputs=(spec,),
        outputs=(spec,),
        phase=phase,
        host_ns=host_us * 1_000,
    )


# A policy that sees one observation at a time.
OBSERVATION = Copy(source="cpu", destination="cuda:0", num_bytes=16)
ACTION = Sync(kind="copy_", num_bytes=8)
FORWARD = (op(3),) * 4
BACKWARD = (op(3, Phase.BACKWARD),) * 4
SIMULATOR = HostWork(kind="script", duration_ns=50_000, phase=Phase.FORWARD)
STEP = (*FORWARD, *BACKWARD)


def gap(time_ns: float, per_step_ns: float = 1.0 * MS) -> Gap:
    other = Estimate(
        value_ns=per_step_ns,
        low_ns=0.8 * per_step_ns,
        high_ns=1.25 * per_step_ns,
        source=Source.MEASURED,
    )
    return Gap(num_updates=40, time_ns=time_ns, other=other)


def recorded(events: tuple[Event, ...], time_ns: float, fraction: float = 1.0) -> RecordedGap:
    plain = replace(plain_run(), processor=HOST.name)
    traced = replace(traced_run(*events), recorded_fraction=fraction)
    return recorded_gap(gap(time_ns), traced, traced_run(*STEP).trace, plain)


def time_of(found: RecordedGap) -> BetweenTime:
    (time,) = found.times(1.0 * MS, (GPU,), HOST, HOST)
    assert time.low_ns < time.time_ns < time.high_ns
    return time


def test_what_precedes_the_forward_pass_of_the_next_step_is_the_gap() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION, SIMULATOR)
    assert before_step((*rollout, *FORWARD, *BACKWARD), STEP) == rollout
    # Work of the host is now longer, now shorter: it tells nothing.
    assert before_step((*rollout, *FORWARD, SIMULATOR, *BACKWARD), STEP) == rollout
    # Enough was recorded before any step followed.
    assert before_step(rollout, STEP) == rollout
    assert before_step(STEP, STEP) == ()


def test_a_policy_with_one_observation_at_a_time_is_slower_on_a_gpu() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION) * 20
    on_cpu_ns = 20 * 60_000
    found = time_of(recorded((*rollout, *STEP), on_cpu_ns))
    assert found.device == GPU.name
    assert found.time_ns > 1.2 * MS


def test_much_arithmetic_between_steps_is_faster_on_a_gpu() -> None:
    validation = (OBSERVATION, *(op(5_000, elements=4_000_000),) * 10) * 2
    found = time_of(recorded((*validation, *STEP), 100.0 * MS))
    assert found.high_ns < 0.3 * MS


def test_what_the_script_does_itself_takes_as_long_on_any_device() -> None:
    simulator = (HostWork(kind="script", duration_ns=100 * MS, phase=Phase.FORWARD),)
    found = time_of(recorded((*simulator, *STEP), 100.0 * MS))
    assert found.time_ns == pytest.approx(1.0 * MS, rel=0.05)


def test_a_part_stands_for_all_and_is_less_certain() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION) * 20
    whole = time_of(recorded((*rollout * 4, *STEP), 4_800_000))
    # Of 480 events 120 are recorded; the step that follows, unseen, calls 4.
    part = time_of(recorded(rollout, 4_800_000, fraction=120 / 484))
    assert part.time_ns == pytest.approx(whole.time_ns, rel=0.05)
    assert part.high_ns / part.low_ns > whole.high_ns / whole.low_ns


def with_gap(plain: PlainRun, traced_gap: TracedRun | None) -> MeasuredStep:
    return measured_step(traced_run(*STEP), plain, plain, (), plain.gap, traced_gap)


def test_a_validation_on_the_lines_of_the_training_is_known_by_its_recording() -> None:
    # Stacks do not tell it from the steps: the run that times them knows nothing of it.
    plain = replace(plain_run(), processor=HOST.name, gap=gap(10.0 * MS, 0.5 * MS))
    line = Location(file="/home/me/train.py", line=9)
    call = ModelCall(
        model="Net", location=line, stack=-1, is_training=False, has_grad=False,
        is_used_in_backward=False, first_event=0, num_events=10,
    )  # fmt: skip
    validation = traced_run(*(op(1_000),) * 10, *STEP)
    trace = replace(validation.trace, facts=RunFacts(model_calls=(call,)))
    step = with_gap(plain, replace(validation, trace=trace))
    facts = program_facts(step, (GPU,), HOST, HOST)
    assert facts.other_ns == 0.5 * MS
    assert facts.other_low_ns < 0.5 * MS < facts.other_high_ns
    (part,) = facts.parts
    assert (part.file, part.line) == (line.file, line.line)
    assert part.function == "Net without gradients"
    assert [each.device for each in facts.between] == [GPU.name]


def test_longer_steps_that_do_nothing_else_stay_unknown() -> None:
    plain = replace(plain_run(), processor=HOST.name, gap=gap(10.0 * MS))
    # They were held up: the recording has the next step alone.
    for traced_gap in (traced_run(*STEP), None):
        step = with_gap(plain, traced_gap)
        facts = program_facts(step, (GPU,), HOST, HOST)
        assert (facts.other_ns, facts.between) == (None, ())
        codes = {caveat.code for caveat in step_caveats(step, facts, HOST, HOST)}
        assert "between-not-recorded" in codes
