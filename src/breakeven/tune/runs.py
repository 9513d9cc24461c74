"""Runs of the user's script under a configuration, each in a fresh process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
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
from breakeven.timing import TurnKind
from breakeven.trace import Configuration
from breakeven.units import BYTES_PER_MIB, NS_PER_S
from breakeven.verdict import Numerics, Outcome

# Time of sampled steps. 0.4 s holds 1,000 and more of a short step, whose median is then sure to a
# part of a per cent; what differs from process to process is larger, and only more runs show it.
# Long turns need some twenty turns.
_SAMPLING_S = {TurnKind.NONE: 0.4, TurnKind.SHORT: 0.4, TurnKind.LONG: 1.2}
# A run hangs if it takes longer than the script as it is by this factor, and at least so long: a
# process may be held up for seconds by other work.
_HANG_FACTOR = 5.0
_LEAST_LIMIT_S = 10.0
# Compiling may take several times what was predicted for it.
_EXTRA_FACTOR = 3.0
# A candidate may take more memory, such as a compiler or a second copy of a data set; beyond this
# it leaks.
_MEMORY_FACTOR = 1.5
_MEMORY_MARGIN_BYTES = 256 * BYTES_PER_MIB
_OUT_OF_MEMORY = ("can't allocate memory", "cannot allocate memory", "out of memory")


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
        turns: How it was interleaved with another run.
        turns_ns: Median steady step of each turn, by its number; empty without turns.
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

    def takes_too_much_memory(self, baseline: RunResult) -> bool:
        """Whether it leaks, or leaves too little memory for other work; unknown is not too much."""
        before_bytes = baseline.peak_memory_bytes
        most_bytes = _MEMORY_FACTOR * before_bytes + _MEMORY_MARGIN_BYTES
        return before_bytes > 0 and self.peak_memory_bytes > most_bytes


Ran = RunResult | RunFailure


class TrialRuns:
    """Runs one script under different configurations.

    Leaving the launcher ends whatever still runs, also on Ctrl-C.

    Args:
        launcher: Makes the processes.
        request: How the script is run; its configuration is replaced.
        check_numbers: The equivalence check.
        second: Makes the processes that take turns with those of the first; None if runs cannot
            go on side by side.
        num_threads: torch's intra-op threads of the script as it is.
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
            configuration: Under what.
            extra_s: Seconds by which it is predicted to start later.
            longest_s: Seconds after which it is ended at the latest.
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
        """Time the steps under two configurations, in turns if they can take any.

        Args:
            base: What is compared with.
            contender: What is compared.
            is_contender_first: Whether the contender begins.
            is_new: Whether it is the first pair of a comparison. If the latest run of all was one
                of the base, it then serves for this pair.
            extra_s: Seconds by which the contender is predicted to start later.
            longest_s: Seconds after which its run is ended at the latest.

        Returns:
            What came of the base, and of the contender.
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
        # The launchers change sides as well: their processes may differ by a part of a per cent.
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
        """Return how losses or gradients differ more than they may; None if they do not."""
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
        steady_turns = answer.turns[measured.num_warmup :]
        for turn, step_ns in zip(steady_turns, measured.steady_ns, strict=bool(answer.turns)):
            by_turn[turn].append(step_ns)
        return RunResult(
            step_ns=measured.median_ns,
            startup_ns=answer.startup_ns
            + max(0.0, sum(warmup_ns) - len(warmup_ns) * measured.median_ns),
            wall_s=wall_s,
            load_fraction=answer.load_fraction,
            warnings=answer.warnings,
            peak_memory_bytes=answer.peak_memory_bytes,
            effects=answer.effects,
            turns=request.turns,
            turns_ns={turn: float(median(steps_ns)) for turn, steps_ns in by_turn.items()},
        )


def failure_outcome(failure: RunFailure) -> tuple[Outcome, str]:
    """Return what a failed run says of its candidate, and why, in one sentence."""
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
        case FailureKind.OTHER_PROCESS:
            return Outcome.CRASHED, "the script took its steps in child processes"
        case FailureKind.NO_STEP:
            return Outcome.CRASHED, "the script came to its end without two optimizer steps"
        case _:
            what = f"{failure.exception}: {first_line}" if failure.exception else first_line
    if location := failure.location:
        what += f" ({location.file}:{location.line})"
    is_memory = failure.exception in ("MemoryError", "OutOfMemoryError") or any(
        text in message.lower() for text in _OUT_OF_MEMORY
    )
    return (Outcome.OUT_OF_MEMORY if is_memory else Outcome.CRASHED), what
