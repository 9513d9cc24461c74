"""The step along the batch size: the CPU measured at a few sizes, all else predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from breakeven.capture import LoaderUse, PlainRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import Caveat, ScriptError, has_caveat
from breakeven.session.compared_step import ComparedStep
from breakeven.session.measured_step import DevicePath
from breakeven.session.runs import (
    BEYOND_MEASURED,
    Runs,
    SkippedSize,
    second_size,
    why_not_measured,
)
from breakeven.simulate import predict_steps
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import ScaledTrace, ScalingError, StepTrace
from breakeven.verdict import (
    Crossover,
    Curve,
    DeviceKind,
    GeneratedRun,
    NoCrossover,
    SizeCurve,
    curve_point,
    find_crossover,
    is_worth_it,
)

AXIS = "batch_size"
# Few sizes, since each costs a run: times grow smoothly enough to be interpolated between them.
_FACTOR = 4
# Beyond it launches have long ceased to decide, whatever the network.
LARGEST = 65_536
# A curve needs less certainty than the verdict, whose size is measured for longer.
_BUDGET_S = 0.4

Value = TypeVar("Value")
Answer = tuple[Crossover | NoCrossover, tuple[Curve, ...]]


class BatchSizes:
    """The same step at other batch sizes of its DataLoader.

    Runs are asked for by the size of one batch. Curves and crossovers count the samples of a step,
    as the report's own batch size does: a step that accumulates gradients takes several batches.

    Args:
        runs: Runs the script.
        plain: The time of the step as it is on this CPU.
        path: Prepares traces for prediction.
        loader: The DataLoader that feeds it.
    """

    def __init__(self, runs: Runs, plain: PlainRun, path: DevicePath, loader: LoaderUse) -> None:
        self._runs = runs
        self._plain = plain
        self._path = path
        self._loader = loader
        # What to know of the measurements at other sizes.
        self.caveats: list[Caveat] = []
        self._cpu: dict[int, Estimate] = {loader.batch_size: plain.measurement.estimate}
        self._peak_bytes = {loader.batch_size: plain.peak_memory_bytes}
        # Samples of the steps that were measured while other work held them up.
        self._busy: list[int] = []
        # The step at every size, once the search has recorded it at a second one.
        self.scaled: ScaledTrace | None = None
        # The size at which the search ended, since this machine has no time or memory for it.
        self._skipped: SkippedSize | None = None

    def search(self, compared: ComparedStep) -> Answer:
        """Return from which batch size the best GPU is faster than this CPU, and all curves.

        Args:
            compared: The step as it is, on this CPU and on the GPUs whose curves are wanted.
        """
        devices, best, host = compared.devices, compared.best.device, compared.host
        scaled = self.record_other_size()
        if isinstance(scaled, NoCrossover):
            return scaled, ()
        self._measure_towards_crossover(scaled, best, host)
        sizes, gpus = self._gpu_curves(scaled, devices, best, host)
        self._note_busy()
        self._note_skipped(sizes)
        cpu = cpu_curve(compared, self._by_samples(self._cpu), sizes)
        if len(cpu.points) < 2:
            return _none("No other batch size could be measured on this CPU."), (cpu, *gpus)
        return find_crossover(cpu, gpus[devices.index(best)]), (cpu, *gpus)

    def search_generated(
        self, compared: ComparedStep, run: GeneratedRun
    ) -> Crossover | NoCrossover | None:
        """Return from which batch size on the best GPU is faster than generated code.

        None where that gains nothing at the script's own size. Its time is measured at a second
        batch size, where the GPU is expected to be as fast.

        Args:
            compared: As for ``search``, which comes before.
            run: What was measured at the script's own size.
        """
        scaled, cpu = self.scaled, compared.results[0]
        if run.step is None or scaled is None or not is_worth_it(run, cpu.step_ns):
            return None
        base, best, host = self._loader.batch_size, compared.best.device, compared.host
        times = {base: run.step}

        sizes = [base * 2**power for power in range(LARGEST.bit_length())]
        sizes = [size for size in sizes if size <= LARGEST] or [base]
        per_step = self._loader.batches_per_step
        traces = [scaled.at(size * per_step) for size in sizes]
        found = [predict_steps(trace, (best,), host)[0] for trace in traces]
        gpu = {
            size: prediction.estimate
            for size, prediction in zip(sizes, found, strict=True)
            if size == base or prediction.fits is not False
        }
        sizes = list(gpu)
        curve = SizeCurve(times)
        meets = (size for size in sizes[1:] if gpu[size].value_ns < curve.at(size).value_ns)
        self._measure_generated(times, next(meets, sizes[-1]))
        curve = SizeCurve(times)
        # Beyond the size at which the GPU is surely faster there is nothing to be found.
        sure = (n for n, size in enumerate(sizes) if curve.at(size).low_ns > gpu[size].high_ns)
        sizes = sizes[: max(2, next(sure, len(sizes)) + 1)]
        of_cpu = Curve(
            device=f"generated code on {self._plain.processor}",
            kind=DeviceKind.CPU,
            axis=AXIS,
            points=tuple(
                curve_point(size * per_step, curve.at(size)) for size in sorted({*sizes, *times})
            ),
        )
        of_gpu = Curve(
            device=best.name,
            kind=DeviceKind.GPU,
            axis=AXIS,
            points=tuple(curve_point(size * per_step, gpu[size]) for size in sizes),
        )
        return find_crossover(of_cpu, of_gpu)

    def _by_samples(self, by_size: Mapping[int, Value]) -> dict[int, Value]:
        """Return what is known by the size of a batch, by the samples of a step."""
        return {size * self._loader.batches_per_step: known for size, known in by_size.items()}

    def _measure_generated(self, times: dict[int, Estimate], size: int) -> None:
        """Measure generated code at another size, where there is time and memory for it."""
        base = self._loader.batch_size
        longest_ns = SizeCurve(self._cpu).at(size).value_ns
        memory_bytes = self._peak_bytes[base] * size / base
        if why_not_measured(longest_ns, memory_bytes) is not None:
            return
        plain = self._runs.measure_at(
            size, loader_batch_size=base, budget_s=_BUDGET_S, tries_generated=True
        )
        if plain is None or plain.loader is None or plain.loader.batch_size != size:
            return
        found = plain.generated.step if plain.generated else None
        if found is not None:
            times[size] = found

    def record_other_size(self) -> ScaledTrace | NoCrossover:
        """Record the step at a second batch size; return it at every size, or why that fails."""
        base = self._loader.batch_size
        other = second_size(base, self._plain.measurement.median_ns)
        try:
            second = self._runs.trace(loader_batch_size=base, new_batch_size=other)
            self.scaled = ScaledTrace(self._path.step, self._path.prepare(second))
        except ScriptError as error:
            return _none(f"The script fails at batch size {other}: {error.message}")
        except ScalingError as error:
            return _none(f"The step is another one at batch size {other}: {error.message}")
        return self.scaled

    def _measure_towards_crossover(
        self, scaled: ScaledTrace, best: DeviceSpec, host: HostSpec
    ) -> None:
        """Measure the CPU at sizes 4 times apart until the GPU's advantage turns, then between."""
        size = self._loader.batch_size
        is_faster = self._is_gpu_faster(size, scaled, best, host)
        while True:
            next_size = max(size // _FACTOR, 1) if is_faster else size * _FACTOR
            if not self._measure(next_size, nearest=size):
                return
            if self._is_gpu_faster(next_size, scaled, best, host) is not is_faster:
                self._measure(round((next_size * size) ** 0.5), nearest=min(next_size, size))
                return
            size = next_size

    def _measure(self, size: int, *, nearest: int) -> bool:
        """Measure the CPU at one size; return whether that was possible."""
        growth = size / nearest
        expected_ns = self._cpu[nearest].value_ns * growth
        expected_bytes = self._peak_bytes[nearest] * max(1.0, growth)
        if not 1 <= size <= LARGEST or size in self._cpu:
            return False
        because = why_not_measured(expected_ns, expected_bytes)
        if because is not None:
            self._skipped = SkippedSize(size=size, because=because)
            return False
        plain = self._runs.measure_at(
            size, loader_batch_size=self._loader.batch_size, budget_s=_BUDGET_S
        )
        if plain is None or plain.loader is None or plain.loader.batch_size != size:
            return False
        self._cpu[size] = plain.measurement.estimate
        if has_caveat(plain.caveats, BUSY_MACHINE):
            self._busy.append(size * self._loader.batches_per_step)
        self._peak_bytes[size] = plain.peak_memory_bytes
        return True

    def _is_gpu_faster(
        self, size: int, scaled: ScaledTrace, best: DeviceSpec, host: HostSpec
    ) -> bool:
        trace = scaled.at(size * self._loader.batches_per_step)
        (prediction,) = predict_steps(trace, (best,), host)
        return prediction.estimate.value_ns < self._cpu[size].value_ns

    def _gpu_curves(
        self, scaled: ScaledTrace, devices: Sequence[DeviceSpec], best: DeviceSpec, host: HostSpec
    ) -> tuple[list[int], list[Curve]]:
        """Return the sizes of all curves, in samples of a step, and the curves of the GPUs."""
        steps = {size: scaled.at(size) for size in self._by_samples(dict.fromkeys(self._sizes()))}
        largest = max(self._by_samples(self._cpu))
        return gpu_curves(steps, devices, best, host, largest_measured=largest)

    def _sizes(self) -> list[int]:
        """Return the measured sizes, the powers of two between them, and where measuring ended."""
        low, high = min(self._cpu), max(self._cpu)
        if self._skipped is not None and self._skipped.size > high:
            high = min(high * BEYOND_MEASURED, LARGEST)
        elif self._skipped is not None and self._skipped.size < low:
            low = max(low // BEYOND_MEASURED, 1)
        return sorted({*self._cpu, low, high, *powers_between(low, high)})

    def _note_busy(self) -> None:
        """Say at which sizes this machine was busy."""
        if not self._busy:
            return
        which = "batch size {} was" if len(self._busy) == 1 else "batch sizes {} were"
        told = which.format(", ".join(map(str, sorted(self._busy))))
        self.caveats.append(
            Caveat(
                code="busy-at-batch-size",
                message=f"this machine was busy when {told} measured; the crossover may be off",
            )
        )

    def _note_skipped(self, sizes: Sequence[int]) -> None:
        """Say which sizes beyond the measured ones the curves have, and why those were not."""
        measured = self._by_samples(self._cpu)
        low, high = min(measured), max(measured)
        if self._skipped is None or (low <= sizes[0] and sizes[-1] <= high):
            return
        side = f"above {high}" if sizes[-1] > high else f"below {low}"
        self.caveats.append(
            Caveat(
                code="batch-size-not-measured",
                message=f"batch sizes {side} were not measured on this CPU, since "
                f"{self._skipped.because}; its times there are predicted from the others",
            )
        )


def _none(because: str) -> NoCrossover:
    return NoCrossover(none_because=because, axis=AXIS)


def cpu_curve(
    compared: ComparedStep, measured: Mapping[int, Estimate], sizes: Sequence[int]
) -> Curve:
    """Return the curve of this CPU, predicted between and beyond the sizes that were measured."""
    times = SizeCurve(measured)
    return Curve(
        device=compared.results[0].device,
        kind=DeviceKind.CPU,
        axis=AXIS,
        points=tuple(curve_point(size, times.at(size)) for size in sizes),
    )


def gpu_curves(
    steps: Mapping[int, StepTrace],
    devices: Sequence[DeviceSpec],
    best: DeviceSpec,
    host: HostSpec,
    *,
    largest_measured: int,
) -> tuple[list[int], list[Curve]]:
    """Return the sizes of all curves and the curves of the GPUs.

    Args:
        steps: The step by batch size.
        devices: The GPUs, each with a curve.
        best: That of them which the sizes are for.
        host: What issues the step.
        largest_measured: Nobody trains at a size beyond it at which the step does not fit the GPU.
    """
    predictions = iter(predict_steps(list(steps.values()), devices, host))
    by_size = {size: [next(predictions) for _ in devices] for size in steps}
    number = devices.index(best)
    sizes = [
        size
        for size in steps
        if size <= largest_measured or by_size[size][number].fits is not False
    ]
    return sizes, [
        Curve(
            device=device.name,
            kind=DeviceKind.GPU,
            axis=AXIS,
            points=tuple(curve_point(size, by_size[size][row].estimate) for size in sizes),
        )
        for row, device in enumerate(devices)
    ]


def powers_between(low: int, high: int) -> list[int]:
    """Return the powers of two within the range, its ends left out."""
    return [2**power for power in range(low.bit_length(), high.bit_length()) if 2**power < high]
