"""Record the steps of a training loop on a pretended GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from breakeven.capture._call_watch import CallWatch
from breakeven.capture._cuda_graphs import CudaGraphs
from breakeven.capture._device_map import DEVICE, HOST, DeviceMap
from breakeven.capture._loader_watch import LoaderWatch, tensors_of
from breakeven.capture._machine_facts import with_machine_facts
from breakeven.capture._module_path import ModulePath
from breakeven.capture._optimizer_hooks import OptimizerHooks
from breakeven.capture._pretended_cuda import pretended_cuda
from breakeven.capture._protocol import RunRequest, TracedRun
from breakeven.capture._recorder import StepRecorder
from breakeven.capture._source_files import source_texts
from breakeven.capture._step_tracer import StepTracer
from breakeven.capture._unrecorded import without_modes
from breakeven.trace import Op, Phase


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
        self._request = request
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
        self._graphs = CudaGraphs(self._mark)
        self._optimizers = OptimizerHooks(self._graphs.end_update, self._recorder)
        self._calls = CallWatch(self._recorder)
        self._tracer = StepTracer(self._recorder, self._loaders)

    @property
    def num_steps(self) -> int:
        """Return the optimizer calls so far."""
        return self._tracer.num_calls

    def __enter__(self) -> TracedSession:
        super().__enter__()
        self.enter_context(self._loaders)
        self.enter_context(self._optimizers)
        self.enter_context(ModulePath(self._recorder))
        self.enter_context(pretended_cuda(self._recorder, self._note_compile, self._graphs))
        # Above what stands in for torch.compile and autocast.
        self.enter_context(self._calls)
        return self

    def mark_call(self) -> None:
        """End a step that makes no optimizer call."""
        self._mark(-1)

    def result(self) -> TracedRun | None:
        """Return the typical step so far, or None when none was completed."""
        parameters = list(self._optimizers.parameters())
        run = self._tracer.result(sum(parameter.numel() for parameter in parameters))
        if run is None:
            return None
        with without_modes():
            facts = with_machine_facts(run.trace.facts, parameters)
        facts = replace(
            facts,
            loaders=self._loaders.facts(is_timed=not self._loads_on_device),
            optimizers=self._optimizers.facts(),
            calls=self._calls.calls(self._tracer.round_ends()),
        )
        trace = replace(run.trace, facts=facts)
        return replace(run, trace=trace, sources=source_texts(self._request.target, trace))

    def _mark(self, optimizer: int) -> None:
        is_enough = self._tracer.mark(optimizer)
        self._calls.end_update()
        self._on_step(self._tracer.num_calls)
        if is_enough and self._optimizers.is_round_known() and self._graphs.is_settled:
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
            num_workers = self._loaders.num_workers_of_last_fetch()
            self._recorder.record_host_work("data", duration_ns, num_workers, Phase.DATA)
            for tensor in tensors_of(batch):
                self._recorder.devices.place(tensor, HOST)
