"""Which training framework runs the step, and whether a finding lies below the user's line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from breakeven.doctor.events import line_of
from breakeven.doctor.rule import Case, Occurrence
from breakeven.trace import StepTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How a framework is known.

    Args:
        name: As its users call it.
        packages: Those whose function the user's line calls.
        function: What that function is called, its class in front where that is always the same;
            empty for any.
        holders: What the user calls with the settings.
    """

    name: str
    packages: frozenset[str]
    function: str
    holders: tuple[str, ...]


class Framework(Enum):
    """A library that runs training steps; of two, the first runs the other."""

    TRANSFORMERS = _Look(
        name="transformers",
        packages=frozenset({"transformers", "trl"}),
        function="train",
        holders=("Trainer", "TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments"),
    )
    LIGHTNING = _Look(
        name="Lightning",
        packages=frozenset({"lightning", "pytorch_lightning"}),
        function="Trainer.fit",
        holders=("Trainer", "ModelCheckpoint"),
    )
    STABLE_BASELINES = _Look(
        name="stable_baselines3",
        packages=frozenset({"stable_baselines3", "sb3_contrib"}),
        function="learn",
        holders=("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"),
    )
    ACCELERATE = _Look(
        name="accelerate",
        packages=frozenset({"accelerate"}),
        function="",
        holders=("Accelerator",),
    )


def framework_of(case: Case) -> Framework | None:
    """Return what runs the step; None for a loop of the user's own."""
    return case.once(_framework_of)


def _framework_of(case: Case) -> Framework | None:
    entries = {frames[0] for event in case.trace.events if (frames := case.trace.frames_of(event))}
    return next(
        (framework for framework in Framework if any(_runs(framework, one) for one in entries)),
        None,
    )


def entry_class(case: Case, framework: Framework) -> str:
    """Return the class whose function the user's line calls: ``PPO``; empty for a function."""
    entries = (case.trace.frames_of(event)[:1] for event in case.trace.events)
    entry = next(one[0] for one in entries if one and _runs(framework, one[0]))
    return entry.rpartition(":")[2].rpartition(".")[0]


def _runs(framework: Framework, entry: str) -> bool:
    module, _, qualified = entry.partition(":")
    function = framework.value.function
    return module.partition(".")[0] in framework.value.packages and (
        not function or qualified == function or qualified.endswith("." + function)
    )


def frames_below(case: Case, occurrence: Occurrence) -> tuple[str, ...]:
    """Return the functions of a framework that all of a finding lies in, below its line."""
    trace = case.trace
    line = line_of(occurrence.location)
    members = [trace.events[index] for index in occurrence.events]
    return _common(trace.frames_of(event) for event in members if line_of(event) == line)


def is_below_framework(case: Case, framework: Framework, occurrence: Occurrence) -> bool:
    """Return whether a finding is of what a framework does, and no line of the user's own.

    That is so for what has no line, for what lies below a line that starts the framework's step,
    and for the line that holds the framework's settings.
    """
    location = occurrence.location
    if location is None or any(
        case.trace.frames_of(case.trace.events[index]) for index in occurrence.events
    ):
        return True
    if line_of(location) in case.once(_lines_of_frameworks):
        return True
    source = case.sources.find(location)
    return source is not None and (
        source.call_at(location.line, *framework.value.holders) is not None
    )


def _lines_of_frameworks(case: Case) -> frozenset[tuple[str, int] | None]:
    trace: StepTrace = case.trace
    return frozenset(line_of(event) for event in trace.events if trace.frames_of(event))


def _common(stacks: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what all of some stacks begin with."""
    known = list(stacks)
    if not known:
        return ()
    shortest = min(map(len, known))
    num_common = next(
        (depth for depth in range(shortest) if len({stack[depth] for stack in known}) > 1),
        shortest,
    )
    return known[0][:num_common]
