"""Recording and timing of steps in this process: for notebooks and the user's own code."""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from threading import Event
from typing import Any, NoReturn

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from breakeven.capture.messages import PlainRun, RunRequest, TracedRun
from breakeven.capture.sessions.plain import PlainSession
from breakeven.capture.sessions.session import BackwardCalls
from breakeven.capture.sessions.traced import TracedSession
from breakeven.capture.target import Target, TargetKind
from breakeven.errors import BreakevenError
from breakeven.trace import StepTrace

_NO_STEP = "call optimizer.step() at least twice inside, or pass a function that does one step"

# Of the first hundred steps of a training that goes on.
_MOST_TIMED, _MOST_RECORDED = 80, 20
# More updates than one step has, for all its optimizers.
_MOST_UPDATES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """A loop of many steps that a session ends when it has enough of them.

    Args:
        name: Its name in reports.
        run: Trains a copy of the user's objects. It must take at least thousands of steps.
    """

    name: str
    run: Callable[[], object]


class _Enough(BaseException):
    """Ends a loop; a framework must not catch it as an error of the user's code."""


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


def trace_step(step: Callable[[], object] | TrainingLoop) -> TracedRun:
    """Run a few steps on a fake CUDA device, and return the typical one.

    Args:
        step: One training step, or a loop on the CPU.
    """
    request = _request(step_name(step))
    run = None
    if not isinstance(step, TrainingLoop):
        run = _repeat(step, TracedSession, request)
    if run is None or (isinstance(run, TracedRun) and not run.trace.uses_device):
        run = _repeat(step, TracedSession, replace(request, is_moved=True))
    if not isinstance(run, TracedRun):
        raise BreakevenError(f"{step_name(step)} ran no operation of torch", hint=_NO_STEP)
    return run


def time_step(step: Callable[[], object] | TrainingLoop, *, budget_s: float = 1.0) -> PlainRun:
    """Run steps until their time on this CPU is known.

    Args:
        step: One training step, or a loop.
        budget_s: Seconds of steps to take if they are short.
    """
    run = _repeat(step, PlainSession, _request(step_name(step), budget_s))
    assert isinstance(run, PlainRun), "a plain session has a plain run"
    return run


def _repeat(
    step: Callable[[], object] | TrainingLoop,
    kind: type[PlainSession | TracedSession],
    request: RunRequest,
) -> PlainRun | TracedRun | None:
    """Run steps until done; if a function updates no weights, each return ends a step.

    A function that loops over many steps is left soon after the steps suffice.
    """
    if isinstance(step, TrainingLoop):
        return _run_loop(step, kind, request)
    is_done = Event()
    updates_left = count(_MOST_UPDATES, -1)

    def on_step(*_: object) -> None:
        if is_done.is_set() and not next(updates_left):
            raise _Enough

    with kind(request, is_done.set, on_step) as session:
        with suppress(_Enough):
            step()
            updates = session.num_steps > 0
            while True:
                if not updates:
                    session.mark_call()
                if is_done.is_set():
                    break
                step()
        return session.result()


def _run_loop(
    loop: TrainingLoop, kind: type[PlainSession | TracedSession], request: RunRequest
) -> PlainRun | TracedRun:
    def end() -> NoReturn:
        raise _Enough

    with ExitStack() as quiet, kind(request, end) as session:
        # A framework's messages about a copy would confuse.
        quiet.callback(logging.disable, logging.root.manager.disable)
        quiet.enter_context(warnings.catch_warnings())
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
        with suppress(_Enough):
            loop.run()
        if (run := session.result()) is None:
            raise BreakevenError(
                f"{loop.name} ended before a whole training step was measured", hint=_NO_STEP
            )
        return run


