"""Finds the training framework that runs the step, and fixes by its own arguments."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from breakeven.advise.events import common_start, line_of
from breakeven.advise.rule import Match, RuleInput, once

# Argument that sets the samples of a step; for other algorithms it is `batch_size`.
_SIZES = {"A2C": "n_steps"}
# Their policies set this epsilon of Adam, but only if no optimizer settings are given.
_WITH_EPSILON = ("A2C", "PPO")


class Framework(msgspec.Struct, frozen=True):
    """A library that runs training steps, as described in ``frameworks.toml``."""

    name: str
    packages: tuple[str, ...]
    function: str
    holders: tuple[str, ...]
    fixes: dict[str, str]


@cache
def load_frameworks() -> dict[str, Framework]:
    """Return the frameworks; if one runs another, the outer one comes first."""
    text = files("breakeven.advise").joinpath("frameworks.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, Framework])


def fix_of(case: RuleInput, code: str, match: Match) -> str:
    """Return the fix: an argument of the framework, if one runs the step.

    Args:
        case: The step.
        code: Code of the rule.
        match: The match, with the fix for a loop written by the user.
    """
    running = _running_framework(case)
    if running is None:
        return match.fix
    framework, algorithm, lines = running
    # The framework is responsible for work without a line, below a line that starts its step, and
    # at the line with its settings.
    trace, sources = case.trace, case.sources
    is_below = any(trace.frames_of(trace.events[index]) for index in match.events)
    if not (
        match.location is None
        or is_below
        or line_of(match.location) in lines
        or sources.call_at(match.location, *framework.holders)
    ):
        return match.fix
    # The user may have made the loader or optimizer of the finding.
    own = ("DataLoader", *(optimizer.name for optimizer in case.facts.optimizers))
    if framework.name == "transformers" and sources.call_at(match.location, *own):
        return match.fix
    if text := framework.fixes.get(code):
        # The text may contain braces of Python code, so do not use str.format.
        return (
            text.replace("{algorithm}", algorithm)
            .replace("{size}", _SIZES.get(algorithm, "batch_size"))
            .replace("{eps}", ", eps=1e-5" if algorithm.endswith(_WITH_EPSILON) else "")
            .replace("{fix}", match.fix)
        )
    frames = frames_below(case, match)
    if not frames or framework.name == "accelerate":
        return match.fix
    return f"inside {framework.name}: not an argument; {match.fix}"


def frames_below(case: RuleInput, match: Match) -> tuple[str, ...]:
    """Return the framework functions below the line that all events of a match share."""
    trace = case.trace
    line = line_of(match.location)
    members = [trace.events[index] for index in match.events]
    return common_start(trace.frames_of(event) for event in members if line_of(event) == line)


@once
def _running_framework(
    case: RuleInput,
) -> tuple[Framework, str, frozenset[tuple[str, int] | None]] | None:
    """Return the framework that runs the step, the class that the user calls, and the lines."""
    below = [(event, case.trace.frames_of(event)) for event in case.trace.events]
    lines = frozenset(line_of(event) for event, frames in below if frames) - {None}
    entries = sorted({frames[0] for _, frames in below if frames})
    for framework in load_frameworks().values() if entries else ():
        for entry in entries:
            module, _, called = entry.partition(":")
            is_called = not framework.function or f".{called}".endswith(f".{framework.function}")
            if module.partition(".")[0] in framework.packages and is_called:
                return framework, called.rpartition(".")[0], lines
    return None
