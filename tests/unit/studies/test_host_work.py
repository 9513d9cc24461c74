from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.capture import Gap, LoaderUse, PlainRun, ThreadTrial, TracedRun
from breakeven.cost import reference_host
from breakeven.device import HostSpec, find_device
from breakeven.errors import Caveat
from breakeven.simulate import build_program, predict_steps
from breakeven.studies.host_work import (
    RecordedGap,
    as_timed,
    before_step,
    host_for_prediction,
    is_other_path,
    recorded_gap,
)
from breakeven.studies.measured_step import MeasuredStep, measured_step, program_facts, step_caveats
from breakeven.timing import EMULATED_ON_CPU, Estimate, Measurement, Source, StepPhases
from breakeven.trace import (
    Copy,
    Event,
    GraphLaunch,
    HostWork,
    Location,
    ModelCall,
    Op,
    OptimizerFacts,
    Phase,
    RunFacts,
    Sync,
    TensorSpec,
)
from breakeven.verdict import BetweenTime
from factories.hosts import HOST
from factories.runs import device_op, loader_use, plain_run, traced_run
from factories.steps import GPU

DATA = HostWork(kind="data", duration_ns=400_000)
SCRIPT = HostWork(kind="script", duration_ns=200_000)
OP = replace(device_op(), host_ns=100_000)


def durations(traced: TracedRun, plain: PlainRun) -> list[int]:
    trace = as_timed(traced.trace, traced, plain)
    return [event.duration_ns for event in trace.events if isinstance(event, HostWork)]


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        # The recorder slowed the loader down by 4.
        (loader_use(wait_ns=100_000), 100_000),
        # It cannot have sped it up: what the plain run waits for more is noise.
        (loader_use(wait_ns=900_000), 400_000),
        # With workers the wait says nothing about the work.
        (loader_use(wait_ns=1_000, num_workers=4), 400_000),
        # No loader was seen in the plain run.
        (None, 400_000),
    ],
)
def test_data_takes_what_it_takes_in_the_plain_run(loader: LoaderUse | None, expected: int) -> None:
    traced = traced_run(DATA, OP)
    assert durations(traced, plain_run(10_000_000, loader)) == [expected]


@pytest.mark.parametrize(
    ("step_ns", "expected"),
    [
        # Of a step of 250 µs, operators take 100 µs and data 50 µs: 100 µs are left for Python.
        (250_000, 100_000),
        # There is room for all that was traced, which is an upper limit.
        (350_000, 200_000),
        (9_000_000, 200_000),
        # The plain step is over before operators and data are: nothing is left.
        (150_000, 0),
        (50_000, 0),
    ],
)
def test_work_of_the_script_takes_no_more_than_the_plain_step_leaves(
    step_ns: int, expected: int
) -> None:
    traced = traced_run(SCRIPT, OP)
    assert durations(traced, plain_run(step_ns, loader_use(wait_ns=50_000))) == [expected]


def test_ratios_of_one_batch_size_hold_at_another() -> None:
    small = traced_run(DATA, OP, SCRIPT)
    plain = plain_run(250_000, loader_use(wait_ns=100_000))
    # Data took a quarter; 250 - 100 - 100 µs leave the script a quarter too.
    double = traced_run(*(twice(event) for event in (DATA, OP, SCRIPT)), batch_size=64)
    prepared = as_timed(double.trace, small, plain)
    assert [event.duration_ns for event in prepared.events if isinstance(event, HostWork)] == [
        200_000,
        100_000,
    ]
    assert prepared.batch_size == 64


def twice(event: Event) -> Event:
    return replace(event, duration_ns=2 * event.duration_ns) if event != OP else event


def test_all_but_the_work_of_the_host_stays() -> None:
    copy = Copy(source="cpu", destination="cuda:0", num_bytes=128)
    traced = traced_run(DATA, copy, OP, SCRIPT)
    trace = as_timed(traced.trace, traced, plain_run(250_000, loader_use(wait_ns=100_000)))
    assert [event for event in trace.events if not isinstance(event, HostWork)] == [copy, OP]
    assert [type(event) for event in trace.events] == [type(e) for e in traced.trace.events]


@pytest.mark.parametrize(
    ("alone_ns", "expected"),
    [
        (300_000, 600_000),  # two workers finish a batch in 300 µs, so each takes twice that
        (0, 400_000),  # not measured: the work that was traced
    ],
)
def test_workers_take_for_a_batch_what_they_take_alone(alone_ns: float, expected: int) -> None:
    data = replace(DATA, num_workers=2)
    loader = replace(loader_use(wait_ns=1_000, num_workers=2), alone_ns=alone_ns)
    assert durations(traced_run(data, OP), plain_run(10_000_000, loader)) == [expected]


def test_batch_of_workers_takes_the_training_process_too() -> None:
    data, loader = replace(DATA, num_workers=2), loader_use(wait_ns=1_000, num_workers=2)
    traced = traced_run(data, OP)

    def step_ns(taking_ns: float) -> float:
        used = replace(loader, alone_ns=10_000.0, taking_ns=taking_ns)
        trace = as_timed(traced.trace, traced, plain_run(10_000_000, used))
        [prediction] = predict_steps(build_program(trace), [GPU], HOST)
        return prediction.estimate.value_ns

    assert step_ns(2e6) - step_ns(1e6) == pytest.approx(1e6, rel=0.01)


