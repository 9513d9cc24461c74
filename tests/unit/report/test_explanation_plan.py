"""The plan of an explanation: what the step takes after one fix after another."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from breakeven.report.builders.explain_plan import plan_sentence
from breakeven.timing import Source
from breakeven.verdict import Choice, DeviceKind, PlanStep
from factories import explanations as made_up
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


def test_devices_that_do_not_fit_in_a_row_are_counted() -> None:
    assert "1 more device in --json" in shown(made_up.launch_bound(), columns=80)
    wide = shown(made_up.launch_bound(), columns=120)
    assert "more device" not in wide
    assert re.search(r"one fix after another +RTX 4090 +this CPU +T4 +verdict", wide)


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
    text = shown(replace(report, plan=tuple(map(with_two_cpus, report.plan))), columns=120)
    head = text[text.index("What the fixes come to") : text.index("as it is")]
    assert re.search(r"this CPU, 1 +this CPU, 8 ", head)
    assert re.search(r"one fix after another +RTX 4090 +thread +threads ", head)


def test_a_device_that_is_too_small_has_no_time_in_the_plan() -> None:
    report = made_up.launch_bound()
    results = tuple(
        replace(result, fits=False) if result.device == "T4" else result
        for result in report.plan[0].results
    )
    plan = (replace(report.plan[0], results=results), *report.plan[1:])
    text = shown(replace(report, plan=plan), columns=120)
    assert re.search(r"as it is .* too big ", text)


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
