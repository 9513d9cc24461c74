"""A bench for systems: measures scripts on this CPU, and predicts their steps on GPUs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

import breakeven
from breakeven.calibrate import check_host_name, find_host, host_called, named_host
from breakeven.capture import Launcher, PlainRun, find_target
from breakeven.device import HERE, HostSpec, find_device
from breakeven.processor import num_cores
from breakeven.progress import Progress, SilentProgress
from breakeven.simulate import Program, StepPrediction, build_program, predict_steps
from breakeven.store import machine_lock
from breakeven.studies import Runner, as_timed, host_for_prediction
from breakeven.trace import StepTrace
from breakeven.verdict import (
    HostSummary,
    PublishedPoint,
    SweepAxis,
    SweepReport,
    host_summary,
)

_EXAMPLES = Path(breakeven.__file__).parents[2] / "examples"
# A wheel has the scripts in the package; a checkout has them in its examples.
_FOLDERS = (
    Path(breakeven.__file__).parent / "workloads" / "scripts", _EXAMPLES, _EXAMPLES / "published"
)  # fmt: skip
# The clock and the stage leave little room in a line of 80 characters.
_LABEL_CHARACTERS = 26


def script_path(script: str) -> Path:
    """Return the path of a system's script, given its file name."""
    return next(path for folder in _FOLDERS if (path := folder / script).is_file())


