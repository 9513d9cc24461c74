"""Comments that ignore findings on their lines."""

from __future__ import annotations

import pytest

from breakeven.advise import Diagnosis, diagnose, kept_findings
from breakeven.advise.rule import RuleInput
from breakeven.trace import Sync
from factories.cases import FILE, made_up_case
from factories.steps import at, op

LINES = "x = 1\nloss = model(x)\nprint(loss.item()){}\nlog(loss.item())\n"


def case_with(comment: str) -> RuleInput:
    """Return a step with a wait on line 3, which ends in a comment, and another on line 4."""
    waits = (Sync(kind="item", num_bytes=4, location=at(line)) for line in (3, 4))
    return made_up_case(op(100, host_ns=90), *waits, source=LINES.format(comment))


def kept(comment: str) -> tuple[tuple[Diagnosis, ...], list[str]]:
    case = case_with(comment)
    found, caveats = kept_findings(diagnose(case), case)
    assert {caveat.code for caveat in caveats} <= {"ignore-comment"}
    return found, [caveat.message for caveat in caveats]


@pytest.mark.parametrize(
    "comment",
    [
        "  # breakeven: ignore",
        "  #breakeven:ignore",
        "  # breakeven: ignore[SYNC001]",
        "  # breakeven: ignore [SYNC001]",
        "  # breakeven: ignore  # noqa: T201",
        "  # breakeven: ignore[sync001, OPT002]",
        "  # noqa: T201  # breakeven: ignore[ SYNC001 ] as a log of each step is wanted",
    ],
)
def test_a_comment_ignores_the_findings_of_its_line(comment: str) -> None:
    found, messages = kept(comment)
    assert [(one.finding.code, one.finding.line) for one in found] == [("SYNC001", 4)]
    assert messages == ["1 finding is ignored by comments"]


@pytest.mark.parametrize(
    "comment",
    ["", "  # breakeven: ignore[OPT002]", "  # breakeven: ignore [OPT002]", "  # ignore[SYNC001]"],
)
def test_other_comments_ignore_nothing(comment: str) -> None:
    found, messages = kept(comment)
    assert [one.finding.line for one in found] == [3, 4]
    assert messages == []


@pytest.mark.parametrize("rest", [", SYNC001", " SYNC001", "d", "[SYNC001", ": a log is wanted"])
def test_a_comment_of_another_form_ignores_nothing_and_is_named(rest: str) -> None:
    found, (message,) = kept(f"  # breakeven: ignore{rest}")
    assert [one.finding.line for one in found] == [3, 4]
    assert message == f"{FILE}:3 ignores nothing: “{rest.strip()}” is no list of rules in brackets"


def test_an_unknown_code_is_named_with_its_place() -> None:
    found, messages = kept("  # breakeven: ignore[SYNC001, SYNC999, A]")
    assert [one.finding.line for one in found] == [4]
    assert messages == [
        f"{FILE}:3 ignores A, SYNC999, which is no rule",
        "1 finding is ignored by comments",
    ]


def test_several_ignored_findings_are_one_count() -> None:
    case = case_with("")
    text = LINES.format("  # breakeven: ignore").replace(
        "log(loss.item())", "log()  # breakeven: ignore"
    )
    ignoring = made_up_case(*case.trace.events, source=text)
    found, caveats = kept_findings(diagnose(ignoring), ignoring)
    assert found == ()
    assert [caveat.message for caveat in caveats] == ["2 findings are ignored by comments"]


def test_without_sources_nothing_is_ignored() -> None:
    case = made_up_case(*case_with("").trace.events)
    found = diagnose(case)
    assert kept_findings(found, case) == (found, ())
