"""The plan of an explanation: what the step takes after one fix after another."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from breakeven.report import chart_document
from breakeven.report.explain import plan_sentence
from breakeven.timing import Source
from breakeven.verdict import Choice, DeviceKind, PlanStep
from factories import explanations as made_up
from factories.pages import Reader
from factories.terminal import flat, shown


def test_the_plan_shows_the_step_after_each_fix_and_where_the_verdict_turns() -> None:
    lines = shown(made_up.launch_bound(), columns=110).splitlines()
    rows = [line for line in lines if "rnn_stream.py:" in line and "○" in line]
    assert rows[0].split()[:6] == ["1", "SYNC001", "rnn_stream.py:61", "○", "1.07", "ms"]
    # 1,410 / 1,070 µs on the GPU; the CPU's step is the measured one still.
    assert rows[0].split()[6:10] == ["1.3×", "●", "1.21", "ms"]
    assert rows[0].endswith("too close (turns)")
    # The data is loaded elsewhere, so the CPU's step is shorter too, and no longer a measured one.
    assert rows[1].split()[6:11] == ["1.8×", "○", "1.12", "ms", "1.08×"]
    assert rows[1].rstrip().endswith("GPU 1.4× (turns)")
    assert "After the first 2 fixes the verdict turns. A GPU pays off: RTX 4090" in flat(
        "\n".join(lines)
    )


def test_a_plan_that_turns_nothing_says_so() -> None:
    first, *others = made_up.launch_bound().plan
    same = (first, *(replace(step, verdict=first.verdict) for step in others))
    assert plan_sentence(same).startswith(
        "Both fixes together do not turn the verdict. Train this on your CPU"
    )
    assert plan_sentence((*same, same[-1])).startswith("All 3 fixes together do not turn")
    assert plan_sentence(same[:2]).startswith("The fix does not turn the verdict.")


def test_a_plan_turns_with_the_fix_from_which_on_the_verdict_stays() -> None:
    first, close, gpu = made_up.launch_bound().plan
    back = replace(close, verdict=first.verdict)
    assert plan_sentence((first, gpu, back, gpu)).startswith("After the first 3 fixes")
    assert plan_sentence((first, gpu, gpu)).startswith("After the first fix the verdict turns.")
    assert plan_sentence((gpu, first)).endswith("faster than the best GPU, RTX 4090.")


def test_a_cpu_whose_time_is_predicted_after_a_fix_is_this_cpu_still() -> None:
    *_, gpu = made_up.launch_bound().plan
    assert plan_sentence(made_up.launch_bound().plan).endswith("faster than this CPU.")
    assert gpu.results[0].source is Source.PREDICTED


def test_a_terminal_has_the_explained_device_and_the_cpu_and_counts_the_others() -> None:
    text = shown(made_up.launch_bound())
    assert "1 more device in --json" in text
    assert re.search(r"one fix after another +RTX 4090 +this CPU +verdict", text)


def with_two_cpus(step: PlanStep) -> PlanStep:
    """Return a step of a plan with its CPU on one thread and on eight."""
    (cpu,) = (result for result in step.results if result.kind is DeviceKind.CPU)
    cpus = tuple(
        replace(cpu, device=f"{cpu.device} ({text})", setting=text)
        for text in ("1 thread", "8 threads")
    )
    return replace(step, results=(*cpus, *(one for one in step.results if one is not cpu)))


def test_the_cpu_on_several_numbers_of_threads_has_a_column_for_each() -> None:
    report = made_up.launch_bound()
    page = Reader(
        chart_document(replace(report, plan=tuple(map(with_two_cpus, report.plan))), ".html")
    )
    assert [name for name in page.text("th") if name.startswith("AMD EPYC 7B13 (")] == [
        "AMD EPYC 7B13 (1 thread)",
        "AMD EPYC 7B13 (8 threads)",
    ]


def test_a_device_that_is_too_small_has_no_time_in_the_plan() -> None:
    report = made_up.launch_bound()
    results = tuple(
        replace(result, fits=False) if result.device == "T4" else result
        for result in report.plan[0].results
    )
    plan = (replace(report.plan[0], results=results), *report.plan[1:])
    page = Reader(chart_document(replace(report, plan=plan), ".html"))
    assert "too big for its memory" in page.text("td")


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice.CPU, "CPU 1.2×"),
        (Choice.GPU, "GPU 1.2×"),
        (Choice.TOO_CLOSE, "too close"),
        (Choice.UNDECIDED, "undecided"),
    ],
)
def test_a_verdict_takes_a_word_or_two(choice: Choice, words: str) -> None:
    report = made_up.launch_bound()
    as_it_is = report.plan[0]
    step = replace(as_it_is, verdict=replace(as_it_is.verdict, choice=choice))
    lines = shown(replace(report, plan=(step,))).splitlines()
    (row,) = (line.rstrip() for line in lines if "as it is " in line)
    assert row.endswith(f"  {words}")
