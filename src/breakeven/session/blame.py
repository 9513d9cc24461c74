"""Whose failure it is: known from runs of the script in which breakeven leaves it alone."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from time import monotonic

from breakeven.capture import FailureKind, Launcher, ProbeRun, RunFailure, RunRequest, Target
from breakeven.errors import BreakevenError
from breakeven.session.failures import (
    TIMERS,
    command_of,
    late_error,
    our_error,
    script_error,
)
from breakeven.trace import WriteProtection

# A run that failed after so many steps may fail at the next one.
_STEPS_BEYOND = 2
# Their cause is known without another run.
_KNOWN = (FailureKind.INTERNAL, FailureKind.OTHER_PROCESS, FailureKind.CUT_OFF)
# Of one that was killed, it is not known after how many steps.
_STEPS_TO_KILL = 50
# What a layer over its files may do to a script, and the files themselves do not.
_FILE_ERRORS = frozenset({"FileExistsError", "OSError", "PermissionError"})
# What differs from run to run in the message of one error, such as an address in memory.
_OF_ONE_RUN = re.compile(r"0x[0-9a-fA-F]+|\d+")
# A line of output that names an exception, as the end of a traceback does.
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): .+$", re.MULTILINE)


def find_cause(
    launcher: Launcher,
    request: RunRequest,
    failure: RunFailure,
    output: str,
    begin: Callable[[str], None] = lambda _: None,
    *,
    slow_because: str = "",
) -> BreakevenError:
    """Run the script by itself, and return the error that says what is known then.

    Args:
        launcher: Makes the processes.
        request: The run that failed.
        failure: What came of it.
        output: The end of what the script printed in it.
        begin: Called with what is done next, before the script is run.
        slow_because: What may have made the step too slow, and what to do about it, where known.
    """
    target = request.target
    # At another batch size than its own, the script by itself proves nothing.
    is_timed = failure.kind is FailureKind.KILLED and failure.message in TIMERS
    # Timing slows nothing, so that the script would reach its limit by itself.
    is_slow = failure.kind is FailureKind.TIME_LIMIT and not request.is_traced
    if failure.kind in _KNOWN or is_timed or is_slow or request.new_batch_size:
        return script_error(failure, target, output, known=slow_because if is_slow else "")
    begin("running the script by itself, to see whose failure it is")
    alone, took_s = _probe(launcher, request, failure, has_cuda=False)
    own_output = launcher.output
    if _is_same(alone, failure) and _printed_alike(own_output, output, failure):
        assert isinstance(alone, RunFailure)
        return script_error(alone, target, own_output, known=_own_fault(launcher, alone, target))
    is_late = failure.kind is FailureKind.TIME_LIMIT
    well, otherwise = alone, "runs by itself"
    if not (is_late and _is_well(alone, failure)):
        begin("running the script with its CUDA calls run by the CPU")
        on_gpu, on_gpu_s = _probe(launcher, request, failure, has_cuda=True)
        if _is_same(on_gpu, failure) and _printed_alike(launcher.output, output, failure):
            return script_error(failure, target, output, known=_fault_on_gpu(target, alone))
        if not _is_well(alone, failure):
            well, took_s = on_gpu, on_gpu_s
            otherwise = "by itself refuses to run here, but runs with its CUDA calls run by the CPU"
    if not _is_well(well, failure):
        assert isinstance(alone, RunFailure)
        return script_error(alone, target, own_output, known=_own_fault(launcher, alone, target))
    if is_late:
        return late_error(failure, target, output, num_steps=well.num_steps, took_s=took_s)
    watching = "recorded" if request.is_traced else "timed"
    return our_error(failure, target, watching=watching, otherwise=otherwise)


def _probe(
    launcher: Launcher, request: RunRequest, failure: RunFailure, *, has_cuda: bool
) -> tuple[ProbeRun | RunFailure, float]:
    """Return what came of it, and how many seconds it took."""
    begun_s = monotonic()
    was_killed = failure.kind is FailureKind.KILLED
    num_known = _STEPS_TO_KILL if was_killed else failure.num_steps
    answer = launcher.probe(
        RunRequest(
            target=request.target,
            is_traced=False,
            time_limit_s=request.time_limit_s,
            has_cuda=has_cuda,
            # By itself it has what this machine has.
            on_gpu=not has_cuda,
            num_probe_steps=num_known + _STEPS_BEYOND,
            raw_changed_text=request.raw_changed_text,
        )
    )
    return answer, monotonic() - begun_s


def _is_same(run: ProbeRun | RunFailure, failure: RunFailure) -> bool:
    """Return whether two runs failed alike, as far as is known."""
    if isinstance(run, ProbeRun) or (run.kind, run.exception) != (failure.kind, failure.exception):
        return False
    both = (run, failure)
    if failure.kind is FailureKind.NO_STEP:
        return all(one.num_steps < _STEPS_BEYOND for one in both)
    if failure.kind is FailureKind.TIME_LIMIT:
        return True
    places = [(one.location.file, one.location.line) if one.location else None for one in both]
    said = [_OF_ONE_RUN.sub("0", one.message) for one in both]
    return places[0] == places[1] and said[0] == said[1]


def _printed_alike(one: str, other: str, failure: RunFailure) -> bool:
    """Return whether two runs that ended by a status gave the same exception for it, if any.

    A library that prints what was raised, and ends the script itself, leaves nothing else to tell
    causes apart: Hydra does so.
    """
    if failure.kind is not FailureKind.EXIT:
        return True
    ends = [
        _OF_ONE_RUN.sub("0", found[-1]) for run in (one, other) if (found := _RAISED.findall(run))
    ]
    return len(ends) < 2 or ends[0] == ends[1]


def _is_well(run: ProbeRun | RunFailure, failure: RunFailure) -> bool:
    """Return whether a run came further than the one that failed, and did not fail itself."""
    if isinstance(run, ProbeRun):
        return True
    has_trained = run.kind is FailureKind.NO_STEP and run.num_steps >= _STEPS_BEYOND
    return has_trained or (run.kind is FailureKind.TIME_LIMIT and run.num_steps > failure.num_steps)


def _own_fault(launcher: Launcher, alone: RunFailure, target: Target) -> str:
    command, writes = command_of(target), launcher.writes
    if (
        alone.exception in _FILE_ERRORS
        and writes is not None
        and writes.protection is not WriteProtection.NONE
    ):
        return (
            f"its files go to a layer that is thrown away, in {tempfile.gettempdir()}; if it does "
            f"not fail so without breakeven ({command}), give it --keep-writes, or name a folder "
            "with more space by TMPDIR"
        )
    if launcher.quiet_trackers:
        return (
            f"{', '.join(launcher.quiet_trackers)} logged nothing; if it does not fail so without "
            f"breakeven ({command}), it may need what it logs: give it --keep-trackers"
        )
    return f"the script fails so by itself, without breakeven: {command}"


def _fault_on_gpu(target: Target, alone: ProbeRun | RunFailure) -> str:
    if isinstance(alone, RunFailure) and alone.exception:
        ended = f"raised {alone.exception}" if alone.exception != "SystemExit" else "ended"
        by_itself = f"by itself, on what this machine has, it {ended} instead"
    else:
        by_itself = "by itself, on what this machine has, it runs"
    return (
        "the script fails so where torch.cuda.is_available() says yes, as it does while a step is "
        f"recorded; {by_itself}: {command_of(target)}. Fix what it does with a GPU; if it runs "
        "on one, please report this"
    )
