"""Runs of the user's script under a configuration, each in a fresh process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import median
from time import monotonic
from typing import Protocol, TypeVar

from msgspec.structs import replace

from breakeven.capture import (
    Answer,
    FailureKind,
    PlainRun,
    RunFailure,
    RunRequest,
    TracedRun,
    alternate,
)
from breakeven.timing import Measurement, TurnKind
from breakeven.trace import Configuration
from breakeven.units import BYTES_PER_MIB, NS_PER_S
from breakeven.verdict import Numerics, Outcome

# Steps are sampled for so long: 1,000 and more of a short step, whose median is then sure to a
# part of a per cent. What differs from process to process is larger, and only more runs show it.
# In long turns there are to be some twenty of them.
SAMPLING_S = 0.4
_SAMPLING_S_OF = {TurnKind.SHORT: SAMPLING_S, TurnKind.LONG: 1.2}
# A run that hangs is ended when it has taken so many times what the script takes as it is ...
_HANG_FACTOR = 5.0
# ... and at least so long: a process may be held up for seconds by other work.
_LEAST_LIMIT_S = 10.0
# Compiling may take several times what was predicted for it.
_EXTRA_FACTOR = 3.0
# A candidate may take more memory, such as a compiler or a second copy of a data set; beyond this
# it is taken to leak.
_MEMORY_FACTOR = 1.5
_MEMORY_MARGIN_BYTES = 256 * BYTES_PER_MIB
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory")

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run measured.

    Args:
        step_ns: Median of its steady steps.
        startup_ns: From the beginning of the script to its first steady step, less what the steps
            until then would have taken as steady ones.
        wall_s: How long the run took in all.
        load_fraction: Share of the machine that other processes used, 0 to 1.
        warnings: Different warnings of Python.
        peak_memory_bytes: Largest memory of the process.
        effects: How often each setting of the configuration took hold, where known.
        turns: Which turns it took.
        turns_ns: Median steady step of each turn, by its number; empty where it took none.
    """

    step_ns: float
    startup_ns: float
    wall_s: float
    load_fraction: float = 0.0
    warnings: tuple[str, ...] = ()
    peak_memory_bytes: int = 0
    effects: Mapping[str, int] = field(default_factory=dict)
    turns: TurnKind = TurnKind.NONE
    turns_ns: Mapping[int, float] = field(default_factory=dict)


