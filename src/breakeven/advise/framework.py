"""Which training framework runs the step, and fixes by its own arguments."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from breakeven.advise.events import common_start, line_of
from breakeven.advise.rule import Match, RuleInput, once

# The argument that says how many samples a step has; of the others it is `batch_size`.
_SIZES = {"A2C": "n_steps"}
# Their policies choose this epsilon of Adam, but only where they are given no settings for it.
_WITH_EPSILON = ("A2C", "PPO")


class Framework(msgspec.Struct, frozen=True):
    """A library that runs training steps, as ``frameworks.toml`` describes it."""

    name: str
    packages: tuple[str, ...]
    function: str
    holders: tuple[str, ...]
    fixes: dict[str, str]


@cache
def load_frameworks() -> dict[str, Framework]:
    """Return the frameworks; of two, the first runs the other."""
    text = files("breakeven.advise").joinpath("frameworks.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, Framework])


def fix_of(case: RuleInput, code: str, match: Match) -> str:
    """Return what to change: an argument of the framework if one runs the step.

    Args:
        case: The step.
        code: Of the rule.
        match: What it found, with its fix for a loop of the user's own.
    """
    running = _running_framework(case)
    if running is None:
        return match.fix
    framework, algorithm, lines = running
    # Of what the framework does is what has no line, what lies below a line that starts its step,
    # and the line that holds its settings.
    trace, sources = case.trace, case.sources
    is_below = any(trace.frames_of(trace.events[index]) for index in match.events)
    if not (
        match.location is None
        or is_below
        or line_of(match.location) in lines
        or sources.call_at(match.location, *framework.holders)
    ):
        return match.fix
    # The loader or the optimizer that a finding is about may be made by the user.
    own = ("DataLoader", *(optimizer.name for optimizer in case.facts.optimizers))
    if framework.name == "transformers" and sources.call_at(match.location, *own):
        return match.fix
    if text := framework.fixes.get(code):
        # Braces of Python code stay, so this is no format string.
        return (
            text.replace("{algorithm}", algorithm)
            .replace("{size}", _SIZES.get(algorithm, "batch_size"))
            .replace("{eps}", ", eps=1e-5" if algorithm.endswith(_WITH_EPSILON) else "")
            .replace("{fix}", match.fix)
        )
    frames = frames_below(case, match)
    if not frames or framework.name == "accelerate":
        return match.fix
    # The innermost method of the framework: `Trainer.compute_loss`.
    names = (frame.rpartition(":")[2] for frame in frames if not frame.startswith("torch."))
    methods = [name for name in names if "." in name and "<locals>" not in name]
    where = f"in a subclass that overrides {methods[-1]}: " if methods else ""
    return f"inside {framework.name}: not an argument; {where}{match.fix}"


def frames_below(case: RuleInput, match: Match) -> tuple[str, ...]:
    """Return the functions of a framework that all of a finding lies in, below its line."""
    trace = case.trace
    line = line_of(match.location)
    members = [trace.events[index] for index in match.events]
    return common_start(trace.frames_of(event) for event in members if line_of(event) == line)


@once
def _running_framework(
    case: RuleInput,
) -> tuple[Framework, str, frozenset[tuple[str, int] | None]] | None:
    """Return what runs the step, whose function the user's line calls (``PPO``), and such lines."""
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
