"""Cases made up for the tests of rules: a step, what is known of the run, the user's files."""

from __future__ import annotations

from textwrap import dedent

from breakeven.advise.rule import Match, Rule, RuleInput
from breakeven.advise.rules import all_rules
from breakeven.errors import Caveat
from breakeven.source import Sources
from breakeven.trace import Event, Location, RunFacts, SourceText, StepTrace
from factories.steps import GPU, HOST, MadeUpCosts

FILE = "train.py"


def made_up_case(
    *events: Event,
    facts: RunFacts | None = None,
    source: str = "",
    stacks: tuple[tuple[Location, ...], ...] = (),
    caveats: tuple[Caveat, ...] = (),
    batch_size: int | None = None,
) -> RuleInput:
    """Return a step on a made-up GPU; ``source`` is the text of ``train.py``."""
    trace = StepTrace(
        events=events,
        facts=facts or RunFacts(),
        stacks=stacks,
        caveats=caveats,
        batch_size=batch_size,
    )
    sources = Sources.of((SourceText(path=FILE, text=dedent(source)),) if source else ())
    return RuleInput.of(trace, GPU, HOST, costs=MadeUpCosts(), sources=sources)


def rule_of(code: str) -> Rule:
    """Return the rule with a code."""
    (rule,) = (rule for rule in all_rules() if rule.code == code)
    return rule


def rules_of(family: str) -> list[Rule]:
    """Return the rules whose codes begin with the letters of a family."""
    return [rule for rule in all_rules() if rule.code.rstrip("0123456789") == family]


def matches(rule: Rule, case: RuleInput) -> list[tuple[int | None, str]]:
    """Return the line and title of each place at which a rule applies."""
    return [(one.location.line if one.location else None, one.title) for one in rule.detect(case)]


def lines(found: tuple[Match, ...]) -> list[int | None]:
    """Return the lines of matches."""
    return [one.location.line if one.location else None for one in found]


def marked(source: str, mark: str = "# here") -> list[int]:
    """Return the lines of ``source`` that carry ``mark``, as numbers in the dedented text."""
    text = dedent(source).splitlines()
    return [number for number, line in enumerate(text, 1) if line.endswith(mark)]
