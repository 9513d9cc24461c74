"""Hooks that track the running ``nn.Module`` and every optimizer update.

They work in plain loops, trainers and frameworks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from threading import RLock
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from breakeven.capture.location import caller_of_constructor, locate
from breakeven.capture.record.device_map import DEVICE, HOST
from breakeven.capture.record.event_log import CalledModel, next_node
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import (
    ByIdentity,
    Patches,
    groups_of,
    has_parameters,
    named_parts,
    updated_by,
)
from breakeven.trace import Location, ModelCall, OptimizerFacts, Phase

OnUpdate = Callable[[int], None]


# An optimizer without a step after this number of other steps is for later use, or unused.
_MAX_CALLS_BEFORE = 32


class OptimizerHooks(Patches):
    """Calls back after each ``optimizer.step()``.

    Args:
        on_update: Called with the optimizer's number, in order of first use.
        recorder: Receives start and end of the optimizer phase; None in a plain run.
    """

    def __init__(self, on_update: OnUpdate, recorder: StepRecorder | None = None) -> None:
        super().__init__()
        self._on_update = on_update
        self._recorder = recorder
        self._numbers: dict[int, int] = {}
        # Keep the optimizers alive, so that no id is reused.
        self._seen: list[torch.optim.Optimizer] = []
        # The user's line that created each optimizer.
        self._made = ByIdentity[torch.optim.Optimizer, Location | None]()
        self._num_calls = 0
        # Several threads may train at once; a thread may also train again inside, by a finalizer.
        self._ending_step = RLock()

    def _apply(self) -> None:
        self.call_after_making(torch.optim.Optimizer, self._note_made)
        if self._recorder is not None:
            self.callback(register_optimizer_step_pre_hook(self._before).remove)
        self.callback(register_optimizer_step_post_hook(self._after).remove)

    def _note_made(self, optimizer: torch.optim.Optimizer) -> None:
        maker = sys._getframe(2)  # the caller of this method's caller
        self._made[optimizer] = locate(caller_of_constructor(maker, optimizer))
        if self._recorder is not None and self._recorder.is_moving:
            for parameter in updated_by(optimizer):  # as an earlier `model.to(device)` would
                self._recorder.devices.place(parameter, DEVICE)

    def has_any(self) -> bool:
        """Return whether an optimizer exists."""
        return bool(self._made)

    def is_round_known(self) -> bool:
        """Return whether all optimizers have stepped, so that a round of them is known.

        A critic may be updated several times before the generator's first update.
        """
        if self._num_calls >= _MAX_CALLS_BEFORE:
            return True
        return all(id(optimizer) in self._numbers for optimizer in self._made)

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the optimizers seen so far update, each once."""
        known: set[int] = set()
        for optimizer in self._seen:
            for parameter in updated_by(optimizer):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    yield parameter

    def seen(self) -> tuple[torch.optim.Optimizer, ...]:
        """Return the optimizers that have stepped."""
        return tuple(self._seen)

    def state_names(self) -> dict[int, str]:
        """Return the name, such as ``exp_avg``, of each tensor in the optimizers' states, by id."""
        return {
            id(value): name
            for optimizer in self._seen
            for state in optimizer.state.values()
            if isinstance(state, dict)
            for name, value in state.items()
        }

    def facts(self) -> tuple[OptimizerFacts, ...]:
        """Return facts about the optimizers seen so far, in order of their first update."""
        return tuple(
            OptimizerFacts(
                name=type(optimizer).__name__,
                location=self._made[optimizer],
                num_tensors=sum(1 for _ in updated_by(optimizer)),
                foreach=_switch(optimizer, "foreach"),
                fused=_switch(optimizer, "fused"),
                is_from_torch=type(optimizer).__module__.startswith("torch."),
            )
            for optimizer in list(self._seen)
        )

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        recorder = self._recorder
        assert recorder is not None
        # An optimizer counts as one update, even if it evaluates the loss repeatedly: writes to
        # other parameters are copies and averages.
        recorder.updates = None
        recorder.start_update()
        if recorder.is_moving:
            _keep_counters_on_host(optimizer, recorder)

        def evaluate(closure: Callable[[], Any]) -> Any:
            recorder.here.phase = None
            try:
                return closure()
            finally:
                recorder.here.phase = Phase.OPTIMIZER

        return around_closure(optimizer, args, kwargs, evaluate)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.end_update()
        self._num_calls += 1
        if id(optimizer) not in self._numbers:
            self._numbers[id(optimizer)] = len(self._numbers)
            self._seen.append(optimizer)
            # If it was created before, use the line of its first update.
            self._made.setdefault(optimizer, locate(sys._getframe(1)))
        with self._ending_step:
            self._on_update(self._numbers[id(optimizer)])


def _switch(optimizer: torch.optim.Optimizer, name: str) -> bool | None:
    """Return an option that is on, off or left to torch (None, as for the user's optimizer)."""
    defaults = getattr(optimizer, "defaults", None)
    value = defaults.get(name) if isinstance(defaults, dict) else None
    return value if isinstance(value, bool) else None


