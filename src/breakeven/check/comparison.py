"""One step on every device: predicted where absent, measured where present, compared."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from breakeven.capture import PlainRun, TracedRun
from breakeven.check.device_path import DevicePath
from breakeven.check.program import UNKNOWN_LENGTH, TrainingLength, program_facts
from breakeven.device import DeviceSpec, HostSpec, default_devices, find_device
from breakeven.doctor import Sources, examine
from breakeven.errors import Caveat
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.timing import BUSY_FRACTION, CpuFacts, Source
from breakeven.trace import ScaledTrace, StepTrace
from breakeven.units import format_percent
from breakeven.verdict import (
    SCHEMA_VERSION,
    CheckReport,
    Crossover,
    Curve,
    DeviceKind,
    DeviceResult,
    HostSummary,
    NoCrossover,
    ProgramSummary,
    Recording,
    StepSummary,
    Verdict,
    cpu_on_threads,
    decide,
    device_result,
    host_summary,
    program_of,
    record,
)

# A share of the measured step that is said.
_MUCH_WAITING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One step on every device, at the batch size at which it was found."""

    traced: TracedRun
    plain: PlainRun
    as_set: PlainRun
    path: DevicePath
    trace: StepTrace
    host: HostSpec
    here: HostSpec
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
        torch_version: str, caveats: tuple[Caveat, ...] = (), scaled: ScaledTrace | None = None,
        length: TrainingLength = UNKNOWN_LENGTH,
    ) -> CheckReport:  # fmt: skip
        """Return the report.

        Args:
            target: As the user wrote it.
            crossover: From which batch size on a GPU wins.
            curves: Along the batch size.
            torch_version: torch that ran the script.
            caveats: What the search for the crossover met.
            scaled: The step at other batch sizes, where it was recorded at two.
            length: Of the training.
        """
        examined = examine(
            self.trace,
            self.best.device,
            self.host,
            sources=Sources.of(self.traced.sources),
            scaled=scaled,
        )
        return CheckReport(
            schema_version=SCHEMA_VERSION,
            target=target,
            host=self.host_summary(torch_version),
            step=step_summary(self.trace, self.best),
            results=self.results,
            verdict=self.verdict,
            crossover=crossover,
            findings=tuple(one.finding for one in examined.found),
            caveats=self.caveats(
                (*caveats, *length.caveats(self.as_set.loader), *examined.caveats)
            ),
            curves=curves,
            recording=self.recording(scaled=scaled),
            program=self.program(length),
        )

    def host_summary(self, torch_version: str) -> HostSummary:
        """Return the machine that feeds the devices."""
        return host_summary(
            self.host,
            num_threads=self.plain.num_threads,
            torch_version=torch_version,
            python_version=platform.python_version(),
        )

    def caveats(self, more: tuple[Caveat, ...] = ()) -> tuple[Caveat, ...]:
        """Return what holds for all figures, each once."""
        own = (*self.trace.caveats, *self.plain.caveats, *self._host_caveats())
        all_caveats = (*own, *more)
        return tuple({caveat.message: caveat for caveat in all_caveats}.values())

    def program(self, length: TrainingLength = UNKNOWN_LENGTH) -> ProgramSummary:
        """Return what becomes of the whole training.

        Args:
            length: How long it is, where that is known.
        """
        facts = program_facts(self.as_set, self.plain)
        return program_of(self.verdict, self.results, facts, length.steps(self.as_set.loader))

    def _host_caveats(self) -> Iterator[Caveat]:
        if self.host.load_fraction > BUSY_FRACTION:
            share = format_percent(self.host.load_fraction)
            yield Caveat(
                code="busy-host",
                message=f"other processes used {share} of this machine while its costs per "
                "operator were measured; predicted steps of GPUs are less certain",
            )
        if self.path.is_other_path(self.here):
            yield Caveat(
                code="other-path",
                message="the step that was recorded for a GPU would take this CPU far longer than "
                "the one that was timed: the script does more on a GPU, and what that takes the "
                "host is less certain",
            )

    def recording(
        self, *, scaled: ScaledTrace | None = None, cpu: CpuFacts | None = None
    ) -> Recording:
        """Return what it takes to explain the step again."""
        return record(
            self.trace,
            self.host,
            other_size=scaled.second if scaled else None,
            sources=self.traced.sources,
            cpu=cpu,
        )


