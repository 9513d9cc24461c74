"""Recording of a step without memory: shapes are computed, values are not.

Fake tensors on the CPU replace real ones. Recording a model of any size takes only the time to
compute shapes. As for a script that never uses a device, everything is "moved" to the fake device
except the optimizer's counters.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from breakeven.capture.pretend.attention import patch_attention
from breakeven.capture.pretend.composites import patch_composites
from breakeven.capture.pretend.stand_ins import patch_autocast_policy
from breakeven.capture.record.device_map import DEVICE, HOST, DeviceMap
from breakeven.capture.record.hooks import ModulePath, OptimizerHooks
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.trace import Event, HostWork, Op

# Host time of an operator on the optimizer's counters, which stay on the host, per counter.
# Source: torch._foreach_add_ of 50 and 200 of them, torch 2.13, one core of a cloud machine.
_HOST_TENSOR_NS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeStep:
    """The recording of one call of a step.

    Args:
        events: Events in the order of their issue, without the host's own work: fake tensors do not
            show its duration.
        peak_memory_bytes: Peak sum of live device tensors within the step.
    """

    events: tuple[Event, ...]
    peak_memory_bytes: int


class FakeSession(Patches):
    """Inside, tensors have no memory, and `record` records a step.

    A value read back from the device is 0: no overflow, no full mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorder = StepRecorder(DeviceMap(DEVICE), run_on_fakes)
        self._optimizers = OptimizerHooks(lambda _: None, self._recorder)

    def _apply(self) -> None:
        # Its log messages are raised as errors too.
        self.replace(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
        # C++ code within a composite creates constants as real tensors.
        self.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        patch_composites(self, self._recorder)
        patch_attention(self, self._recorder)
        patch_autocast_policy(self)
        patch_construction(self, self._recorder)
        self.enter_context(self._optimizers)
        self.enter_context(ModulePath(self._recorder))

    def record(self, step: Callable[[], object]) -> FakeStep:
        """Call ``step`` once, and return its recording.

        A step that creates gradients or the optimizer's state must have run once before.
        """
        recorder = self._recorder
        recorder.start_step()
        with recorder:
            step()
        events, peak_bytes = recorder.events, recorder.devices.peak_device_bytes
        recorder.start_step()
        return FakeStep(
            events=tuple(_timed(event) for event in events if not isinstance(event, HostWork)),
            peak_memory_bytes=peak_bytes,
        )

    def place(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors from before the recording, mostly parameters, as device memory."""
        for tensor in tensors:
            self._recorder.devices.place(tensor, DEVICE)

    def copy_to_device(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record a blocking copy of each tensor from pageable host memory to the device."""
        for tensor in tensors:
            self._recorder.record_copy(tensor, HOST, DEVICE, is_pinned=False, non_blocking=False)

    def wait(self) -> None:
        """Record a ``torch.cuda.synchronize()``."""
        self._recorder.record_sync("synchronize")


def _timed(event: Event) -> Event:
    """Return the event with its estimated host time instead of that of fake tensors.

    It has no stack of the user's lines: most are from breakeven's own workloads.
    """
    if not isinstance(event, Op):
        return replace(event, stack=-1)
    host_ns = round(len(event.inputs) * _HOST_TENSOR_NS) if event.is_on_host else 0
    return replace(event, host_ns=host_ns, stack=-1)


def run_on_fakes(func: Any, base_name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on fake tensors; a value that depends on their data is 0."""
    try:
        return func(*args, **kwargs)
    except DataDependentOutputException:
        if base_name != "aten._local_scalar_dense":
            raise
        dtype = args[0].dtype
        return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


# Longer tensors, such as position tables, need no values: no constructor reads them.
_MAX_KNOWN_VALUES = 1024

_Convert = Callable[[torch.Tensor], torch.Tensor]


def patch_construction(patches: Patches, recorder: StepRecorder) -> None:
    """Allow building and converting models with fake parameters.

    Args:
        patches: Restores everything on exit.
        recorder: Marks a recorded step, which is no construction.
    """
    _patch_conversion(patches)
    # It draws until all values are within bounds, but fake tensors have no values.
    patches.replace(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor)
    # Constructors compute widths and stochastic depth rates, and read them.
    patches.replace(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MAX_KNOWN_VALUES)
    for name in ("arange", "linspace"):
        patches.replace(torch, name, _with_values(getattr(torch, name), recorder))


def _with_values(
    create: Callable[..., torch.Tensor], recorder: StepRecorder
) -> Callable[..., torch.Tensor]:
    """Make a factory create tensors with known values, except in a recorded step."""

    @functools.wraps(create)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if recorder in _get_current_dispatch_mode_stack():
            return create(*args, **kwargs)
        with _disable_current_modes():
            values = create(*args, **kwargs)
        if values.numel() > _MAX_KNOWN_VALUES:
            return create(*args, **kwargs)
        # A fake tensor keeps its values if Python numbers create it.
        return torch.tensor(values.tolist(), dtype=values.dtype)

    return make


def _patch_conversion(patches: Patches) -> None:
    """Make ``module.to(...)``, ``.half()`` and similar methods create new parameters.

    torch would swap a fake parameter with its conversion in place. It refuses if an object, such as
    the fake tensor mode itself, holds a weak reference to the parameter.
    """
    # By id; the references keep parameters alive, so that no id is reused. A parameter that two
    # modules share stays shared.
    converted: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    depth = 0

    def apply(module: nn.Module, convert: _Convert, recurse: bool = True) -> nn.Module:
        nonlocal depth
        depth += 1
        try:
            if recurse:
                for child in module.children():
                    child._apply(convert)
            _convert_own(module, convert, converted)
        finally:
            depth -= 1
            if depth == 0:
                converted.clear()
        return module

    patches.replace(nn.Module, "_apply", apply)


def _convert_own(
    module: nn.Module, convert: _Convert, converted: dict[int, tuple[nn.Parameter, nn.Parameter]]
) -> None:
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if id(parameter) not in converted:
            with torch.no_grad():
                value = convert(parameter)
            new = parameter
            if value is not parameter:
                new = nn.Parameter(value, requires_grad=parameter.requires_grad)
            converted[id(parameter)] = (parameter, new)
        module._parameters[name] = converted[id(parameter)][1]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = convert(buffer)
