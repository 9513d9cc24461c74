"""Recording and timing of steps in this process: for notebooks and the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import Event

from msgspec.structs import replace

from breakeven.capture.messages import PlainRun, RunRequest, TracedRun
from breakeven.capture.sessions.plain import PlainSession
from breakeven.capture.sessions.traced import TracedSession
from breakeven.capture.target import Target, TargetKind
from breakeven.errors import BreakevenError
from breakeven.trace import StepTrace

_NO_STEP = "call optimizer.step() at least twice inside, or pass a function that does one step"


class Recording:
    """The recording of `record_steps`; complete when the block has ended."""

    def __init__(self) -> None:
        self._run: TracedRun | None = None

    @property
    def run(self) -> TracedRun:
        """Return the run with the typical step and its loader.

        Raises:
            BreakevenError: No step was completed.
        """
        if self._run is None:
            raise BreakevenError("no training step was recorded", hint=_NO_STEP)
        return self._run

    @property
    def trace(self) -> StepTrace:
        """Return the typical step.

        Raises:
            BreakevenError: No step was completed.
        """
        return self.run.trace


@contextmanager
def record_steps() -> Iterator[Recording]:
    """Record the training steps of the block on a fake CUDA device.

    Inside, ``torch.cuda.is_available()`` is true and ``.cuda()`` works on any machine; the CPU runs
    everything, slower than usual. On exit torch is restored. The block runs to its end: two steps
    are enough.
    """
    recording = Recording()
    # The block ends itself, so it continues when the steps suffice.
    session = TracedSession(_request("the recorded block"), lambda: None)
    with session:
        yield recording
        recording._run = session.result()


def trace_step(step: Callable[[], object]) -> TracedRun:
    """Call ``step`` a few times on a fake CUDA device, and return the typical step.

    Args:
        step: One training step.
    """
    request = _request(_name(step))
    run = _repeat(step, TracedSession, request)
    if isinstance(run, TracedRun) and not run.trace.uses_device:
        run = _repeat(step, TracedSession, replace(request, is_moved=True))
    assert isinstance(run, TracedRun), "done means at least one step"
    return run


def time_step(step: Callable[[], object], *, budget_s: float = 1.0) -> PlainRun:
    """Call ``step`` until its time on this CPU is known.

    Args:
        step: One training step.
        budget_s: Seconds of steps to take if they are short.
    """
    run = _repeat(step, PlainSession, _request(_name(step), budget_s))
    assert isinstance(run, PlainRun), "done means at least one sample"
    return run


def _repeat(
    step: Callable[[], object], kind: type[PlainSession | TracedSession], request: RunRequest
) -> PlainRun | TracedRun | None:
    """Call ``step`` until done; if it updates no weights, each return ends a step.

    A function that loops over many steps is stopped soon after the steps suffice.
    """
    is_done = Event()
    updates_left = count(_MOST_UPDATES, -1)

    def on_step(*_: object) -> None:
        if is_done.is_set() and not next(updates_left):
            raise _EnoughSteps

    with kind(request, is_done.set, on_step) as session:
        with suppress(_EnoughSteps):
            step()
            updates = session.num_steps > 0
            while True:
                if not updates:
                    session.mark_call()
                if is_done.is_set():
                    break
                step()
        return session.result()


# More updates than one step has, for all its optimizers.
_MOST_UPDATES = 16


class _EnoughSteps(BaseException):
    """Leaves the loop of the user's function, as an interrupt would."""


def _request(label: str, budget_s: float = 1.0) -> RunRequest:
    return RunRequest(
        target=Target(kind=TargetKind.FUNCTION, raw_path=b"", label=label),
        is_traced=False,
        time_limit_s=float("inf"),
        budget_s=budget_s,
    )


def _name(step: Callable[[], object]) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))
