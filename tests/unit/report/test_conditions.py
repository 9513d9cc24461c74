"""Conditions of ``--fail-if``: what is understood, and when a figure meets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from breakeven.cli.check import CONDITIONS as OF_CHECK
from breakeven.cli.compare import CONDITIONS as OF_COMPARE
from breakeven.errors import BreakevenError, UnknownDeviceError, UsageError
from breakeven.report import (
    CheckReport,
    Condition,
    Figure,
    check_figures,
    compare_reports,
    comparison_figures,
    failed_conditions,
    parse_condition,
)
from breakeven.verdict import Choice, DeviceKind, ProgramFacts, program_of
from factories import reports as made_up
from factories import sweeps

CHECK = made_up.cpu_wins()
TRAINING = replace(
    CHECK, program=program_of(CHECK.verdict, CHECK.results, ProgramFacts(), 1_000_000)
)


def failed(text: str, report: CheckReport = CHECK, *, is_strict: bool = False) -> tuple[str, ...]:
    condition = parse_condition(text, OF_CHECK)
    return failed_conditions(
        [condition], partial(check_figures, report=report), is_strict=is_strict
    )


def failed_since(
    before: CheckReport, after: CheckReport, text: str, *, is_strict: bool = False
) -> tuple[str, ...]:
    figures = partial(comparison_figures, report=compare_reports(before, after), before=before)
    return failed_conditions([parse_condition(text, OF_COMPARE)], figures, is_strict=is_strict)


def slower(factor: float, *devices: str) -> CheckReport:
    """Return the check with some steps slower, and with narrow intervals around them."""
    results = [
        replace(
            one,
            step_ns=factor * one.step_ns,
            low_ns=0.99 * factor * one.step_ns,
            high_ns=1.01 * factor * one.step_ns,
        )
        if one.device in devices
        else one
        for one in narrow().results
    ]
    return replace(CHECK, results=tuple(results))


def narrow() -> CheckReport:
    results = (
        replace(one, low_ns=0.99 * one.step_ns, high_ns=1.01 * one.step_ns) for one in CHECK.results
    )
    return replace(CHECK, results=tuple(results))


@pytest.mark.parametrize(
    ("text", "subject", "limit", "device"),
    [
        ("step > 5 ms on T4", "step", 5e6, "T4"),
        ("  STEP  >5ms  on   nvidia  t4 ", "step", 5e6, "T4"),
        ("step > 2 ms on CPU", "step", 2e6, "cpu"),
        ("memory > 14 GB on rtx4090", "memory", 14e9, "RTX 4090"),
        ("training > 3 h on A100-80GB", "training", 3 * 3_600e9, "A100 SXM4 80GB"),
        ("findings > 0", "findings", 0, ""),
    ],
)
def test_conditions_of_a_check(text: str, subject: str, limit: float, device: str) -> None:
    assert parse_condition(text, OF_CHECK) == Condition(
        text=text, subject=subject, limit=pytest.approx(limit), device=device
    )


def test_a_finding_is_named_by_code_or_cause() -> None:
    for name in ("SYNC001", "sync001", "SYNC_ITEM"):
        assert parse_condition(f"finding {name}", OF_CHECK).names == {"SYNC001"}


@pytest.mark.parametrize(
    "text",
    ["", "fast", "step > 5 on T4", "step > 5 GB on T4", "step > 5 ms", "step < 5 ms on T4",
     "step > -5 ms on T4", "step > 5 ms on", "findings > 3 on T4", "findings > 10 %", "finding",
     "finding SYNC001 OPT002", "finding > 3", "verdict is too_close", "verdict", "new finding",
     "slower > 10 %"],
)  # fmt: skip
def test_other_words_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match="does not understand") as refused:
        parse_condition(text, OF_CHECK)
    assert refused.value.hint == f"conditions are like {OF_CHECK}"


@pytest.mark.parametrize("text", ["step > 5 ms on T4", "slower > 10", "new", "new finding T4"])
def test_a_comparison_has_conditions_of_its_own(text: str) -> None:
    with pytest.raises(UsageError, match="does not understand"):
        parse_condition(text, OF_COMPARE)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("step > 5 ms on A1000000", UnknownDeviceError),
        ("step > 5 ms on EPYC 7763", UnknownDeviceError),
        ("finding SYNC999", BreakevenError),
    ],
)
def test_unknown_devices_and_rules_are_refused(text: str, error: type[BreakevenError]) -> None:
    with pytest.raises(error) as refused:
        parse_condition(text, OF_CHECK)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize("forms", [OF_CHECK, OF_COMPARE])
def test_every_form_that_the_help_shows_is_understood(forms: str) -> None:
    for form in forms.strip("'").split("', '"):
        assert parse_condition(form, forms).text == form


# T4: 2.1 ms (1.6-2.8); this CPU: 612 µs (590-641).
@pytest.mark.parametrize(
    ("text", "is_sure", "is_possible"),
    [
        ("step > 1.5 ms on T4", True, True),
        ("step > 1.7 ms on T4", False, True),
        ("step > 2.7 ms on T4", False, True),
        ("step > 2.9 ms on T4", False, False),
        ("step > 580 us on cpu", True, True),
        ("step > 1 ms on cpu", False, False),
        ("memory > 4 MB on T4", True, True),
        ("memory > 1 GB on T4", False, False),
        ("finding SYNC001", True, True),
        ("finding COPY001", False, False),
        ("findings > 1", True, True),
        ("findings > 2", False, False),
        ("verdict is cpu", True, True),
        ("verdict is gpu", False, False),
        ("training > 10 min on T4", True, True),
        ("training > 40 min on T4", False, True),
        ("training > 1 h on T4", False, False),
    ],
)
def test_a_condition_holds_over_the_whole_interval(
    text: str, is_sure: bool, is_possible: bool
) -> None:
    assert bool(failed(text, TRAINING)) == is_sure
    assert bool(failed(text, TRAINING, is_strict=True)) == is_possible


def test_an_open_verdict_may_be_either() -> None:
    report = made_up.too_close()
    for choice in ("cpu", "gpu"):
        assert failed(f"verdict is {choice}", report) == ()
        assert failed(f"verdict is {choice}", report, is_strict=True) == (
            f"verdict is {choice}: the verdict is too_close",
        )


def test_lines_show_the_figure_with_its_interval() -> None:
    assert failed("step > 1 ms on T4") == ("step > 1 ms on T4: 2.1 ms (1.6–2.8)",)
    assert failed("finding SYNC001") == ("finding SYNC001: SYNC001 at examples/rnn_stream.py:61",)
    assert failed("findings > 1") == ("findings > 1: 2 findings",)
    assert failed("memory > 1 MB on T4") == ("memory > 1 MB on T4: 4.2 MB",)
    (line,) = failed("training > 1 min on T4", TRAINING)
    assert line == "training > 1 min on T4: 35 min (26 min to 46 min)"


def test_the_cpu_is_the_fastest_number_of_threads() -> None:
    (cpu,) = (one for one in CHECK.results if one.kind is DeviceKind.CPU)
    slow = replace(cpu, device="slow (2 threads)", step_ns=9e9, low_ns=9e9, high_ns=9e9)
    assert failed("step > 1 s on cpu", replace(CHECK, results=(slow, *CHECK.results))) == ()


@pytest.mark.parametrize(
    ("text", "report", "because", "hint"),
    [
        ("step > 1 ms on L4", CHECK, "L4 is not among the devices", "devices: RTX 3060, T4, AMD"),
        ("memory > 1 GB on cpu", CHECK, "the memory is not known", "another device"),
        ("training > 1 h on T4", CHECK, "length of the training is not known", "add --steps N"),
    ],
)
def test_what_the_report_does_not_have_cannot_be_judged(
    text: str, report: CheckReport, because: str, hint: str
) -> None:
    with pytest.raises(BreakevenError, match=because) as refused:
        failed(text, report)
    assert hint in str(refused.value.hint)
    assert refused.value.exit_code == 3


def test_a_training_that_does_not_fit_has_no_time() -> None:
    report = made_up.gpu_wins()
    program = program_of(report.verdict, report.results, ProgramFacts(), 100)
    with pytest.raises(BreakevenError, match="does not fit GTX 1050 Ti"):
        failed("training > 1 h on GTX 1050 Ti", replace(report, program=program))


@given(
    low=st.floats(0, 1e12),
    width=st.floats(0, 1e12),
    limit=st.floats(0, 1e12),
)
def test_what_fails_fails_strictly_too(low: float, width: float, limit: float) -> None:
    condition = Condition(text="cost > 5", subject="cost", limit=limit)

    def figures(_: Condition) -> Iterable[Figure]:
        return [Figure("5", low, low + width)]

    surely = failed_conditions([condition], figures, is_strict=False)
    possibly = failed_conditions([condition], figures, is_strict=True)
    assert len(surely) <= len(possibly)
    assert bool(surely) == (limit < low)
    assert bool(possibly) == (limit < low + width)


def test_figures_are_asked_for_in_the_order_of_the_conditions() -> None:
    asked: list[str] = []

    def figures(condition: Condition) -> Iterator[Figure]:
        asked.append(condition.text)
        yield Figure("\x1b[2Jmany", 1, 1)

    conditions = [Condition(text=text, subject="") for text in ("one", "two")]
    lines = failed_conditions(conditions, figures, is_strict=False)
    assert asked == ["one", "two"]
    assert lines == ("one: \\x1b[2Jmany", "two: \\x1b[2Jmany")


@pytest.mark.parametrize(
    ("text", "is_sure", "is_possible"),
    [
        ("slower > 10 %", True, True),
        ("slower > 10 % on T4", True, True),
        ("slower > 20 % on T4", False, True),
        ("slower > 30 % on T4", False, False),
        ("slower > 10 % on rtx4090", False, False),
        ("slower > 10 % on cpu", False, False),
    ],
)
def test_slower_is_judged_on_each_common_device(
    text: str, is_sure: bool, is_possible: bool
) -> None:
    before, after = narrow(), slower(1.2, "T4")
    assert bool(failed_since(before, after, text)) == is_sure
    assert bool(failed_since(before, after, text, is_strict=True)) == is_possible


def test_a_slower_cpu_is_found_by_its_word_and_named() -> None:
    (line,) = failed_since(narrow(), slower(2.0, made_up.CPU_NAME), "slower > 50 % on cpu")
    assert line.startswith("slower > 50 % on cpu: 2.0")
    assert line.endswith(f"the time on {made_up.CPU_NAME}")


def test_new_findings_are_listed_one_by_one() -> None:
    before = replace(CHECK, findings=CHECK.findings[:1])
    assert failed_since(before, CHECK, "new finding") == (
        "new finding: OPT002 at examples/rnn_stream.py:38",
    )
    assert failed_since(CHECK, before, "new finding") == ()


def test_runs_without_the_figure_in_common_cannot_be_judged() -> None:
    other = replace(CHECK, results=tuple(r for r in CHECK.results if r.device != "T4"))
    with pytest.raises(BreakevenError, match="no step time on T4 in common") as refused:
        failed_since(CHECK, other, "slower > 10 % on T4")
    assert "RTX 4090" in str(refused.value.hint)
    sweep = sweeps.widths()
    figures = partial(comparison_figures, report=compare_reports(sweep, sweep), before=sweep)
    with pytest.raises(BreakevenError, match="only runs of check have findings"):
        failed_conditions([parse_condition("new finding", OF_COMPARE)], figures, is_strict=False)


def test_points_of_a_sweep_are_judged_by_the_median_of_their_device() -> None:
    sweep = sweeps.widths()
    points = tuple(
        replace(p, step_ns=1e3 * p.step_ns, low_ns=1e3 * p.low_ns, high_ns=1e3 * p.high_ns)
        for p in sweep.points
    )
    report = compare_reports(sweep, replace(sweep, points=points))
    figures = partial(comparison_figures, report=report, before=sweep)
    conditions = [parse_condition("slower > 10 %", OF_COMPARE)]
    lines = failed_conditions(conditions, figures, is_strict=False)
    assert len(lines) == len({point.device for point in sweep.points})


def test_an_undecided_verdict_is_open() -> None:
    verdict = replace(CHECK.verdict, choice=Choice.UNDECIDED)
    report = replace(CHECK, verdict=verdict)
    assert failed("verdict is gpu", report) == ()
    assert failed("verdict is gpu", report, is_strict=True)
