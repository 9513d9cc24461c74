"""CUDA graphs of the script, captured and replayed on the CPU.

The recorded run keeps a capture's events apart from the step, and adds them to the step of each
replay. Updates count in replays, not in the capture, which computes nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
import torch.cuda.graphs
from msgspec.structs import replace
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from breakeven.capture.record.event_log import StepLog
from breakeven.capture.record.graph_work import GraphWork
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.errors import Caveat
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Sync

GRAPHS_RUN_EAGERLY = Caveat(
    code="graph-eager",
    message="the script's CUDA graphs were replayed on the CPU one operator after the other",
)


# torch recommends three steps on a side stream before a capture, eleven with DDP. A script with
# more such steps trains there.
_MOST_WARMUPS = 16
# For this number of updates after a capture, its own work still affects the step.
_SETTLING_UPDATES = 3


class CudaGraphs(Patches):
    """Inside, ``torch.cuda.CUDAGraph`` works without a GPU.

    Args:
        on_update: Called with the optimizer's number after each update outside a capture, and after
            each update in a replay.
    """

    def __init__(self, on_update: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._on_update = on_update
        # Records the steps; None in a plain run.
        self.recorder: StepRecorder | None = None
        self._captured: CapturedGraph | None = None
        self.num_replays = 0
        self.num_side_streams = self._num_warmups = self._num_settling = 0
        self._pools = count(1)
        # Memory that each graph's pool keeps beyond the memory in use after its capture.
        self._kept_bytes: dict[Any, int] = {}

    def end_update(self, optimizer: int) -> None:
        """Note an update; during a capture it belongs to the graph."""
        if self._captured is not None:
            self._captured.end_update(optimizer)
            return
        if self.num_side_streams:
            self._num_warmups += 1
        elif self._num_settling:
            self._num_settling -= 1
        self._on_update(optimizer)

    @property
    def is_settled(self) -> bool:
        """Return whether steps are typical, neither before a capture nor right after one."""
        is_warming_up = self.num_side_streams > 0 and self._num_warmups <= _MOST_WARMUPS
        return not is_warming_up and not self._num_settling

    def patch(self, recorder: StepRecorder | None = None) -> CudaGraphs:
        """Replace torch's classes and functions until exit.

        Args:
            recorder: Records captured work; None in a plain run.
        """
        self.recorder = recorder
        graph = type("CUDAGraph", (CapturedGraph,), {"_graphs": self})
        for module in (torch.cuda, torch.cuda.graphs):
            self.replace(module, "CUDAGraph", graph)
            self.replace(module, "graph_pool_handle", self.new_pool)
            self.replace(module, "is_current_stream_capturing", self._is_capturing)
        self.replace(torch.cuda.Stream, "is_capturing", lambda _: self._is_capturing())
        self.replace(torch.cuda, "stream", lambda stream=None: _SideStream(self))
        # torch creates it on first use, and keeps it.
        self.replace(torch.cuda.graph, "default_capture_stream", None)
        self.replace(torch._C, "_host_emptyCache", lambda: None)
        if recorder is None:
            self._allow_capturable_on_cpu()
        else:
            self.callback(register_optimizer_step_pre_hook(self._check_capturable).remove)
        return self

    def new_pool(self) -> tuple[int, int]:
        """Return a token for memory that graphs may share."""
        return (0, next(self._pools))

    def start(self, graph: CapturedGraph) -> None:
        """Begin to capture ``graph``."""
        if self._captured is not None:
            raise RuntimeError("a CUDA graph is captured already; captures cannot be nested")
        self._captured = graph
        self._num_settling = _SETTLING_UPDATES

    def end(self) -> None:
        """End the capture."""
        self._captured = None

    def keep_memory(self, pool: Any, num_bytes: int) -> int:
        """Return a pool's growth for a capture that temporarily takes ``num_bytes``."""
        grown = max(0, num_bytes - self._kept_bytes.get(pool, 0))
        self._kept_bytes[pool] = self._kept_bytes.get(pool, 0) + grown
        return grown

    def _is_capturing(self) -> bool:
        return self._captured is not None

    def _check_capturable(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Refuse as torch's CUDA build does; its CPU build refuses only in some versions."""
        if self._captured is None:
            return
        if not all(group.get("capturable", True) for group in optimizer.param_groups):
            raise RuntimeError(
                f"{type(optimizer).__name__} is captured in a CUDA graph; it needs capturable=True"
            )

    def _allow_capturable_on_cpu(self) -> None:
        for name, module in sys.modules.copy().items():
            supported = vars(module).get("_get_capturable_supported_devices")
            if name.startswith("torch.optim.") and supported is not None:
                self.replace(module, "_get_capturable_supported_devices", _with_cpu(supported))


def _with_cpu(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    @functools.wraps(original)  # TorchScript compiles the wrapped function
    def supported(*args: Any, **kwargs: Any) -> list[str]:
        return [*original(*args, **kwargs), "cpu"]

    return supported


class CapturedGraph:
    """The stand-in for ``torch.cuda.CUDAGraph``."""

    _graphs = CudaGraphs()

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: Any = None
        self._work: GraphWork | None = None
        # In a recorded run: the events up to each update, and those after the last update.
        self._parts: list[list[Event]] = []
        self._model_inputs: list[int] = []
        # Closing it ends the capture.
        self._capture = ExitStack()

    def capture_begin(self, pool: Any = None, *_: Any, **__: Any) -> None:
        """Start to note the graph's work."""
        graphs = self._graphs
        graphs.start(self)
        self._pool = pool or graphs.new_pool()
        self._work, self._parts = GraphWork(), []
        self._capture.enter_context(
            _Capturing(self._work)
            if graphs.recorder is None
            else self._recorded_apart(graphs.recorder, self._work)
        )

    def capture_end(self) -> None:
        """End the capture, and reserve its memory."""
        if self._work is None:
            raise RuntimeError("the capture of a CUDA graph is ended that was not begun")
        self._graphs.end()
        self._capture.close()
        self._work.end()

    @contextmanager
    def _recorded_apart(self, recorder: StepRecorder, work: GraphWork) -> Iterator[None]:
        """Record the work inside for the graph, not for the step."""
        was_recording, devices = recorder.is_recording, recorder.devices
        if not was_recording:
            recorder.start_recording()
        # The capture may contain the backward pass of earlier calls.
        step, recorder.step = recorder.step, StepLog(reached=recorder.step.reached)
        peak_bytes = devices.peak_device_bytes
        devices.start_peak()
        recorder.graph_work = work
        yield
        self._cut(recorder)
        self._model_inputs = recorder.step.model_inputs
        recorder.graph_work = None
        recorder.is_recording = was_recording
        step.is_anomaly_checked |= recorder.step.is_anomaly_checked
        recorder.step = step
        taken = devices.peak_device_bytes - devices.device_bytes
        devices.peak_device_bytes = max(peak_bytes, devices.peak_device_bytes)
        devices.reserve(self._graphs.keep_memory(self._pool, taken))

    def end_update(self, optimizer: int) -> None:
        """Note an update during the capture."""
        assert self._work is not None
        self._work.note_update(optimizer)
        if self._graphs.recorder is not None:
            self._cut(self._graphs.recorder)

    def replay(self) -> None:
        """Repeat the captured work, and record it as one launch."""
        if self._work is None:
            raise RuntimeError("a CUDA graph is replayed that was not captured")
        self._graphs.num_replays += 1
        recorder = self._graphs.recorder
        if recorder is None:
            self._work.replay(self._graphs.end_update)
            return
        parts = iter(self._parts)

        def on_update(optimizer: int) -> None:
            self._graphs.end_update(optimizer)
            _record(recorder, next(parts))

        with recorder.device_work():
            origin, phase = recorder.current_origin(), recorder.current_phase()
            launch = GraphLaunch(phase=phase, location=origin.location, stack=origin.stack)
            _record(recorder, [launch, *next(parts)])
            # A captured model is called only in the capture.
            recorder.step.model_inputs = recorder.step.model_inputs or [*self._model_inputs]
            self._work.replay(on_update)

    def reset(self) -> None:
        """Discard the captured work."""
        self._work, self._parts = None, []

    def pool(self) -> Any:
        """Return the token of the graph's memory pool."""
        return self._pool

    def instantiate(self) -> None:
        """Do nothing: a graph is ready after its capture."""

    def enable_debug_mode(self) -> None:
        """Do nothing: there is no CUDA graph to debug."""

    def debug_dump(self, debug_path: str) -> None:
        """Write nothing: there is no CUDA graph."""

    def _cut(self, recorder: StepRecorder) -> None:
        """Keep the events since the last cut, and report those that CUDA refuses to capture."""
        for event in recorder.events:
            if isinstance(event, Sync):
                recorder.record_fault(
                    f"the host waits for the device ({event.kind}) while a CUDA graph is captured",
                    event.location,
                )
            elif isinstance(event, Copy) and event.is_blocking:
                recorder.record_fault(
                    "a copy that the host waits for is captured in a CUDA graph; it needs pinned "
                    "memory and non_blocking=True",
                    event.location,
                )
        self._parts.append([_replayed(event) for event in recorder.events if _is_in_graph(event)])
        recorder.step.events = []


class _SideStream:
    """Return value of ``torch.cuda.stream``; a script may keep it and enter it again."""

    def __init__(self, graphs: CudaGraphs) -> None:
        self._graphs = graphs

    def __enter__(self) -> None:
        self._graphs.num_side_streams += 1

    def __exit__(self, *_: object) -> None:
        self._graphs.num_side_streams -= 1


class _Capturing(TorchDispatchMode):
    """Captures the operators of a plain run."""

    def __init__(self, work: GraphWork) -> None:
        super().__init__()
        self._work = work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._work.run(func, args, kwargs, writes=func._schema.is_mutable)


def _record(recorder: StepRecorder, events: list[Event]) -> None:
    if recorder.is_noting:
        recorder.step.events += events


def _is_in_graph(event: Event) -> bool:
    """Return whether a replay repeats an event; it does not repeat the host's own work."""
    if isinstance(event, Op):
        return not event.is_on_host
    return not isinstance(event, (Sync, HostWork))


def _replayed(event: Event) -> Event:
    if isinstance(event, Copy):
        return replace(event, is_replayed=True, is_pinned=True, non_blocking=True)
    return replace(event, is_replayed=True) if isinstance(event, Op) else event