PHASES = StepPhases(backward_ns=100_000, optimizer_ns=50_000)
HERE = replace(HOST, device_ns=1_000.0, module_ns=500.0)
STEP = tuple(
    replace(OP, host_ns=2_000, phase=phase)
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    for _ in range(10)
)


def fed(
    *events: Event, plain: PlainRun | None = None, optimizer: str = "torch", host: HostSpec = HERE
) -> HostSpec:
    run = traced_run(*events)
    facts = OptimizerFacts(
        name="SGD", location=None, num_tensors=2, is_from_torch=optimizer == "torch"
    )
    run = replace(
        run, trace=replace(run.trace, facts=replace(run.trace.facts, optimizers=(facts,)))
    )
    plain = plain or replace(plain_run(400_000), phases=PHASES)
    program = build_program(as_timed(run.trace, run, plain))
    return host_for_prediction(program, plain, host, HERE)


def test_measured_step_tells_the_hosts_work() -> None:
    host = fed(*STEP)
    slower = fed(*STEP, plain=replace(plain_run(800_000), phases=PHASES))
    assert host.step_ns > 0
    assert slower.forward_factor > host.forward_factor > 1
    assert slower.backward_factor == host.backward_factor


CROWDED = replace(
    plain_run(3_000_000, loader_use(wait_ns=1_000, num_workers=2)),
    phases=StepPhases(backward_ns=1_000_000, optimizer_ns=500_000),
)


def test_steps_beside_workers_tell_nothing_of_the_hosts_work() -> None:
    # They took seven times as long, since workers had the processors.
    host = fed(*STEP, plain=CROWDED)
    assert host.forward_factor == HERE.forward_factor
    assert host.log_sigma > HERE.log_sigma


def test_steps_while_workers_rest_tell_the_hosts_work() -> None:
    apart = ThreadTrial(
        num_threads=2, measurement=plain_run(400_000).measurement, phases=PHASES, loader_wait_ns=0.0
    )
    assert fed(*STEP, plain=replace(CROWDED, apart=apart)) == fed(*STEP)


def test_few_steps_tell_less_of_the_hosts_work() -> None:
    # Arithmetic is half of it; whether the rest is the host's, one sample cannot tell.
    long = [replace(op, host_ns=50_000) for op in STEP]
    many = replace(plain_run(3_000_000), phases=PHASES)
    once = replace(many, measurement=Measurement(samples_ns=(3_000_000,)))
    assert 1 < 2 * fed(*long, plain=once).forward_factor < fed(*long, plain=many).forward_factor


def test_host_is_left_where_the_measured_step_tells_nothing_of_it() -> None:
    assert fed(*STEP, plain=plain_run(400_000)) == HERE
    elsewhere = replace(plain_run(400_000), phases=PHASES, processor="Another CPU")
    assert fed(*STEP, plain=elsewhere) == HERE
    assert fed(GraphLaunch(), *STEP) == HERE


def test_another_host_takes_its_own_time_for_the_same_script() -> None:
    named = fed(*STEP, host=reference_host())
    assert (named.id, named.op_ns) == ("reference", reference_host().op_ns)
    assert named.forward_factor != 1.0


def test_work_before_an_update_is_no_work_of_the_forward_pass() -> None:
    plain = replace(
        plain_run(600_000), phases=StepPhases(backward_ns=100_000, optimizer_ns=250_000)
    )
    log = replace(SCRIPT, phase=Phase.FORWARD)
    after = fed(*STEP[:20], log, *STEP[20:], plain=plain)
    assert after.forward_factor == fed(*STEP).forward_factor
    assert after.optimizer_factor == pytest.approx(fed(*STEP).optimizer_factor)


def test_a_step_that_was_recorded_longer_than_it_took_is_another_one() -> None:
    run = traced_run(*STEP)
    timed = replace(plain_run(400_000), phases=PHASES)
    shorter = replace(timed, measurement=plain_run(10_000).measurement)
    program = build_program(run.trace)
    assert not is_other_path(program, timed, HERE)
    assert is_other_path(program, shorter, HERE)
    host = host_for_prediction(program, shorter, HERE, HERE)
    assert host.log_sigma > HERE.log_sigma
    assert host.forward_factor == HERE.forward_factor
    assert not is_other_path(program, replace(shorter, processor="Another CPU"), HERE)


def test_a_format_that_the_cpu_emulates_shows_nothing_of_the_hosts_work() -> None:
    caveat = Caveat(code=EMULATED_ON_CPU, message="bf16 is emulated")
    emulated = replace(plain_run(40_000_000_000), phases=PHASES, caveats=(caveat,))
    host = fed(*STEP, plain=emulated)
    assert host.forward_factor == HERE.forward_factor
    assert host.log_sigma > HERE.log_sigma


