"""Calibrate a GPU: measure in order, store, fit."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
from msgspec.structs import replace

from breakeven.calibrate.fit import fit_factors, fit_families
from breakeven.calibrate.gpu.machine import (
    STAND_IN,
    check_gpu,
    describe_machine,
    fit_copies,
    has_tf32,
    measure_copies,
    measure_launch,
    own_spec,
)
from breakeven.calibrate.gpu.samples import (
    PRECISIONS,
    Sample,
    all_samples,
    sample_kernels,
    time_sample,
    timed_kernel,
)
from breakeven.calibrate.gpu.steps import (
    EAGER,
    WantedStep,
    all_steps,
    fit_steps,
    time_step,
)
from breakeven.capture import FakeSession
from breakeven.cost import (
    GPU_CALIBRATION_VERSION,
    CalibratedMachine,
    CalibrationStep,
    GpuCalibration,
    Kernel,
    MeasuredLaunch,
    MeasuredSample,
    StepEffect,
)
from breakeven.device import HostSpec, Precision, known_device
from breakeven.errors import BreakevenError
from breakeven.measure import DeviceTimer
from breakeven.progress import Progress
from breakeven.store import CALIBRATIONS, code_digest, machine_lock

FULL_S = 360.0
QUICK_S = 60.0
# Seconds reserved for the fit at the end, by whether the calibration is quick.
_FIT_S = {True: 15.0, False: 40.0}
_SAMPLE_S = 0.5
_REACH_S = 4.0
_BAR_CHARACTERS = 16
# Phrases of torch and its libraries, in lower case.
_NO_MEMORY = ("out of memory", "outofmemory", "alloc_failed")
# Packages whose code affects the measurements.
_MEASURING = ("calibrate", "measure", "workloads")


class Measured(msgspec.Struct, kw_only=True):
    """Measurements so far, in the order in which they were taken.

    Args:
        launch: The cost of reaching the GPU.
        samples: Calls by name and precision.
        copies: Copies to the GPU, by name.
        steps: Whole steps, by name.
        failed: Reasons of failed measurements, by the same names.
        asked: Name of the measurement in progress.
    """

    launch: MeasuredLaunch | None = None
    samples: dict[str, MeasuredSample] = {}
    copies: dict[str, MeasuredSample] = {}
    steps: dict[str, CalibrationStep] = {}
    failed: dict[str, str] = {}
    asked: str = ""

    @property
    def num_taken(self) -> int:
        """Number of samples, copies and steps."""
        return len(self.samples) + len(self.copies) + len(self.steps)

    def is_known(self, name: str) -> bool:
        """Return whether a measurement was taken, or has failed."""
        known = {"launch": self.launch is not None, "copies": bool(self.copies)}
        return known.get(name, False) or any(
            name in some for some in (self.failed, self.samples, self.steps)
        )

    def take_up(self) -> None:
        """Resume after the last process; a measurement that ended it counts as failed."""
        self.failed = {name: why for name, why in self.failed.items() if is_for_good(why)}
        if self.asked:
            # An abort, as Metal's when it cannot compile something, leaves no other trace.
            self.failed[self.asked] = "breakeven was ended while it was measured"
        self.asked = ""


def reason_of(error: Exception) -> str:
    """Return in one line why a measurement failed."""
    first_line = str(error).strip().partition("\n")[0]
    kind = "" if isinstance(error, BreakevenError) else f"{type(error).__name__}: "
    return f"{kind}{first_line}"[:200]


def is_for_good(reason: str) -> bool:
    """Return whether a failure is permanent; one for lack of memory may be temporary."""
    return not any(sign in reason.casefold() for sign in _NO_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One measurement to take.

    Args:
        name: A unique name.
        stage: Its stage, for the progress display.
        measure: Takes the measurement and stores the result.
        about_s: Estimated duration in seconds.
    """

    name: str
    stage: str
    measure: Callable[[], None]
    about_s: float


