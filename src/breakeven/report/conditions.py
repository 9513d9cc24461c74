"""Conditions of ``--fail-if``: their words, and the figures of a report that they are about."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from breakeven.device import find_device, known_device
from breakeven.errors import BreakevenError, UsageError
from breakeven.report.answer_text import reference_cpu
from breakeven.report.check_report import CheckReport
from breakeven.report.comparison import Comparable
from breakeven.report.comparison_report import ComparisonReport
from breakeven.report.rules import find_rule_pages
from breakeven.report.text import (
    duration_with_interval,
    listed,
    place_text,
    plural,
    printable,
    ratio_with_interval,
)
from breakeven.simulate import Finding
from breakeven.units import format_bytes, format_time, parse_amount
from breakeven.verdict import DeviceKind

_ABOVE = re.compile(r"(\w+) *> *(.+?)(?: +on +(.+))?")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of the user under which a command fails.

    Args:
        text: The condition as the user wrote it.
        subject: Its first word, which says what it is about.
        limit: The value that must be exceeded: nanoseconds, bytes, a fraction or a count.
        device: Name of the GPU in the catalogue, or ``cpu``; empty for any device.
        names: Codes of rules, or ``cpu`` or ``gpu`` of a verdict.
    """

    text: str
    subject: str
    limit: float = 0.0
    device: str = ""
    names: frozenset[str] = frozenset()


class Figure(NamedTuple):
    """A figure of a report, as shown to the user, with its 90 % interval in a limit's unit."""

    text: str
    low: float
    high: float


Figures = Callable[[Condition], Iterable[Figure]]
"""Returns the figures of an answer that a condition is about."""


def parse_condition(text: str, forms: str) -> Condition:
    """Return a condition of the user.

    Args:
        text: The condition as the user wrote it.
        forms: Examples of the conditions that the command knows, each in single quotes.

    Raises:
        UsageError: The command knows no such condition.
        BreakevenError: There is no rule or no GPU of this name.
    """
    subject, quantity, limit, device = _parts(text)
    examples = map(_parts, re.findall(r"'(.+?)'", forms))
    if (subject, quantity, bool(device)) in {(*one[:2], bool(one[3])) for one in examples}:
        match text.casefold().split():
            case ["finding", name]:
                codes = frozenset(page.code for page in find_rule_pages(name))
                return Condition(text=text, subject=subject, names=codes)
            case ["verdict", "is", "cpu" | "gpu" as name]:
                return Condition(text=text, subject=subject, names=frozenset({name}))
            case ["new", "finding"]:
                return Condition(text=text, subject=subject)
            case _ if quantity:
                device = find_device(device).name if device not in ("", "cpu") else device
                return Condition(text=text, subject=subject, limit=limit, device=device)
            case _:
                pass
    raise UsageError(f"--fail-if does not understand {text!r}", hint=f"conditions are like {forms}")


def _parts(text: str) -> tuple[str, str, float, str]:
    """Return the first word of a condition, the quantity and value of its limit, its device."""
    found = _ABOVE.fullmatch(" ".join(text.split()))
    if found is None:
        return next(iter(text.casefold().split()), ""), "", 0.0, ""
    limit, quantity = parse_amount(found[2]) or (0.0, "")
    device = found[3] or ""
    return found[1].casefold(), quantity, limit, "cpu" if device.casefold() == "cpu" else device


def failed_conditions(
    conditions: Iterable[Condition], figures: Figures, *, is_strict: bool
) -> tuple[str, ...]:
    """Return a line for each figure that meets a condition.

    Args:
        conditions: The conditions.
        figures: Returns the figures of the answer that a condition is about.
        is_strict: Whether a part of the interval above the limit suffices; else all of it must be.
    """
    return tuple(
        printable(f"{condition.text}: {figure.text}")
        for condition in conditions
        for figure in figures(condition)
        if (figure.high if is_strict else figure.low) > condition.limit
    )


