"""Runs of the user's script under a configuration, each in a fresh process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, log
from statistics import median
from time import monotonic

from msgspec.structs import replace

from breakeven.capture import (
    Answer,
    FailureKind,
    Launcher,
    PlainRun,
    RunFailure,
    RunRequest,
    alternate,
)
from breakeven.timing import NORMAL_90, TurnKind
from breakeven.trace import Configuration
from breakeven.units import BYTES_PER_MIB, NS_PER_S
from breakeven.verdict import Numerics, Outcome

# Time of sampled steps. 0.4 s holds 1,000 and more of a short step and fixes its median to a
# fraction of a per cent; processes differ by more, which only more runs show. Long turns need some
# twenty turns.
_SAMPLING_S = {TurnKind.NONE: 0.4, TurnKind.SHORT: 0.4, TurnKind.LONG: 1.2}
# A run counts as hanging if it exceeds the unchanged script's time by this factor, and also this
# limit: other work may delay a process for seconds.
_HANG_FACTOR = 5.0
_LEAST_LIMIT_S = 10.0
# Compiling may take this many times its prediction.
_EXTRA_FACTOR = 3.0
# A candidate may need more memory, such as for a compiler or a second copy of a data set; above
# this limit it counts as a leak.
_MEMORY_FACTOR = 1.5
_MEMORY_MARGIN_BYTES = 256 * BYTES_PER_MIB
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The measurements of one run.

    Args:
        step_ns: Median of its undisturbed steady steps; without such steps, of all less waiting.
        startup_ns: Time from the start of the script to its first steady step, less the time that
            the steps before it would have taken as steady ones.
        wall_s: Duration of the whole run.
        load_fraction: Share of the machine that other processes used, 0 to 1.
        warnings: Distinct Python warnings.
        peak_memory_bytes: Peak memory of the process.
        effects: How often each setting of the configuration took effect, if known.
        turns: How it was interleaved with another run.
        turns_ns: Median steady step of each turn, by its number; empty without turns, or if every
            step was disturbed.
        error: Standard error of the logarithm of ``step_ns`` within the run.
        bounds_ns: Least and greatest time of a step without other load, if that disturbed every
            step; None otherwise.
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
    error: float = 0.0
    bounds_ns: tuple[float, float] | None = None

    def takes_too_much_memory(self, baseline: RunResult) -> bool:
        """Whether it leaks or leaves too little memory for other work; False if unknown."""
        before_bytes = baseline.peak_memory_bytes
        most_bytes = _MEMORY_FACTOR * before_bytes + _MEMORY_MARGIN_BYTES
        return before_bytes > 0 and self.peak_memory_bytes > most_bytes


Ran = RunResult | RunFailure


class TrialRuns:
    """Runs one script under different configurations.

    Leaving the launcher ends all running processes, also on Ctrl-C.

    Args:
        launcher: Starts the processes.
        request: The run to make; its configuration is replaced.
        check_numbers: The equivalence check.
        second: Starts the processes that take turns with those of the first; None if two runs
            cannot run at the same time.
        num_threads: torch's intra-op threads of the unchanged script.
        takes_long_turns: Whether runs of several threads can take turns.
    """

    def __init__(
        self,
        launcher: Launcher,
        request: RunRequest,
        check_numbers: Callable[[Configuration, Numerics], str | None],
        second: Launcher | None = None,
        num_threads: int = 1,
        takes_long_turns: bool = True,
    ) -> None:
        self._launcher = launcher
        self._second = second
        self._num_threads = num_threads
        self._takes_long_turns = takes_long_turns
        self._request = replace(request, is_traced=False, keeps_compile=True)
        self._check_numbers = check_numbers
        self._baseline_s: float | None = None
        self._latest: tuple[Configuration, Ran] | None = None

    def turns_with(self, first: Configuration, second: Configuration) -> TurnKind:
        """How two runs can take turns.

        Loader processes would go on loading in the other run's turn, and make the next look faster.
        """
        both = (first, second)
        if self._second is None or any(each.num_workers > 0 for each in both):
            return TurnKind.NONE
        if max(each.num_threads or self._num_threads for each in both) == 1:
            return TurnKind.SHORT
        return TurnKind.LONG if self._takes_long_turns else TurnKind.NONE

    def measure(
        self, configuration: Configuration, *, extra_s: float = 0.0, longest_s: float = inf
    ) -> Ran:
        """Time the steps in one fresh process.

        Args:
            configuration: The configuration to run under.
            extra_s: Predicted delay of its start, in seconds.
            longest_s: Limit on the run, in seconds.
        """
        request = self._request_of(configuration, TurnKind.NONE, extra_s, longest_s)
        started_s = monotonic()
        answer = self._launcher.run(request)
        result = self._result(request, answer, monotonic() - started_s)
        self._latest = (configuration, result)
        return result

    def pair(
        self,
        base: Configuration,
        contender: Configuration,
        *,
        is_contender_first: bool,
        is_new: bool,
        extra_s: float = 0.0,
        longest_s: float = inf,
    ) -> tuple[Ran, Ran]:
        """Time the steps under two configurations, in turns if possible.

        Args:
            base: The configuration to compare with.
            contender: The configuration under test.
            is_contender_first: Whether the contender starts.
            is_new: Whether it is the first pair of a comparison. If the most recent run was one of
                the base, the pair reuses it.
            extra_s: Predicted delay of the contender's start, in seconds.
            longest_s: Limit on the contender's run, in seconds.

        Returns:
            The results of the base and of the contender.
        """
        turns = self.turns_with(base, contender)
        if turns is TurnKind.NONE:
            if is_contender_first:
                own = self.measure(contender, extra_s=extra_s, longest_s=longest_s)
                return self.measure(base), own
            latest, before = self._latest or (None, None)
            known = before if is_new and latest == base and isinstance(before, RunResult) else None
            return known or self.measure(base), self.measure(
                contender, extra_s=extra_s, longest_s=longest_s
            )
        self._latest = None
        assert self._second is not None
        requests = [
            self._request_of(base, turns),
            self._request_of(contender, turns, extra_s, longest_s),
        ]
        # Alternate the launchers too: their processes may differ by a fraction of a per cent.
        order = -1 if is_contender_first else 1
        first, second = requests[::order]
        ran = alternate(
            (self._launcher.run_in_turns(first), self._second.run_in_turns(second)), turns
        )
        of_base, of_contender = (
            self._result(request, answer, spent_ns / NS_PER_S)
            for request, (answer, spent_ns) in zip(requests, ran[::order], strict=True)
        )
        return of_base, of_contender

    def check_numbers(self, configuration: Configuration, numerics: Numerics) -> str | None:
        """Return how losses or gradients differ beyond their tolerance; None if they do not."""
        self._latest = None
        return self._check_numbers(configuration, numerics)

    def _request_of(
        self,
        configuration: Configuration,
        turns: TurnKind,
        extra_s: float = 0.0,
        longest_s: float = inf,
    ) -> RunRequest:
        limit_s = self._request.time_limit_s
        if self._baseline_s is not None:
            normal_s = max(_LEAST_LIMIT_S, _HANG_FACTOR * self._baseline_s)
            plenty_s = min(normal_s + _EXTRA_FACTOR * extra_s, max(normal_s, longest_s))
            limit_s = min(limit_s, float(ceil(plenty_s)))
        return replace(
            self._request,
            configuration=configuration,
            turns=turns,
            budget_s=_SAMPLING_S[turns],
            time_limit_s=limit_s,
        )

    def _result(self, request: RunRequest, answer: Answer, wall_s: float) -> Ran:
        if isinstance(answer, RunFailure):
            return answer
        assert isinstance(answer, PlainRun)
        if request.configuration == Configuration():
            self._baseline_s = max(self._baseline_s or 0.0, wall_s)
        measured = answer.measurement
        warmup_ns = measured.samples_ns[: measured.num_warmup]
        by_turn: defaultdict[int, list[int]] = defaultdict(list)
        estimate, is_disturbed = measured.estimate, measured.is_disturbed
        for index, step_ns in zip(measured.steady, measured.steady_ns, strict=True):
            if answer.turns and not is_disturbed:
                by_turn[answer.turns[index]].append(step_ns)
        return RunResult(
            step_ns=measured.own_ns,
            startup_ns=answer.startup_ns
            + max(0.0, sum(warmup_ns) - len(warmup_ns) * measured.median_ns),
            wall_s=wall_s,
            load_fraction=answer.load_fraction,
            warnings=answer.warnings,
            peak_memory_bytes=answer.peak_memory_bytes,
            effects=answer.effects,
            turns=request.turns,
            turns_ns={turn: float(median(steps_ns)) for turn, steps_ns in by_turn.items()},
            error=log(estimate.high_ns / estimate.low_ns) / (2 * NORMAL_90),
            bounds_ns=(estimate.low_ns, estimate.high_ns) if is_disturbed else None,
        )


def failure_outcome(failure: RunFailure) -> tuple[Outcome, str]:
    """Return the outcome of a candidate whose run failed, and the reason in one sentence."""
    message = failure.message.strip()
    first_line = message.splitlines()[0] if message else ""
    match failure.kind:
        case FailureKind.TIME_LIMIT:
            return Outcome.TIME_LIMIT, f"did not get through its steps within {first_line}"
        case FailureKind.KILLED if first_line == "SIGKILL":
            return Outcome.OUT_OF_MEMORY, "killed by the system, which does so when memory runs out"
        case FailureKind.KILLED:
            return Outcome.CRASHED, f"the process was ended by {first_line}"
        case FailureKind.EXIT:
            return Outcome.CRASHED, f"the script ended with status {first_line}"
        case FailureKind.NO_STEP:
            return Outcome.CRASHED, "the script came to its end without two optimizer steps"
        case _:
            what = f"{failure.exception}: {first_line}" if failure.exception else first_line
    if location := failure.location:
        what += f" ({location.place})"
    is_memory = failure.exception in ("MemoryError", "OutOfMemoryError") or any(
        text in message.lower() for text in _OUT_OF_MEMORY
    )
    return (Outcome.OUT_OF_MEMORY if is_memory else Outcome.CRASHED), what
