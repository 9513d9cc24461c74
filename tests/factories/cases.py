"""Made-up cases for the tests of rules: a step, the facts of its run, the user's files."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

from breakeven.advise import Finding, diagnose
from breakeven.advise.rule import Match, Rule, RuleInput
from breakeven.advise.rules import all_rules
from breakeven.source import Sources
from breakeven.trace import Event, SourceText, StepTrace
from factories.steps import GPU, HOST, MadeUpCosts

FILE = "train.py"


def made_up_case(
    *events: Event, source: str = "", costs: MadeUpCosts | None = None, **known: Any
) -> RuleInput:
    """Return a step on a made-up GPU; ``source`` is the text of ``train.py``.

    ``known`` sets further fields of the trace.
    """
    told = {name: value for name, value in known.items() if value is not None}
    sources = Sources.of((SourceText(path=FILE, text=dedent(source)),) if source else ())
    trace = StepTrace(events=events, **told)
    return RuleInput.of(trace, GPU, HOST, costs=costs or MadeUpCosts(), sources=sources)


def findings_of(case: RuleInput, *families: str) -> dict[tuple[str, int | None], Finding]:
    """Return the findings with codes that begin with one of ``families``, by code and line."""
    found = (one.finding for one in diagnose(case))
    return {(one.code, one.line): one for one in found if one.code.startswith(families or "")}


def rule_of(code: str) -> Rule:
    """Return the rule with a code."""
    (rule,) = (rule for rule in all_rules() if rule.code == code)
    return rule


def rules_of(family: str) -> list[Rule]:
    """Return the rules of a family, such as SYNC."""
    return [rule for rule in all_rules() if rule.code.rstrip("0123456789") == family]


def matches(rule: Rule, case: RuleInput) -> list[tuple[int | None, str]]:
    """Return the line and title of each place at which a rule applies."""
    return [(one.location.line if one.location else None, one.title) for one in rule.detect(case)]


def lines(found: tuple[Match, ...]) -> list[int | None]:
    """Return the lines of matches."""
    return [one.location.line if one.location else None for one in found]


def marked(source: str, mark: str = "# here") -> list[int]:
    """Return the numbers of the lines with ``mark`` in the dedented ``source``."""
    text = dedent(source).splitlines()
    return [number for number, line in enumerate(text, 1) if line.endswith(mark)]