def check_figures(condition: Condition, report: CheckReport) -> Iterator[Figure]:
    """Yield the figures of a check that a condition is about.

    Raises:
        BreakevenError: The report does not have the figure.
    """
    verdict, findings = report.verdict, report.findings
    match condition.subject:
        case "findings":
            yield Figure(plural(len(findings), "finding"), len(findings), len(findings))
        case "finding":
            yield from _each(one for one in findings if one.code in condition.names)
        case "verdict":
            is_sure = verdict.choice.value in condition.names
            may_be = is_sure or not verdict.is_settled
            yield Figure(f"the verdict is {verdict.choice.value}", is_sure, may_be)
        case _:
            yield _figure_on_device(condition, report)


def _figure_on_device(condition: Condition, report: CheckReport) -> Figure:
    results, cpu = report.results, reference_cpu(report.results)
    cpus = [cpu.device] if cpu else []
    found = (one for one in results if _is_device(one.device, condition.device, cpus))
    result = next(found, None)
    if result is None:
        message = f"{condition.device} is not among the devices of the report"
        raise _unjudged(condition, message, _known(one.device for one in results))
    if condition.subject == "step":
        text = duration_with_interval(result.step_ns, result.low_ns, result.high_ns)
        return Figure(text, result.low_ns, result.high_ns)
    if condition.subject == "memory":
        num_bytes = result.peak_memory_bytes
        if num_bytes is None:
            raise _unjudged(condition, "the memory is not known", "name another device")
        return Figure(format_bytes(num_bytes), num_bytes, num_bytes)
    if report.program is None or report.program.num_steps is None:
        hint = "add --steps N, or --epochs N for a script with a DataLoader"
        raise _unjudged(condition, "the length of the training is not known", hint)
    time = next((one for one in report.program.times if one.device == result.device), None)
    if time is None:
        raise _unjudged(condition, f"the step does not fit {result.device}", "name a larger device")
    total, low, high = map(format_time, (time.total_ns, time.low_ns, time.high_ns))
    return Figure(f"{total} ({low} to {high})", time.low_ns, time.high_ns)


def comparison_figures(
    condition: Condition, report: ComparisonReport, before: Comparable
) -> Iterator[Figure]:
    """Yield the changes between two runs that a condition is about.

    Args:
        condition: The condition.
        report: The comparison.
        before: The first run; in a check, its CPU is ``cpu`` in conditions.

    Raises:
        BreakevenError: The runs do not have the figure in common.
    """
    if condition.subject == "new":
        if report.verdicts is None:
            raise _unjudged(condition, "only runs of check have findings", "leave it out")
        yield from _each(report.findings_new)
        return
    results = before.results if isinstance(before, CheckReport) else ()
    cpus = [one.device for one in results if one.kind is DeviceKind.CPU]
    changes = [one for one in report.devices if _is_device(one.device, condition.device, cpus)]
    if not changes:
        message = f"the runs have no step time on {condition.device or 'a device'} in common"
        raise _unjudged(condition, message, _known(one.device for one in report.devices))
    for one in changes:
        name = ", ".join(filter(None, (one.group, one.device, one.variant)))
        ratio = ratio_with_interval(one.ratio, one.low, one.high)
        yield Figure(f"{ratio} the time on {name}", one.low - 1, one.high - 1)


def _is_device(device: str, wanted: str, cpus: Collection[str]) -> bool:
    """Return whether a condition is about a device: a GPU, ``cpu`` for ``cpus``, or any."""
    if wanted == "cpu":
        return device in cpus
    gpu = known_device(device)
    return not wanted or (gpu is not None and gpu.name == wanted)


def _each(findings: Iterable[Finding]) -> Iterator[Figure]:
    for one in findings:
        place = place_text(one.file, one.line, 120)
        yield Figure(f"{one.code} at {place}" if place else one.code, 1, 1)


def _known(devices: Iterable[str]) -> str:
    return f"devices: {printable(listed(list(dict.fromkeys(devices)), 12), 600) or 'none'}"


def _unjudged(condition: Condition, because: str, hint: str) -> BreakevenError:
    return BreakevenError(f"cannot judge --fail-if {condition.text!r}: {because}", hint=hint)
