"""The reports of a run as one document, short enough to compare and read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

# Allowed relative difference: the effect of another order of sums, invisible in a report.
RELATIVE = 1e-9


def shortened(reports: dict[str, Any]) -> dict[str, Any]:
    """Return the reports of a run with sums in place of long lists.

    Shorten an explanation: drop all that it shares with the check, sum the parts of the step and
    the spans of the timeline, and keep only the times and bounds of the plan's results.

    Args:
        reports: ``check`` and ``explain``, or ``sweep``, as JSON documents, and ``terminal``.
    """
    if "explain" not in reports:
        return reports
    check, explain = reports["check"], dict(reports["explain"])
    parts, spans = explain["attribution"]["parts"], explain["timeline"]
    for span in spans:
        span["time_ns"] = span["end_ns"] - span["start_ns"]
        span["critical_ns"] = span["time_ns"] if span["is_critical"] else 0.0
    explain["attribution"] = {
        "by_cause": _sums(parts, ("cause", "phase"), ("time_ns",)),
        "by_line": _sums(parts, ("line",), ("time_ns",)),
        "by_module": _sums(parts, ("module",), ("time_ns",)),
    }
    explain["timeline"] = _sums(spans, ("track", "cause"), ("time_ns", "critical_ns"))
    explain["plan"] = [
        {**step, "results": {one["device"]: _times(one) for one in step["results"]}}
        for step in explain["plan"]
    ]
    own = {key: value for key, value in explain.items() if value != check.get(key)}
    return {**reports, "explain": own}


def _sums(
    entries: list[dict[str, Any]], keys: tuple[str, ...], values: tuple[str, ...]
) -> dict[str, list[float]]:
    """Return the number of entries with the same keys, and the sums of their values."""
    sums: dict[str, list[float]] = {}
    for entry in entries:
        name = " ".join(str(entry[key]) for key in keys if entry[key] not in ("", None))
        found = sums.setdefault(name or "-", [0] * (1 + len(values)))
        found[0] += 1
        for place, value in enumerate(values, start=1):
            found[place] += entry[value]
    return dict(sorted(sums.items()))


def _times(result: dict[str, Any]) -> list[Any]:
    return [result[key] for key in ("step_ns", "low_ns", "high_ns", "bound")]


def differences(frozen: Any, made: Any, place: str = "") -> Iterator[str]:
    """Yield each difference of two documents; allow numbers one part in a billion."""
    if isinstance(frozen, dict) and isinstance(made, dict):
        for key in [*frozen, *(key for key in made if key not in frozen)]:
            inner = f"{place}.{key}" if place else key
            if key not in made:
                yield f"{inner} is gone; it was {_short(frozen[key])}"
            elif key not in frozen:
                yield f"{inner} is new: {_short(made[key])}"
            else:
                yield from differences(frozen[key], made[key], inner)
    elif isinstance(frozen, list) and isinstance(made, list):
        for number, (one, other) in enumerate(zip(frozen, made, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
        if len(frozen) != len(made):
            at = min(len(frozen), len(made))
            first = "gone" if len(frozen) > at else "new"
            entry = (frozen if len(frozen) > at else made)[at]
            yield f"{place} has {len(made)} entries, not {len(frozen)}; {first}: {_short(entry)}"
    elif not _is_same(frozen, made):
        yield f"{place} is {_short(made)}; it was {_short(frozen)}"


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=RELATIVE)
    return one == other


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."


def pretty(value: Any, indent: str = "") -> str:
    """Return a document with a line for each innermost object: a result, a finding, a point."""
    inner, members = f"{indent} ", list(value.values() if isinstance(value, dict) else value)
    is_text = isinstance(value, list) and all(isinstance(each, str) for each in members)
    is_flat = not any(isinstance(each, dict | list) and each for each in members)
    if not members or (is_flat and not (is_text and len(members) > 1)) or len(indent) > 6:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_member(each, inner)}" for key, each in value.items()]
    else:
        lines = [_member(each, inner) for each in value]
    joined = f",\n{inner}".join(lines)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}{joined}\n{indent}{closing}"


def _member(value: Any, indent: str) -> str:
    is_nested = isinstance(value, dict | list)
    return pretty(value, indent) if is_nested else json.dumps(value, ensure_ascii=False)
