"""The answer to `breakeven tune`, as values."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from breakeven.errors import Caveat
from breakeven.trace import Configuration, FileWrites

TUNE_SCHEMA_VERSION = 2


class Numerics(StrEnum):
    """The allowed effect of a candidate on the numbers that the training computes.

    ``EXACT``: not one bit. ``REORDERED``: the same sums in another order; only rounding differs.
    ``LOWER_PRECISION``: fewer bits in some of the arithmetic. ``TRAINING``: another training, such
    as another batch size; only on request.
    """

    EXACT = "exact"
    REORDERED = "reordered"
    LOWER_PRECISION = "lower_precision"
    TRAINING = "training"


class Outcome(StrEnum):
    """The result of a candidate."""

    KEPT = "kept"  # part of the configuration
    NOT_FASTER = "not_faster"  # measured, but not significantly faster
    NOT_CONFIRMED = "not_confirmed"  # chosen, but fresh processes did not confirm it
    NOT_WORTH_IT = "not_worth_it"  # faster, but pays off after more steps than the run has
    NOT_APPLICABLE = "not_applicable"  # its preconditions do not hold
    WRONG_NUMBERS = "wrong_numbers"  # losses or gradients differ by more than its class allows
    CRASHED = "crashed"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_BUDGET = "out_of_budget"  # not tried or not decided within the budget


# A candidate that looks faster by this factor, with one of these outcomes, is undecided.
_LOOKS_FASTER = 1.1
_NOT_DECIDED = frozenset({Outcome.NOT_FASTER, Outcome.NOT_CONFIRMED, Outcome.OUT_OF_BUDGET})


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate and its result.

    Args:
        candidate: Stable name: ``threads=1``, ``fused-optimizer``.
        title: Its change, in a few words.
        numerics: Its allowed effect on the numbers.
        outcome: Its result.
        reason: Reason for the outcome, in one sentence, with the deciding figures.
        step_ns: Median step with the candidate added to the candidates kept before; null if it was
            not measured.
        speedup: Step time without it divided by the time with it; null if it was not measured.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_runs: Number of compared pairs of runs.
        startup_ns: Delay of the first steady step that it causes: compiling, capturing, first
            copies.
        pays_off_after_steps: Steps after which the delay has paid off; null if it never does.
    """

    candidate: str
    title: str
    numerics: Numerics
    outcome: Outcome
    reason: str
    step_ns: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    num_runs: int = 0
    startup_ns: float = 0.0
    pays_off_after_steps: int | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and versions for which a configuration was tuned.

    Args:
        processor: Name of the CPU.
        num_cores: Logical processors available to the process.
        gpu: Name of the CUDA device; empty if the step ran on the CPU.
        torch_version: Version of torch.
        python_version: Version of Python.
        breakeven_version: Version of breakeven.
    """

    processor: str
    num_cores: int
    gpu: str
    torch_version: str
    python_version: str
    breakeven_version: str


class CodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the user's script for a fast step; breakeven itself edits no file.

    Args:
        file: File of the user's code.
        line: First changed line.
        diff: Unified diff of the file, for ``patch -p0`` or ``git apply -p0``.
        steps_per_call: Training steps per call.
    """

    file: str
    line: int
    diff: str
    steps_per_call: int = 1


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest configuration, with all trials.

    Args:
        schema_version: Version of this schema.
        target: The script or module, as given.
        arguments: ``sys.argv[1:]`` of the script while it was tuned.
        device: The device that ran the step: ``cpu`` or ``gpu``.
        machine: The machine and the versions of its software.
        num_steps: Steps of the run, over which start-up is spread: given by the user, or counted in
            a run that reached the end of the script; a lower bound if the length is unknown.
        baseline_step_ns: Median step of the unchanged script, in the confirming runs.
        tuned_step_ns: ``baseline_step_ns`` divided by ``speedup``; the baseline's if no candidate
            is kept.
        speedup: Baseline step time divided by the tuned one.
        low: Lower end of its 95 % interval.
        high: Upper end.
        configuration: Differences from the script's own settings; empty if no candidate is kept.
        numerics: The least strict class among the kept candidates.
        pays_off_after_steps: Steps after which the start-up of the configuration has paid off.
        trials: Every candidate, in the order of trial.
        code_change: The change of the script, if ``fast_step`` is kept.
        duration_ns: Duration of the tuning.
        caveats: Reasons to trust the measurement less.
        is_undecided: Whether no candidate is kept although one looked clearly faster: runs varied
            too much, as on a busy machine, or the budget was too short.
        writes: Files that a run of the script wrote, and what happened to them; null if it did not
            run, and in older reports.
        is_length_known: Whether ``num_steps`` is the exact length of the run.
        command: The command that made the report, without options of output; empty if no command
            did, and in older reports.
    """

    schema_version: int = TUNE_SCHEMA_VERSION
    target: str
    arguments: tuple[str, ...] = ()
    device: str
    machine: Machine
    num_steps: int
    baseline_step_ns: float
    tuned_step_ns: float
    speedup: float
    low: float
    high: float
    configuration: Configuration
    numerics: Numerics
    pays_off_after_steps: int | None
    trials: tuple[Trial, ...]
    code_change: CodeChange | None
    duration_ns: int
    caveats: tuple[Caveat, ...] = ()
    is_undecided: bool = False
    writes: FileWrites | None = None
    is_length_known: bool = True
    command: str = ""


def is_undecided(trials: Iterable[Trial]) -> bool:
    """Return whether a candidate looked clearly faster, but was not confirmed."""
    return any(
        trial.outcome in _NOT_DECIDED and (trial.speedup or 0.0) > _LOOKS_FASTER for trial in trials
    )
