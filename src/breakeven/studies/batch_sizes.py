"""The step over the batch size: measured on the CPU at a few sizes, predicted otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from breakeven.capture import LoaderUse
from breakeven.errors import Caveat, ScriptError, has_caveat
from breakeven.memory import physical_bytes
from breakeven.simulate import predict_steps
from breakeven.studies.comparison import Comparison
from breakeven.studies.host_work import as_timed
from breakeven.studies.measured_step import MeasuredStep
from breakeven.studies.runner import Change, Runner
from breakeven.timing import BUSY_MACHINE, Estimate
from breakeven.trace import ScaledTrace, ScalingError, StepTrace, num_micro_batches, scaled_from_one
from breakeven.verdict import (
    Crossover,
    Curve,
    DeviceKind,
    GeneratedRun,
    NoCrossover,
    SizeCurve,
    curve_point,
    find_crossover,
    generated_step,
)

AXIS = "batch_size"
# Measure few sizes, since each costs a run; times grow smoothly enough to interpolate.
_FACTOR = 4
# Above this size, launches do not limit any network.
_LARGEST = 65_536
# A curve needs less certainty than the verdict, whose size is measured longer.
_BUDGET_S = 0.4
# Do not measure sizes with longer expected steps: the answer should take seconds, and launches do
# not limit such a step.
LONGEST_STEP_NS = 1.0e9
# Factor by which a CPU's curve extends beyond the measured sizes, up to which its error is known.
BEYOND_MEASURED = 16
# The same factor if only one size was measured; farther, its time predicts nothing.
FARTHEST = 64
# The memory estimate is rough, and a machine that swaps slows other work too.
_MEMORY_FRACTION = 0.5
# Linux has a container's limit in one of these files, depending on the version of cgroups.
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSearch:
    """The batch size from which a GPU wins.

    Args:
        crossover: That size, or why there is none.
        curves: Step times over the batch size, of this CPU and of all GPUs.
        caveats: Caveats on these.
        scaled: The step at every size; None if it is known only at its own.
        generated_crossover: The crossover against generated code; None if that gains nothing.
    """

    crossover: Crossover | NoCrossover
    curves: tuple[Curve, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    scaled: ScaledTrace | None = None
    generated_crossover: Crossover | NoCrossover | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSize:
    """A size that was not measured, and why."""

    size: int
    because: str


def search_loader_sizes(
    runner: Runner, step: MeasuredStep, compared: Comparison, loader: LoaderUse
) -> SizeSearch:
    """Find the batch size from which the best GPU is faster than this CPU.

    Runs set the size of one batch. Curves and crossovers count the samples of a step, as the
    report's batch size does: a step that accumulates gradients takes several batches.

    Args:
        runner: Runs the script.
        step: The unchanged step.
        compared: The unchanged step on every device.
        loader: The DataLoader that feeds it.
    """
    scaled = record_second_size(runner, step, loader)
    if isinstance(scaled, NoCrossover):
        return SizeSearch(crossover=scaled)
    best, host, per_step = compared.best.device, compared.host, loader.batches_per_step
    cpu = _CpuSizes(runner, step, loader)

    def is_gpu_faster(size: int) -> bool:
        (prediction,) = predict_steps(scaled.at(size * per_step), (best,), host)
        return prediction.estimate.value_ns < cpu.times[size].value_ns

    # Increase or decrease the size by a factor of 4 until the faster device changes; then try one
    # size in between.
    size, is_faster = loader.batch_size, is_gpu_faster(loader.batch_size)
    while True:
        next_size = max(size // _FACTOR, 1) if is_faster else size * _FACTOR
        if not cpu.measure(next_size, nearest=size):
            break
        if is_gpu_faster(next_size) is not is_faster:
            cpu.measure(round((next_size * size) ** 0.5), nearest=min(next_size, size))
            break
        size = next_size

    steps = {size * per_step: scaled.at(size * per_step) for size in cpu.drawn()}
    curves = _curves(compared, steps, {size * per_step: time for size, time in cpu.times.items()})
    if len(curves[0].points) < 2:
        crossover = _none("No other batch size could be measured on this CPU.")
    else:
        crossover = find_crossover(curves[0], curves[1 + compared.devices.index(best)])
    generated = step.as_set.generated
    return SizeSearch(
        crossover=crossover,
        curves=curves,
        caveats=tuple(cpu.caveats(curves[0])),
        scaled=scaled,
        generated_crossover=generated and _search_generated(cpu, compared, scaled, generated),
    )


def record_second_size(
    runner: Runner, step: MeasuredStep, loader: LoaderUse
) -> ScaledTrace | NoCrossover:
    """Record the step at a second batch size; return it at every size, or why that fails."""
    base = loader.batch_size
    other = second_size(base, step.plain.measurement.median_ns)
    change = Change(old_batch_size=base, new_batch_size=other)
    try:
        second = runner.record(change, f" at batch size {other}")
        return ScaledTrace(step.program.trace, as_timed(second.trace, step.traced, step.plain))
    except ScriptError as error:
        return _none(f"The script fails at batch size {other}: {error.message}")
    except ScalingError as error:
        return _none(f"The step is another one at batch size {other}: {error.message}")


class _CpuSizes:
    """Times this CPU at some batch sizes.

    Args:
        runner: Runs the script.
        step: The unchanged step.
        loader: The DataLoader that feeds it.
    """

    def __init__(self, runner: Runner, step: MeasuredStep, loader: LoaderUse) -> None:
        self.loader = loader
        self.processor = step.plain.processor
        self.times: dict[int, Estimate] = {loader.batch_size: step.plain.measurement.estimate}
        self._runner = runner
        self._peak_bytes = {loader.batch_size: step.plain.peak_memory_bytes}
        # Samples per step of the measurements that other work disturbed.
        self._busy: list[int] = []
        # The first size that this machine lacks the time or memory to measure.
        self._skipped: SkippedSize | None = None

    def measure(self, size: int, *, nearest: int) -> bool:
        """Time the step at one size; return whether that succeeded."""
        growth = size / nearest
        if not 1 <= size <= _LARGEST or size in self.times:
            return False
        because = why_not_measured(
            self.times[nearest].value_ns * growth, self._peak_bytes[nearest] * max(1.0, growth)
        )
        if because is not None:
            self._skipped = SkippedSize(size=size, because=because)
            return False
        change = Change(old_batch_size=self.loader.batch_size, new_batch_size=size)
        plain = self._runner.time_at(change, budget_s=_BUDGET_S)
        if plain is None or plain.loader is None or plain.loader.batch_size != size:
            return False
        self.times[size] = plain.measurement.estimate
        self._peak_bytes[size] = plain.peak_memory_bytes
        if has_caveat(plain.caveats, BUSY_MACHINE):
            self._busy.append(size * self.loader.batches_per_step)
        return True

    def measure_generated(self, size: int) -> Estimate | None:
        """Time generated code at another size, if time and memory allow it."""
        base = self.loader.batch_size
        longest_ns = SizeCurve(self.times).at(size).value_ns
        if why_not_measured(longest_ns, self._peak_bytes[base] * size / base) is not None:
            return None
        change = Change(old_batch_size=base, new_batch_size=size)
        plain = self._runner.time_at(change, budget_s=_BUDGET_S, tries_generated=True)
        if plain is None or plain.loader is None or plain.loader.batch_size != size:
            return None
        return plain.generated.step if plain.generated else None

    def drawn(self) -> list[int]:
        """Return the sizes of the curve: measured ones, powers of two between, and the ends."""
        low, high = min(self.times), max(self.times)
        if self._skipped is not None and self._skipped.size > high:
            high = min(high * BEYOND_MEASURED, _LARGEST)
        elif self._skipped is not None and self._skipped.size < low:
            low = max(low // BEYOND_MEASURED, 1)
        return sorted({*self.times, low, high, *_powers_between(low, high)})

    def caveats(self, curve: Curve) -> Iterator[Caveat]:
        """Yield caveats on sizes measured on a busy machine, and on sizes not measured."""
        if self._busy:
            sizes = ", ".join(map(str, sorted(self._busy)))
            which = (
                f"batch size {sizes} was" if len(self._busy) == 1 else f"batch sizes {sizes} were"
            )
            yield Caveat(
                code="busy-at-batch-size",
                message=f"this machine was busy when {which} measured; the crossover may be off",
            )
        per_step = self.loader.batches_per_step
        low, high = min(self.times) * per_step, max(self.times) * per_step
        is_beyond = curve.points[0].size < low or curve.points[-1].size > high
        if self._skipped is not None and is_beyond:
            side = f"above {high}" if curve.points[-1].size > high else f"below {low}"
            yield Caveat(
                code="batch-size-not-measured",
                message=f"batch sizes {side} were not measured on this CPU, since "
                f"{self._skipped.because}; its times there are predicted from the others",
            )


def _search_generated(
    cpu: _CpuSizes, compared: Comparison, scaled: ScaledTrace, run: GeneratedRun
) -> Crossover | NoCrossover | None:
    """Find the batch size from which the best GPU is faster than generated code.

    The result is None if generated code gains nothing at the script's own size. Its time is also
    measured at the batch size where the GPU is expected to catch up.

    Args:
        cpu: Times this CPU.
        compared: The unchanged step on every device.
        scaled: The step at every size.
        run: The measurement of generated code at the script's own size.
    """
    found = generated_step(run, compared.results[0].step_ns)
    if run.step is None or found is None or not found.is_worth_it:
        return None
    base, per_step = cpu.loader.batch_size, cpu.loader.batches_per_step
    best, host = compared.best.device, compared.host
    times = {base: run.step}
    sizes = [base * 2**power for power in range(_LARGEST.bit_length())]
    sizes = [size for size in sizes if size <= _LARGEST] or [base]
    steps = [scaled.at(size * per_step) for size in sizes]
    gpu: dict[int, Estimate] = {}
    for size, trace in zip(sizes, steps, strict=True):
        (prediction,) = predict_steps(trace, (best,), host)
        if size == base or prediction.fits is not False:
            gpu[size] = prediction.estimate
    sizes = list(gpu)
    curve = SizeCurve(times)
    meets = (size for size in sizes[1:] if gpu[size].value_ns < curve.at(size).value_ns)
    second = next(meets, sizes[-1])
    if (measured := cpu.measure_generated(second)) is not None:
        times[second] = measured
    curve = SizeCurve(times)
    # Stop at the first size at which the GPU is certainly faster.
    sure = (n for n, size in enumerate(sizes) if curve.at(size).low_ns > gpu[size].high_ns)
    sizes = sizes[: max(2, next(sure, len(sizes)) + 1)]
    on_cpu = {size: curve.at(size) for size in sorted({*sizes, *times})}
    return find_crossover(
        _curve(f"generated code on {cpu.processor}", DeviceKind.CPU, on_cpu, per_step),
        _curve(best.name, DeviceKind.GPU, {size: gpu[size] for size in sizes}, per_step),
    )


def search_scaled_sizes(step: MeasuredStep, compared: Comparison) -> SizeSearch:
    """Find the batch size from which the best GPU wins, for a script that makes its own batches.

    The recorded step is scaled along its batch dimension; the time on this CPU is extrapolated
    from the only measured size.

    Args:
        step: The unchanged step.
        compared: The unchanged step on every device.
    """
    trace = step.program.trace
    try:
        scaled = scaled_from_one(trace)
    except ScalingError as error:
        return SizeSearch(
            crossover=_none(
                "The script feeds its batches by hand, so their size cannot be set from outside, "
                f"and its recorded step cannot be scaled: {error.message}. If the script has an "
                "option for the batch size, check it at several values of that."
            )
        )
    base = scaled.first.batch_size
    assert base is not None, "a step is scaled from its batch size"
    # If a step accumulates gradients, then each of its batches has at least one sample.
    least = num_micro_batches(trace.events, trace.facts.model_calls)
    low, high = max(base // FARTHEST, least), max(min(base * FARTHEST, _LARGEST), base)
    sizes = sorted({base, *_powers_between(low - 1, high + 1)})
    steps = {size: scaled.at(size) for size in sizes}
    curves = _curves(compared, steps, {base: step.plain.measurement.estimate})
    index = compared.devices.index(compared.best.device)
    return SizeSearch(
        crossover=find_crossover(curves[0], curves[1 + index]),
        curves=curves,
        caveats=(predicted_sizes(base),),
        scaled=scaled,
    )


def predicted_sizes(base: int) -> Caveat:
    """Return the caveat on batch sizes other than the script's."""
    return Caveat(
        code="batch-sizes-predicted",
        message=f"the script feeds its batches by hand: only a batch of {base} was run. "
        "Times of this CPU at other sizes are predicted from it; the step on GPUs is scaled "
        "along its batch dimension",
    )


