"""What differs between two runs besides their times: machine, step, findings, claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from breakeven.simulate import Finding
from breakeven.verdict.report import CheckReport, HostSummary, StepSummary
from breakeven.verdict.sweep_report import SweepReport
from breakeven.verdict.system_report import ClaimOutcome, SystemsReport

Comparable = CheckReport | SweepReport | SystemsReport


class FactChange(msgspec.Struct, frozen=True, kw_only=True):
    """A circumstance of the runs that differs.

    Args:
        name: What it is.
        before: Of the first run.
        after: Of the second run.
    """

    name: str
    before: str
    after: str


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the traced step that differs.

    Args:
        name: Its key in the report.
        before: Of the first run; null where it is not known.
        after: Of the second run; the same.
    """

    name: str
    before: int | None
    after: int | None


class ClaimChange(msgspec.Struct, frozen=True, kw_only=True):
    """A published claim that both runs looked at.

    Args:
        system: Name of the system.
        claim: The statement.
        before: Whether the first run agrees.
        after: Whether the second does.
        before_ours: The figure of the first run.
        after_ours: That of the second.
    """

    system: str
    claim: str
    before: ClaimOutcome
    after: ClaimOutcome
    before_ours: str
    after_ours: str


def fact_changes(before: Comparable, after: Comparable) -> tuple[FactChange, ...]:
    """Return the circumstances that differ: of the target, the machine and the versions."""
    ours, theirs = dict(_facts(before)), dict(_facts(after))
    names = dict.fromkeys((*ours, *theirs))
    return tuple(
        FactChange(name=name, before=ours.get(name, ""), after=theirs.get(name, ""))
        for name in names
        if ours.get(name, "") != theirs.get(name, "")
    )


def step_changes(before: Comparable, after: Comparable) -> tuple[CountChange, ...]:
    """Return the numbers of the step that differ; none unless both runs are checks."""
    if not (isinstance(before, CheckReport) and isinstance(after, CheckReport)):
        return ()
    ours, theirs = _counts(before.step), _counts(after.step)
    return tuple(
        CountChange(name=name, before=ours[name], after=theirs[name])
        for name in ours
        if ours[name] != theirs[name]
    )


def finding_changes(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that are gone and those that are new.

    A line that moved is no change: findings of one rule in one file are paired, those of the
    same line first.
    """
    gone, new = list(before), list(after)
    for same_line in (True, False):
        for finding in tuple(gone):
            twin = next((f for f in new if _is_twin(finding, f, same_line=same_line)), None)
            if twin is not None:
                gone.remove(finding)
                new.remove(twin)
    return tuple(gone), tuple(new)


def claim_changes(before: Comparable, after: Comparable) -> tuple[ClaimChange, ...]:
    """Return the claims of which the outcome or our figure differs."""
    if not (isinstance(before, SystemsReport) and isinstance(after, SystemsReport)):
        return ()
    ours = {(s.name, claim.claim): claim for s in before.systems for claim in s.claims}
    theirs = {(s.name, claim.claim): claim for s in after.systems for claim in s.claims}
    return tuple(
        ClaimChange(
            system=key[0],
            claim=key[1],
            before=ours[key].outcome,
            after=theirs[key].outcome,
            before_ours=ours[key].ours,
            after_ours=theirs[key].ours,
        )
        for key in ours
        if key in theirs
        and (ours[key].outcome, ours[key].ours) != (theirs[key].outcome, theirs[key].ours)
    )


def _is_twin(one: Finding, other: Finding, *, same_line: bool) -> bool:
    is_same_rule = (one.code, one.file) == (other.code, other.file)
    return is_same_rule and (one.line == other.line or not same_line)


def _counts(step: StepSummary) -> dict[str, int | None]:
    return {
        "num_ops": step.num_ops,
        "num_kernels": step.num_kernels,
        "num_syncs": step.num_syncs,
        "h2d_bytes": step.h2d_bytes,
        "d2h_bytes": step.d2h_bytes,
        "batch_size": step.batch_size,
        "num_parameters": step.num_parameters,
    }


def _facts(report: Comparable) -> Iterator[tuple[str, str]]:
    match report:
        case CheckReport():
            yield "target", report.target
            yield from _host_facts(report.host)
        case SweepReport():
            yield "target", " ".join((report.target, *report.arguments))
            yield from _host_facts(report.host)
        case SystemsReport():
            yield "systems", ", ".join(system.name for system in report.systems)
            for system in report.systems[:1]:
                yield from _host_facts(system.host)


def _host_facts(host: HostSummary) -> Iterator[tuple[str, str]]:
    yield "host", host.name
    yield "threads", str(host.num_threads)
    yield "torch", host.torch_version
    yield "Python", host.python_version
    yield "host costs", host.source
