"""What becomes of a whole training."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.timing import Source
from breakeven.verdict import (
    BetweenTime,
    DeviceKind,
    DeviceResult,
    ProgramFacts,
    ProgramPart,
    decide,
    facts_of,
    program_of,
)

MS = 1e6
S = 1e9


def result(device: str, kind: DeviceKind, step_ms: float, spread: float = 1.1) -> DeviceResult:
    return DeviceResult(
        device=device,
        kind=kind,
        source=Source.MEASURED if kind is DeviceKind.CPU else Source.PREDICTED,
        precision="fp32",
        step_ns=step_ms * MS,
        low_ns=step_ms * MS / spread,
        high_ns=step_ms * MS * spread,
        bound=None,
        peak_memory_bytes=None,
        fits=True,
    )


def other(time_ns: float) -> ProgramFacts:
    return ProgramFacts(other_ns=time_ns, other_low_ns=time_ns, other_high_ns=time_ns)


GPU_WINS = [result("A100", DeviceKind.GPU, 1, 1.2), result("CPU", DeviceKind.CPU, 10)]


def test_the_rest_of_a_program_dampens_what_a_gpu_gains() -> None:
    program = program_of(decide(GPU_WINS), GPU_WINS, other(9 * MS))
    assert program.step_fraction == pytest.approx(10 / 19)
    assert program.speedup == pytest.approx(19 / 10)
    assert program.low < program.speedup < program.high < 10
    # A CPU that is better stays so, by less.
    results = [result("A100", DeviceKind.GPU, 4), result("CPU", DeviceKind.CPU, 2)]
    slower = program_of(decide(results), results, other(2 * MS))
    assert (slower.step_fraction, slower.speedup) == (pytest.approx(0.5), pytest.approx(1.5))


def test_what_is_not_sure_of_the_rest_is_not_sure_of_the_whole() -> None:
    sure = program_of(decide(GPU_WINS), GPU_WINS, other(9 * MS))
    facts = replace(other(9 * MS), other_low_ns=3 * MS, other_high_ns=27 * MS)
    unsure = program_of(decide(GPU_WINS), GPU_WINS, facts)
    assert unsure.speedup == sure.speedup
    assert unsure.low < sure.low
    assert unsure.high > sure.high


def test_a_program_of_steps_alone_is_as_its_steps() -> None:
    verdict = decide(GPU_WINS)
    for facts in (ProgramFacts(), other(0.0)):
        program = program_of(verdict, GPU_WINS, facts)
        assert (program.step_fraction, program.times) == (1.0, ())
        assert program.speedup == pytest.approx(verdict.speedup)
        assert program.low == pytest.approx(verdict.low)


def test_a_training_takes_its_start_its_steps_and_what_lies_between() -> None:
    facts = replace(other(5 * MS), startup_ns=2 * S)
    program = program_of(decide(GPU_WINS), GPU_WINS, facts, num_steps=1_001)
    gpu, cpu = program.times
    assert (gpu.device, cpu.device) == ("A100", "CPU")
    assert cpu.total_ns == pytest.approx(17 * S)
    assert cpu.low_ns == pytest.approx(7 * S + 10 * S / 1.1)
    # The GPU takes seconds before anything runs there; nothing of the rest gets faster.
    assert gpu.total_ns == pytest.approx(11 * S)
    assert gpu.low_ns < gpu.total_ns < gpu.high_ns


def test_what_was_seen_of_a_script_can_be_judged_on_other_devices() -> None:
    part = ProgramPart(file="train.py", line=7, function="evaluate", time_ns=5 * MS)
    facts = replace(
        other(5 * MS), startup_ns=2 * S, data_ns=1 * MS, parts=(part,), between=(between("T4", 1),)
    )
    assert facts_of(program_of(decide(GPU_WINS), GPU_WINS, facts)) == facts


def between(device: str, time_ms: float, spread: float = 1.2) -> BetweenTime:
    time_ns = time_ms * MS
    return BetweenTime(
        device=device, time_ns=time_ns, low_ns=time_ns / spread, high_ns=time_ns * spread
    )


def test_what_lies_between_steps_takes_a_gpu_what_was_predicted_of_it() -> None:
    # The step is ten times as fast on the GPU, but rollouts take it twice as long.
    facts = replace(other(10 * MS), between=(between("A100", 20),))
    program = program_of(decide(GPU_WINS), GPU_WINS, facts, num_steps=1_001)
    assert program.speedup == pytest.approx(20 / 21)
    assert program.low < program.speedup < program.high
    assert program.step_fraction == pytest.approx(0.5)
    gpu, cpu = program.times
    assert (gpu.device, cpu.device) == ("A100", "CPU")
    assert cpu.total_ns == pytest.approx(20 * S)
    assert gpu.total_ns == pytest.approx(3 * S + 21 * S)
    # Another GPU is taken to leave it on the CPU, as without a recording.
    elsewhere = replace(facts, between=(between("T4", 20),))
    assert program_of(decide(GPU_WINS), GPU_WINS, elsewhere).speedup == pytest.approx(20 / 11)


def test_a_prediction_of_what_lies_between_steps_widens_the_whole() -> None:
    def spread(facts: ProgramFacts) -> float:
        program = program_of(decide(GPU_WINS), GPU_WINS, facts)
        return program.high / program.low

    sure, unsure = (
        replace(other(10 * MS), between=(between("A100", 10, factor),)) for factor in (1.1, 2.0)
    )
    assert spread(other(10 * MS)) < spread(sure) < spread(unsure)
    # How often it comes is not sure either.
    assert spread(unsure) < spread(replace(unsure, other_low_ns=2 * MS, other_high_ns=50 * MS))