def _curves(
    compared: Comparison, steps: Mapping[int, StepTrace], measured: Mapping[int, Estimate]
) -> tuple[Curve, ...]:
    """Return the curves of this CPU, partly predicted, and of each GPU.

    Sizes beyond the measured ones are left out if the step does not fit the best GPU.

    Args:
        compared: The unchanged step on every device.
        steps: The step by batch size.
        measured: Times of this CPU.
    """
    devices = compared.devices
    predictions = iter(predict_steps(list(steps.values()), devices, compared.host))
    by_size = {size: [next(predictions) for _ in devices] for size in steps}
    best, largest = devices.index(compared.best.device), max(measured)
    sizes = [
        size for size, row in by_size.items() if size <= largest or row[best].fits is not False
    ]
    times = SizeCurve(measured)
    cpu = {size: times.at(size) for size in sizes}
    return (
        _curve(compared.results[0].device, DeviceKind.CPU, cpu),
        *(
            Curve(
                device=device.name,
                kind=DeviceKind.GPU,
                axis=AXIS,
                points=tuple(
                    curve_point(size, by_size[size][n].estimate, by_size[size][n].fits)
                    for size in sizes
                ),
            )
            for n, device in enumerate(devices)
        ),
    )


def _curve(
    device: str, kind: DeviceKind, times: Mapping[int, Estimate], per_step: int = 1
) -> Curve:
    points = tuple(curve_point(size * per_step, time) for size, time in times.items())
    return Curve(device=device, kind=kind, axis=AXIS, points=points)


