"""Record each operator, copy and sync of the steps that run under it."""

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

# Namespaces of operators that compute nothing, here: no other process answers a collective.
_BOOKKEEPING = ("profiler.", "prim.", "c10d.")

# Operators that write, running statistics or a file, though their schemas do not say so.
_WRITING_UNSAID = ("batch_norm", "instance_norm", "from_file")

# What takes longer is as long in any case.
_BRIEF_NS = 2_000_000

# Events after which it is asked whether to record on.
_LOOK_EVERY = 256


class StepRecorder(EventLog):
    """Sees every operator below autograd and autocast, runs it on the CPU, and notes it down.

    Args:
        devices: Where tensors live; the recorder places the results.
        run: Computes an operator, called as ``run(func, base_name, args, kwargs)``.
        cuda: The fake devices; one by default.
        is_recording: Note events from the beginning; otherwise tensors are placed alone, until
            `start_recording` is called.
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
        # Puts this mode where it is wanted; None where it is there from the beginning.
        self.watch: Watch | None = None
        # Sees each operator that is recorded before it runs, as long as there is one.
        self.updates: UpdateWatch | None = None
        # Called now and then while events are kept.
        self.on_look: Callable[[], None] = lambda: None
        # Called when events are kept for the first time.
        self.on_first_recording: list[Callable[[], None]] = []
        self._run = run
        # Calls of torch's functions so far, those that are not recorded included.
        self.num_calls = 0
        # Of the last autocast region for CUDA; empty when there was none.
        self.autocast_dtype = ""
        self.one_gpu = OneGpu()
        self.graph_work: GraphWork | None = None  # of the CUDA graph that is being captured

    @property
    def is_moving(self) -> bool:
        """Return whether a script that never uses a GPU is recorded as if it had been moved."""
        return self.devices.default == DEVICE

    def start_watching(self) -> None:
        """Place tensors from now on: the script names a device."""
        if self.watch is not None:
            self.watch.start()

    def start_recording(self) -> None:
        """Keep events from now on."""
        self.is_recording = True
        self.start_watching()
        self.start_step()
        while self.on_first_recording:
            self.on_first_recording.pop()()

    def stop_recording(self) -> None:
        """Keep no events until `start_recording`; place tensors only while a device has some."""
        self.is_recording = False
        if self.watch is not None and not self.devices.device_bytes:
            self.watch.stop()

    def refuse_array(self, tensor: torch.Tensor) -> None:
        """Note that NumPy is given a tensor of the device, which CUDA refuses."""
        self.record_fault(
            f"a tensor on {self.devices.device_of(tensor)} is turned into a NumPy array; "
            "it needs .cpu() first"
        )

    def _note_other_device(self, index: int) -> None:
        self.one_gpu.note_second(index, self.current_origin().location)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on the CPU and note what it would be on the device."""
        if self.watch is not None and not self.watch.is_on:
            return func(*args, **(kwargs or {}))
        entered_ns = own_time_ns()
        # Function modes have seen the call; in the backward pass torch would ask them here again,
        # for the operator and for each attribute that is read to note it.
        with torch._C.DisableTorchFunction():
            return self._dispatch(func, args, dict(kwargs or {}), entered_ns)

    def _dispatch(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], entered_ns: int
    ) -> Any:
        name, base_name = _names_of(func)
        inputs = [*tensors_in(args), *tensors_in(kwargs.values())]
        if not self.is_recording and inputs and "device" not in kwargs and not self.is_moving:
            places = set(map(self.devices.device_of, inputs))
            if len(places) == 1:  # nothing is at odds, and nothing is noted
                result = self._run(func, base_name, args, kwargs)
                if (device := places.pop()) != HOST:
                    self._note_device(device)
                    self._place_results(base_name, result, device)
                return result
        wanted = kwargs.get("device")
        if wanted is not None and is_cuda(wanted):
            wanted = self.cuda.as_device(wanted)  # a device that is not there is refused here
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
        """The result, and how long the host takes for it where nobody looks.

        What the recorder does in between leaves it cold caches; at once after itself, an operator
        takes as long as in a plain run.
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
        """Return whether what took so long is to be timed again."""
        return self.is_noting and host_ns < _BRIEF_NS and self.graph_work is None

    def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Compute what is recorded apart; a CUDA graph that is captured repeats it."""
        return function(*args) if self.graph_work is None else self.graph_work.run(function, args)

    def _device_of_call(
        self, name: str, arguments: tuple[Any, ...], inputs: list[torch.Tensor], wanted: Any
    ) -> str:
        """Return where an operator runs; a mixture that CUDA refuses is noted as a fault."""
        on_device = [tensor for tensor in inputs if self.devices.is_on_device(tensor)]
        if wanted is not None and is_cuda(wanted):
            return self.cuda.name_of(wanted)
        if (wanted is not None and name != "aten._to_copy") or not inputs:
            return self.here.last_device if self._creates_on_device() else HOST
        if name == "aten.lift_fresh" and not self.devices.is_known(inputs[0]):
            # Made from Python data, on the host: on its way to a GPU, if not a counter.
            return HOST
        if not on_device:
            return HOST
        self.check_places(name, arguments)
        return self.devices.device_of(inputs[0] if name in INDEXING else on_device[0])

    def check_places(self, base_name: str, arguments: tuple[Any, ...]) -> None:
        """Note a fault where CUDA refuses a mixture of host and device among the arguments."""
        stray = find_stray(base_name, arguments, self.devices)
        if stray is not None and self.is_moving:
            self._move([tensor for tensor in tensors_in(arguments) if tensor.dim()])
        elif stray is not None:
            self.record_fault(f"{base_name.removeprefix('aten.')} {stray}")

    def bring_to_device(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Copy ``tensor`` to the device if a script that is being moved has ``other`` there."""
        if self.is_moving and self.devices.is_on_device(other):
            self._move([tensor])

    def _creates_on_device(self) -> bool:
        """Return where a tensor is created of which the script does not say it, or says "cpu".

        C++ creates beside the tensors that it works for, and sees them on the CPU. A script that
        is being moved would create its tensors on the GPU, all but the optimizer's counters.
        """
        if self.is_moving:
            return self.here.phase not in (Phase.OPTIMIZER, Phase.DATA)
        if self.here.is_call_on_device is None:
            in_backward = torch._C._current_autograd_node() is not None
            return in_backward and self.devices.device_bytes > 0
        return self.here.is_call_on_device

    def _move(self, tensors: list[torch.Tensor]) -> None:
        """Copy tensors of the host to the device before their first use there."""
        for tensor in tensors:
            if not self.devices.is_on_device(tensor):
                self.record_copy(tensor, HOST, DEVICE, is_pinned=False, non_blocking=False)
                self.devices.place(tensor, DEVICE)

    def _note_op(
        self, func: Any, name: str, args: Any, kwargs: Any, inputs: list[torch.Tensor],
        outputs: list[torch.Tensor], device: str, host_ns: int,
    ) -> None:  # fmt: skip
        if name.startswith(_BOOKKEEPING):
            return
        base_name = name.rsplit(".", 1)[0]
        in_backward = torch._C._current_autograd_node() is not None
        if device != HOST and is_masked_fill(name, inputs, self.devices, in_backward=in_backward):
            is_in_place = name.startswith("aten.index_put_.") or "impl" in name
            name = "aten.masked_fill_.Scalar" if is_in_place else "aten.masked_fill.Scalar"
            inputs = inputs[:2]
        reads = sync_kind(name, inputs) if device != HOST else None
        if reads == "mask" and not any(map(self.devices.is_on_device, masks_of(inputs))):
            reads = None  # what a mask of the host chooses, the host counts by itself
        if name != "aten._local_scalar_dense.default" or device == HOST:
            if device != HOST and name.startswith("aten.index"):
                # Indices made on the host are copied to the device by the indexing itself.
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

    def _note_copy(
        self, args: Any, kwargs: Any, inputs: list[torch.Tensor], name: str, host_ns: int
    ) -> None:
        """Note ``destination.copy_(source)``, which alone may cross between host and device."""
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
    """Return whether to run an operator twice, without a generator, is the same as once."""
    schema = func._schema
    is_pure = not schema.is_mutable and not any(word in schema.name for word in _WRITING_UNSAID)
    return schema.name.startswith("aten::") and is_pure


@cache
def _names_of(func: Any) -> tuple[str, str]:
    """Return an operator's name, and that without its overload."""
    name = str(func)
    return name, name.rsplit(".", 1)[0]


class StrictDeviceChecker(StepRecorder):
    """Records nothing, and raises where a recorder of steps notes a fault.

    Args:
        num_devices: Fake GPUs that there are.
    """

    def __init__(self, num_devices: int) -> None:
        super().__init__(DeviceMap(), cuda=CudaDevices(num_devices), is_recording=False)

    def check_places(self, base_name: str, arguments: tuple[Any, ...]) -> None:
        """Raise where an operator's inputs are on different devices.

        Raises:
            RuntimeError: In the words of torch.
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
        """Raise, as NumPy cannot read the memory of a device.

        Raises:
            TypeError: In the words of torch.
        """
        raise TypeError(
            f"can't convert {self.devices.device_of(tensor)} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )

    def current_origin(self) -> Origin:
        """Return nothing: no event is kept that would have an origin."""
        return Origin()
