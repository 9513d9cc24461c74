"""The two ways to watch a training loop: time it as it is, or record it on a pretended GPU."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from msgspec.structs import replace

from breakeven.capture._device_map import DEVICE, HOST, DeviceMap
from breakeven.capture._loader_watch import LoaderWatch, without_modes
from breakeven.capture._module_path import ModulePath
from breakeven.capture._optimizer_hooks import OptimizerHooks
from breakeven.capture._pretended_cuda import pretended_cuda
from breakeven.capture._protocol import LoaderUse, PlainRun, RunRequest, TracedRun
from breakeven.capture._recorder import StepRecorder
from breakeven.capture._redirect import redirect_cuda_to_cpu
from breakeven.capture._step_tracer import COMPILE_IGNORED, StepTracer
from breakeven.errors import Caveat
from breakeven.measure import CudaClock, HostClock, OtherLoad, StepTimer, cpu_name
from breakeven.timing import BUSY_MACHINE
from breakeven.trace import HostWork, Op, Phase
from breakeven.units import format_percent

# Of the steps on a GPU that make one sample: enough for launches of one step to overlap with the
# kernels of the one before.
_CUDA_STEPS_PER_SAMPLE = 10


class PlainSession(ExitStack):
    """Times the steps of a training loop, with nothing added but the step boundary.

    Args:
        request: Which loaders get another batch size, and how long to take samples.
        on_done: Called from the training loop when there are samples enough.
        on_step: Called after each step with the number of steps.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._request = request
        self._on_done = on_done
        self._on_step = on_step
        self._uses_cuda = request.on_cuda
        self._uses: list[LoaderUse] = []
        self._optimizers = OptimizerHooks(lambda number, _: self._mark(number))
        self._is_compiled = False
        self._load: OtherLoad | None = None
        clock = CudaClock() if request.on_cuda else HostClock()
        steps_per_sample = _CUDA_STEPS_PER_SAMPLE if request.on_cuda else 1
        self._timer = StepTimer(clock, request.budget_s, steps_per_sample)
        self._loaders = LoaderWatch(
            old_batch_size=request.loader_batch_size, new_batch_size=request.new_batch_size
        )

    @property
    def num_steps(self) -> int:
        """Return the optimizer calls so far."""
        return self._timer.num_calls

    def __enter__(self) -> PlainSession:
        super().__enter__()
        if not self._uses_cuda:
            self.enter_context(
                redirect_cuda_to_cpu(has_cuda=self._request.has_cuda, on_compile=self._note_compile)
            )
        self.enter_context(self._loaders)
        self.enter_context(self._optimizers)
        return self

    def mark_call(self) -> None:
        """End a step that makes no optimizer call."""
        self._mark(-1)

    def result(self) -> PlainRun | None:
        """Return the samples so far, or None when there is no complete step."""
        measurement = self._timer.measurement()
        if measurement is None:
            return None
        caveats = [COMPILE_IGNORED] if self._is_compiled else []
        load = self._load.fraction() if self._load else 0.0
        if load > _BUSY_FRACTION and not _uses_workers(self._uses):
            caveats.append(_busy(load))
        if self._request.has_cuda:
            caveats.append(_NEEDS_CUDA)
        return PlainRun(
            measurement=measurement,
            processor=torch.cuda.get_device_name() if self._uses_cuda else cpu_name(),
            precision=_precision(self._optimizers),
            num_threads=torch.get_num_threads(),
            peak_memory_bytes=(
                torch.cuda.max_memory_allocated() if self._uses_cuda else _peak_memory_bytes()
            ),
            loader=_typical_use(self._uses),
            caveats=tuple(caveats),
        )

    def _mark(self, optimizer: int) -> None:
        self._load = self._load or OtherLoad()
        is_enough = self._timer.mark(optimizer)
        use = self._loaders.end_step()
        if use is not None:
            self._uses.append(use)
        self._on_step(self._timer.num_calls)
        if is_enough:
            self._on_done()

    def _note_compile(self) -> None:
        self._is_compiled = True


