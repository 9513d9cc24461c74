"""What a tuning looks like at a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from breakeven.errors import Caveat
from breakeven.report import json_schema, show, to_json
from breakeven.report.shown import encode_document
from breakeven.report.tune import (
    OUTCOME_WORDS,
    cost_sentence,
    headline,
    setting_text,
    trial_speedup,
)
from breakeven.trace import Configuration
from breakeven.verdict import CodeChange, Machine, Numerics, Outcome, TuneReport, is_undecided
from factories import terminal
from factories import tunings as made_up
from factories.terminal import HOSTILE, flat

shown = partial(
    terminal.shown, shows=partial(show, hints=("Train with it: breakeven run train.py",))
)


def with_names(text: str) -> TuneReport:
    report = made_up.faster()
    return replace(
        report,
        target=text,
        machine=Machine(
            processor=text,
            num_cores=2,
            gpu=text,
            torch_version=text,
            python_version=text,
            breakeven_version=text,
        ),
        trials=tuple(
            replace(trial, candidate=text, title=text, reason=text) for trial in report.trials
        ),
        code_change=CodeChange(file=text, line=3, diff=f"--- {text}\n+++ {text}\n+{text}\n"),
        caveats=(Caveat(code=text, message=text),),
    )


@pytest.mark.parametrize("name", made_up.ALL)
def test_golden_at_80_columns(name: str, check_golden: Callable[[str, str], None]) -> None:
    check_golden(f"terminal_tune_{name}.txt", shown(made_up.ALL[name]()))


@pytest.mark.parametrize("name", made_up.ALL)
@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_no_line_is_longer_than_the_terminal(name: str, columns: int) -> None:
    lines = shown(made_up.ALL[name](), columns=columns).splitlines()
    assert max(map(cell_len, lines)) <= columns


def test_the_first_line_is_the_answer() -> None:
    lines = shown(made_up.faster()).splitlines()
    assert lines[0] == "1.84× faster (1.79–1.90×): 168 µs a step instead of 310 µs."
    assert shown(made_up.nothing_found()).splitlines()[0] == (
        "Nothing found that is faster than the script as it is: 310 µs a step."
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


def test_what_it_costs_to_start_is_that_of_what_was_kept() -> None:
    report = made_up.faster()
    # 2.1 s of the fused optimizer; the 31 s of what was not kept are not paid, and neither are the
    # 9 s of the changed script.
    assert cost_sentence(report) == (
        "A run begins 2.1 s later, and pays off after 6,400 steps; this run has 100,000."
    )
    assert "not known" in cost_sentence(replace(report, pays_off_after_steps=None))
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


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_is_a_plain_word(outcome: Outcome) -> None:
    trial = replace(made_up.TRIALS[0], outcome=outcome)
    text = shown(replace(made_up.faster(), trials=(trial,)))
    word = "Does not apply" if outcome is Outcome.NOT_APPLICABLE else OUTCOME_WORDS[outcome]
    assert word in text
    assert len(set(OUTCOME_WORDS.values())) == len(Outcome)


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


def test_when_it_pays_is_not_said_twice() -> None:
    reason = "pays off after 1,823,000 steps, this run has 100,000"
    trial = replace(made_up.TRIALS[3], reason=reason)
    text = flat(shown(replace(made_up.faster(), trials=(trial,))))
    assert text.count("1,823,000") == 1


def test_figures_of_a_trial_without_an_interval() -> None:
    trial = made_up.TRIALS[0]
    assert trial_speedup(replace(trial, low=None, high=None)) == "1.19×"
    assert trial_speedup(replace(trial, speedup=None)) == ""


def test_settings_read_like_the_file() -> None:
    text = shown(made_up.faster())
    for line in ("  num_threads = 1\n", '  optimizer = "fused"\n', "  gathers_batches = true\n"):
        assert line in text
    assert setting_text("compile_mode", "default") == 'compile_mode = "default"'


def test_the_change_of_the_script_is_shown_as_it_is() -> None:
    text = shown(made_up.with_fast_step(), columns=100)
    assert "  fast_step = true\n" in text
    assert f"{made_up.TARGET}:41" in text
    for line in made_up.DIFF.splitlines():
        assert f"  {line}".rstrip() in [shown_line.rstrip() for shown_line in text.splitlines()]
    assert "fast_step" not in shown(made_up.nothing_found())


def test_a_long_change_is_cut_and_says_so() -> None:
    diff = "".join(f"+line {number}\n" for number in range(200))
    change = CodeChange(file="a.py", line=1, diff=diff, steps_per_call=10)
    text = shown(replace(made_up.faster(), code_change=change))
    assert "+line 79\n" in text
    assert "+line 80\n" not in text
    assert "and 120 more lines" in text
    assert "10 steps a call" in flat(text)


def test_a_busy_machine_stands_beside_the_answer_and_only_there() -> None:
    text = shown(made_up.faster())
    assert text.count("other processes took 12 %") == 1
    assert text.index("Careful") < text.index(made_up.TARGET)
    assert "few-steps" in text


def test_machine_and_versions() -> None:
    line = "AMD EPYC 7B13, 2 cores · torch 2.9.0 · Python 3.11.9 · breakeven 0.6.0"
    assert line in shown(made_up.faster())
    on_gpu = replace(made_up.faster(), machine=replace(made_up.MACHINE, gpu="NVIDIA H200"))
    assert f"NVIDIA H200 · {line}" in flat(shown(on_gpu))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("columns", [30, 80])
def test_hostile_names_cannot_steer_the_terminal(text: str, columns: int) -> None:
    said = shown(with_names(text), columns=columns, force_terminal=True, color_system=None)
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert "\r" not in said
    assert max(map(cell_len, said.splitlines())) <= columns
    if text.startswith("[bold]"):
        assert text in shown(with_names(text), columns=200)


def test_a_terminal_of_ascii_gets_every_figure() -> None:
    text = shown(made_up.faster(), encoding="ascii")
    assert "1.84? faster (1.79?1.90?): 168 ?s a step instead of 310 ?s." in text


@pytest.mark.parametrize("name", made_up.ALL)
def test_json_fits_its_schema_and_reads_back(name: str) -> None:
    report = made_up.ALL[name]()
    document = to_json(report)
    jsonschema.Draft202012Validator(json_schema("tune")).validate(json.loads(document))
    assert msgspec.json.decode(document, type=TuneReport) == report
    assert document.endswith(b"\n")


def test_json_has_the_keys_that_were_promised() -> None:
    document = json.loads(to_json(made_up.faster()))
    assert document["schema_version"] == 2
    assert document["baseline_step_ns"] == 310_000
    assert document["tuned_step_ns"] == 168_000
    assert [document[key] for key in ("speedup", "low", "high")] == [1.842, 1.794, 1.901]
    assert document["configuration"] == {
        "num_threads": 1,
        "optimizer": "fused",
        "gathers_batches": True,
    }
    first = document["trials"][0]
    assert [first[key] for key in ("candidate", "outcome", "step_ns")] == [
        "threads=1",
        "kept",
        261_000,
    ]
    assert first["reason"]
    assert json.loads(to_json(made_up.nothing_found()))["configuration"] == {}


def test_json_of_hostile_names_can_be_read() -> None:
    for text in HOSTILE:
        document = json.loads(to_json(with_names(text)))
        assert document["target"] == text.replace("\udce9", "\ufffd")


def test_a_report_that_breaks_its_schema_is_not_written() -> None:
    with pytest.raises(msgspec.ValidationError):
        to_json(replace(made_up.faster(), speedup=float("nan")))


def test_the_schema_describes_every_key() -> None:
    definitions = json_schema("tune")["$defs"]
    assert {"TuneReport", "Trial", "Machine", "CodeChange", "Configuration"} <= set(definitions)
    for name, definition in definitions.items():
        for key, value in definition.get("properties", {}).items():
            assert "const" in value or value.get("description") or "$ref" in value, f"{name}.{key}"


def test_the_schema_in_the_docs_is_up_to_date(pytestconfig: pytest.Config) -> None:
    path = pytestconfig.rootpath / "docs" / "schema" / "tune.schema.json"
    assert path.read_bytes() == encode_document(json_schema("tune")), (
        "run: python -m breakeven.report.schema tune > docs/schema/tune.schema.json"
    )


def test_what_was_measured_is_never_called_a_prediction() -> None:
    text = shown(made_up.faster()) + shown(made_up.nothing_found())
    assert "predict" not in text.lower()


def test_a_kept_setting_alone_makes_the_headline() -> None:
    report = replace(made_up.nothing_found(), configuration=Configuration(num_threads=2))
    assert not headline(report).startswith("Nothing")


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
    assert text.startswith("Undecided: nothing was shown to be faster than the script as it is")