class TrialRuns(Protocol):
    """Makes the runs that a search asks for."""

    def measure(
        self, configuration: Configuration, *, extra_s: float = 0.0, longest_s: float = inf
    ) -> RunResult | RunFailure:
        """Time the steps in one fresh process.

        Args:
            configuration: Under what.
            extra_s: Seconds by which it is predicted to start later, before it counts as hanging.
            longest_s: Seconds after which it is ended in any case, where it has had its chance.
        """
        ...

    def turns_with(self, first: Configuration, second: Configuration) -> TurnKind:
        """Return which turns two runs can take, a few steps each.

        Args:
            first: What the one runs under.
            second: And the other.
        """
        ...

    def measure_in_turns(
        self,
        base: Configuration,
        rival: Configuration,
        *,
        is_rival_first: bool,
        extra_s: float = 0.0,
        longest_s: float = inf,
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        """Time the steps under two configurations, in two fresh processes that take turns.

        Args:
            base: What is compared with.
            rival: What is compared.
            is_rival_first: Whether the rival has the first turn.
            extra_s: Seconds by which the rival is predicted to start later.
            longest_s: Seconds after which its run is ended at the latest.

        Returns:
            What came of the base, and of the rival.
        """
        ...

    def check_numbers(self, configuration: Configuration, numerics: Numerics) -> str | None:
        """Return how losses or gradients differ more than they may; None where they do not.

        Args:
            configuration: Under what.
            numerics: What it may do to the numbers.
        """
        ...


class RunsScripts(Protocol):
    """The part of ``capture.Launcher`` that is needed here."""

    def run(self, request: RunRequest, /) -> PlainRun | TracedRun | RunFailure:
        """Run once, and return what came of it."""
        ...

    def run_in_turns(self, request: RunRequest, /) -> Generator[None, None, Answer]:
        """Run once, one turn for each ``next``."""
        ...


class ScriptRuns:
    """Runs one script under different configurations.

    Leaving the launcher ends whatever still runs, also on Ctrl-C.

    Args:
        launcher: Makes the processes.
        request: How the script is run; its configuration is replaced.
        check_numbers: The numerics gate.
        second: Makes the processes that take turns with those of the first; None where runs
            cannot go on side by side.
        num_threads: torch's intra-op threads of the script as it is.
        takes_long_turns: Whether runs of several threads can take turns.
    """

    def __init__(
        self,
        launcher: RunsScripts,
        request: RunRequest,
        check_numbers: Callable[[Configuration, Numerics], str | None],
        second: RunsScripts | None = None,
        num_threads: int = 1,
        takes_long_turns: bool = True,
    ) -> None:
        self._launcher = launcher
        self._second = second
        self._num_threads = num_threads
        self._of_several_threads = TurnKind.LONG if takes_long_turns else TurnKind.NONE
        self._request = replace(request, is_traced=False, keeps_compile=True, budget_s=SAMPLING_S)
        self._check_numbers = check_numbers
        self._baseline_s: float | None = None

    def measure(
        self, configuration: Configuration, *, extra_s: float = 0.0, longest_s: float = inf
    ) -> RunResult | RunFailure:
        """Time the steps in one fresh process; see ``TrialRuns``."""
        return self._run(self._request_of(configuration, extra_s, longest_s))

    def turns_with(self, first: Configuration, second: Configuration) -> TurnKind:
        """Return which turns two runs can take; see ``TrialRuns``.

        Processes of a loader would go on loading in the other run's turn, and make the next one
        look faster.
        """
        both = (first, second)
        if self._second is None or any(each.num_workers > 0 for each in both):
            return TurnKind.NONE
        most_threads = max(each.num_threads or self._num_threads for each in both)
        return TurnKind.SHORT if most_threads == 1 else self._of_several_threads

    def measure_in_turns(
        self,
        base: Configuration,
        rival: Configuration,
        *,
        is_rival_first: bool,
        extra_s: float = 0.0,
        longest_s: float = inf,
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        """Time the steps under two configurations that take turns; see ``TrialRuns``."""
        return self._run_in_turns(
            self._request_of(base),
            self._request_of(rival, extra_s, longest_s),
            self.turns_with(base, rival),
            is_second_first=is_rival_first,
        )

    def check_numbers(self, configuration: Configuration, numerics: Numerics) -> str | None:
        """Return how the numbers differ more than they may; see ``TrialRuns``."""
        return self._check_numbers(configuration, numerics)

    def _request_of(
        self, configuration: Configuration, extra_s: float = 0.0, longest_s: float = inf
    ) -> RunRequest:
        return replace(
            self._request,
            configuration=configuration,
            time_limit_s=self._limit_s(extra_s, longest_s),
        )

    def _run_in_turns(
        self, first: RunRequest, second: RunRequest, turns: TurnKind, *, is_second_first: bool
    ) -> tuple[RunResult | RunFailure, RunResult | RunFailure]:
        """Run two side by side, and return what came of each."""
        assert self._second is not None
        requests = [
            replace(each, turns=turns, budget_s=_SAMPLING_S_OF[turns])
            for each in _ordered(first, second, is_second_first)
        ]
        launchers = (self._launcher, self._second)
        # The launchers change sides as well: their processes may differ by a part of a per cent.
        ran = alternate(
            (launchers[0].run_in_turns(requests[0]), launchers[1].run_in_turns(requests[1])), turns
        )
        results = [
            self._result(request, answer, spent_ns / NS_PER_S)
            for request, (answer, spent_ns) in zip(requests, ran, strict=True)
        ]
        return _ordered(results[0], results[1], is_second_first)

    def _run(self, request: RunRequest) -> RunResult | RunFailure:
        started_s = monotonic()
        answer = self._launcher.run(request)
        return self._result(request, answer, monotonic() - started_s)

    def _result(self, request: RunRequest, answer: Answer, wall_s: float) -> RunResult | RunFailure:
        if isinstance(answer, RunFailure):
            return answer
        assert isinstance(answer, PlainRun)
        if request.configuration == Configuration():
            self._baseline_s = max(self._baseline_s or 0.0, wall_s)
        return _result(answer, wall_s, request.turns)

    def _limit_s(self, extra_s: float, longest_s: float) -> float:
        """Return after how many seconds a run hangs: the user's own limit, or what is plenty."""
        if self._baseline_s is None:
            return self._request.time_limit_s
        normal_s = max(_LEAST_LIMIT_S, _HANG_FACTOR * self._baseline_s)
        plenty_s = min(normal_s + _EXTRA_FACTOR * extra_s, max(normal_s, longest_s))
        return min(self._request.time_limit_s, float(ceil(plenty_s)))


def _ordered(first: _Item, second: _Item, is_second_first: bool) -> tuple[_Item, _Item]:
    """Return two in their order, or in the other one; the same again undoes it."""
    return (second, first) if is_second_first else (first, second)


def takes_too_much_memory(run: RunResult, baseline: RunResult) -> bool:
    """Return whether a run leaks, or leaves too little memory for other work.

    Args:
        run: Of a candidate.
        baseline: The script as it is; where its memory is not known, nothing is too much.
    """
    before_bytes = baseline.peak_memory_bytes
    most_bytes = _MEMORY_FACTOR * before_bytes + _MEMORY_MARGIN_BYTES
    return before_bytes > 0 and run.peak_memory_bytes > most_bytes


def failure_outcome(failure: RunFailure) -> tuple[Outcome, str]:
    """Return what a failed run says of its candidate, and why, in one sentence."""
    message = failure.message.strip()
    first_line = message.splitlines()[0] if message else ""
    if failure.kind is FailureKind.TIME_LIMIT:
        return Outcome.TIME_LIMIT, f"did not get through its steps within {first_line}"
    if failure.kind is FailureKind.KILLED:
        if first_line == "SIGKILL":
            return Outcome.OUT_OF_MEMORY, "killed by the system, which does so when memory runs out"
        return Outcome.CRASHED, f"the process was ended by {first_line}"
    if failure.kind is FailureKind.EXIT:
        return Outcome.CRASHED, f"the script ended with status {first_line}"
    if failure.kind is FailureKind.OTHER_PROCESS:
        return Outcome.CRASHED, "the script took its steps in processes of its own"
    if failure.kind is FailureKind.NO_STEP:
        return Outcome.CRASHED, "the script came to its end without two optimizer steps"
    what = f"{failure.exception}: {first_line}" if failure.exception else first_line
    if location := failure.location:
        what += f" ({location.file}:{location.line})"
    is_memory = failure.exception in ("MemoryError", "OutOfMemoryError") or any(
        text in message.lower() for text in _OUT_OF_MEMORY
    )
    return (Outcome.OUT_OF_MEMORY if is_memory else Outcome.CRASHED), what


def _result(run: PlainRun, wall_s: float, turns: TurnKind) -> RunResult:
    return RunResult(
        step_ns=run.measurement.median_ns,
        startup_ns=run.startup_ns + _warmup_ns(run.measurement),
        wall_s=wall_s,
        load_fraction=run.load_fraction,
        warnings=run.warnings,
        peak_memory_bytes=run.peak_memory_bytes,
        effects=run.effects,
        turns=turns,
        turns_ns=_turns_ns(run),
    )


def _turns_ns(run: PlainRun) -> dict[int, float]:
    """Return the median steady step of each turn."""
    by_turn: defaultdict[int, list[int]] = defaultdict(list)
    steady_turns = run.turns[run.measurement.num_warmup :]
    for turn, step_ns in zip(steady_turns, run.measurement.steady_ns, strict=bool(run.turns)):
        by_turn[turn].append(step_ns)
    return {turn: float(median(steps_ns)) for turn, steps_ns in by_turn.items()}


def _warmup_ns(measurement: Measurement) -> float:
    """Return by how much the steps of the warm-up took longer than steady ones."""
    warmup_ns = measurement.samples_ns[: measurement.num_warmup]
    return max(0.0, sum(warmup_ns) - len(warmup_ns) * measurement.median_ns)
