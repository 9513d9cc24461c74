"""Record each operator, copy and sync of the steps that run under it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from breakeven.capture._cuda_names import CudaDevices, is_cuda
from breakeven.capture._device_map import DEVICE, HOST, DeviceMap, bytes_of
from breakeven.capture._eager_tensor import describe, run_on_cpu, tensors_in
from breakeven.capture._model_calls import CalledModel, module_on_host
from breakeven.capture._op_schema import (
    attributes_of,
    find_stray,
    is_masked_fill,
    result_device,
    runs_beside_first,
    sync_kind,
)
from breakeven.capture._origins import Origin, Origins
from breakeven.trace import Copy, DeviceFault, Event, HostWork, Op, Phase, Sync

# Python between two operators, the recorder's own included, takes some 10-100 µs; what is longer
# than this is work of the script (NumPy, a simulator, plotting) that a GPU would wait for too.
_SCRIPT_GAP_NS = 500_000

# Namespaces of operators that compute nothing.
_BOOKKEEPING = ("profiler.", "prim.")


class StepRecorder(TorchDispatchMode):
    """Sees every operator below autograd and autocast, runs it on the CPU, and notes it down.

    Args:
        devices: Where tensors live; the recorder places the results.
        run: Computes an operator, called as ``run(func, base_name, args, kwargs)``.
        cuda: The pretended devices; one by default.
    """

    def __init__(
        self,
        devices: DeviceMap,
        run: Callable[..., Any] = run_on_cpu,
        cuda: CudaDevices | None = None,
    ) -> None:
        super().__init__()
        self.devices = devices
        self.cuda = cuda or CudaDevices()
        self._run = run
        self.events: list[Event] = []
        # Samples per call of a whole model, for scripts whose loaders do not tell.
        self.model_inputs: list[int] = []
        self.faults: dict[tuple[str, int], DeviceFault] = {}
        self.phase: Phase | None = None
        self.module_path = ""
        # Modules that run now, the outermost first, by their paths.
        self.modules: list[tuple[str, torch.nn.Module]] = []
        # Of the last autocast region for CUDA; empty when there was none.
        self.autocast_dtype = ""
        # `nn.DataParallel` was given several devices, of which it got one.
        self.splits_batches = False
        # Whether the call that runs has tensors of the device: what C++ creates then is on it too.
        # None while no call of the script runs.
        self.is_call_on_device: bool | None = None
        # The device of that call or of the last operator on one: what C++ creates is beside it.
        self.last_device = DEVICE
        self.is_paused = False
        self.origins = Origins()
        # What the call that runs does with the values it reads: ``bool``, ``format``.
        self.reading = ""
        self.is_anomaly_checked = False
        self.model_calls: list[CalledModel] = []
        self._last_exit_ns = 0

    @property
    def is_moving(self) -> bool:
        """Return whether a script that never uses a GPU is recorded as if it had been moved."""
        return self.devices.default == DEVICE

    def start_step(self) -> None:
        """Forget what was recorded, and begin a new step."""
        self.events = []
        self.model_inputs = []
        self.model_calls = []
        self.origins.start_step()
        self.is_anomaly_checked = False
        self._last_exit_ns = perf_counter_ns()
        self.devices.start_peak()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside; tensors are still placed."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before
            self._last_exit_ns = perf_counter_ns()

    def record(self, event: Event) -> None:
        """Note an event that is not an operator."""
        if not self.is_paused:
            self.events.append(event)
        self._last_exit_ns = perf_counter_ns()

    def record_sync(
        self, kind: str, num_bytes: int = 0, tensor: torch.Tensor | None = None
    ) -> None:
        """Note that the host waits for the device here, to read ``tensor`` if one is given."""
        origin = self.current_origin()
        phase = self.current_phase()
        is_check = kind == "item" and phase is Phase.BACKWARD and torch.is_anomaly_enabled()
        self.record(
            Sync(
                kind=kind,
                num_bytes=num_bytes,
                phase=phase,
                location=origin.location,
                storage=-1 if tensor is None else self.devices.number_of(tensor),
                via="torch.autograd.anomaly_mode" if is_check else origin.via,
                stack=origin.stack,
            )
        )

    def record_read(self, kind: str, tensor: torch.Tensor) -> None:
        """Note that the host waits for all of ``tensor``."""
        self.record_sync(kind, bytes_of(tensor), tensor)

    def record_copy(
        self, tensor: torch.Tensor, source: str, destination: str, *, is_pinned: bool,
        non_blocking: bool,
    ) -> None:  # fmt: skip
        """Note a copy of ``tensor`` between host and device."""
        origin = self.current_origin()
        self.record(
            Copy(
                source=source,
                destination=destination,
                num_bytes=bytes_of(tensor),
                is_pinned=is_pinned,
                non_blocking=non_blocking,
                phase=self.current_phase(),
                location=origin.location,
                storage=self.devices.number_of(tensor),
                dtype=str(tensor.dtype).removeprefix("torch."),
                via=origin.via,
                stack=origin.stack,
            )
        )

    def record_host_work(
        self, kind: str, duration_ns: int, num_workers: int = 0, phase: Phase | None = None
    ) -> None:
        """Note time that the host spends outside of operators."""
        origin = self.current_origin()
        self.record(
            HostWork(
                kind=kind,
                duration_ns=duration_ns,
                num_workers=num_workers,
                phase=phase or self.current_phase(),
                location=origin.location,
                stack=origin.stack,
            )
        )

    @contextmanager
    def host_work(self, kind: str) -> Iterator[None]:
        """Note the time of the block, in place of the operators in it."""
        started_ns = perf_counter_ns()
        if not self.is_paused:
            self._note_gap(started_ns)
        with self.paused():
            yield
        self.record_host_work(kind, perf_counter_ns() - started_ns)

    def record_fault(self, message: str) -> None:
        """Note that the user's line would raise on a machine with a GPU; once for each line."""
        location = self.current_origin().location
        key = (location.file, location.line) if location else ("", 0)
        # What follows from a mixture that CUDA would have refused is no fault of its own.
        is_consequence = bool(self.faults) and self.current_phase() is not Phase.FORWARD
        if key not in self.faults and not is_consequence:
            module = module_on_host(self.modules, self.devices)
            self.faults[key] = DeviceFault(message=message, location=location, module=module)

    def refuse_array(self, tensor: torch.Tensor) -> None:
        """Note that NumPy is given a tensor of the device, which CUDA refuses."""
        self.record_fault(
            f"a tensor on {self.devices.device_of(tensor)} is turned into a NumPy array; "
            "it needs .cpu() first"
        )

    def record_op(
        self, name: str, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor],
        attributes: dict[str, Any], *, device: str, host_ns: int,
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        """Note an operator; ``origin`` overrides the line and module that are running."""
        origin = origin or self.current_origin()
        node = torch._C._current_autograd_node()
        if node is not None:
            self.origins.reached.add(node._sequence_nr())
            self.is_anomaly_checked = self.is_anomaly_checked or torch.is_anomaly_enabled()
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
        """Return the phase of what runs now."""
        if torch._C._current_autograd_node() is not None:
            return Phase.BACKWARD
        return Phase.FORWARD if self.phase is None else self.phase

    def start_update(self) -> None:
        """Enter the optimizer phase; operators since the last backward one belong to it too.

        What stands between backward and the update prepares the update: clipping, unscaling.
        """
        self.phase = Phase.OPTIMIZER
        for position in range(len(self.events) - 1, -1, -1):
            event = self.events[position]
            if event.phase is not Phase.FORWARD:
                break
            if isinstance(event, Op):
                self.events[position] = replace(event, phase=Phase.OPTIMIZER)

    def end_update(self) -> None:
        """Leave the optimizer phase."""
        self.phase = None

    def current_origin(self) -> Origin:
        """Return the user's line and the module; in backward those of the forward operator."""
        return self.origins.current(sys._getframe(1), self.module_path)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on the CPU and note what it would be on the device."""
        entered_ns = perf_counter_ns()
        kwargs = dict(kwargs or {})
        name = str(func)
        base_name = name.rsplit(".", 1)[0]
        inputs = list(tensors_in(args)) + list(tensors_in(kwargs.values()))
        wanted = kwargs.get("device")
        if wanted is not None and is_cuda(wanted):
            wanted = self.cuda.as_device(wanted)  # a device that is not there is refused here
            kwargs["device"] = torch.device("cpu")
        arguments = (*args, *kwargs.values())
        device = self._device_of_call(base_name, arguments, inputs, wanted)
        if device != HOST:
            self.last_device = device
        is_pinned = bool(kwargs.get("pin_memory"))
        if is_pinned:  # a torch without CUDA cannot pin memory
            kwargs["pin_memory"] = False
        if not self.is_paused:
            self._note_gap(entered_ns)
        started_ns = perf_counter_ns()
        result = self._run(func, base_name, args, kwargs)
        host_ns = perf_counter_ns() - started_ns
        outputs = list(tensors_in((result,)))
        if base_name == "aten.copy_":
            self._note_copy(args, kwargs, inputs, name, host_ns)
        else:
            for position, output in enumerate(outputs):
                if not self.devices.is_known(output):
                    self.devices.place(output, result_device(base_name, position, device))
                if is_pinned:
                    self.devices.pin(output)
            self._note_op(func, name, args, kwargs, inputs, outputs, device, host_ns)
        self._last_exit_ns = perf_counter_ns()
        return result

    def _device_of_call(
        self, name: str, arguments: tuple[Any, ...], inputs: list[torch.Tensor], wanted: Any
    ) -> str:
        """Return where an operator runs; a mixture that CUDA refuses is noted as a fault."""
        on_device = [tensor for tensor in inputs if self.devices.is_on_device(tensor)]
        if wanted is not None and is_cuda(wanted):
            return self.cuda.name_of(wanted)
        if (wanted is not None and name != "aten._to_copy") or not inputs:
            return self.last_device if self._creates_on_device() else HOST
        if name == "aten.lift_fresh" and not self.devices.is_known(inputs[0]):
            # Made from Python data, on the host: on its way to a GPU, if not a counter.
            return HOST
        if not on_device:
            return HOST
        self.check_places(name, arguments)
        return self.devices.device_of(inputs[0] if runs_beside_first(name) else on_device[0])

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
            return self.phase not in (Phase.OPTIMIZER, Phase.DATA)
        if self.is_call_on_device is None:
            in_backward = torch._C._current_autograd_node() is not None
            return in_backward and self.devices.device_bytes > 0
        return self.is_call_on_device

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
        if self.is_paused or name.startswith(_BOOKKEEPING):
            return
        base_name = name.rsplit(".", 1)[0]
        in_backward = torch._C._current_autograd_node() is not None
        if device != HOST and is_masked_fill(name, inputs, self.devices, in_backward=in_backward):
            is_in_place = name.startswith("aten.index_put_.") or "impl" in name
            name = "aten.masked_fill_.Scalar" if is_in_place else "aten.masked_fill.Scalar"
            inputs = inputs[:2]
        reads = sync_kind(name, inputs) if device != HOST else None
        if name != "aten._local_scalar_dense.default" or device == HOST:
            if device != HOST and name.startswith("aten.index"):
                self._note_index_uploads(inputs)
            elif device == HOST and runs_beside_first(base_name):
                for value in filter(self.devices.is_on_device, inputs[-1:]):
                    self.record_read("copy_", value)
            attributes = attributes_of(func, args, kwargs)
            self.record_op(name, inputs, outputs, attributes, device=device, host_ns=host_ns)
        if reads is not None:
            num_bytes = inputs[0].element_size() if reads == "item" else 8
            kind = self.reading if reads == "item" and self.reading else reads
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

    def _note_index_uploads(self, inputs: list[torch.Tensor]) -> None:
        """Indices made on the host are copied to the device by the indexing itself."""
        for index in inputs[1:]:
            if not self.devices.is_on_device(index) and index.dim():
                self.record_copy(index, HOST, DEVICE, is_pinned=False, non_blocking=False)

    def _note_gap(self, entered_ns: int) -> None:
        gap_ns = entered_ns - self._last_exit_ns
        if self.phase is Phase.DATA or gap_ns < _SCRIPT_GAP_NS or not self._last_exit_ns:
            return
        if torch._C._current_autograd_node() is not None:
            return  # the engine's own time, or a hiccup: the user's Python does not run there
        self.record_host_work("script", gap_ns)
