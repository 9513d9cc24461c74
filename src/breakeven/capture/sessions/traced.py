"""Recording of the steps of a training loop on a fake GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace
from torch.utils.data import DataLoader

from breakeven.capture.messages import RunRequest, TracedRun
from breakeven.capture.pretend.fake_cuda import fake_cuda
from breakeven.capture.record.call_watch import CallWatch
from breakeven.capture.record.device_map import DEVICE, HOST, DeviceMap
from breakeven.capture.record.held_objects import held_arrays
from breakeven.capture.record.hooks import ModulePath
from breakeven.capture.record.loader_watch import tensors_of
from breakeven.capture.record.modes import without_modes
from breakeven.capture.record.recorder import StepRecorder
from breakeven.capture.record.step_tracer import StepTracer
from breakeven.capture.record.update_watch import Boundary, UpdateWatch
from breakeven.capture.sessions.run_facts import source_texts, with_machine_facts
from breakeven.capture.sessions.session import BackwardCall, BackwardCalls, UpdateSession
from breakeven.configure import ByIdentity
from breakeven.measure import OtherLoad
from breakeven.trace import HostArray, Phase

# After this number of updates without a torch optimizer, treat them as the script's steps. This
# limit holds if the script has created an optimizer, which may only be late ...
_MOST_BEFORE_OPTIMIZER = {Boundary.GRADIENT: 256, Boundary.BACKWARD: 256, Boundary.UPDATE: 32}
# ... and this one if it has created none.
_MOST_BEFORE_UPDATE = {Boundary.GRADIENT: 64, Boundary.BACKWARD: 0, Boundary.UPDATE: 0}


class TracedSession(UpdateSession):
    """Records the steps of a training loop on a fake CUDA device.

    Args:
        request: The run, with the loaders to change.
        on_done: Called from the training loop when the recorded steps suffice.
        on_step: As in every session.
    """

    def __init__(
        self, request: RunRequest, on_done: Callable[[], None],
        on_step: Callable[[int, bool], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self._recorder = StepRecorder(
            DeviceMap(DEVICE if request.is_moved else HOST), is_recording=False
        )
        super().__init__(
            request, on_done, on_step, self._recorder, in_process=True,
            around_fetch=self._around_fetch, on_batch=self._on_batch,
        )  # fmt: skip
        # Whether each loader uses the device, as known so far.
        self._uses_device = ByIdentity[DataLoader[Any], bool]()
        self._num_before_fetch = 0
        self._is_loading_timed = True
        self._updates = UpdateWatch(self._recorder, self._mark_own)
        self._recorder.updates = self._updates
        self._calls = CallWatch(self._recorder)
        self._tracer = StepTracer(
            self._recorder, self._loaders.end_step, records_longer=request.records_longer,
            records_after=request.records_after,
        )  # fmt: skip
        self._recorder.on_look = self._tracer.look
        self._load = OtherLoad()
        self._arrays: tuple[HostArray, ...] = ()

    @property
    def num_steps(self) -> int:
        """Return the number of updates so far."""
        return self._tracer.num_calls

    @property
    def is_blind(self) -> bool:
        """Return whether steps were recorded without any visible operator."""
        return self._tracer.is_blind

    def _apply(self) -> None:
        self.enter_context(self._loaders)
        self.enter_context(self._optimizers)
        self.enter_context(ModulePath(self._recorder))
        self.enter_context(
            fake_cuda(self._recorder, self._note_compile, is_lazy=True, graphs=self._graphs)
        )
        self.enter_context(BackwardCalls(self._end_backward))
        # Enter last, to see the calls before the stand-ins of torch.compile and autocast.
        self.enter_context(self._calls)

    def result(self) -> TracedRun | None:
        """Return the typical step so far, or None without a complete step."""
        is_own = self._tracer.boundary is not Boundary.OPTIMIZER
        parameters = list(self._updates.leaves() if is_own else self._optimizers.parameters())
        num_elements = sum(parameter.numel() for parameter in parameters)
        run = self._tracer.result(self._updates.num_parameters if is_own else num_elements)
        if run is None:
            return None
        with without_modes():
            facts = with_machine_facts(run.trace.facts, parameters)
        facts = replace(
            facts,
            loaders=self._loaders.facts(is_timed=self._is_loading_timed),
            optimizers=self._optimizers.facts(),
            calls=self._calls.calls(self._tracer.round_ends()),
            arrays=self._arrays,
            load_fraction=self._load.fraction(),
        )
        trace = replace(run.trace, facts=facts)
        return replace(run, trace=trace, sources=source_texts(self._request.target, trace))

    def _mark(self, optimizer: int) -> None:
        is_enough = self._tracer.mark(optimizer)
        is_known = self._optimizers.is_round_known() and self._graphs.is_settled
        self._end_update(is_enough=is_enough and (is_known or self._request.records_after > 0))

    def _mark_own(self, boundary: Boundary, number: int) -> None:
        """End a step of a loop that uses no torch optimizer."""
        if self._recorder.updates is None or boundary < self._tracer.boundary:
            return
        is_enough = self._tracer.mark(number, boundary)
        patience = _MOST_BEFORE_OPTIMIZER if self._optimizers.has_any() else _MOST_BEFORE_UPDATE
        is_settled = self._tracer.num_calls >= patience[boundary]
        self._end_update(is_enough=is_enough and is_settled)

    def _end_update(self, *, is_enough: bool) -> None:
        if self._tracer.num_calls == 1:
            self._arrays = held_arrays(sys._getframe(1))
        self._calls.end_update()
        self._on_step(self._tracer.num_calls, False)
        if is_enough:
            self._on_done()

    def _end_backward(self, call: BackwardCall) -> None:
        self._tracer.note_backward()
        if self._recorder.updates is not None and not call.is_differentiated:
            self._updates.end_backward(call.inputs)

    def _note_compile(self) -> None:
        self._tracer.is_compiled = True

    def _around_fetch(self, loader: DataLoader[Any]) -> ExitStack:
        """Load at full speed, unless loading uses the device."""
        stack = ExitStack()
        recorder, devices = self._recorder, self._recorder.devices
        stack.callback(setattr, recorder.here, "phase", recorder.here.phase)
        recorder.here.phase = Phase.DATA
        self._num_before_fetch = recorder.num_device_events
        # The first fetch shows it. In a script that is moved to a GPU, loading stays on the host.
        if not self._uses_device.setdefault(loader, not self._request.is_moved):
            stack.enter_context(without_modes())
            stack.enter_context(devices.loading())
        return stack

    def _on_batch(self, loader: DataLoader[Any], batch: Any, duration_ns: int) -> None:
        """Record a fetch on the host as host work, instead of its operators."""
        uses_device = self._recorder.num_device_events > self._num_before_fetch
        self._uses_device[loader] = uses_device and not self._request.is_moved
        if self._uses_device[loader]:
            self._is_loading_timed = False
        else:
            num_workers = self._loaders.num_workers_of_last_fetch()
            self._recorder.record_host_work("data", duration_ns, num_workers, Phase.DATA)
            for tensor in tensors_of(batch):
                self._recorder.devices.place(tensor, HOST)
