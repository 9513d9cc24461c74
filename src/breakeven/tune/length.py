"""How many steps the run has that is tuned for, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from breakeven.capture import FailureKind, ProbeRun, RunFailure, RunRequest
from breakeven.units import NS_PER_S

# A script that takes longer than this for its steps is long enough for a step that is compiled in
# seconds; whether it is for one that takes a minute, ``run`` finds out as it goes.
WATCHED_S = 8.0
_NO_END = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Steps of a run.

    Args:
        num_steps: How many; or at least so many, where the end is not known.
        is_known: Whether the run has no more.
    """

    num_steps: int
    is_known: bool = True

    def may_reach(self, after_steps: int | None) -> bool:
        """Return whether what pays off after so many steps may do so within the run."""
        return after_steps is not None and (after_steps <= self.num_steps or not self.is_known)


class ProbesScripts(Protocol):
    """The part of ``capture.Launcher`` that is needed here."""

    def probe(self, request: RunRequest, /) -> ProbeRun | RunFailure:
        """Run the script as it is until it has taken some steps."""
        ...


def watch_length(
    launcher: ProbesScripts, request: RunRequest, *, startup_ns: float, updates_per_step: int
) -> RunLength:
    """Run a script to its end, or until it has trained for some seconds, and count its steps.

    Args:
        launcher: Makes the process.
        request: How the script is run.
        startup_ns: From the beginning of the script to its first step.
        updates_per_step: Optimizers that take turns.
    """
    limit_s = min(request.time_limit_s, startup_ns / NS_PER_S + WATCHED_S)
    ended = launcher.probe(replace(request, num_probe_steps=_NO_END, time_limit_s=limit_s))
    num_steps = ended.num_steps // max(1, updates_per_step)
    # It came to its end without the steps that were asked for, or by ``sys.exit()``.
    is_known = isinstance(ended, RunFailure) and (
        ended.kind is FailureKind.NO_STEP or (ended.kind, ended.message) == (FailureKind.EXIT, "0")
    )
    return RunLength(num_steps=num_steps, is_known=is_known and num_steps > 0)
