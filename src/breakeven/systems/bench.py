"""Where systems are run: scripts measured on this CPU, their steps predicted on GPUs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

import breakeven.workloads
from breakeven.calibrate import check_host_name, find_host, host_called, named_host
from breakeven.capture import Launcher, PlainRun, find_target
from breakeven.device import HERE, HostSpec, find_device
from breakeven.errors import BreakevenError
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
    SweepPoint,
    SweepReport,
    host_summary,
)

_SCRIPTS = Path(breakeven.workloads.__file__).parent / "scripts"
# What is left of a line of 80 characters beside the clock and the stage is not much.
_LABEL_CHARACTERS = 26


def script_path(script: str) -> Path:
    """Return where the script of a system lies.

    Args:
        script: Its file name: ``disc_mlp.py``.
    """
    return _SCRIPTS / script


class Bench:
    """Runs the scripts of systems, and remembers what it has run.

    Use as a context manager: leaving it ends every process, also on Ctrl-C.

    Args:
        host: What feeds the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        time_limit_s: Limit of each run, in seconds.
        progress: Progress callback, called with details of the stage that it is in.

    Raises:
        BreakevenError: There is no such host.
    """

    def __init__(
        self, *, host: str = "auto", time_limit_s: float = 120.0, progress: Progress | None = None
    ) -> None:
        check_host_name(host)
        self._host_name = host
        self._time_limit_s = time_limit_s
        self._progress = progress or SilentProgress()
        self._stack = ExitStack()
        self._plain: dict[tuple[str, tuple[str, ...], int, float], PlainRun] = {}
        self._num_threads = 0
        # What is known of each step that was measured and recorded.
        self._steps: list[tuple[Program, PlainRun]] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def launcher(self) -> Launcher:
        """Return what starts processes with torch in them; started when it is first needed."""
        launcher = self._stack.enter_context(Launcher())
        launcher.ready()
        return launcher

    @cached_property
    def host(self) -> HostSpec:
        """Return what feeds the GPUs."""
        return host_called(self._host_name, self._here)

    @cached_property
    def _here(self) -> HostSpec:
        return find_host(HERE, self.launcher)

    def time_limit_s(self, least_s: float) -> float:
        """Return the limit of a run that is known to need longer than others may.

        Args:
            least_s: What it is given in any case, in seconds.
        """
        return max(least_s, self._time_limit_s)

    @property
    def torch_version(self) -> str:
        """Return the torch that runs the scripts."""
        return self.launcher.ready().torch_version

    def measure(
        self, script: str, *arguments: str, num_threads: int = 0, budget_s: float = 1.0
    ) -> PlainRun:
        """Time the step of a script on this CPU; what was timed before is not timed again.

        Args:
            script: File name in ``workloads/scripts``.
            arguments: ``sys.argv[1:]`` of the script.
            num_threads: torch's intra-op threads; 0 for its own default.
            budget_s: How long to take samples once steps run.

        Raises:
            BreakevenError: The script gave no answer.
        """
        key = (script, arguments, num_threads, budget_s)
        if key not in self._plain:
            runner = self._runner(script, arguments, num_threads=num_threads, budget_s=budget_s)
            with machine_lock(self._tell_wait):
                self._plain[key] = runner.time()
            if num_threads == 0:
                self._num_threads = self._plain[key].num_threads
        return self._plain[key]

    def step(self, script: str, *arguments: str, num_threads: int = 0) -> StepTrace:
        """Return the step of a script as a GPU would run it.

        It is recorded on a pretended GPU; what the host does beside operators takes as long as in
        the measured step.

        Args:
            script: File name in ``workloads/scripts``.
            arguments: ``sys.argv[1:]`` of the script.
            num_threads: torch's intra-op threads in the measured step; 0 for its own default.

        Raises:
            BreakevenError: The script gave no answer.
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
        """Return the step of each trace on each device, the devices of the first trace first.

        Args:
            traces: One step or several.
            devices: Names of GPUs.
            host: Name of the CPU that feeds them; the host of the bench by default.

        Raises:
            BreakevenError: A device or host is unknown.
        """
        named = None if host is None else named_host(host)
        specs = [find_device(name) for name in devices]
        return tuple(
            prediction
            for trace in ((traces,) if isinstance(traces, StepTrace) else traces)
            for prediction in predict_steps(trace, specs, self.host_for_prediction(trace, named))
        )

    def host_for_prediction(self, trace: StepTrace, host: HostSpec | None = None) -> HostSpec:
        """Return what feeds the GPUs, with what is known of its work on this step.

        Args:
            trace: A step; what this bench has measured is known.
            host: That of the bench by default.
        """
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

        What was measured before with the same script, machine and versions is taken from the
        sweep's store.

        Args:
            script: File name in ``workloads/scripts``.
            arguments: ``sys.argv[1:]`` of the script, with ``{NAME}`` where an axis enters.
            axes: The grid.
            devices: Names of GPUs.
            published: Figures of others that lie on the axes.

        Raises:
            BreakevenError: The script gave no answer, or a device is unknown.
        """
        from breakeven.studies import LocalEngine, sweep_target

        progress = BenchProgress(self._progress, _label(script, arguments))
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
        """Return the machine that feeds the devices.

        Its threads are those of the steps measured so far; where none was, the processors that
        this process may use.
        """
        return host_summary(
            self.host,
            num_threads=self._num_threads or num_cores(),
            torch_version=self.torch_version,
            python_version=platform.python_version(),
        )

    def _tell_wait(self) -> None:
        self._progress.detail("waiting for another breakeven process, which is measuring")

    def _runner(
        self, script: str, arguments: Sequence[str], *, num_threads: int = 0, budget_s: float = 1.0
    ) -> Runner:
        path = script_path(script)
        if not path.is_file():
            raise BreakevenError(f"breakeven ships no script {script!r}")
        return Runner(
            self.launcher,
            replace(find_target(str(path), arguments), label=script),
            self._time_limit_s,
            BenchProgress(self._progress, _label(script, arguments, num_threads)),
            num_threads=num_threads,
            budget_s=budget_s,
        )


def _label(script: str, arguments: Sequence[str], num_threads: int = 0) -> str:
    words = [script, *arguments]
    if num_threads:
        words.append(f"({num_threads} thread{'' if num_threads == 1 else 's'})")
    return " ".join(words)


class BenchProgress:
    """Tells stages as details, so that dozens of runs do not fill the terminal.

    Args:
        outer: Shows the stage of the whole system.
        label: What is run.
    """

    def __init__(self, outer: Progress, label: str) -> None:
        self._outer = outer
        # The last arguments are those that differ from run to run.
        is_long = len(label) > _LABEL_CHARACTERS
        self._label = f"…{label[1 - _LABEL_CHARACTERS :]}" if is_long else label
        self._stage = ""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Tell what is done now; how long is left is that of the whole system."""
        self._stage = stage
        self._outer.detail(f"{self._label}: {stage}")

    def detail(self, text: str) -> None:
        """Tell what happens within it."""
        self._outer.detail(f"{self._label}: {self._stage}, {text}")

    def end(self) -> None:
        """End nothing: the stage of the whole system goes on."""

    def finished(self, points: Sequence[SweepPoint], num_done: int, num_points: int) -> None:
        """Tell how many points of a sweep are done."""
        self._outer.detail(f"{self._label}: {num_done} of {num_points} points")
