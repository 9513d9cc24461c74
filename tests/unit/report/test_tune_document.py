"""The document of a tuning."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from breakeven.report import show
from breakeven.report.tune import (
    cost_sentence,
)
from breakeven.verdict import CodeChange, Numerics, Outcome, is_undecided
from factories import terminal
from factories import tunings as made_up
from factories.terminal import flat

shown = partial(
    terminal.shown, shows=partial(show, hints=("Train with it: breakeven run train.py",))
)


def test_nothing_tried_is_not_nothing_found() -> None:
    report = made_up.nothing_found()
    untried = replace(report.trials[0], outcome=Outcome.OUT_OF_BUDGET, step_ns=None)
    other = replace(untried, outcome=Outcome.NOT_APPLICABLE)
    lines = shown(replace(report, trials=(untried, other, untried))).splitlines()
    assert flat("\n".join(lines[:2])).startswith(
        "Undecided: the budget left no time to try anything. The script as it is takes 310 µs"
    )
    measured = replace(untried, step_ns=3e5)
    for trials in ((untried, measured), (other,)):
        assert "Nothing found" in shown(replace(report, trials=trials))


def test_wide_interval_is_shown_without_a_value() -> None:
    wide = replace(made_up.faster(), speedup=60.0, low=2.04, high=40.4)
    text = flat(shown(wide))
    assert text.startswith(
        "Faster, but the machine is too busy to tell by how much: between 2× and 40×."
    )
    assert "60×" not in text
    quiet = flat(shown(replace(wide, caveats=())))
    assert quiet.startswith("Faster, but runs differ too much to tell by how much: between 2×")
    first, *others = wide.trials
    trials = (replace(first, speedup=60.0, low=2.04, high=40.4), *others)
    assert "2× to 40×" in flat(shown(replace(wide, trials=trials)))


def test_what_it_costs_to_start_is_that_of_what_was_kept() -> None:
    report = made_up.faster()
    # 2.1 s of the fused optimizer; the 31 s of what was not kept are not paid, and neither are the
    # 9 s of the changed script.
    assert cost_sentence(report) == (
        "A run begins 2.1 s later, and pays off after 6,400 steps; this run has 100,000."
    )
    assert "cannot tell" in cost_sentence(replace(report, pays_off_after_steps=None))
    # Of a run whose end was not seen, no length is said as a fact.
    seen = replace(report, is_length_known=False)
    assert cost_sentence(seen).endswith("after 6,400 steps; this run has 100,000 or more.")
    assert "for a run of at least 100,000 steps" in flat(shown(seen))
    few = replace(seen, num_steps=4_000)
    assert cost_sentence(few).endswith("the length of this run is not known.")
    at_once = tuple(replace(trial, startup_ns=0.0) for trial in report.trials)
    assert cost_sentence(replace(report, trials=at_once)) == ""
    assert cost_sentence(made_up.nothing_found()) == ""


@pytest.mark.parametrize("numerics", Numerics)
def test_each_class_of_numerics_has_its_sentence(numerics: Numerics) -> None:
    first = replace(made_up.faster(), numerics=numerics)
    others = [shown(replace(first, numerics=other)) for other in Numerics if other is not numerics]
    assert shown(first) not in others


def test_each_trial_says_what_came_of_it_and_why() -> None:
    text = flat(shown(made_up.faster()))
    for trial in made_up.TRIALS:
        assert trial.candidate in text
        assert flat(trial.reason) in text
    assert "threads=1 kept 261 µs 1.19× (1.17–1.21×)" in text
    order = [text.index(trial.candidate) for trial in made_up.TRIALS[:5]]
    assert order == sorted(order)
    # What the start costs decided, so the reason says when it pays.
    assert "31 s later; pays off after 1,823,000 steps; this run has 100,000" in text


def test_the_change_of_the_script_is_shown_as_it_is() -> None:
    text = shown(made_up.with_fast_step(), columns=100)
    assert "  fast_step = true\n" in text
    assert f"{made_up.TARGET}:41" in text
    for line in made_up.DIFF.splitlines():
        assert f"  {line}".rstrip() in [shown_line.rstrip() for shown_line in text.splitlines()]
    assert "fast_step" not in shown(made_up.nothing_found())


def test_a_long_change_is_shown_whole() -> None:
    diff = "".join(f"+line {number}\n" for number in range(200))
    change = CodeChange(file="a.py", line=1, diff=diff, steps_per_call=10)
    text = shown(replace(made_up.faster(), code_change=change))
    assert text.count("+line ") == 200
    assert "10 steps a call" in flat(text)


def test_machine_and_versions() -> None:
    line = "AMD EPYC 7B13, 2 cores · torch 2.9.0 · Python 3.11.9 · breakeven 0.6.0"
    assert line in shown(made_up.faster())
    on_gpu = replace(made_up.faster(), machine=replace(made_up.MACHINE, gpu="NVIDIA H200"))
    assert f"NVIDIA H200 · {line}" in flat(shown(on_gpu))


@pytest.mark.parametrize(
    ("outcome", "speedup", "is_open"),
    [
        (Outcome.OUT_OF_BUDGET, 1.4, True),
        (Outcome.NOT_FASTER, 1.4, True),
        (Outcome.NOT_FASTER, 1.05, False),
        (Outcome.OUT_OF_BUDGET, None, False),
        (Outcome.NOT_WORTH_IT, 1.4, False),
        (Outcome.WRONG_NUMBERS, 1.4, False),
    ],
)
def test_what_looked_clearly_faster_and_was_not_decided_leaves_it_open(
    outcome: Outcome, speedup: float | None, is_open: bool
) -> None:
    assert is_undecided([replace(made_up.TRIALS[2], outcome=outcome, speedup=speedup)]) is is_open


def test_an_open_answer_says_so_first() -> None:
    text = shown(replace(made_up.nothing_found(), is_undecided=True))
    assert text.startswith("Undecided: nothing was shown to be faster than the unchanged script")