class TracedSession(ExitStack):
    """Records the steps of a training loop on a pretended CUDA device.

    Args:
        request: Which loaders get another batch size.
        on_done: Called from the training loop when there are recorded steps enough.
        on_step: Called after each step with the number of steps.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._on_done = on_done
        self._on_step = on_step
        self._recorder = StepRecorder(DeviceMap(DEVICE if request.is_moved else HOST))
        self._loaders = LoaderWatch(
            old_batch_size=request.loader_batch_size,
            new_batch_size=request.new_batch_size,
            in_process=True,
            around_fetch=self._around_fetch,
            on_batch=self._on_batch,
        )
        # Unknown until the first fetch; what is moved to a GPU keeps loading on the host.
        self._loads_on_device: bool | None = False if request.is_moved else None
        self._fetch_start = 0
        self._tracer = StepTracer(self._recorder, self._loaders)

    @property
    def num_steps(self) -> int:
        """Return the optimizer calls so far."""
        return self._tracer.num_calls

    def __enter__(self) -> TracedSession:
        super().__enter__()
        self.enter_context(self._loaders)
        self.enter_context(OptimizerHooks(self._mark, self._recorder))
        self.enter_context(ModulePath(self._recorder))
        self.enter_context(pretended_cuda(self._recorder, self._note_compile))
        return self

    def mark_call(self) -> None:
        """End a step that makes no optimizer call."""
        self._finish_step(self._tracer.mark(-1))

    def result(self) -> TracedRun | None:
        """Return the typical step so far, or None when none was completed."""
        return self._tracer.result()

    def _mark(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        num_parameters = sum(
            parameter.numel() for group in optimizer.param_groups for parameter in group["params"]
        )
        self._finish_step(self._tracer.mark(number, num_parameters))

    def _finish_step(self, is_enough: bool) -> None:
        self._on_step(self._tracer.num_calls)
        if is_enough:
            self._on_done()

    def _note_compile(self) -> None:
        self._tracer.is_compiled = True

    def _around_fetch(self) -> ExitStack:
        """Record the first fetch; later ones run at full speed unless it used the device."""
        stack = ExitStack()
        before = self._recorder.phase
        self._recorder.phase = Phase.DATA
        stack.callback(setattr, self._recorder, "phase", before)
        self._fetch_start = len(self._recorder.events)
        if self._loads_on_device is False:
            stack.enter_context(without_modes())
        return stack

    def _on_batch(self, batch: Any, duration_ns: int) -> None:
        """Replace what a fetch did on the host by the time it took."""
        events = self._recorder.events
        fetched = events[self._fetch_start :]
        if self._loads_on_device is None:
            self._loads_on_device = any(
                not isinstance(event, Op) or event.device != HOST for event in fetched
            )
        if not self._loads_on_device:
            del events[self._fetch_start :]
            self._recorder.record(
                HostWork(
                    kind="data",
                    duration_ns=duration_ns,
                    num_workers=self._loaders.num_workers_of_last_fetch(),
                    location=self._recorder.current_origin()[0],
                )
            )
            for tensor in _tensors_of(batch):
                self._recorder.devices.place(tensor, HOST)


# Of all processors, used by other processes: above this a measurement says little.
_BUSY_FRACTION = 0.15
_NEEDS_CUDA = Caveat(
    code="needs-cuda",
    message="the script refuses to run without a GPU; measured with its CUDA calls run by the CPU",
)


def _busy(load: float) -> Caveat:
    return Caveat(
        code=BUSY_MACHINE,
        message=f"other processes used {format_percent(load)} of this machine while the step was "
        "measured; its time may be too long",
    )


def _uses_workers(uses: list[LoaderUse]) -> bool:
    """Return whether data loader workers run, which are other processes but not other work."""
    return any(use.num_workers for use in uses)


def _typical_use(uses: list[LoaderUse]) -> LoaderUse | None:
    if not uses:
        return None
    # The first fetch starts workers and fills caches.
    waits = [use.wait_ns for use in uses[1:] or uses]
    return replace(uses[-1], wait_ns=float(median(waits)))


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


_PRECISIONS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


def _precision(optimizers: OptimizerHooks) -> str:
    """Return the arithmetic of most parameters; the CPU ignores autocast regions for CUDA."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in optimizers.parameters():
        counts[parameter.dtype] += parameter.numel()
    return _PRECISIONS.get(counts.most_common(1)[0][0], "fp32") if counts else "fp32"


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        return [tensor for value in batch.values() for tensor in _tensors_of(value)]
    if isinstance(batch, (list, tuple)):
        return [tensor for value in batch for tensor in _tensors_of(value)]
    if hasattr(batch, "data") and isinstance(batch.data, dict):  # transformers.BatchEncoding
        return _tensors_of(batch.data)
    return []