def step_summary(trace: StepTrace, prediction: StepPrediction) -> StepSummary:
    """Return the step in numbers, as one device runs it."""
    return StepSummary(
        num_ops=len(trace.ops),
        num_kernels=prediction.num_kernels,
        num_syncs=len(trace.syncs),
        h2d_bytes=trace.h2d_bytes,
        d2h_bytes=trace.d2h_bytes,
        batch_size=trace.batch_size,
        num_parameters=trace.num_parameters,
        host_ns=prediction.host_ns,
    )


def compare(
    traced: TracedRun,
    plain: PlainRun,
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    measured: Sequence[DeviceResult],
    here: HostSpec,
    as_set: PlainRun | None = None,
) -> Comparison:
    """Predict the step on ``devices`` and compare it with what was measured.

    Args:
        traced: The recorded step.
        plain: The same step, timed on this CPU.
        devices: GPUs to predict.
        host: What issues the work.
        measured: Results of the devices that are here, this CPU first.
        here: This machine's costs.
        as_set: The same step with as many threads as the script has, where that was another run.
    """
    path = DevicePath(traced, plain)
    trace = path.step
    host = path.feeding(host, here)
    predictions = predict_steps(trace, devices, host)
    results = (*measured, *map(device_result, predictions))
    return Comparison(
        traced=traced,
        plain=plain,
        as_set=as_set or plain,
        path=path,
        trace=trace,
        host=host,
        here=here,
        predictions=predictions,
        results=results,
        verdict=decide(results, predictions=predictions),
    )


def select_devices(names: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Return the devices of these names, each once; a choice of six for no names.

    Raises:
        UnknownDeviceError: A name matches no device, or several.
    """
    if not names:
        return default_devices()
    return tuple({spec.id: spec for spec in map(find_device, names)}.values())


def measured_result(plain: PlainRun, kind: DeviceKind) -> DeviceResult:
    """Return the result that a report shows for a device of this machine."""
    estimate = plain.measurement.estimate
    num_threads = plain.num_threads if kind is DeviceKind.CPU else None
    return DeviceResult(
        device=_device_name(plain.processor, num_threads),
        kind=kind,
        source=Source.MEASURED,
        precision=plain.precision,
        step_ns=estimate.value_ns,
        low_ns=estimate.low_ns,
        high_ns=estimate.high_ns,
        bound=None,
        peak_memory_bytes=plain.peak_memory_bytes,
        fits=True,
        caveats=(*plain.caveats, *_waiting(plain)),
        num_samples=len(plain.measurement.steady_ns),
        is_disturbed=plain.measurement.is_disturbed,
        num_threads=num_threads,
    )


def _device_name(processor: str, num_threads: int | None) -> str:
    return processor if num_threads is None else cpu_on_threads(processor, num_threads)


def _waiting(plain: PlainRun) -> tuple[Caveat, ...]:
    """Say how much of a measured step waits for worker processes, and if their pace is unknown."""
    loader, step_ns = plain.loader, plain.measurement.median_ns
    if loader is None or not loader.num_workers:
        return ()
    caveats: list[Caveat] = []
    if loader.wait_ns > _MUCH_WAITING * step_ns:
        share = format_percent(loader.wait_ns / step_ns)
        caveats.append(
            Caveat(
                code="waits-for-loader",
                message=f"{share} of the measured step waits for the worker processes of the "
                "DataLoader",
            )
        )
    if not loader.alone_ns:
        caveats.append(
            Caveat(
                code="loader-not-timed",
                message="the worker processes of the DataLoader were not timed by themselves; the "
                "GPU's step counts what their work took while it was recorded",
            )
        )
    return tuple(caveats)
