"""Recording of each operator, copy and sync in a step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from breakeven.capture.record.device_map import (
    DEVICE,
    HOST,
    CudaDevices,
    DeviceMap,
    OneGpu,
    bytes_of,
    is_cuda,
)
from breakeven.capture.record.event_log import EventLog
from breakeven.capture.record.graph_work import GraphWork
from breakeven.capture.record.modes import Watch, same_numbers
from breakeven.capture.record.operators import (
    COPYING,
    HOST_RESULTS,
    INDEXING,
    attributes_of,
    find_stray,
    is_masked_fill,
    masks_of,
    run_on_cpu,
    sync_kind,
    tensors_in,
)
from breakeven.capture.record.origins import Origin
from breakeven.capture.record.update_watch import UpdateWatch
from breakeven.measure import own_time_ns
from breakeven.trace import Phase

# Namespaces of operators without effect here: no other process answers a collective.
_BOOKKEEPING = ("profiler.", "prim.", "c10d.")
# Words of `torch.distributed` for operators of c10d.
_COLLECTIVES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "allgather": "all_gather",
    "allgather_base": "all_gather", "reduce_scatter_base": "reduce_scatter",
}  # fmt: skip

# Operators that write running statistics or a file without declaring it in their schemas.
_WRITING_UNSAID = ("batch_norm", "instance_norm", "from_file")

# Repeating a longer call would not change its time.
_BRIEF_NS = 2_000_000

# Check after this number of events whether to continue recording.
_LOOK_EVERY = 256


class StepRecorder(EventLog):
    """Intercepts every operator below autograd and autocast, runs it on the CPU, and notes it.

    Args:
        devices: Devices of the tensors; the recorder places the results.
        run: Computes an operator, called as ``run(func, base_name, args, kwargs)``.
        cuda: The fake devices; by default one device.
        is_recording: Note events from the start; otherwise only place tensors until
            `start_recording`.
    """

    def __init__(
        self,
        devices: DeviceMap,
        run: Callable[..., Any] = run_on_cpu,
        cuda: CudaDevices | None = None,
        *,
        is_recording: bool = True,
    ) -> None:
        super().__init__(devices, is_recording=is_recording)
        self.cuda = cuda or CudaDevices(on_other=self._note_other_device)
        # Pushes this mode when needed; None if it is active from the start.
        self.watch: Watch | None = None
        # Receives each recorded operator before it runs; None once unneeded.
        self.updates: UpdateWatch | None = None
        # Called at intervals while events are kept.
        self.on_look: Callable[[], None] = lambda: None
        # Called at the first start of a recording.
        self.on_first_recording: list[Callable[[], None]] = []
        self._run = run
        # Calls of torch's functions so far, including unrecorded ones.
        self.num_calls = 0
        # dtype of the last autocast region for CUDA; empty without one.
        self.autocast_dtype = ""
        self.one_gpu = OneGpu()
        self.graph_work: GraphWork | None = None  # of the CUDA graph during its capture

    @property
    def is_moving(self) -> bool:
        """Return whether a script that never uses a GPU is recorded as if moved to one."""
        return self.devices.default == DEVICE

    def start_watching(self) -> None:
        """Start to place tensors: the script names a device."""
        if self.watch is not None:
            self.watch.start()

    def start_recording(self) -> None:
        """Start to keep events."""
        self.is_recording = True
        self.start_watching()
        self.start_step()
        while self.on_first_recording:
            self.on_first_recording.pop()()

    def refuse_array(self, tensor: torch.Tensor) -> None:
        """Note that NumPy receives a tensor on the device, which CUDA refuses."""
        self.record_fault(
            f"a tensor on {self.devices.device_of(tensor)} is turned into a NumPy array; "
            "it needs .cpu() first"
        )

    def _note_other_device(self, index: int) -> None:
        self.one_gpu.note_second(index, self.current_origin().location)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on the CPU, and note it as it would run on the device."""
        if self.watch is not None and not self.watch.is_on:
            return func(*args, **(kwargs or {}))
        entered_ns = own_time_ns()
        # Function modes have already handled the call. In the backward pass torch would call them
        # again, for the operator and for each attribute that the recorder reads.
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, dict(kwargs or {}), entered_ns)

    def _dispatch(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], entered_ns: int
    ) -> Any:
        name, base_name = _names_of(func)
        inputs = [*tensors_in(args), *tensors_in(kwargs.values())]
        if not self.is_recording and inputs and "device" not in kwargs and not self.is_moving:
            places = set(map(self.devices.device_of, inputs))
            if len(places) == 1:  # devices agree, and nothing is recorded
                result = self._run(func, base_name, args, kwargs)
                if (device := places.pop()) != HOST:
                    self._note_device(device)
                    self._place_results(base_name, result, device)
                return result
        wanted = kwargs.get("device")
        if wanted is not None and is_cuda(wanted):
            wanted = self.cuda.as_device(wanted)  # this refuses a device that does not exist
            kwargs["device"] = torch.device("cpu")
        arguments = (*args, *kwargs.values())
        device = self._device_of_call(base_name, arguments, inputs, wanted)
        self._note_device(device)
        is_noting = self.is_noting
        updates = self.updates if is_noting else None
        written = updates and updates.see(func, inputs, args, kwargs)
        if is_noting:
            self.note_gap(entered_ns)
        result, host_ns = self._run_timed(func, base_name, args, kwargs, device)
        if base_name == "aten.copy_":
            self._note_copy(args, kwargs, inputs, name, host_ns)
        else:
            outputs = self._place_results(base_name, result, device)
            if is_noting:
                self._note_op(func, name, args, kwargs, inputs, outputs, device, host_ns)
                if not len(self.events) % _LOOK_EVERY:
                    self.on_look()
        if updates and written:
            updates.end_write(written)
        self.end_event()
        return result

    def _note_device(self, device: str) -> None:
        if device != HOST:
            self.here.last_device = device
            self.num_device_events += 1

    def _place_results(self, base_name: str, result: Any, device: str) -> list[torch.Tensor]:
        outputs = list(tensors_in((result,)))
        for position, output in enumerate(outputs):
            if not self.devices.is_known(output):
                is_hosted = HOST_RESULTS.get(base_name) == position
                self.devices.place(output, HOST if is_hosted else device)
        return outputs

    def _run_timed(
        self, func: Any, base_name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str
    ) -> tuple[Any, int]:
        """Return the result, and the host's time for it without a recorder.

        The recorder's own work empties the caches. Right after itself, an operator takes as long as
        in a plain run.
        """
        started_ns = own_time_ns()
        if self.graph_work is None or device == HOST:
            result = self._run(func, base_name, args, kwargs)
        else:
            result = self.graph_work.run_operator(self._run, func, base_name, args, kwargs)
        host_ns = own_time_ns() - started_ns
        is_repeatable = _is_repeatable(func) and kwargs.get("generator") is None
        if is_repeatable and self.is_worth_repeating(host_ns):
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            with same_numbers() if is_random else nullcontext():
                started_ns = own_time_ns()
                self._run(func, base_name, args, kwargs)
                host_ns = min(host_ns, own_time_ns() - started_ns)
        return result, host_ns

    def is_worth_repeating(self, host_ns: int) -> bool:
        """Return whether to time a call of this duration again."""
        return self.is_noting and host_ns < _BRIEF_NS and self.graph_work is None

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Compute work that is recorded separately; a captured CUDA graph repeats it."""
        return function(*args) if self.graph_work is None else self.graph_work.run(function, args)

    def _device_of_call(
        self, name: str, arguments: tuple[Any, ...], inputs: list[torch.Tensor], wanted: Any
    ) -> str:
        """Return the device of an operator; note a fault if CUDA refuses its mixture."""
        on_device = [tensor for tensor in inputs if self.devices.is_on_device(tensor)]
        if wanted is not None and is_cuda(wanted):
            return self.cuda.name_of(wanted)
        if (wanted is not None and name != "aten._to_copy") or not inputs:
            return self.here.last_device if self._creates_on_device() else HOST
        if name == "aten.lift_fresh" and not self.devices.is_known(inputs[0]):
            # The tensor comes from Python data on the host, and may be on its way to a GPU.
            return HOST
        if not on_device:
            return HOST
        self.check_places(name, arguments)
        return self.devices.device_of(inputs[0] if name in INDEXING else on_device[0])

    def check_places(self, base_name: str, arguments: tuple[Any, ...]) -> None:
        """Note a fault if CUDA refuses the arguments' mixture of host and device."""
        stray = find_stray(base_name, arguments, self.devices)
        if stray is not None and self.is_moving:
            self._move([tensor for tensor in tensors_in(arguments) if tensor.dim()])
        elif stray is not None:
            self.record_fault(f"{base_name.removeprefix('aten.')} {stray}")

    def bring_to_device(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Copy ``tensor`` to the device if the script is being moved and ``other`` is there."""
        if self.is_moving and self.devices.is_on_device(other):
            self._move([tensor])

    def _creates_on_device(self) -> bool:
        """Return whether a tensor with no device, or with "cpu", is created on the device.

        C++ creates tensors beside those that it works for, which it sees on the CPU. A script moved
        to a GPU would create its tensors there, except the optimizer's counters.
        """
        if self.is_moving:
            return self.here.phase not in (Phase.OPTIMIZER, Phase.DATA)
        if self.here.is_call_on_device is None:
            in_backward = torch._C._current_autograd_node() is not None
            return in_backward and self.devices.device_bytes > 0
        return self.here.is_call_on_device

    def _move(self, tensors: list[torch.Tensor]) -> None:
        """Copy host tensors to the device before their first use there."""
        for tensor in tensors:
            if not self.devices.is_on_device(tensor):
                self.record_copy(tensor, HOST, DEVICE, is_pinned=False, non_blocking=False)
                self.devices.place(tensor, DEVICE)

    def _note_op(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor],
        outputs: list[torch.Tensor], device: str, host_ns: int,
    ) -> None:  # fmt: skip
        if name.startswith(_BOOKKEEPING):
            if name.startswith("c10d."):
                self._note_collective(name.split(".")[1].strip("_"), inputs)
            return
        base_name = name.rsplit(".", 1)[0]
        in_backward = torch._C._current_autograd_node() is not None
        if device != HOST and is_masked_fill(name, inputs, self.devices, in_backward=in_backward):
            is_in_place = name.startswith("aten.index_put_.") or "impl" in name
            name = "aten.masked_fill_.Scalar" if is_in_place else "aten.masked_fill.Scalar"
            inputs = inputs[:2]
        reads = sync_kind(name, inputs) if device != HOST else None
        if reads == "mask" and not any(map(self.devices.is_on_device, masks_of(inputs))):
            reads = None  # the host itself counts the selection of a mask on the host
        if name != "aten._local_scalar_dense.default" or device == HOST:
            if device != HOST and name.startswith("aten.index"):
                # Indexing itself copies indices from the host to the device.
                for index in inputs[1:]:
                    if not self.devices.is_on_device(index) and index.dim():
                        self.record_copy(index, HOST, DEVICE, is_pinned=False, non_blocking=False)
            elif device == HOST and base_name in INDEXING:
                for value in filter(self.devices.is_on_device, inputs[-1:]):
                    self.record_read("copy_", value)
            attributes = attributes_of(func, args, kwargs)
            self.record_op(name, inputs, outputs, attributes, device=device, host_ns=host_ns)
        if reads is not None:
            num_bytes = inputs[0].element_size() if reads == "item" else 8
            kind = self.here.reading if reads == "item" and self.here.reading else reads
            self.record_sync(kind, num_bytes, inputs[1] if kind == "mask" else inputs[0])

    def _note_collective(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Note an operator of c10d; it has the results before what the process puts in."""
        kind = _COLLECTIVES.get(name, name)
        if kind in ("all_gather", "reduce_scatter"):
            tensors = tensors[-1:] if kind == "all_gather" else tensors[1:]
        self.record_collective(kind, sum(map(bytes_of, tensors)))

    def _note_copy(
        self, args: Any, kwargs: Any, inputs: list[torch.Tensor], name: str, host_ns: int
    ) -> None:
        """Note ``destination.copy_(source)``, the only operator between host and device."""
        destination, source = inputs[0], inputs[-1]
        to, came_from = self.devices.device_of(destination), self.devices.device_of(source)
        if to == came_from or (source.dim() == 0 and came_from == HOST):
            self.record_op(name, inputs, [destination], {}, device=to, host_ns=host_ns)
            return
        non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        if HOST not in (to, came_from):
            self.record_copy(source, came_from, to, is_pinned=False, non_blocking=True)
            return
        host_side = destination if to == HOST else source
        is_pinned = self.devices.is_pinned(host_side)
        if to == HOST and not (is_pinned and non_blocking):
            self.record_read("copy_", source)
        else:
            self.record_copy(source, came_from, to, is_pinned=is_pinned, non_blocking=non_blocking)


@cache
def _is_repeatable(func: Any) -> bool:
    """Return whether running an operator twice, without a generator, equals running it once."""
    schema = func._schema
    is_pure = not schema.is_mutable and not any(word in schema.name for word in _WRITING_UNSAID)
    return schema.name.startswith("aten::") and is_pure


@cache
def _names_of(func: Any) -> tuple[str, str]:
    """Return an operator's name, with and without its overload."""
    name = str(func)
    return name, name.rsplit(".", 1)[0]


class StrictDeviceChecker(StepRecorder):
    """Records nothing, and raises if a recorder of steps would note a fault.

    Args:
        num_devices: Number of fake GPUs.
    """

    def __init__(self, num_devices: int) -> None:
        super().__init__(DeviceMap(), cuda=CudaDevices(num_devices), is_recording=False)

    def check_places(self, base_name: str, arguments: tuple[Any, ...]) -> None:
        """Raise if an operator's inputs are on different devices.

        Raises:
            RuntimeError: They are; the message is torch's.
        """
        places = [self.devices.device_of(tensor) for tensor in tensors_in(arguments)]
        on_device = list(dict.fromkeys(place for place in places if place != HOST))
        if find_stray(base_name, arguments, self.devices) is not None:
            at_odds = sorted((on_device[0], HOST), key=places.index)
        elif len(on_device) > 1 and base_name not in COPYING:
            at_odds = on_device[:2]
        else:
            return
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{at_odds[0]} and {at_odds[1]}!"
        )

    def refuse_array(self, tensor: torch.Tensor) -> None:
        """Raise: NumPy cannot read a device's memory.

        Raises:
            TypeError: Always; the message is torch's.
        """
        raise TypeError(
            f"can't convert {self.devices.device_of(tensor)} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )

    def current_origin(self) -> Origin:
        """Return an empty origin: no event is kept."""
        return Origin()
