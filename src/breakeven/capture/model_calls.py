"""Which parts of a step are calls of whole models, and which of them the backward pass reached."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence, Set
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import nn

from breakeven.capture.device_map import DeviceMap
from breakeven.configure import has_parameters, named_parameters_of
from breakeven.trace import Event, Location, ModelCall, Phase

if TYPE_CHECKING:
    from breakeven.capture.recorder import StepRecorder


class CalledModel(msgspec.Struct, kw_only=True):
    """A call of a whole model while the step is recorded.

    Args:
        model: Name of its type.
        location: The user's line that calls it.
        stack: Number of that line's stack, as the recorder has it.
        is_training: Whether it is in training mode.
        num_samples: Leading dimension of its first tensor.
        events: The recorder's list, to which the call adds.
        first_event: Position of the first event within it.
        end_event: Position after the last.
        first_node: Autograd's number of the first node that it makes.
        end_node: The number after the last.
        has_grad: Whether autograd records.
    """

    model: str
    location: Location | None
    stack: int
    is_training: bool
    num_samples: int
    events: list[Event]
    first_event: int
    end_event: int
    first_node: int
    end_node: int
    has_grad: bool

    def end(self, events: list[Event]) -> None:
        """Note that the call is over."""
        self.end_node = _next_node()
        # Another list has begun where a whole step ended within the call.
        self.end_event = len(events) if events is self.events else len(self.events)

    def as_fact(
        self, positions: Sequence[int], offset: int, numbers: dict[int, int], reached: Set[int]
    ) -> ModelCall:
        """Return what the trace keeps.

        Args:
            positions: Where each event of the recorded step, and its end, are in the trace.
            offset: Position of the call's list of events in the recorded step.
            numbers: The trace's numbers of stacks.
            reached: Autograd's numbers of the nodes that ran backward.
        """
        first = positions[offset + self.first_event]
        return ModelCall(
            model=self.model,
            location=self.location,
            stack=numbers.get(self.stack, -1),
            is_training=self.is_training,
            has_grad=self.has_grad and self.end_node > self.first_node,
            is_used_in_backward=any(self.first_node <= node < self.end_node for node in reached),
            first_event=first,
            num_events=positions[offset + self.end_event] - first,
            num_samples=self.num_samples,
        )


def start_call(module: nn.Module, inputs: Any, recorder: StepRecorder) -> CalledModel | None:
    """Note that ``module`` is called; None where it is no model or only prepares data."""
    if recorder.phase is Phase.DATA or not has_parameters(module):
        return None
    origin = recorder.current_origin()
    position, node = len(recorder.events), _next_node()
    call = CalledModel(
        model=type(module).__name__,
        location=origin.location,
        stack=origin.stack,
        is_training=bool(module.training),
        num_samples=_num_samples(inputs),
        events=recorder.events,
        first_event=position,
        end_event=position,
        first_node=node,
        end_node=node,
        has_grad=torch.is_grad_enabled(),
    )
    recorder.model_calls.append(call)
    return call


def _next_node() -> int:
    return torch.autograd._get_sequence_nr()  # pyright: ignore[reportPrivateImportUsage]


def _num_samples(inputs: tuple[Any, ...]) -> int:
    """Return the leading dimension of the first tensor that a model is given."""
    named = _keywords_of_call()
    for value in (*inputs, *named.values()):
        if isinstance(value, torch.Tensor) and value.dim():
            return value.size(0)
    return 0


def _keywords_of_call() -> dict[str, Any]:
    """Return the keywords of the module call whose hook runs; hooks for all are given none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}


def module_on_host(modules: Iterable[tuple[str, nn.Module]], devices: DeviceMap) -> str:
    """Return the path of the first module that was never moved; empty where each was.

    Args:
        modules: Those that run, the outermost first, by their paths.
        devices: Where their parameters are.
    """
    for path, module in modules:
        parameters = [parameter for _, parameter in named_parameters_of(module)]
        if parameters and not any(map(devices.is_on_device, parameters)):
            return path
    return ""