def _powers_between(low: int, high: int) -> list[int]:
    """Return the powers of two strictly between the ends of a range."""
    return [2**power for power in range(low.bit_length(), high.bit_length()) if 2**power < high]


def _none(because: str) -> NoCrossover:
    return NoCrossover(none_because=because, axis=AXIS)


def second_size(batch_size: int, step_ns: float) -> int:
    """Return the second batch size to record, from which other sizes follow.

    It is larger if the step is short, since that records as quickly. It is never 1 if the first is
    larger: with one sample, torch uses views and other operators, for example in attention.

    Args:
        batch_size: The first recorded size.
        step_ns: Step time at that size.
    """
    is_short = step_ns < LONGEST_STEP_NS
    return batch_size * 2 if is_short or batch_size < 4 else batch_size // 2


def why_not_measured(
    expected_ns: float, expected_bytes: float, *, longest_step_ns: float = LONGEST_STEP_NS
) -> str | None:
    """Return why a step of some size is not measured here; None if it may be.

    Args:
        expected_ns: Expected step time.
        expected_bytes: Expected memory of its process.
        longest_step_ns: Limit on the step time.
    """
    if expected_ns > longest_step_ns:
        return "a step would take too long"
    if expected_bytes > _MEMORY_FRACTION * _memory_bytes():
        return "memory is short"
    return None


def _memory_bytes() -> int:
    """Return this machine's memory, or a container's limit if that is lower."""
    limits = [physical_bytes()]
    for path in _CONTAINER_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # the file is missing, or says "max"
            continue
    return min(limits)
