"""From a target to a report: run it, record it, predict it elsewhere, compare."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from breakeven.capture import Launcher, PlainRun, TracedRun, find_target
from breakeven.check._batch_sizes import BatchSizes, no_loader
from breakeven.check._device_path import DevicePath
from breakeven.check._machine import check_host_name, find_host
from breakeven.check._progress import Progress, SilentProgress
from breakeven.check._runs import Runs
from breakeven.device import DeviceSpec, HostSpec, default_devices, find_device
from breakeven.doctor import diagnose
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.timing import Source
from breakeven.trace import StepTrace
from breakeven.verdict import (
    SCHEMA_VERSION,
    CheckReport,
    Crossover,
    Curve,
    DeviceKind,
    DeviceResult,
    HostSummary,
    NoCrossover,
    StepSummary,
    Verdict,
    decide,
    device_result,
)


def check_target(
    target: str,
    *,
    arguments: Sequence[str] = (),
    is_module: bool = False,
    devices: Sequence[str] = (),
    host: str = "here",
    time_limit_s: float = 60.0,
    progress: Progress | None = None,
) -> CheckReport:
    """Check whether a GPU pays off for the training step of ``target``.

    The target runs in child processes that end by themselves after enough steps; its side effects
    up to then do happen.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        arguments: ``sys.argv[1:]`` of the script.
        is_module: Run ``target`` as ``python -m`` does.
        devices: Names of GPUs to compare with; a choice of six by default.
        host: ``here``, or the name of another host that would feed the GPUs.
        time_limit_s: Limit of each run, in seconds.
        progress: Is told what happens.

    Raises:
        BreakevenError: The target gave no answer, or a device or host is unknown.
    """
    progress = progress or SilentProgress()
    specs = _find_devices(devices)
    check_host_name(host)
    found = find_target(target, arguments, is_module=is_module)
    with Launcher() as launcher:
        progress.begin("starting torch")
        ready = launcher.ready()
        host_spec = find_host(host, launcher)
        runs = Runs(launcher, found, time_limit_s, progress)
        traced = runs.trace()
        plain = runs.measure()
        measured = [_cpu_result(plain)]
        if ready.has_cuda:
            measured += _cuda_result(runs)
        comparison = compare(traced, plain, specs, host_spec, measured)
        crossover, curves = _search_crossover(runs, comparison, specs)
        progress.end()
    return comparison.report(
        target=found.label, crossover=crossover, curves=curves, torch_version=ready.torch_version
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One step on every device, at the batch size at which it was found."""

    traced: TracedRun
    plain: PlainRun
    path: DevicePath
    trace: StepTrace
    host: HostSpec
    predictions: tuple[StepPrediction, ...]
    results: tuple[DeviceResult, ...]
    verdict: Verdict

    @property
    def best(self) -> StepPrediction:
        """Return the predicted GPU that the verdict is about, or else the fastest."""
        named = (self.verdict.device, self.verdict.over)
        return next(
            (found for found in self.predictions if found.device.name in named),
            min(self.predictions, key=lambda found: found.estimate.value_ns),
        )

    def report(
        self, *, target: str, crossover: Crossover | NoCrossover, curves: tuple[Curve, ...],
        torch_version: str,
    ) -> CheckReport:  # fmt: skip
        """Return the report."""
        trace = self.trace
        caveats = {caveat.message: caveat for caveat in (*trace.caveats, *self.plain.caveats)}
        return CheckReport(
            schema_version=SCHEMA_VERSION,
            target=target,
            host=HostSummary(
                name=self.host.name,
                num_threads=self.plain.num_threads,
                source=self.host.source,
                torch_version=torch_version,
                python_version=platform.python_version(),
            ),
            step=StepSummary(
                num_ops=len(trace.ops),
                num_kernels=self.best.num_kernels,
                num_syncs=len(trace.syncs),
                h2d_bytes=trace.h2d_bytes,
                d2h_bytes=trace.d2h_bytes,
                batch_size=trace.batch_size,
                num_parameters=trace.num_parameters,
                host_ns=self.best.host_ns,
            ),
            results=self.results,
            verdict=self.verdict,
            crossover=crossover,
            findings=diagnose(trace, self.best.device, self.host),
            caveats=tuple(caveats.values()),
            curves=curves,
        )


def compare(
    traced: TracedRun,
    plain: PlainRun,
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    measured: Sequence[DeviceResult],
) -> Comparison:
    """Predict the step on ``devices`` and compare it with what was measured.

    Args:
        traced: The recorded step.
        plain: The same step, timed on this CPU.
        devices: GPUs to predict.
        host: What issues the work.
        measured: Results of the devices that are here, this CPU first.
    """
    path = DevicePath(traced, plain)
    trace = path.prepare(traced)
    predictions = predict_steps(trace, devices, host)
    results = (*measured, *map(device_result, predictions))
    return Comparison(
        traced=traced,
        plain=plain,
        path=path,
        trace=trace,
        host=host,
        predictions=predictions,
        results=results,
        verdict=decide(results, predictions=predictions),
    )


def _find_devices(names: Sequence[str]) -> tuple[DeviceSpec, ...]:
    if not names:
        return default_devices()
    return tuple({spec.id: spec for spec in map(find_device, names)}.values())


def _cpu_result(plain: PlainRun) -> DeviceResult:
    estimate = plain.measurement.estimate
    plural = "" if plain.num_threads == 1 else "s"
    return DeviceResult(
        device=f"{plain.processor} ({plain.num_threads} thread{plural})",
        kind=DeviceKind.CPU,
        source=Source.MEASURED,
        precision=plain.precision,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        bound=None,
        peak_memory_bytes=plain.peak_memory_bytes,
        fits=True,
        caveats=plain.caveats,
        num_samples=len(plain.measurement.steady_ns),
    )


def _cuda_result(runs: Runs) -> list[DeviceResult]:
    """Return the result of this machine's own GPU; nothing where the script does not use it."""
    run = runs.measure_on_cuda()
    if run is None:
        return []
    estimate = run.measurement.estimate
    return [
        DeviceResult(
            device=run.processor,
            kind=DeviceKind.GPU,
            source=Source.MEASURED,
            precision=run.precision,
            step_ns=estimate.value_ns,
            low_ns=estimate.low_ns,
            high_ns=estimate.high_ns,
            bound=None,
            peak_memory_bytes=run.peak_memory_bytes,
            fits=True,
            caveats=run.caveats,
            num_samples=len(run.measurement.steady_ns),
        )
    ]


def _search_crossover(
    runs: Runs, comparison: Comparison, devices: Sequence[DeviceSpec]
) -> tuple[Crossover | NoCrossover, tuple[Curve, ...]]:
    loader = comparison.traced.loader
    if loader is None:
        return no_loader(), ()
    sizes = BatchSizes(runs, comparison.traced, comparison.plain, comparison.path, loader)
    cpu_name = comparison.results[0].device
    return sizes.search(cpu_name, devices, comparison.best.device, comparison.host)
