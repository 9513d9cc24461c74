"""The events of a step, in the order in which the host issues them."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import msgspec
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from breakeven.capture.record.device_map import DEVICE, DeviceMap, bytes_of
from breakeven.capture.record.operators import describe
from breakeven.capture.record.origins import Origin, OriginFinder
from breakeven.configure import named_parameters_of
from breakeven.measure import own_time_ns
from breakeven.trace import (
    Collective,
    Copy,
    DeviceFault,
    Event,
    HostWork,
    Location,
    ModelCall,
    Op,
    Phase,
    Sync,
)

# Python between two operators takes some 10-100 µs. A longer gap, without the recorder's own part,
# is the script's work: NumPy, a simulator, plotting. A GPU would wait for it too.
SCRIPT_GAP_NS = 500_000
# Shorter gaps at one line may add up to as much: it may open a file or walk a tree per sample. A
# library's module has longer own pauses than a line of the script.
_LEAST_GAP_NS = 150_000
_LEAST_OWN_GAP_NS = 75_000
# The recorder's own part of a gap takes up to this multiple of its timing in a loop. The loop reads
# `.grad` of forty tensors.
_OWN_FACTOR = 2

# A longer step without gradients evaluates a model: acting or sampling takes less time.
_LONG_EVALUATION_NS = 1_500_000_000
# In such a step, at most one operator in this number may build the autograd graph.
_FOLLOWED_SHARE = 10


_Function = TypeVar("_Function", bound=Callable[..., Any])


class CalledModel(msgspec.Struct, kw_only=True):
    """A call of a whole model in a recorded step.

    Args:
        noted: Facts of the call, with the recorder's own positions and stack number.
        events: The recorder's list of events, which the call extends.
        first_node: Autograd's number of the first node that the call creates.
        end_node: Number after its last node.
    """

    noted: ModelCall
    events: list[Event]
    first_node: int
    end_node: int

    def end(self, events: list[Event]) -> None:
        """Note the end of the call."""
        self.end_node = next_node()
        # If a step ended within the call, the recorder has a new list.
        end = len(events) if events is self.events else len(self.events)
        self.noted = replace(self.noted, num_events=end - self.noted.first_event)

    def as_fact(
        self, positions: Sequence[int], numbers: dict[int, int], reached: Set[int]
    ) -> ModelCall:
        """Return the call for the trace.

        Args:
            positions: Position in the trace of each event of the recorded step, and of its end.
            numbers: The trace's number of each stack.
            reached: Autograd's numbers of the nodes that ran backward.
        """
        noted = self.noted
        first = positions[noted.first_event]
        return replace(
            noted,
            stack=numbers.get(noted.stack, -1),
            has_grad=noted.has_grad and self.end_node > self.first_node,
            is_used_in_backward=any(self.first_node <= node < self.end_node for node in reached),
            first_event=first,
            num_events=positions[noted.first_event + noted.num_events] - first,
        )


class StepLog(msgspec.Struct):
    """The record of a step, or of a part of one.

    Args:
        events: Events in the order in which the host issues them.
        model_inputs: Samples per call of a whole model, for scripts without a known loader.
        model_calls: Calls of whole models.
        reached: Autograd's numbers of the nodes that the backward passes ran.
        collectives: Exchanges with other processes.
        is_anomaly_checked: Whether a backward pass checked for values that are not finite.
    """

    events: list[Event] = msgspec.field(default_factory=list[Event])
    model_inputs: list[int] = msgspec.field(default_factory=list[int])
    model_calls: list[CalledModel] = msgspec.field(default_factory=list[CalledModel])
    reached: set[int] = msgspec.field(default_factory=set[int])
    collectives: list[Collective] = msgspec.field(default_factory=list[Collective])
    is_anomaly_checked: bool = False


class _Here(threading.local):
    """State of the current thread: several threads may work on one step."""

    phase: Phase | None = None
    # Whether the current call has tensors on the device: C++ then creates tensors there too. None
    # outside any call of the script.
    is_call_on_device: bool | None = None
    # Device of that call, or of the last operator on one: C++ creates tensors there.
    last_device = DEVICE
    is_paused = False
    # Use of the values that the current call reads: ``bool``, ``format``.
    reading = ""

    def __init__(self) -> None:
        # Running modules, outermost first, with their paths; a module called while nothing was
        # recorded has no path.
        self.modules: list[tuple[str, torch.nn.Module]] = []
        # Call of the outermost module, if it is a whole model.
        self.call: CalledModel | None = None
        # Shape of that model's input.
        self.model_input: tuple[int, ...] = ()


class EventLog(TorchDispatchMode):
    """The events of the current step, each with its phase and line.

    Args:
        devices: Devices of the tensors.
        is_recording: Keep events from the start; otherwise from `start_recording` on.
    """

    def __init__(self, devices: DeviceMap, *, is_recording: bool) -> None:
        super().__init__()
        self.devices = devices
        self.here = _Here()
        self.is_recording = is_recording
        # Operators, copies and syncs of devices so far, including unrecorded ones.
        self.num_device_events = 0
        self.step = StepLog()
        self.faults: dict[tuple[str, int], DeviceFault] = {}
        self.origins = OriginFinder()
        # Start of the step, and its number of operators that build the autograd graph.
        self._started_ns = 0
        self._num_followed = 0
        self._last_exit_ns = 0
        # The recorder's own part of the time since then.
        self.gap_own_ns = 0

    @property
    def events(self) -> list[Event]:
        """Return the events of the current step."""
        return self.step.events

    @property
    def is_noting(self) -> bool:
        """Return whether this thread's events are kept."""
        return self.is_recording and not self.here.is_paused

    def start_step(self) -> None:
        """Discard the recording, and begin a new step."""
        self.step = StepLog()
        self.origins.start_step()
        self.end_event()
        self._started_ns = self._last_exit_ns
        self._num_followed = 0
        self.devices.start_peak()

    def end_event(self) -> None:
        """Start the gap before the next event."""
        self._last_exit_ns, self.gap_own_ns = own_time_ns(), 0

    def unseen(self, function: _Function) -> _Function:
        """Return ``function`` with its time excluded from the gap: the original is quicker."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_recording:
                return function(*args, **kwargs)
            entered_ns, before_ns = own_time_ns(), self.gap_own_ns
            try:
                return function(*args, **kwargs)
            finally:
                begun_ns, before_ns = max((entered_ns, before_ns), (self._last_exit_ns, 0))
                self.gap_own_ns = before_ns + own_time_ns() - begun_ns

        return cast(_Function, call)

    def is_evaluating(self) -> bool:
        """Return whether the step so far has run long without gradients."""
        is_long = own_time_ns() - self._started_ns > _LONG_EVALUATION_NS
        return is_long and self._num_followed * _FOLLOWED_SHARE < len(self.events)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside, but still place tensors."""
        before, self.here.is_paused = self.here.is_paused, True
        try:
            yield
        finally:
            self.here.is_paused = before
            self.end_event()

    def record(self, event: Event) -> None:
        """Note an event that is not an operator."""
        if self.is_noting:
            self.events.append(event)
        self.end_event()

    def _note(self, event_type: type[Copy] | type[HostWork] | type[Sync], /, **fields: Any) -> None:
        """Note an event with the current phase and line."""
        if not self.is_noting:
            return
        origin = self.current_origin()
        if event_type is not HostWork:
            fields.setdefault("via", origin.via)
        fields.setdefault("phase", self.current_phase())
        self.record(event_type(location=origin.location, stack=origin.stack, **fields))

    def record_sync(
        self, kind: str, num_bytes: int = 0, tensor: torch.Tensor | None = None
    ) -> None:
        """Note that the host waits for the device here, to read ``tensor`` if given."""
        self.num_device_events += 1
        storage = -1 if tensor is None or not self.is_noting else self.devices.number_of(tensor)
        is_reading = kind == "item" and torch.is_anomaly_enabled()
        is_check = is_reading and self.current_phase() is Phase.BACKWARD
        via = {"via": "torch.autograd.anomaly_mode"} if is_check else {}
        self._note(Sync, kind=kind, num_bytes=num_bytes, storage=storage, **via)

    def record_read(self, kind: str, tensor: torch.Tensor) -> None:
        """Note that the host waits for all of ``tensor``."""
        self.record_sync(kind, bytes_of(tensor), tensor)

    def record_copy(
        self, tensor: torch.Tensor, source: str, destination: str, *, is_pinned: bool,
        non_blocking: bool,
    ) -> None:  # fmt: skip
        """Note a copy of ``tensor`` between host and device."""
        self.num_device_events += 1
        if self.is_noting:
            self._note(
                Copy, source=source, destination=destination, num_bytes=bytes_of(tensor),
                is_pinned=is_pinned, non_blocking=non_blocking,
                storage=self.devices.number_of(tensor),
                dtype=str(tensor.dtype).removeprefix("torch."),
            )  # fmt: skip

    def record_host_work(
        self, kind: str, duration_ns: int, num_workers: int = 0, phase: Phase | None = None
    ) -> None:
        """Note time that the host spends outside operators."""
        phase = phase or self.current_phase()
        self._note(
            HostWork, kind=kind, duration_ns=duration_ns, num_workers=num_workers, phase=phase
        )

    @contextmanager
    def device_work(self) -> Iterator[None]:
        """Exclude the time inside from the host's: the CPU does the device's work."""
        if self.is_noting:
            self.note_gap(own_time_ns())
        yield
        self.end_event()

    @contextmanager
    def host_work(self, kind: str) -> Iterator[None]:
        """Note the time of the block instead of its operators."""
        started_ns = own_time_ns()
        if self.is_noting:
            self.note_gap(started_ns)
        with self.paused():
            yield
        self.record_host_work(kind, own_time_ns() - started_ns)

    def record_collective(self, kind: str, num_bytes: int, *, is_bucket: bool = False) -> None:
        """Note an exchange with other processes, into which this one puts ``num_bytes``."""
        if self.is_noting:
            noted = Collective(
                kind=kind,
                num_bytes=num_bytes,
                phase=self.current_phase(),
                location=self.current_origin().location,
                is_bucket=is_bucket,
            )
            self.step.collectives.append(noted)

    def record_fault(self, message: str, location: Location | None = None) -> None:
        """Note once per line, by default the current one, that it would raise on a GPU."""
        location = location or self.current_origin().location
        key = (location.file, location.line) if location else ("", 0)
        # A consequence of a mixture that CUDA would refuse is not a separate fault.
        is_consequence = bool(self.faults) and self.current_phase() is not Phase.FORWARD
        known = self.faults.get(key)
        if known is None and is_consequence:
            return
        if known is None or not known.module:
            # Before the first recorded step, the running module is unknown.
            module = module_on_host(self.here.modules, self.devices)
            if known is None or module:
                self.faults[key] = DeviceFault(message=message, location=location, module=module)

    def record_op(
        self, name: str, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor],
        attributes: dict[str, Any], *, device: str, host_ns: int,
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        """Note an operator; ``origin`` overrides the current line and module."""
        if not self.is_noting:
            return
        self._num_followed += torch.is_grad_enabled()
        origin = origin or self.current_origin()
        node = torch._C._current_autograd_node()
        if node is not None:
            self.step.reached.add(node._sequence_nr())
            self.step.is_anomaly_checked |= torch.is_anomaly_enabled()
        self.record(
            Op(
                name=name,
                inputs=tuple(describe(tensor, self.devices) for tensor in inputs),
                outputs=tuple(describe(tensor, self.devices) for tensor in outputs),
                attributes=attributes,
                phase=self.current_phase(),
                device=device,
                location=origin.location,
                module=origin.module,
                host_ns=host_ns,
                stack=origin.stack,
            )
        )

    def current_phase(self) -> Phase:
        """Return the current phase."""
        # A hook of the backward pass may update parameters.
        is_updating = self.here.phase is Phase.OPTIMIZER
        if torch._C._current_autograd_node() is not None and not is_updating:
            return Phase.BACKWARD
        return self.here.phase or Phase.FORWARD

    def start_update(self) -> None:
        """Enter the optimizer phase; operators since the last backward pass belong to it too.

        They prepare the update: clipping, unscaling.
        """
        self.here.phase = Phase.OPTIMIZER
        self.mark_as_update(len(self.events))

    def mark_as_update(self, end: int) -> None:
        """Mark the forward operators directly before a position as part of the update."""
        for position in range(end - 1, -1, -1):
            event = self.events[position]
            if event.phase is not Phase.FORWARD:
                break
            if isinstance(event, Op):
                self.events[position] = replace(event, phase=Phase.OPTIMIZER)

    def end_update(self) -> None:
        """Leave the optimizer phase."""
        self.here.phase = None

    def current_origin(self) -> Origin:
        """Return the user's line and the module; in backward, those of the forward operator."""
        modules = self.here.modules
        return self.origins.current(sys._getframe(1), modules[-1][0] if modules else "")

    def note_gap(self, entered_ns: int) -> None:
        """Note the script's work between the last event and ``entered_ns``, if it took long."""
        gap_ns = entered_ns - self._last_exit_ns - _OWN_FACTOR * self.gap_own_ns
        if self.here.phase is Phase.DATA or gap_ns < _LEAST_OWN_GAP_NS or not self._last_exit_ns:
            return
        if torch._C._current_autograd_node() is not None:
            return  # the engine's own time or a stall: the user's Python does not run there
        if gap_ns < _LEAST_GAP_NS and self.current_origin().via:
            return
        self.record_host_work("script", gap_ns)


def next_node() -> int:
    """Return autograd's number of the next node."""
    return torch.autograd._get_sequence_nr()  # pyright: ignore[reportPrivateImportUsage]


def module_on_host(modules: Iterable[tuple[str, nn.Module]], devices: DeviceMap) -> str:
    """Return the path of the first module that was never moved; empty if all were.

    Args:
        modules: Running modules, outermost first, with their paths.
        devices: Devices of their parameters.
    """
    for path, module in modules:
        parameters = [parameter for _, parameter in named_parameters_of(module)]
        if path and parameters and not any(map(devices.is_on_device, parameters)):
            return path
    return ""