def _keep_counters_on_host(optimizer: torch.optim.Optimizer, recorder: StepRecorder) -> None:
    """Place earlier step counters on the host if CUDA's optimizers keep them there."""
    for group in groups_of(optimizer):
        if group.get("capturable") or group.get("fused"):
            continue
        for parameter in group["params"]:
            counter = optimizer.state.get(parameter, {}).get("step")
            if isinstance(counter, torch.Tensor) and not recorder.devices.is_known(counter):
                recorder.devices.place(counter, HOST)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def around_closure(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any],
    around: Callable[[Callable[[], Any]], Any],
) -> Arguments | None:  # fmt: skip
    """Return the arguments of ``step`` with another closure; None without a closure.

    Args:
        optimizer: Optimizer of the call.
        args: Positional arguments in torch's hook: the first is the optimizer.
        kwargs: Named arguments in torch's hook.
        around: Called with the evaluation of the script's closure, each time that it should run.
    """
    # The first argument is a closure only if `step` calls it so: the user's own optimizer may take
    # a learning rate or a model.
    own, rest = args[:1], args[1:]
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    is_first = bool(rest) and code is not None and code.co_varnames[1:2] == ("closure",)
    closure = rest[0] if is_first else kwargs.get("closure")
    if not callable(closure):
        return None

    def evaluate(*given: Any, **named: Any) -> Any:
        return around(functools.partial(closure, *given, **named))

    if is_first:
        return (*own, evaluate, *rest[1:]), kwargs
    return args, {**kwargs, "closure": evaluate}


class ModulePath(Patches):
    """Keeps the running modules in ``recorder.here.modules``, innermost last."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._names = ByIdentity[nn.Module, str]()

    def _apply(self) -> None:
        if self._recorder.is_recording:
            self._register()
        else:  # hooks cost each call of a module as much as a small operator
            self._recorder.on_first_recording.append(self._register)

    def _register(self) -> None:
        enter, leave = map(self._recorder.unseen, (self._enter_module, self._leave_module))
        self.callback(register_module_forward_pre_hook(enter).remove)
        leave = register_module_forward_hook(leave, always_call=True)
        self.callback(leave.remove)

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        recorder, here = self._recorder, self._recorder.here
        if not recorder.is_recording:
            here.modules.append(("", module))
            return
        is_outermost = not here.modules
        if is_outermost and recorder.updates is not None:
            recorder.updates.begin_forward()
        if is_outermost or module not in self._names:
            root = type(module).__name__
            for name, part in named_parts(module):
                self._names[part] = f"{root}.{name}" if name else root
        first = next((item for item in inputs if isinstance(item, torch.Tensor)), None)
        shape = tuple[int, ...](() if first is None else first.shape)
        counts = recorder.step.model_inputs
        if is_outermost and torch.is_grad_enabled():
            # A loss without parameters is no model. A recurrent layer used alone may have time as
            # its first dimension.
            is_layer = isinstance(module, (nn.RNNBase, nn.Transformer))
            if len(shape) > 1 and not is_layer and has_parameters(module):
                counts.append(shape[0])
            here.model_input = shape
        elif counts and len(here.model_input) > 1 and not getattr(module, "batch_first", True):
            # Without `batch_first`, a recurrent or transformer layer has the input's time first.
            is_same = len(shape) == 3 and shape[:2] == here.model_input[:2]
            counts[-1] = shape[1] if is_same else counts[-1]
        if is_outermost and recorder.is_noting:
            here.call = _start_call(module, inputs, recorder)
        here.modules.append((self._names[module], module))

    def _leave_module(self, *_: Any) -> None:
        here = self._recorder.here
        if here.modules:
            here.modules.pop()
        if here.call is not None and not here.modules:
            here.call.end(self._recorder.events)
            here.call = None


def _start_call(module: nn.Module, inputs: Any, recorder: StepRecorder) -> CalledModel | None:
    """Note a call of ``module``; return None if it is no model or only prepares data."""
    if recorder.here.phase is Phase.DATA or not has_parameters(module):
        return None
    # Hooks for all modules do not receive keywords: read them from torch's own frame.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    keywords = None if frame is None else frame.f_locals.get("kwargs")
    given = (*inputs, *(keywords.values() if isinstance(keywords, dict) else ()))
    tensors = (value for value in given if isinstance(value, torch.Tensor) and value.shape)
    first = next(tensors, None)
    origin = recorder.current_origin()
    noted = ModelCall(
        model=type(module).__name__,
        location=origin.location,
        stack=origin.stack,
        is_training=bool(module.training),
        has_grad=torch.is_grad_enabled(),
        is_used_in_backward=False,
        first_event=len(recorder.events),
        num_events=0,
        num_samples=0 if first is None else first.shape[0],
    )
    node = next_node()
    call = CalledModel(noted=noted, events=recorder.events, first_node=node, end_node=node)
    recorder.step.model_calls.append(call)
    return call