class FirstSteps:
    """Times and then records the first steps of a training that goes on in this process.

    It slows the recorded steps down, and changes no number of the training. Make it before the
    first step.

    Args:
        name: Name of the training in reports.
    """

    def __init__(self, name: str) -> None:
        self._request = _request(name)
        self._plain: PlainRun | None = None
        self._is_done = Event()
        self._session: PlainSession | TracedSession | None = None
        self._enter(PlainSession(self._request, self._is_done.set))

    def end_step(self) -> tuple[PlainRun, TracedRun] | None:
        """Return the timed and the recorded steps once they suffice; call it between steps."""
        session = self._session
        if session is None:
            return None
        is_enough = session.num_steps >= (_MOST_RECORDED if self._plain else _MOST_TIMED)
        if not (is_enough or self._is_done.is_set()) or (run := session.result()) is None:
            return None
        self.close()
        if isinstance(run, TracedRun):
            assert self._plain is not None, "timed before it is recorded"
            return self._plain, run
        self._plain = run
        self._enter(TracedSession(replace(self._request, is_moved=True), self._is_done.set))
        return None

    def close(self) -> bool:
        """Stop watching; return whether it still watched."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        return session is not None

    def _enter(self, session: PlainSession | TracedSession) -> None:
        self._is_done.clear()
        self._session = session
        session.__enter__()


@contextmanager
def kept_training(step: Callable[[], object] | None) -> Iterator[None]:
    """Restore on exit what training changes inside: weights, buffers and states of optimizers.

    Random numbers of torch, numpy and Python are restored too; gradients and ``train()`` are not,
    since a step may change them before they are seen. The step is called once here, to find the
    modules and optimizers that it uses.

    Args:
        step: One training step; None to restore random numbers only.

    Raises:
        BreakevenError: The step ran neither a backward pass nor an optimizer.
    """
    updates_left = count(_MOST_UPDATES, -1)
    seen: dict[int, object] = {}  # keeps the objects alive, so that no id is reused
    with ExitStack() as restored, ExitStack() as hooks:

        def keep(tensors: Iterable[torch.Tensor | None]) -> None:
            for tensor in tensors:
                if tensor is not None and id(tensor) not in seen and not is_lazy(tensor):
                    seen[id(tensor)] = tensor
                    restored.callback(tensor.detach().copy_, tensor.detach().clone())

        def keep_module(module: nn.Module, _: object) -> None:
            keep((*module._parameters.values(), *module._buffers.values()))

        def keep_optimizer(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if not next(updates_left):
                raise _Enough  # a loop, whose objects are known by now
            keep(parameter for group in optimizer.param_groups for parameter in group["params"])
            if id(optimizer) not in seen:
                seen[id(optimizer)] = optimizer
                states = {key: copy.deepcopy(state) for key, state in optimizer.state.items()}
                groups = [{**group} for group in optimizer.param_groups]
                restored.callback(_restore_optimizer, optimizer, states, groups)

        restored.callback(torch.set_rng_state, torch.get_rng_state())
        restored.callback(random.setstate, random.getstate())
        restored.callback(np.random.set_state, np.random.get_state())
        hooks.callback(register_module_forward_pre_hook(keep_module).remove)
        hooks.callback(register_optimizer_step_pre_hook(keep_optimizer).remove)
        if step is not None:
            passes: list[object] = []
            with suppress(_Enough), BackwardCalls(passes.append):
                step()
            if not passes and not any(
                isinstance(one, torch.optim.Optimizer) for one in seen.values()
            ):
                raise BreakevenError(
                    f"{step_name(step)} is no training step: it ran without a backward pass",
                    hint="put forward, backward and optimizer.step() into it; breakeven does not "
                    "judge inference",
                )
        hooks.close()  # hooks would slow the timed steps down
        yield


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, states: dict[Any, Any], groups: list[dict[str, Any]]
) -> None:
    optimizer.state.clear()
    optimizer.state.update(states)
    for group, values in zip(optimizer.param_groups, groups, strict=False):
        group.update(values)


def _request(label: str, budget_s: float = 1.0) -> RunRequest:
    return RunRequest(
        target=Target(kind=TargetKind.FUNCTION, raw_path=b"", label=label),
        is_traced=False,
        time_limit_s=float("inf"),
        budget_s=budget_s,
    )


def step_name(step: Callable[[], object] | TrainingLoop) -> str:
    """Return the name of a step or loop in reports."""
    if isinstance(step, TrainingLoop):
        return step.name
    return str(getattr(step, "__qualname__", type(step).__name__))