class Bench:
    """Runs the scripts of systems, and caches the runs.

    Use as a context manager: leaving it ends every process, also on Ctrl-C. Its methods take the
    file name of a script and its ``sys.argv[1:]``, and raise `BreakevenError` if it fails.

    Args:
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        time_limit_s: Limit of each run, in seconds.
        progress: Progress callback, called with details of its current stage.

    Raises:
        BreakevenError: If there is no such host.
    """

    def __init__(
        self, *, host: str = "auto", time_limit_s: float = 120.0, progress: Progress | None = None
    ) -> None:
        check_host_name(host)
        self._host_name = host
        self._time_limit_s = time_limit_s
        self._progress = progress or SilentProgress()
        self._stack = ExitStack()
        self._plain: dict[tuple[str, tuple[str, ...], int, float, float], PlainRun] = {}
        self._num_threads = 0
        # Each step that was measured and recorded, with its plain run.
        self._steps: list[tuple[Program, PlainRun]] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def launcher(self) -> Launcher:
        """The launcher of processes with torch; started on first use."""
        launcher = self._stack.enter_context(Launcher())
        launcher.ready()
        return launcher

    @cached_property
    def host(self) -> HostSpec:
        """The host of the GPUs."""
        return host_called(self._host_name, self._here)

    @cached_property
    def _here(self) -> HostSpec:
        return find_host(HERE, self.launcher)

    def time_limit_s(self, least_s: float) -> float:
        """Return the limit of a run that takes longer than others: at least ``least_s``."""
        return max(least_s, self._time_limit_s)

    @property
    def torch_version(self) -> str:
        """The version of torch that runs the scripts."""
        return self.launcher.ready().torch_version

    def measure(
        self,
        script: str,
        *arguments: str,
        num_threads: int = 0,
        budget_s: float = 1.0,
        compile_limit_s: float = 0.0,
    ) -> PlainRun:
        """Time the step of a script on this CPU, once per set of arguments.

        Args:
            script: File name.
            arguments: Arguments of the script.
            num_threads: torch's intra-op threads; 0 for its default.
            budget_s: Seconds of sampling once steps run.
            compile_limit_s: If above 0, the script's own ``torch.compile`` takes effect, and this
                is the least limit of the run.
        """
        key = (script, arguments, num_threads, budget_s, compile_limit_s)
        if key not in self._plain:
            runner = self._runner(script, arguments, num_threads, budget_s, compile_limit_s)
            waiting = "waiting for another breakeven process, which is measuring"
            with machine_lock(lambda: self._progress.detail(waiting)):
                self._plain[key] = runner.time()
            if num_threads == 0:
                self._num_threads = self._plain[key].num_threads
        return self._plain[key]

    def step(self, script: str, *arguments: str, num_threads: int = 0) -> StepTrace:
        """Record the step of a script on a fake GPU.

        The host's time between operators is that of the measured step, on ``num_threads`` of
        torch's threads.
        """
        plain = self.measure(script, *arguments, num_threads=num_threads)
        traced = self._runner(script, arguments).record()
        step = as_timed(traced.trace, traced, plain)
        self._steps.append((build_program(step), plain))
        return step

    def predict(
        self,
        traces: StepTrace | Sequence[StepTrace],
        devices: Sequence[str],
        *,
        host: str | None = None,
    ) -> tuple[StepPrediction, ...]:
        """Predict the step of each trace on each device; the result is ordered by trace.

        Args:
            traces: One step or several.
            devices: Names of GPUs.
            host: Name of the CPU that feeds them; the host of the bench by default.
        """
        named = None if host is None else named_host(host)
        specs = [find_device(name) for name in devices]
        return tuple(
            prediction
            for trace in ((traces,) if isinstance(traces, StepTrace) else traces)
            for prediction in predict_steps(trace, specs, self.host_for_prediction(trace, named))
        )

    def host_for_prediction(self, trace: StepTrace, host: HostSpec | None = None) -> HostSpec:
        """Return the host of the GPUs, with this bench's measurements of its work on a step."""
        host = host or self.host
        for program, plain in self._steps:
            if program.trace is trace:
                return host_for_prediction(program, plain, host, self._here)
        return host

    def sweep(
        self,
        script: str,
        *arguments: str,
        axes: Sequence[SweepAxis],
        devices: Sequence[str],
        published: Sequence[PublishedPoint] = (),
    ) -> SweepReport:
        """Measure a script over a grid on this CPU, and predict it on GPUs.

        The sweep's store keeps measurements of the same script, machine and versions.

        Args:
            script: File name.
            arguments: Arguments of the script, with ``{NAME}`` for the value of an axis.
            axes: The grid.
            devices: Names of GPUs.
            published: Published figures on the axes.
        """
        from breakeven.studies import LocalEngine, sweep_target

        progress = BenchProgress(self._progress, " ".join((script, *arguments)))
        report = sweep_target(
            str(script_path(script)),
            axes=axes,
            arguments=arguments,
            devices=devices,
            host=self._host_name,
            time_limit_s=self._time_limit_s,
            engine=LocalEngine(self.launcher, progress),
            progress=progress,
        )
        return replace(report, target=script, published=tuple(published))

    def host_summary(self) -> HostSummary:
        """Return the host of the devices, with the threads of the measured steps."""
        return host_summary(
            self.host,
            num_threads=self._num_threads or num_cores(),
            torch_version=self.torch_version,
            python_version=platform.python_version(),
        )

    def _runner(
        self,
        script: str,
        arguments: Sequence[str],
        num_threads: int = 0,
        budget_s: float = 1.0,
        compile_limit_s: float = 0.0,
    ) -> Runner:
        threads = f"({num_threads} thread{'' if num_threads == 1 else 's'})" if num_threads else ""
        label = " ".join(filter(None, (script, *arguments, threads)))
        return Runner(
            self.launcher,
            replace(find_target(str(script_path(script)), arguments), label=script),
            self.time_limit_s(compile_limit_s),
            BenchProgress(self._progress, label),
            num_threads=num_threads,
            budget_s=budget_s,
            keeps_compile=compile_limit_s > 0,
        )


class BenchProgress(SilentProgress):
    """Shows stages as details of the whole system's stage, which continues after them.

    Args:
        outer: Shows the stage of the whole system.
        label: Name of the run.
    """

    def __init__(self, outer: Progress, label: str) -> None:
        self._outer = outer
        # Keep the end of the label: the last arguments differ between runs.
        is_long = len(label) > _LABEL_CHARACTERS
        self._label = f"…{label[1 - _LABEL_CHARACTERS :]}" if is_long else label
        self._stage = ""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Show the current stage."""
        self._stage = stage
        self._outer.detail(f"{self._label}: {stage}")

    def detail(self, text: str) -> None:
        """Show a detail of the current stage."""
        self._outer.detail(f"{self._label}: {self._stage}, {text}")

    def finished(self, points: Sequence[object], num_done: int, num_points: int) -> None:
        """Show the number of finished points of a sweep."""
        self._outer.detail(f"{self._label}: {num_done} of {num_points} points")
