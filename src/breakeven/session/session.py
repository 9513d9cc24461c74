"""One target and the processes that run it: where every command about it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self, TypeVar

from msgspec.structs import replace

from breakeven.calibrate import (
    anchors_of,
    check_host_name,
    find_hosts,
    in_measured_machines,
    read_speeds,
)
from breakeven.capture import KEEP_NOTHING, Keep, Launcher, find_target
from breakeven.device import AUTO, select_devices
from breakeven.progress import Progress, SilentProgress
from breakeven.session.batch_sizes import BatchSizes
from breakeven.session.compared_step import LiveStep, TrainingLength
from breakeven.session.measured_step import measured_result, time_recorded_step
from breakeven.session.runs import Runs
from breakeven.simulate import CpuRates
from breakeven.verdict import CheckReport, DeviceKind, ExplainReport, SweepReport

_Report = TypeVar("_Report", CheckReport, ExplainReport, SweepReport)


class Session:
    """A target, and within the session the processes that run it.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs; a choice of six by default.
        host: ``here``, or the name of another host that would feed the GPUs.
        measured: Speeds of the step on GPUs elsewhere: ``T4: 340 it/s``.
        time_limit_s: Limit of each run, in seconds.
        budget_s: Seconds of plain steps that are enough when they are short.
        keep: What of the target's side effects is to be real; by default nothing.
        tries_generated: Time generated code for the step too, where it is short.
        progress: Progress callback.
        launcher: Makes the processes; the session has its own by default.

    Raises:
        BreakevenError: A device or host is unknown, a speed is none, or there is no such target.
    """

    def __init__(
        self,
        target: str,
        *,
        arguments: Sequence[str] = (),
        is_module: bool = False,
        devices: Sequence[str] = (),
        host: str = AUTO,
        measured: Sequence[str] = (),
        time_limit_s: float = 300.0,
        budget_s: float = 1.0,
        keep: Keep = KEEP_NOTHING,
        tries_generated: bool = False,
        progress: Progress | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.devices = select_devices(devices)
        check_host_name(host)
        self._speeds = read_speeds(measured)
        self.target = find_target(target, arguments, is_module=is_module)
        self.progress = progress or SilentProgress()
        self._keep = keep
        self._tries_generated = tries_generated
        self._launcher = launcher
        self._host_name = host
        self.time_limit_s = time_limit_s
        self._budget_s = budget_s

    def __enter__(self) -> Self:
        """Start torch, and look at this machine before anything else keeps it busy."""
        with ExitStack() as stack:  # what ends while torch is imported leaves nothing either
            self.launcher = self._launcher or stack.enter_context(Launcher(self._keep))
            self.progress.begin("starting torch")
            self.ready = self.launcher.ready()
            kinds = {one.device.id: one.kind for one in self._speeds.values() if one.kind}
            self.host, self.here = find_hosts(self._host_name, self.launcher, kinds)
            self.runs = Runs(
                self.launcher, self.target, self.time_limit_s, self.progress,
                budget_s=self._budget_s,
            )  # fmt: skip
            self._processes = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self._processes.close()

    def measure(self) -> LiveStep:
        """Run the target, in this order, and return its step.

        The step is recorded; timed as the script runs it and with other numbers of threads; timed
        on a GPU that is here. Then what lies between steps is recorded, if it takes long.
        """
        traced = self.runs.trace()
        timed = time_recorded_step(self.runs, traced, tries_generated=self._tries_generated)
        measured = timed.results
        if self.ready.gpu and (on_gpu := self.runs.measure_on_gpu()) is not None:
            measured = (*measured, measured_result(on_gpu, DeviceKind.GPU))
        # Preferably of a run that knows what it is: other work makes gaps of its own.
        runs = (timed.as_set, timed.best)
        gap = max(runs, key=lambda run: (run.gap is not None, run.other is not None)).gap
        step = LiveStep(
            traced=timed.traced,
            plain=timed.best,
            as_set=timed.as_set,
            devices=self.devices,
            host=in_measured_machines(self.host),
            here=self.here,
            measured=measured,
            torch_version=self.ready.torch_version,
            gap=gap,
            recorded_gap=self.runs.trace_gap(gap.num_updates) if gap else None,
        )
        if not self._speeds:
            return step
        size, epoch = step.path.step.batch_size, TrainingLength(num_epochs=1)
        counts = {"sample": size and 1 / size, "epoch": epoch.steps(step.as_set.loader)}
        new, told = anchors_of(
            self._speeds, step.path.program, step.compared.host, self.target.label, counts
        )
        return dataclasses.replace(step, host=in_measured_machines(self.host, new), told=told)

    def measure_cpu_rates(self) -> CpuRates:
        """Return what a core of this CPU computes and moves."""
        self.progress.begin("measuring what a core of this CPU can do")
        return self.launcher.measure_cpu_rates()

    def batch_sizes(self, step: LiveStep) -> BatchSizes | None:
        """Return the step at other batch sizes; None if no DataLoader sets its size."""
        loader = step.traced.loader
        return loader and BatchSizes(self.runs, step.plain, step.path, loader)

    def with_side_effects(self, report: _Report) -> _Report:
        """Return a report that says what the runs of the ended session wrote."""
        return replace(report, writes=self.launcher.writes)
