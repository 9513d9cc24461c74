"""Findings: the places where rules apply, and the predicted gain of each fix."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from breakeven.advise.framework import fix_of, frames_below
from breakeven.advise.rule import Match, Rule, RuleInput
from breakeven.advise.rules import all_rules
from breakeven.errors import Caveat
from breakeven.simulate import Finding, Severity, Side, WhatIf
from breakeven.timing import BUSY_FRACTION, CpuFacts
from breakeven.trace import RunFacts
from breakeven.units import format_percent

# `# breakeven: ignore` for all rules, `# breakeven: ignore[SYNC001, OPT002]` for some.
# Another comment may follow. The second group is any other text, which ignores nothing.
_IGNORE = re.compile(r"#\s*breakeven:\s*ignore(?:\s*\[([^\]]*)\]|\s*(?:$|#)|\s*(.+?)\s*$)")
_ROUNDING = 1e-9
# Fractions of the step from which a gain is high, medium or low. A fifth is a reason to rent a
# larger device; less than a hundredth is not measurable on a shared machine.
_HIGH_FRACTION, _MEDIUM_FRACTION, _LOW_FRACTION = 0.2, 0.05, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A finding, and the change of the step behind its figures.

    Args:
        finding: The finding, as shown in reports.
        match: The match of the rule.
    """

    finding: Finding
    match: Match

    @property
    def place(self) -> tuple[str, str | None, int | None]:
        """Return rule and line, which identify it in a changed step."""
        return self.finding.code, self.finding.file, self.finding.line

    @property
    def is_worth_it(self) -> bool:
        """Return whether the fix saves a noticeable amount."""
        return self.finding.severity in (Severity.HIGH, Severity.MEDIUM, Severity.LOW)


def diagnose(
    case: RuleInput, codes: Set[str] | None = None, what_if: WhatIf | None = None
) -> tuple[Diagnosis, ...]:
    """Return the causes that slow a step down on its device, by the gain of their fixes.

    Each gain is that of its fix alone, simulated with and without the fix; gains of several fixes
    do not add up. Lines that would raise an error always come first.

    Args:
        case: The step as a GPU runs it, on the GPU of the simulated gains.
        codes: Rules to apply; all by default.
        what_if: The simulation of the same step on the same device, if it exists already.
    """
    what_if = what_if or WhatIf(case.program, case.device, case.host)
    found = [
        Diagnosis(finding=_finding(case, rule, match, what_if), match=match)
        for rule in all_rules()
        if codes is None or rule.code in codes
        for match in rule.detect(case)
    ]

    def rank(one: Diagnosis) -> tuple[bool, bool, float]:
        # Gains on the GPU and on the CPU are fractions of different steps.
        finding = one.finding
        is_error = finding.severity is Severity.ERROR
        return (not is_error, finding.side is not Side.GPU, -finding.gain_fraction)

    return tuple(sorted(found, key=rank))


def _finding(case: RuleInput, rule: Rule, match: Match, what_if: WhatIf) -> Finding:
    result, gain = None, match.gain
    # A rule may have no change to simulate.
    if match.edit is not None or match.scenario != what_if.scenario:
        result = what_if.fixed(match.edit, match.scenario)
    if result is not None:
        fractions = (result.gain_fraction, result.gain_low_fraction, result.gain_high_fraction)
    elif gain is not None:
        fractions = (gain.fraction, gain.low_fraction, gain.high_fraction)
    else:
        fractions = (0.0, 0.0, 0.0)
    value, low, high = (_clipped(fraction) for fraction in fractions)
    location = match.location
    return Finding(
        code=rule.code,
        cause=rule.cause,
        title=match.title,
        file=location.file if location else None,
        line=location.line if location else None,
        share_fraction=_share(match, what_if),
        gain_fraction=value,
        gain_low_fraction=min(low, value),
        gain_high_fraction=max(high, value),
        severity=_severity(match, value),
        side=match.side,
        evidence=match.evidence,
        fix=fix_of(case, rule.code, match),
        fixed_ns=None if result is None else result.fixed.value_ns,
        fixed_low_ns=None if result is None else result.fixed.low_ns,
        fixed_high_ns=None if result is None else result.fixed.high_ns,
        frames=frames_below(case, match),
    )


def _severity(match: Match, gain_fraction: float) -> Severity:
    if match.is_error:
        return Severity.ERROR
    if gain_fraction >= _HIGH_FRACTION:
        return Severity.HIGH
    if gain_fraction >= _MEDIUM_FRACTION:
        return Severity.MEDIUM
    return Severity.LOW if gain_fraction >= _LOW_FRACTION else Severity.INFO


def _share(match: Match, what_if: WhatIf) -> float:
    """Return the fraction of the step that the match takes on the busier timeline."""
    if match.share_fraction is not None:
        return _clipped(match.share_fraction)
    events, step_ns = sorted(set(match.events)), what_if.timeline.step_ns
    spent = (sum(own.get(index, 0.0) for index in events) for own in what_if.spent_ns)
    return _clipped(max(spent) / step_ns) if step_ns > 0 else 0.0


def _clipped(fraction: float) -> float:
    # Two simulations of one step differ in their last digits.
    return min(1.0, fraction) if fraction > _ROUNDING else 0.0


def kept_findings(
    found: Sequence[Diagnosis], case: RuleInput
) -> tuple[tuple[Diagnosis, ...], tuple[Caveat, ...]]:
    """Leave out the findings that comments on their lines ignore, and return caveats on the rest.

    Args:
        found: The findings in a step.
        case: The step, with the user's files and comments: ``# breakeven: ignore[SYNC001]``.
    """
    known = frozenset(rule.code for rule in all_rules())
    # Codes by file and line; all rules if a comment names none.
    ignored: dict[tuple[str | None, int | None], frozenset[str]] = {}
    caveats: list[Caveat] = []
    for source in case.sources:
        for number, line in enumerate(source.lines, start=1):
            if comment := _IGNORE.search(line):
                some, other = comment.groups()
                codes = frozenset(re.findall(r"[^\s,]+", (some or "").upper()))
                ignored[source.path, number] = known if some is None and not other else codes
                what = f"nothing: “{other}” is no list of rules in brackets" if other else ""
                if unknown := ", ".join(sorted(codes - known)):
                    what = f"{unknown}, which is no rule"
                if what:
                    message = f"{source.path}:{number} ignores {what}"
                    caveats.append(Caveat(code="ignore-comment", message=message))
    kept = tuple(one for one in found if one.finding.code not in ignored.get(one.place[1:], ()))
    if num_ignored := len(found) - len(kept):
        are = "1 finding is" if num_ignored == 1 else f"{num_ignored} findings are"
        caveats.append(Caveat(code="ignore-comment", message=f"{are} ignored by comments"))
    disturbed = disturbed_findings(case.facts, case.cpu) if kept else ()
    return kept, (*disturbed, *caveats)


def disturbed_findings(facts: RunFacts, cpu: CpuFacts | None) -> tuple[Caveat, ...]:
    """Return the caveat on findings, if other load disturbed the measurements behind them."""
    load_fraction = max(facts.load_fraction, cpu.load_fraction if cpu else 0.0)
    if load_fraction <= BUSY_FRACTION:
        return ()
    message = (
        f"other processes used {format_percent(load_fraction)} of this machine while breakeven "
        "recorded and timed the step; gains may be smaller than shown: repeat on an idle machine"
    )
    return (Caveat(code="disturbed-findings", message=message),)
