"""The answer to `breakeven tune`, as values."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from breakeven.errors import Caveat
from breakeven.trace import Configuration, FileWrites

TUNE_SCHEMA_VERSION = 2


class Numerics(StrEnum):
    """What a candidate may do to the numbers that the training computes.

    ``EXACT``: not one bit. ``REORDERED``: the same sums in another order, rounding alone differs.
    ``LOWER_PRECISION``: fewer bits in some of the arithmetic. ``TRAINING``: another training, such
    as another batch size; only on demand.
    """

    EXACT = "exact"
    REORDERED = "reordered"
    LOWER_PRECISION = "lower_precision"
    TRAINING = "training"


class Outcome(StrEnum):
    """What became of a candidate."""

    KEPT = "kept"  # part of the configuration
    NOT_FASTER = "not_faster"  # measured, and not shown to be faster
    NOT_CONFIRMED = "not_confirmed"  # chosen, but fresh processes did not show it again
    NOT_WORTH_IT = "not_worth_it"  # faster, but pays off after more steps than the run has
    NOT_APPLICABLE = "not_applicable"  # its preconditions do not hold
    WRONG_NUMBERS = "wrong_numbers"  # losses or gradients differ by more than its class allows
    CRASHED = "crashed"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_BUDGET = "out_of_budget"  # not tried, or not decided, within the budget


# What looks faster by this factor, and comes out as one of these, is open.
_LOOKS_FASTER = 1.1
_NOT_DECIDED = frozenset({Outcome.NOT_FASTER, Outcome.NOT_CONFIRMED, Outcome.OUT_OF_BUDGET})


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate, and what came of it.

    Args:
        candidate: Stable name: ``threads=1``, ``fused-optimizer``.
        title: What it changes, in a few words.
        numerics: What it may do to the numbers.
        outcome: What became of it.
        reason: Why, in one sentence, with the figures that decided.
        step_ns: Median step with the candidate added to what had been kept before it; null where
            it was not measured.
        speedup: Time of a step before it over time with it; null where it was not measured.
        low: Lower end of its 95 % interval.
        high: Upper end.
        num_runs: Pairs of runs that were compared.
        startup_ns: How much later than without it the first steady step begins: compiling,
            capturing, first copies.
        pays_off_after_steps: Steps after which that is earned back; null where it never is.
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
    """Where a configuration was found, and is known to be right.

    Args:
        processor: Name of the CPU.
        num_cores: Processors that the process may use.
        gpu: Name of the CUDA device; empty where the step ran on the CPU.
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
    """Lines of the user's script as they run with a fast step; breakeven changes no file itself.

    Args:
        file: The user's file.
        line: First line that changes.
        diff: Unified diff of the file, to be applied with ``patch -p0`` or ``git apply -p0``.
        steps_per_call: Steps that each call does.
    """

    file: str
    line: int
    diff: str
    steps_per_call: int = 1


class TuneReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest configuration that was found, and how.

    Args:
        schema_version: Of this document.
        target: As the user wrote it.
        arguments: ``sys.argv[1:]`` of the script while it was tuned.
        device: ``cpu`` or ``gpu``: where the step ran.
        machine: On which machine, with which versions.
        num_steps: Steps of the run, against which start-up is counted: as the user said, or as a
            run had that reached the end of the script; at least so many where the length is not
            known.
        baseline_step_ns: Median step of the script as it is, in the confirming runs.
        tuned_step_ns: Step under the configuration, by the speedup; the baseline's where nothing is
            kept.
        speedup: The former over the latter.
        low: Lower end of its 95 % interval.
        high: Upper end.
        configuration: What differs from the script's own settings; empty where nothing is kept.
        numerics: The least strict class among the kept candidates.
        pays_off_after_steps: Steps after which the start-up of the configuration is earned back.
        trials: Every candidate, in the order in which they were tried.
        code_change: The lines of the script as they run then, where ``fast_step`` is kept.
        duration_ns: How long tuning took.
        caveats: What to know of the measurement.
        is_undecided: Whether nothing is kept, though something looked clearly faster: runs differed
            too much, as on a busy machine, or the budget was too short.
        writes: What a run of the script wrote, and what became of that; null where it did not run,
            and in older reports.
        is_length_known: Whether the run has no more steps than ``num_steps``.
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


def is_undecided(trials: Iterable[Trial]) -> bool:
    """Return whether something looked clearly faster, and was not shown to be."""
    return any(
        trial.outcome in _NOT_DECIDED and (trial.speedup or 0.0) > _LOOKS_FASTER for trial in trials
    )
