"""What becomes of the whole training, as a person reads it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.report import chart_document
from breakeven.timing import EMULATED_ON_CPU
from breakeven.units import format_time
from breakeven.verdict import (
    BetweenTime,
    CheckReport,
    DeviceKind,
    ProgramFacts,
    ProgramPart,
    decide,
    program_of,
)
from factories import reports as made_up
from factories import terminal
from factories.terminal import flat

MS, S = 1e6, 1e9
MIN, H, DAY = 60 * S, 3_600 * S, 86_400 * S
EVALUATE = ProgramPart(file="/home/me/train.py", line=52, function="evaluate", time_ns=6_000 * MS)
SAVE = ProgramPart(file="/home/me/train.py", line=53, function="", time_ns=2_000 * MS)


def with_program(
    report: CheckReport, facts: ProgramFacts, num_steps: int | None = None
) -> CheckReport:
    return replace(report, program=program_of(report.verdict, report.results, facts, num_steps))


def of_evaluation() -> ProgramFacts:
    report = made_up.gpu_wins()
    cpu = next(result for result in report.results if result.device == made_up.CPU_NAME)
    other_ns = cpu.step_ns
    parts = tuple(
        replace(part, time_ns=share * other_ns) for part, share in ((EVALUATE, 0.75), (SAVE, 0.25))
    )
    return ProgramFacts(
        startup_ns=2 * S,
        other_ns=other_ns,
        other_low_ns=0.8 * other_ns,
        other_high_ns=1.25 * other_ns,
        parts=parts,
    )


def page_of(report: CheckReport) -> str:
    return chart_document(report, ".html").decode()


def shown(report: CheckReport) -> str:
    return flat(terminal.shown(report))


def test_the_verdict_speaks_of_the_whole_training_where_it_is_more_than_its_steps() -> None:
    text = shown(with_program(made_up.gpu_wins(), of_evaluation()))
    assert "Your whole training is 2.0× (1.8–2.3×) as fast on H100 SXM5 80GB as on" in text
    assert (
        "50 % of its time on this CPU is no step (38 % evaluate at train.py:52, 12 % "
        "train.py:53), and is taken to stay on the CPU" in text
    )
    assert "program: start-up 2 s · steps 50 % · evaluate 38 % · train.py:53 12 %" in text
    assert "evaluate at train.py:52" in page_of(with_program(made_up.gpu_wins(), of_evaluation()))


def test_what_lies_between_steps_is_told_as_a_gpu_would_take_it() -> None:
    facts, report = of_evaluation(), made_up.gpu_wins()
    other_ns = facts.other_ns or 0.0
    slower = BetweenTime(
        device="H100 SXM5 80GB", time_ns=2 * other_ns, low_ns=other_ns, high_ns=3 * other_ns
    )
    text = shown(with_program(report, replace(facts, between=(slower,))))
    assert (
        "train.py:53); on H100 SXM5 80GB that takes 2.0× (1.0–3.0×) as long, 100 % of the time "
        "with H100 SXM5 80GB." in text
    )
    assert "stay on the CPU" not in text


def test_a_hundredth_of_the_time_here_may_be_most_of_it_on_a_gpu() -> None:
    facts = of_evaluation()
    rare_ns = 0.01 * (facts.other_ns or 0.0)
    rare = replace(facts, other_ns=rare_ns, other_low_ns=rare_ns, other_high_ns=rare_ns, parts=())
    text = shown(with_program(made_up.gpu_wins(), rare))
    assert "0.99 % of its time on this CPU is no step, and is taken to stay on the CPU" in text
    assert "62 % of the time with H100 SXM5 80GB." in text


def test_a_training_of_steps_alone_needs_no_sentence() -> None:
    text = shown(with_program(made_up.gpu_wins(), ProgramFacts(other_ns=0.0)))
    assert "program: start-up 0 ns · steps 100 %" in text
    assert "whole training" not in text
    unknown = shown(with_program(made_up.gpu_wins(), ProgramFacts()))
    assert "what is done between the steps is not known" in unknown


def test_the_time_of_a_training_is_told_where_its_length_is_known() -> None:
    report = with_program(made_up.gpu_wins(), of_evaluation(), num_steps=100_000)
    text = shown(report)
    start = text.index("The whole training: 100,000 steps and start-up")
    places = [text.index(name, start) for name in ("H100 SXM5 80GB", "RTX 4090", "this CPU")]
    assert places == sorted(places)
    assert "The whole training" in page_of(report)
    assert "without what is done between them" in shown(
        with_program(made_up.gpu_wins(), ProgramFacts(), num_steps=1)
    )


def on_threads(*, factor: float, is_disturbed: bool = False) -> CheckReport:
    """Return a report of a CPU on one thread, which is best, and on eight, as the script runs it.

    Args:
        factor: How many times as long the step takes on eight.
        is_disturbed: Whether other work disturbed it there.
    """
    report = made_up.cpu_wins()
    cpu = next(result for result in report.results if result.device == made_up.CPU_NAME)
    one = replace(cpu, device="CPU (1 thread)", setting="1 thread")
    step_ns = factor * cpu.step_ns
    many = replace(
        cpu,
        setting="8 threads",
        step_ns=step_ns,
        low_ns=min(cpu.low_ns, step_ns),
        high_ns=2 * step_ns,
        is_disturbed=is_disturbed,
    )
    results = (one, many, *(result for result in report.results if result is not cpu))
    return replace(
        report,
        results=results,
        verdict=decide(results),
        host=replace(report.host, num_threads=1),
    )


def test_how_to_get_the_best_threads_is_said_where_the_script_has_others() -> None:
    text = shown(on_threads(factor=2))
    assert "To run on 1 thread, set OMP_NUM_THREADS=1 before python" in text
    assert "As small a change saves on the GPU" in text
    assert "OMP_NUM_THREADS" not in shown(made_up.cpu_wins())


@pytest.mark.parametrize(
    ("precision", "what"), [("fp16", "fp16"), ("bf16", "bf16"), ("fp32", "the 16-bit layers")]
)
def test_a_cpu_that_emulates_the_format_of_the_step_is_told_beside_the_verdict(
    precision: str, what: str
) -> None:
    report = made_up.gpu_wins()
    caveat = Caveat(code=EMULATED_ON_CPU, message="it is emulated")
    results = tuple(
        replace(result, precision=precision, caveats=(caveat,))
        if result.kind is DeviceKind.CPU
        else result
        for result in report.results
    )

    assert f"This CPU emulates {what}: in fp32" in shown(replace(report, results=results))
    assert "emulates" not in shown(report)


def test_threads_that_were_only_disturbed_less_are_no_advice() -> None:
    text = shown(on_threads(factor=0.8, is_disturbed=True))
    assert "this CPU, 1 thread" in text
    assert "OMP_NUM_THREADS" not in text
    assert "set OMP_NUM_THREADS=1" in shown(on_threads(factor=2, is_disturbed=True))


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0.4 * S, "400 ms"),
        (59.4 * S, "59 s"),
        (59.6 * S, "1 min"),
        (61 * S, "1 min 1 s"),
        (9 * MIN + 59.7 * S, "10 min"),
        (42 * MIN + 20 * S, "42 min"),
        (59 * MIN + 59.9 * S, "1 h"),
        (3 * H + 10 * MIN, "3 h 10 min"),
        (23 * H + 59.9 * MIN, "1 d"),
        (30 * DAY, "30 d"),
        (2 * DAY + 4 * H, "2 d 4 h"),
    ],
)
def test_long_times_are_said_as_people_do(duration_ns: float, text: str) -> None:
    assert format_time(duration_ns) == text
