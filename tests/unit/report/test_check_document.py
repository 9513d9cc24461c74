"""The document of a check."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from breakeven.errors import Caveat
from breakeven.report import CheckReport, chart_document, show
from breakeven.simulate import Finding, GraphBreak
from breakeven.timing import BUSY_MACHINE, EMULATED_ON_CPU, Estimate, Source
from breakeven.trace import Location
from breakeven.verdict import (
    BetweenTime,
    Bound,
    CapturedStep,
    CompiledResult,
    CompiledSteps,
    Crossover,
    DeviceKind,
    DeviceResult,
    GeneratedRun,
    GeneratedStep,
    NoCrossover,
    ProgramFacts,
    ProgramPart,
    decide,
    generated_step,
    program_of,
)
from factories import reports as made_up
from factories import terminal
from factories.reports import US, gpu
from factories.terminal import flat

shown = partial(
    terminal.shown, shows=partial(show, hints=("Every number as JSON: --json, or -o report.json",))
)
wide = partial(terminal.shown, columns=100)
S = 1e9


def flat_of(report: CheckReport) -> str:
    return flat(terminal.shown(report))


def test_narrow_terminal_keeps_the_essential_columns() -> None:
    text = shown(made_up.gpu_wins(), columns=56)
    header = next(line for line in text.splitlines() if "step time" in line)
    assert header.split() == ["device", "step", "time", "vs", "CPU", "bound"]
    assert "520 ms (400–670)" in text


def test_throughput_is_batch_size_over_step_time() -> None:
    # 100 samples in 1.9 ms are 52.6 thousand per second.
    row = next(line for line in shown(made_up.cpu_wins()).splitlines() if "RTX 3060" in line)
    assert " 53k " in row


def test_crossover_sentences() -> None:
    report = made_up.cpu_wins()
    assert "from batch size 640 (410–1,300) on, RTX 4090 is faster" in flat(shown(report))
    found = report.crossover
    assert isinstance(found, Crossover)
    open_ended = msgspec.structs.replace(found, high=None)
    text = flat(shown(msgspec.structs.replace(report, crossover=open_ended)))
    assert "from batch size 640 (410 or more) on" in text
    none = NoCrossover(none_because="the CPU wins at every size up to 4,096.", searched=(1, 4_096))
    text = flat(shown(msgspec.structs.replace(report, crossover=none)))
    assert "No crossover: the CPU wins at every size up to 4,096." in text
    unknown = NoCrossover(none_because="the script feeds its batches by hand.")
    text = flat(shown(msgspec.structs.replace(report, crossover=unknown)))
    assert "No crossover" not in text
    assert "Crossover not known: the script feeds its batches by hand." in text


def test_a_busy_machine_is_told_beside_the_verdict_and_only_there() -> None:
    report = made_up.cpu_wins()
    busy = Caveat(code=BUSY_MACHINE, message="other processes used 50 % of this machine")
    cpu = next(result for result in report.results if result.device == made_up.CPU_NAME)
    results = tuple(
        msgspec.structs.replace(result, caveats=(busy,)) if result is cpu else result
        for result in report.results
    )
    lines = shown(
        msgspec.structs.replace(report, results=results, caveats=(*report.caveats, busy))
    ).splitlines()
    (position,) = (index for index, line in enumerate(lines) if busy.message in line)
    assert lines[position].startswith(f"Careful: {busy.message}.")
    assert position < lines.index("")


def undecided() -> CheckReport:
    """Return a check in which other work kept every step on the CPU from running."""
    report = made_up.cpu_wins()
    results = [
        made_up.gpu("T4", 5e6, 4e6, 6e6, Bound.LAUNCH),
        made_up.gpu("RTX 4090", 1.4e6, 1.2e6, 1.6e6, Bound.LAUNCH),
        msgspec.structs.replace(made_up.cpu(9.8e8, 7e5, 9.8e8), is_disturbed=True),
    ]
    return msgspec.structs.replace(
        report,
        results=tuple(results),
        verdict=decide(results),
        crossover=NoCrossover(none_because="nobody knows."),
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_an_undecided_check_shows_how_wide_the_ratios_are_and_claims_none(columns: int) -> None:
    text = shown(undecided(), columns=columns)
    assert text.startswith("Undecided: this CPU cannot be timed well enough")
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("○")}
    # 980 / 1.2 and 0.7 / 1.4; 980 / 4 and 0.7 / 5, with the ends of the GPU in squares.
    assert re.search(r" 0\.5–820× +launch", rows["RTX"])
    assert re.search(r" 0\.14–240× +launch", rows["T4"])
    assert "700×" not in text
    assert "above 1×" not in text


def test_an_undecided_check_keeps_the_ratios_around_a_crossover() -> None:
    report = msgspec.structs.replace(undecided(), crossover=made_up.cpu_wins().crossover)
    assert "above 1×, a device is faster than this CPU" in shown(report)


def test_a_caveat_of_the_report_and_of_a_device_is_shown_once_without_devices() -> None:
    report = made_up.gpu_wins()
    caveat = report.results[3].caveats[0]
    text = flat(shown(msgspec.structs.replace(report, caveats=(caveat,))))
    assert text.count("copies from pageable memory") == 1
    assert "(T4, GTX 1050 Ti)" not in text


def distinct(finding: Finding, count: int) -> tuple[Finding, ...]:
    return tuple(msgspec.structs.replace(finding, title=f"fault {n}") for n in range(count))


def test_the_same_fault_on_several_lines_is_one_finding() -> None:
    report = made_up.cpu_wins()
    first, other = report.findings
    more = [msgspec.structs.replace(first, line=line, gain_fraction=0.01) for line in (63, 70, 71)]
    text = flat(shown(msgspec.structs.replace(report, findings=(*more, other, first))))
    assert text.count("loss.item() makes the host wait") == 1
    assert "4 lines: examples/rnn_stream.py:63" in text
    assert "and 1 more · the fix of one saves up to 24 %" in text


def test_a_fix_that_several_lines_share_is_told_with_the_first() -> None:
    report = made_up.cpu_wins()
    first, other = report.findings
    again = msgspec.structs.replace(first, line=63, title="another title")
    of_step = msgspec.structs.replace(first, file=None, line=None, fix="the same for the step")
    of_all = msgspec.structs.replace(of_step, title="another title")
    findings = (first, other, again, of_step, of_all)
    text = flat(shown(msgspec.structs.replace(report, findings=findings)))
    assert text.count("add the losses up on the GPU") == 1
    assert text.count("fix: as for examples/rnn_stream.py:61") == 1
    assert text.count("fix: as above") == 1


def test_a_fix_that_is_shorter_than_its_place_is_repeated() -> None:
    report = made_up.cpu_wins()
    finding = msgspec.structs.replace(report.findings[0], fix="model.train()")
    text = flat(shown(msgspec.structs.replace(report, findings=distinct(finding, 2))))
    assert text.count("fix: model.train()") == 2


def test_finding_that_raises_claims_no_gain() -> None:
    report = made_up.cpu_wins()
    finding = msgspec.structs.replace(
        report.findings[0], share_fraction=0.0, gain_fraction=0.0, code="DEV001"
    )
    text = shown(msgspec.structs.replace(report, findings=(finding,)))
    assert "%" not in text.split("DEV001")[1].split("Caveats")[0]


def test_many_findings_are_counted_not_listed() -> None:
    report = made_up.cpu_wins()
    text = shown(msgspec.structs.replace(report, findings=distinct(report.findings[0], 12)))
    assert "and 4 more findings, listed by --json" in text


def test_findings_that_gain_too_little_to_list_are_said_to_do_so() -> None:
    report = made_up.cpu_wins()
    little = msgspec.structs.replace(report.findings[0], gain_fraction=0.0)
    text = flat(shown(msgspec.structs.replace(report, findings=distinct(little, 6))))
    assert "no known fix saves much; 6 findings listed by --json" in text
    assert "more finding" not in text


def measured(ns: float) -> Estimate:
    return Estimate(value_ns=ns, low_ns=0.9 * ns, high_ns=1.2 * ns, source=Source.MEASURED)


RUN = GeneratedRun(code=measured(30 * US), kept=measured(10 * US), compile_ns=10**9)

CROSSOVER = Crossover(
    axis="batch_size", device="RTX 4090", value=4_096, low=2_000, high=9_000, searched=(32, 16_384)
)


def with_generated(speedup: float = 12.0, **changes: object) -> CheckReport:
    step = generated_step(RUN, speedup * 44 * US)
    return replace(made_up.cpu_wins(), generated=step, **changes)


def test_the_parts_of_a_step_add_up() -> None:
    step = generated_step(RUN, 440 * US)
    assert step == GeneratedStep(
        step_ns=44 * US,  # with the 4 µs of a call
        low_ns=(27 + 9 + 2.5) * US,
        high_ns=(36 + 12 + 8) * US,
        code_ns=30 * US,
        call_ns=4 * US,
        kept_ns=10 * US,
        compile_ns=10**9,
        speedup=10.0,
    )


def test_a_run_without_code_is_no_step() -> None:
    assert generated_step(GeneratedRun(because="aten.sort has no generated code"), 1.0) is None


def test_sentences_say_what_is_gained_and_from_where_on_a_gpu_wins() -> None:
    text = flat(wide(with_generated(generated_crossover=CROSSOVER)))
    assert "a step takes 44 µs on this CPU, 10 µs of that for the rest of the loop" in text
    assert "12× as fast as now" in text
    assert (
        "Crossover: from batch size 4,096 (2,000–9,000) on, RTX 4090 is faster than generated code "
        "on this CPU (searched 32 to 16,384)." in text
    )
    assert "from batch size 640" in text  # against the script as it is


def test_no_crossover_is_said_as_it_is() -> None:
    none = NoCrossover(none_because="RTX 4090 is not faster than generated code on AMD at any.")
    assert none.none_because in flat(wide(with_generated(generated_crossover=none)))


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.09])
def test_what_gains_little_is_not_shown(speedup: float) -> None:
    assert wide(with_generated(speedup)) == wide(made_up.cpu_wins())


READS = "the host reads from the GPU in the middle of it (4× per step)"


def captured(ns: float = 38 * US, low: float = 30 * US, high: float = 50 * US, because: str = ""):
    result = gpu("RTX 4090", ns, low, high, Bound.LATENCY, setting="CUDA graph")
    return CapturedStep(result=result, because=because)


def with_captured(step: CapturedStep, *, has_generated: bool = True) -> CheckReport:
    made = made_up.at_their_best()
    return replace(made, captured=step, generated=made.generated if has_generated else None)


BREAK = GraphBreak(kind="item", location=Location(file="net.py", line=12))


def with_compiled(pays_after_steps: int | None = 12_345, **changes: object) -> CheckReport:
    result = CompiledResult(
        device="RTX 4090", step_ns=700 * US, low_ns=600 * US, high_ns=900 * US,
        bound=Bound.LAUNCH, speedup=2.0, pays_after_steps=pays_after_steps,
    )  # fmt: skip
    steps = CompiledSteps(
        mode="default", is_asked_for_by_script=False, num_graphs=2, num_kernels=9, breaks=(),
        compile_ns=8.6e9, results=(result,),
    )  # fmt: skip
    return replace(made_up.cpu_wins(), compiled=replace(steps, **changes))


CAVEAT = Caveat(code="absent-cpu", message="carried over from this CPU")

NAME = "Core i9-10940X (14 cores)"


def with_absent(step_ns: float = 100 * US) -> CheckReport:
    absent = DeviceResult(
        device=NAME, kind=DeviceKind.CPU, source=Source.PREDICTED, precision="fp32",
        step_ns=step_ns, low_ns=0.6 * step_ns, high_ns=1.6 * step_ns, bound=None,
        peak_memory_bytes=None, fits=None, caveats=(CAVEAT,),
    )  # fmt: skip
    return replace(made_up.cpu_wins(), absent_cpus=(absent,))


EVALUATE = ProgramPart(file="/home/me/train.py", line=52, function="evaluate", time_ns=6 * S)

SAVE = ProgramPart(file="/home/me/train.py", line=53, function="", time_ns=2 * S)


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


def test_the_verdict_speaks_of_the_whole_training_where_it_is_more_than_its_steps() -> None:
    text = flat_of(with_program(made_up.gpu_wins(), of_evaluation()))
    assert "Your whole training is 2.0× (1.8–2.3×) as fast on H100 SXM5 80GB as on" in text
    assert (
        "50 % of its time on this CPU is outside of steps (38 % evaluate at train.py:52, "
        "12 % train.py:53), assumed to stay on the CPU" in text
    )
    assert "program: start-up 2 s · steps 50 % · evaluate 38 % · train.py:53 12 %" in text


def test_calls_of_one_function_on_two_lines_are_one_part_of_the_program() -> None:
    facts = of_evaluation()
    twice = replace(facts, parts=tuple(replace(one, function="evaluate") for one in facts.parts))
    text = flat_of(with_program(made_up.gpu_wins(), twice))
    assert "program: start-up 2 s · steps 50 % · evaluate 50 % host:" in text


def test_the_chart_page_names_what_takes_the_time_outside_of_steps() -> None:
    assert (
        "evaluate at train.py:52"
        in chart_document(with_program(made_up.gpu_wins(), of_evaluation()), ".html").decode()
    )


def test_what_lies_between_steps_is_told_as_a_gpu_would_take_it() -> None:
    facts, report = of_evaluation(), made_up.gpu_wins()
    other_ns = facts.other_ns or 0.0
    slower = BetweenTime(
        device="H100 SXM5 80GB", time_ns=2 * other_ns, low_ns=other_ns, high_ns=3 * other_ns
    )
    text = flat_of(with_program(report, replace(facts, between=(slower,))))
    assert (
        "train.py:53); on H100 SXM5 80GB that takes 2.0× (1.0–3.0×) as long, 100 % of the time "
        "with H100 SXM5 80GB." in text
    )
    assert "stay on the CPU" not in text


def test_a_hundredth_of_the_time_here_may_be_most_of_it_on_a_gpu() -> None:
    facts = of_evaluation()
    rare_ns = 0.01 * (facts.other_ns or 0.0)
    rare = replace(facts, other_ns=rare_ns, other_low_ns=rare_ns, other_high_ns=rare_ns, parts=())
    text = flat_of(with_program(made_up.gpu_wins(), rare))
    assert "0.99 % of its time on this CPU is outside of steps, assumed to stay on the CPU" in text
    assert "62 % of the time with H100 SXM5 80GB." in text


def test_a_training_of_steps_alone_needs_no_sentence() -> None:
    text = flat_of(with_program(made_up.gpu_wins(), ProgramFacts(other_ns=0.0)))
    assert "program: start-up 0 ns · steps 100 %" in text
    assert "whole training" not in text
    unknown = flat_of(with_program(made_up.gpu_wins(), ProgramFacts()))
    assert "the time between steps is not known" in unknown


def test_the_time_of_a_training_is_told_where_its_length_is_known() -> None:
    report = with_program(made_up.gpu_wins(), of_evaluation(), num_steps=100_000)
    text = flat_of(report)
    start = text.index("The whole training: 100,000 steps and start-up")
    places = [text.index(name, start) for name in ("H100 SXM5 80GB", "RTX 4090", "this CPU")]
    assert places == sorted(places)
    assert "The whole training" in chart_document(report, ".html").decode()
    assert "without the work between steps" in flat_of(
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
    text = flat_of(on_threads(factor=2))
    assert "To run on 1 thread, set OMP_NUM_THREADS=1 before python" in text
    assert "Equally small changes on the GPU save" in text
    assert "OMP_NUM_THREADS" not in flat_of(made_up.cpu_wins())


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

    assert f"This CPU emulates {what}: in fp32" in flat_of(replace(report, results=results))
    assert "emulates" not in flat_of(report)


def test_threads_that_were_only_disturbed_less_are_no_advice() -> None:
    text = flat_of(on_threads(factor=0.8, is_disturbed=True))
    assert "this CPU, 1 thread" in text
    assert "OMP_NUM_THREADS" not in text
    assert "set OMP_NUM_THREADS=1" in flat_of(on_threads(factor=2, is_disturbed=True))


@pytest.mark.parametrize(
    ("step", "has_generated", "sentence"),
    [
        (captured(10 * US, 9 * US, 11 * US), True, "the GPU is 2.1×"),
        (captured(22 * US, 15 * US, 30 * US), True, "as fast (too close to call)."),
        (
            captured(),
            False,
            "RTX 4090 with a CUDA graph is predicted to take 38 µs (30–50) for a step.",
        ),
        (CapturedStep(because=READS), True, f"One CUDA graph cannot replay this step: {READS}."),
        (captured(because=READS), True, f"{READS}. At their best:"),
        (
            captured(because=READS),
            True,
            'RTX 4090 with torch.compile(mode="reduce-overhead") 38 µs',
        ),
    ],
)
def test_a_step_as_one_cuda_graph(step: CapturedStep, has_generated: bool, sentence: str) -> None:
    text = wide(with_captured(step, has_generated=has_generated))
    assert sentence in flat(text)
    rows = "".join(line for line in text.splitlines() if line[:1] in "●○")
    assert ("CUDA graph" in rows) == (step.result is not None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "Compiled by torch.compile, a step on RTX 4090 is predicted to take 700 µs: 2× as fast "
            "as written. Compiling takes about 9 s, paid for after 12k steps.",
        ),
        ({"is_asked_for_by_script": True}, "2× as fast as without it, as the verdict takes it."),
        ({"pays_after_steps": None}, "Compiling takes about 9 s, which it never makes up for."),
        ({"mode": "reduce-overhead"}, 'by torch.compile in mode "reduce-overhead", a step'),
        (
            {"breaks": (BREAK,)},
            "waits for values, which breaks the compiled graph 1 time per call: net.py:12.",
        ),
    ],
)
def test_a_compiled_step(changes: dict[str, Any], sentence: str) -> None:
    text = wide(with_compiled(**changes))
    assert sentence in flat(text)
    rows = [line for line in text.splitlines() if line.startswith("○ RTX 4090")]
    assert rows[0].startswith("○ RTX 4090, compiled")
    assert "700 µs (600–900)" in rows[0]
    assert rows[1].startswith("○ RTX 4090 ")


def test_a_cpu_that_is_not_here() -> None:
    cpu = next(one for one in with_absent().results if one.kind is DeviceKind.CPU)
    text = wide(with_absent(step_ns=cpu.step_ns / 2))
    assert f"○ {NAME}" in text
    said = flat(text)
    assert f"On {NAME}, a step is predicted to take" in said
    assert "as fast as this CPU and" in said
    assert "The verdict compares GPUs with this CPU alone, which was measured." in said
    assert f"carried over from this CPU ({NAME})" in said
    assert "The verdict compares" not in wide(made_up.cpu_wins())


def test_wide_terminal_shows_all_columns() -> None:
    text = shown(made_up.gpu_wins(), columns=120)
    header = next(line for line in text.splitlines() if "step time" in line)
    for name in ("device", "step time", "samples/s", "vs CPU", "bound", "memory"):
        assert name in header


def test_report_without_a_cpu_has_no_ratio_column() -> None:
    report = made_up.cpu_wins()
    gpus = tuple(result for result in report.results if result.device != made_up.CPU_NAME)
    lines = shown(msgspec.structs.replace(report, results=gpus)).splitlines()
    (header,) = (line for line in lines if line.startswith("  device"))
    assert "vs CPU" not in header