MS = 1_000_000
RTX_4090 = find_device("rtx-4090")
SPEC = TensorSpec(shape=(1, 64), dtype="float32", device="cuda:0")


def recorded_op(host_us: int, phase: Phase = Phase.FORWARD, elements: int = 64) -> Op:
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
FORWARD = (recorded_op(3),) * 4
BACKWARD = (recorded_op(3, Phase.BACKWARD),) * 4
SIMULATOR = HostWork(kind="script", duration_ns=50_000, phase=Phase.FORWARD)
NEXT_STEP = (*FORWARD, *BACKWARD)


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
    return recorded_gap(gap(time_ns), traced, traced_run(*NEXT_STEP).trace, plain)


def time_of(found: RecordedGap) -> BetweenTime:
    (time,) = found.times(1.0 * MS, (RTX_4090,), HOST, HOST)
    assert time.low_ns < time.time_ns < time.high_ns
    return time


def test_what_precedes_the_forward_pass_of_the_next_step_is_the_gap() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION, SIMULATOR)
    assert before_step((*rollout, *FORWARD, *BACKWARD), NEXT_STEP) == rollout
    # Work of the host is now longer, now shorter: it tells nothing.
    assert before_step((*rollout, *FORWARD, SIMULATOR, *BACKWARD), NEXT_STEP) == rollout
    # Enough was recorded before any step followed.
    assert before_step(rollout, NEXT_STEP) == rollout
    assert before_step(NEXT_STEP, NEXT_STEP) == ()


def test_a_policy_with_one_observation_at_a_time_is_slower_on_a_gpu() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION) * 20
    on_cpu_ns = 20 * 60_000
    found = time_of(recorded((*rollout, *NEXT_STEP), on_cpu_ns))
    assert found.device == RTX_4090.name
    assert found.time_ns > 1.2 * MS


def test_much_arithmetic_between_steps_is_faster_on_a_gpu() -> None:
    validation = (OBSERVATION, *(recorded_op(5_000, elements=4_000_000),) * 10) * 2
    found = time_of(recorded((*validation, *NEXT_STEP), 100.0 * MS))
    assert found.high_ns < 0.3 * MS


def test_what_the_script_does_itself_takes_as_long_on_any_device() -> None:
    simulator = (HostWork(kind="script", duration_ns=100 * MS, phase=Phase.FORWARD),)
    found = time_of(recorded((*simulator, *NEXT_STEP), 100.0 * MS))
    assert found.time_ns == pytest.approx(1.0 * MS, rel=0.05)


def test_a_part_stands_for_all_and_is_less_certain() -> None:
    rollout = (OBSERVATION, *FORWARD, ACTION) * 20
    whole = time_of(recorded((*rollout * 4, *NEXT_STEP), 4_800_000))
    # Of 480 events 120 are recorded; the step that follows, unseen, calls 4.
    part = time_of(recorded(rollout, 4_800_000, fraction=120 / 484))
    assert part.time_ns == pytest.approx(whole.time_ns, rel=0.05)
    assert part.high_ns / part.low_ns > whole.high_ns / whole.low_ns


def with_gap(plain: PlainRun, traced_gap: TracedRun | None) -> MeasuredStep:
    return measured_step(traced_run(*NEXT_STEP), plain, plain, (), plain.gap, traced_gap)


def test_a_validation_on_the_lines_of_the_training_is_known_by_its_recording() -> None:
    # Stacks do not tell it from the steps: the run that times them knows nothing of it.
    plain = replace(plain_run(), processor=HOST.name, gap=gap(10.0 * MS, 0.5 * MS))
    line = Location(file="/home/me/train.py", line=9)
    call = ModelCall(
        model="Net", location=line, stack=-1, is_training=False, has_grad=False,
        is_used_in_backward=False, first_event=0, num_events=10,
    )  # fmt: skip
    validation = traced_run(*(recorded_op(1_000),) * 10, *NEXT_STEP)
    trace = replace(validation.trace, facts=RunFacts(model_calls=(call,)))
    step = with_gap(plain, replace(validation, trace=trace))
    facts = program_facts(step, (RTX_4090,), HOST, HOST)
    assert facts.other_ns == 0.5 * MS
    assert facts.other_low_ns < 0.5 * MS < facts.other_high_ns
    (part,) = facts.parts
    assert (part.file, part.line) == (line.file, line.line)
    assert part.function == "Net without gradients"
    assert [each.device for each in facts.between] == [RTX_4090.name]


def test_longer_steps_that_do_nothing_else_stay_unknown() -> None:
    plain = replace(plain_run(), processor=HOST.name, gap=gap(10.0 * MS))
    # They were held up: the recording has the next step alone.
    for traced_gap in (traced_run(*NEXT_STEP), None):
        step = with_gap(plain, traced_gap)
        facts = program_facts(step, (RTX_4090,), HOST, HOST)
        assert (facts.other_ns, facts.between) == (None, ())
        codes = {caveat.code for caveat in step_caveats(step, facts, HOST, HOST)}
        assert "between-not-recorded" in codes