def measure_items(
    items: Sequence[Item],
    progress: Progress,
    *,
    is_known: Callable[[str], bool],
    ask: Callable[[str], None],
    failed: Callable[[str, Exception], None],
    now_s: Callable[[], float],
    until_s: float,
) -> int:
    """Take the measurements in order, and return how many did not fit into the time.

    Items of a stage are assumed to be as slow, relative to their estimates, as its slowest so far.

    Args:
        items: The most informative first.
        progress: Receives each stage, and each item as a detail with a bar.
        is_known: Whether an item was measured before.
        ask: Called with each item's name before its measurement.
        failed: Called with the name and error of each failed item.
        now_s: Clock, in seconds.
        until_s: Deadline on that clock.
    """
    num_left, stage = 0, ""
    slowness: dict[str, float] = {}
    for number, item in enumerate(items):
        if is_known(item.name):
            continue
        begun_s = now_s()
        slowest = slowness.get(item.stage, 1.0)
        if begun_s + slowest * item.about_s > until_s:
            num_left += 1
            continue
        if item.stage != stage:
            stage = item.stage
            progress.begin(stage)
        bar = ("█" * round(_BAR_CHARACTERS * number / len(items))).ljust(_BAR_CHARACTERS, "░")
        progress.detail(f"{bar} {number + 1} of {len(items)} {item.name}")
        ask(item.name)
        try:
            item.measure()
        except Exception as error:  # the device or its library refuses it
            failed(item.name, error)
        slowness[item.stage] = max(slowest, (now_s() - begun_s) / item.about_s)
    return num_left


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A requested calibration.

    Args:
        device: The GPU.
        is_quick: Measure only the short list, in a minute.
        is_forced: Measure again even if stored.
        is_tiny: Use sizes that a CPU computes instantly, for tests.
        budget_s: Seconds for everything; the default depends on ``is_quick``.
    """

    device: torch.device
    is_quick: bool = False
    is_forced: bool = False
    is_tiny: bool = False
    budget_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """A calibration and how it was made.

    Args:
        calibration: The calibration for predictions.
        num_new: Number of measurements that this command took.
        num_left: Number of measurements that did not fit into the time.
    """

    calibration: GpuCalibration
    num_new: int
    num_left: int


def calibrate_gpu(
    request: GpuRequest,
    progress: Progress,
    *,
    host: HostSpec | None = None,
    begun_s: float | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> GpuResult:
    """Measure a GPU, except for stored measurements; an interrupt loses none.

    Args:
        request: The GPU, and how thoroughly to measure it.
        progress: Progress callback.
        host: The machine, measured; without it, steps are timed but not fitted.
        begun_s: Start of the budget on the clock; now by default.
        now_s: Clock, in seconds.

    Raises:
        BreakevenError: If the GPU computes nothing, or too little could be measured.
    """
    begun_s = now_s() if begun_s is None else begun_s
    progress.begin("starting the GPU")
    check_gpu(request.device)
    machine = describe_machine(request.device)
    # Stored measurements are valid for one machine, its software, and the code that measures.
    facts = msgspec.to_builtins(machine)
    del facts["date"]
    key = {name: str(value) for name, value in facts.items()} | {
        "measuring": code_digest(*_MEASURING),
        "sizes": "tiny" if request.is_tiny else "usual",
    }
    budget_s = request.budget_s or (QUICK_S if request.is_quick else FULL_S)
    waiting = "waiting for another breakeven process, which is measuring"
    asked_s = now_s()
    with machine_lock(partial(progress.detail, waiting)):
        begun_s += now_s() - asked_s
        known = None if request.is_forced else CALIBRATIONS.read(key, Measured)
        measured = Measured() if known is None else known
        measured.take_up()
        num_known = measured.num_taken

        def ask(name: str) -> None:
            # Store the name first: the measurement may end this process.
            measured.asked = name
            CALIBRATIONS.write(key, measured)

        def note_failure(name: str, error: Exception) -> None:
            reason = measured.failed[name] = reason_of(error)
            try:
                check_gpu(request.device)
            except BreakevenError as lost:
                if is_for_good(lost.message):
                    raise BreakevenError(
                        f"the GPU stopped answering at {name}: {reason}",
                        hint="run breakeven calibrate again: it continues after that",
                    ) from error

        try:
            num_left = measure_items(
                list(_items(request, measured)),
                progress,
                is_known=measured.is_known,
                ask=ask,
                failed=note_failure,
                now_s=now_s,
                until_s=begun_s + budget_s - _FIT_S[request.is_quick],
            )
        finally:
            ask("")  # the last measurement did not end this process
    progress.begin("fitting what was measured")
    calibration = fit_calibration(request, machine, measured, num_left, host)
    progress.end()
    return GpuResult(
        calibration=calibration, num_new=measured.num_taken - num_known, num_left=num_left
    )


def _items(request: GpuRequest, measured: Measured) -> Iterator[Item]:
    timer = DeviceTimer(request.device)

    def reach() -> None:
        measured.launch = measure_launch(timer)

    def copies() -> None:
        for sample in measure_copies(timer, is_tiny=request.is_tiny):
            measured.copies[sample.name] = sample

    stage = "measuring launches and copies"
    yield Item(name="launch", stage=stage, measure=reach, about_s=_REACH_S)
    yield Item(name="copies", stage=stage, measure=copies, about_s=_REACH_S)
    for sample, precision in wanted_samples(request):
        name = sample_name(sample, precision)

        def time_one(
            name: str = name, sample: Sample = sample, precision: Precision = precision
        ) -> None:
            measured.samples[name] = time_sample(sample, precision, timer)

        stage = f"measuring kernels in {precision}"
        yield Item(name=name, stage=stage, measure=time_one, about_s=_SAMPLE_S)
    for step in all_steps(is_tiny=request.is_tiny):
        if request.is_quick and not step.is_quick:
            continue

        def time_whole(step: WantedStep = step) -> None:
            measured.steps[step.name] = time_step(step, timer)

        stage = f"measuring {'whole' if step.compile == EAGER else 'compiled'} steps"
        yield Item(name=step.name, stage=stage, measure=time_whole, about_s=step.about_s)


def wanted_samples(request: GpuRequest) -> list[tuple[Sample, Precision]]:
    """Return the samples to take: the short list first, then by precision."""
    samples = all_samples(is_tiny=request.is_tiny)
    precisions = list(PRECISIONS)
    if not has_tf32(request.device):
        precisions.remove(Precision.TF32)  # it would repeat fp32
    return [
        (sample, precision)
        for is_quick in ((True,) if request.is_quick else (True, False))
        for precision in precisions
        for sample in samples
        if sample.is_quick is is_quick and precision in sample.precisions
    ]


def sample_name(sample: Sample, precision: Precision) -> str:
    """Return the name of a sample at a precision."""
    return f"{sample.name} {precision}"


def fit_calibration(
    request: GpuRequest,
    machine: CalibratedMachine,
    measured: Measured,
    num_left: int,
    host: HostSpec | None,
) -> GpuCalibration:
    """Fit the calibration for predictions to the measurements.

    Args:
        request: The request.
        machine: The machine of the measurements.
        measured: The measurements.
        num_left: Number of measurements that did not fit into the time.
        host: The machine, measured; None if it was not.

    Raises:
        BreakevenError: If there are too few measurements.
    """
    rows: list[tuple[Sample, float, tuple[Kernel, ...]]] = []
    with FakeSession() as session:
        for sample in all_samples(is_tiny=request.is_tiny):
            for precision in Precision:
                found = measured.samples.get(sample_name(sample, precision))
                if found is not None:
                    kernels = sample_kernels(sample, precision, session)
                    rows.append((sample, found.time_ns, kernels))
    copies = fit_copies(tuple(measured.copies.values()))
    known = None if request.device.type == STAND_IN else known_device(machine.gpu)
    spec = known or own_spec(
        request.device,
        machine,
        [(kernels[0], time_ns) for _, time_ns, kernels in rows if len(kernels) == 1],
        copy_bytes_per_s=max((copy.bytes_per_s for copy in copies), default=None),
    )
    timed = list(filter(None, (timed_kernel(*row, spec) for row in rows)))
    left_out = tuple(f"{name}: {why}" for name, why in measured.failed.items())
    if num_left:
        left_out += (f"{num_left} measurements, for lack of time",)
    calibration = GpuCalibration(
        version=GPU_CALIBRATION_VERSION,
        device=spec.id,
        machine=machine,
        is_quick=request.is_quick,
        launch=measured.launch,
        families=fit_families(timed),
        copies=copies,
        samples=(*measured.samples.values(), *measured.copies.values()),
        steps=tuple(measured.steps.values()),
        left_out=left_out,
        spec=spec if known is None else None,
    )
    calibration = replace(calibration, effects=fit_factors(timed, calibration))
    if host is None:
        return calibration
    try:
        shown = fit_steps(calibration.steps, calibration, spec, host)
    except BreakevenError as error:  # for example on Windows, which cannot trace steps
        untold = f"what whole steps show: {error.message}"
        return replace(calibration, left_out=(*left_out, untold))
    # Effects with one key add up.
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for effect in (*calibration.effects, *shown):
        sums[effect.kind, *effect.of] += effect.log_factor
    effects = (
        StepEffect(kind=kind, of=tuple(of), log_factor=round(value, 4))
        for (kind, *of), value in sorted(sums.items())
    )
    return replace(calibration, effects=tuple(effects))
