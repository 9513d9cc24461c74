"""How the script is run at a point of the grid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from breakeven.capture import (
    Launcher,
    LoaderUse,
    PlainRun,
    RunFailure,
    RunRequest,
    Target,
    TracedRun,
)
from breakeven.errors import BreakevenError, ScriptError
from breakeven.progress import Progress
from breakeven.session import find_cause, script_error
from breakeven.sweep.axes import fill_arguments
from breakeven.sweep.grid import axis_of, describe
from breakeven.trace import Configuration
from breakeven.verdict import AxisRole, AxisValue, SweepAxis


class GridRuns:
    """Knows how settings enter the script, and records its steps.

    Args:
        launcher: Makes the processes that record.
        target: The script, with no arguments.
        arguments: Its arguments, with ``{NAME}`` where an axis enters.
        axes: The axes with their roles.
        time_limit_s: Limit of each run.
        progress: Progress callback, of stages and steps.
    """

    def __init__(
        self, launcher: Launcher, target: Target, arguments: Sequence[str],
        axes: Sequence[SweepAxis], time_limit_s: float, progress: Progress,
    ) -> None:  # fmt: skip
        self._launcher = launcher
        self._target = target
        self._arguments = tuple(arguments)
        self._batch_axis = axis_of(axes, AxisRole.BATCH_SIZE)
        self._threads_axis = axis_of(axes, AxisRole.THREADS)
        self._time_limit_s = time_limit_s
        self._progress = progress
        # A script that never uses a GPU is recorded as if it were moved to one.
        self._is_moved = False
        # As it was recorded last: where its steps end, and which do not count.
        self._backwards_per_step = 0
        self._num_host_steps = 0

    def target_at(self, settings: Mapping[str, AxisValue]) -> Target:
        """Return the script with its arguments at these settings."""
        filled = fill_arguments(self._arguments, settings)
        return replace(self._target, raw_arguments=tuple(map(os.fsencode, filled)))

    def plain_request(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None, budget_s: float
    ) -> RunRequest:
        """Return how the step is timed on a CPU.

        Args:
            settings: Value of every axis of the arguments; batch size and threads are the
                script's own where they are not among them.
            loader: What the script's own loader does, where its batch size is to be changed.
            budget_s: How long to take samples.
        """
        threads = settings.get(self._threads_axis.name, 0) if self._threads_axis else 0
        old, new = self._batch_change(settings, loader)
        return RunRequest(
            target=self.target_at(settings),
            is_traced=False,
            time_limit_s=self._time_limit_s,
            budget_s=budget_s,
            loader_batch_size=old,
            new_batch_size=new,
            configuration=Configuration(num_threads=int(threads)),
            backwards_per_step=self._backwards_per_step,
            num_skipped_steps=self._num_host_steps,
            tries_threads=self._threads_axis is None,
        )

    def trace(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None = None
    ) -> TracedRun:
        """Record the step.

        Args:
            settings: As for `plain_request`.
            loader: As for `plain_request`.

        Raises:
            BreakevenError: The script gave no step.
        """
        at = f" at {describe(settings)}" if settings else ""
        self._progress.begin(f"recording a step{at}")
        old, new = self._batch_change(settings, loader)
        request = RunRequest(
            target=self.target_at(settings),
            is_traced=True,
            is_moved=self._is_moved,
            time_limit_s=self._time_limit_s,
            loader_batch_size=old,
            new_batch_size=new,
        )
        answer = self._run(request)
        if isinstance(answer, TracedRun) and not (answer.trace.uses_device or self._is_moved):
            self._is_moved = True
            answer = self._run(replace(request, is_moved=True))
        if not isinstance(answer, TracedRun):
            assert isinstance(answer, RunFailure), "asked for a trace"
            output = self._launcher.output
            raise find_cause(self._launcher, request, answer, output, self._progress.begin)
        self._backwards_per_step = answer.backwards_per_step
        self._num_host_steps = answer.num_host_steps
        if new and (answer.loader is None or answer.loader.batch_size != new):
            raise ScriptError(
                f"{self._target.label} does not load batches of {new} when its DataLoader is "
                "asked to",
                hint="give the script an option for its batch size and sweep that: "
                "--over batch_size=VALUES -- --batch-size {batch_size}",
            )
        return answer

    def what_ended(self, settings: Mapping[str, AxisValue], failure: RunFailure) -> str:
        """Return what ended a run at one point of many, where no other run is made to learn why."""
        return script_error(failure, self.target_at(settings), "").message

    def error(
        self, settings: Mapping[str, AxisValue], failure: RunFailure, output: str
    ) -> BreakevenError:
        """Return the error that says why the script, as it is, gave no answer."""
        request = self.plain_request(settings, None, 0.0)
        return find_cause(self._launcher, request, failure, output, self._progress.begin)

    def _batch_change(
        self, settings: Mapping[str, AxisValue], loader: LoaderUse | None
    ) -> tuple[int, int]:
        """Return the batch size that is to be changed, and into which; zeros for no change."""
        if self._batch_axis is None or loader is None or self._batch_axis.name not in settings:
            return 0, 0
        wanted = int(settings[self._batch_axis.name])
        return (0, 0) if wanted == loader.batch_size else (loader.batch_size, wanted)

    def _run(self, request: RunRequest) -> PlainRun | TracedRun | RunFailure:
        return self._launcher.run(request, self._progress.detail)
