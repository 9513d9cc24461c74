"""A GPU's calibration: what is measured in which order, kept, and fitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from breakeven.calibrate.fit import fit_factors, fit_families
from breakeven.calibrate.gpu.machine import (
    COPY,
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
    SampleKernels,
    all_samples,
    time_sample,
    timed_kernel,
)
from breakeven.calibrate.gpu.steps import (
    EAGER,
    WantedStep,
    all_steps,
    fit_steps,
    time_step,
    wanted_step,
)
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
from breakeven.store import code_digest, machine_lock, read_calibrating, write_calibrating


class Measured(msgspec.Struct, kw_only=True):
    """Measurements so far, in the order in which they were taken.

    Args:
        launch: What it takes to reach the GPU.
        samples: Calls by name and precision.
        copies: Copies to the GPU, by name.
        steps: Whole steps, by name.
        failed: What did not run, and why, by the same names.
        asked: What is being measured, while it is.
        ended: What the process did not survive, once.
    """

    launch: MeasuredLaunch | None = None
    samples: dict[str, MeasuredSample] = {}
    copies: dict[str, MeasuredSample] = {}
    steps: dict[str, CalibrationStep] = {}
    failed: dict[str, str] = {}
    asked: str = ""
    ended: list[str] = []


# As torch and its libraries say it, in lower case.
_NO_MEMORY = ("out of memory", "outofmemory", "alloc_failed")
# A library that aborts, as Metal's does of what it cannot compile, leaves nothing else behind.
_ENDED = "breakeven was ended twice while it was measured"
# Packages whose code decides what is measured.
_MEASURING = ("calibrate", "measure", "workloads")


def machine_key_of(machine: CalibratedMachine) -> dict[str, str]:
    """Return what measurements hold for: machine, software, and the code that measures."""
    facts = msgspec.to_builtins(machine)
    del facts["date"]
    told = {name: str(value) for name, value in facts.items()}
    return told | {"measuring": code_digest(*_MEASURING)}


def reason_of(error: Exception) -> str:
    """Return in a line why something could not be measured."""
    first_line = str(error).strip().partition("\n")[0]
    kind = "" if isinstance(error, BreakevenError) else f"{type(error).__name__}: "
    return f"{kind}{first_line}"[:200]


def is_for_good(reason: str) -> bool:
    """Return whether what failed will fail again; memory that others had may be free then."""
    return not any(sign in reason.casefold() for sign in _NO_MEMORY)


@dataclass(kw_only=True)
class Kept:
    """Measurements that are written before each further one.

    Args:
        measured: Those so far.
        write: Keeps them.
    """

    measured: Measured
    write: Callable[[Measured], None]

    def take_up(self) -> None:
        """Go on where the last process ended: what it did not survive is asked once more."""
        measured, asked = self.measured, self.measured.asked
        measured.failed = {name: why for name, why in measured.failed.items() if is_for_good(why)}
        if asked in measured.ended:
            measured.failed[asked] = _ENDED
        elif asked:
            measured.ended.append(asked)
        measured.asked = ""

    def ask(self, name: str) -> None:
        """Note what is about to be measured, for the case that this process does not survive it."""
        self.measured.asked = name
        self.write(self.measured)

    def close(self) -> None:
        """Write what there is: whatever was asked last, this process has survived it."""
        self.measured.asked = ""
        self.write(self.measured)


_BAR_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to measure.

    Args:
        name: Unique.
        stage: What it is part of, for a person.
        measure: Does it, and keeps what came of it.
        about_s: How long it may take.
    """

    name: str
    stage: str
    measure: Callable[[], None]
    about_s: float


class Plan:
    """Measures items in turn until they are done or the time is over.

    Items of a stage are taken to be as slow as the slowest of them so far.

    Args:
        items: The most telling first.
        is_known: Whether an item was measured before.
        failed: Called with what did not run, and why.
        now_s: Clock, in seconds.
        until_s: When the time is over.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        is_known: Callable[[str], bool],
        failed: Callable[[str, Exception], None],
        now_s: Callable[[], float],
        until_s: float,
    ) -> None:
        self._items = items
        self._is_known = is_known
        self._failed = failed
        self._now_s = now_s
        self._until_s = until_s

    def run(
        self,
        begin: Callable[[str], None],
        detail: Callable[[str], None],
        before: Callable[[str], None],
    ) -> int:
        """Return how many items were left out since the time was over.

        Args:
            begin: Told of each stage.
            detail: Told of each item, with a bar.
            before: Called with each item's name before it is measured.
        """
        num_left, stage = 0, ""
        slowness: dict[str, float] = {}
        for number, item in enumerate(self._items):
            if self._is_known(item.name):
                continue
            begun_s = self._now_s()
            slowest = slowness.get(item.stage, 1.0)
            if begun_s + slowest * item.about_s > self._until_s:
                num_left += 1
                continue
            if item.stage != stage:
                stage = item.stage
                begin(stage)
            detail(f"{_bar(number, len(self._items))} {item.name}")
            before(item.name)
            try:
                item.measure()
            except Exception as error:
                # What the device or its library refuses is left out, naming it.
                self._failed(item.name, error)
            slowness[item.stage] = max(slowest, (self._now_s() - begun_s) / item.about_s)
        return num_left


def _bar(num_done: int, num_all: int) -> str:
    filled = round(_BAR_CHARACTERS * num_done / num_all)
    return f"{'█' * filled}{'░' * (_BAR_CHARACTERS - filled)} {num_done + 1} of {num_all}"


FULL_S = 360.0
QUICK_S = 60.0
# Kept for the fit at the end.
_FIT_S = {True: 15.0, False: 40.0}
_SAMPLE_S = 0.5
_REACH_S = 4.0
_WAITING = "waiting for another breakeven process, which is measuring"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """What is asked for.

    Args:
        device: The GPU.
        is_quick: The short list alone, in a minute.
        has_fp64: Products and convolutions in fp64 too.
        is_forced: Measure anew what is known.
        is_tiny: Sizes that a CPU computes in no time, for tests.
        budget_s: Seconds for all; by whether it is quick by default.
    """

    device: torch.device
    is_quick: bool = False
    has_fp64: bool = False
    is_forced: bool = False
    is_tiny: bool = False
    budget_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """What came of it.

    Args:
        calibration: What predictions use.
        num_new: Measurements taken by this very command.
        num_left: Measurements for which there was no time.
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
    """Measure a GPU, or what is not measured of it yet.

    What was measured is kept when this is interrupted.

    Args:
        request: Which GPU, and how thoroughly.
        progress: Progress callback.
        host: The machine, measured; without it steps are timed, and nothing is fitted to them.
        begun_s: When the time began that there is for all; now by default.
        now_s: Clock, in seconds.

    Raises:
        BreakevenError: The GPU computes nothing, or too little could be measured.
    """
    begun_s = now_s() if begun_s is None else begun_s
    progress.begin("starting the GPU")
    check_gpu(request.device)
    machine = describe_machine(request.device)
    key = {**machine_key_of(machine), "sizes": "tiny" if request.is_tiny else "usual"}
    budget_s = request.budget_s or (QUICK_S if request.is_quick else FULL_S)
    asked_s = now_s()
    with machine_lock(partial(progress.detail, _WAITING)):
        begun_s += now_s() - asked_s
        known = None if request.is_forced else read_calibrating(key, Measured)
        kept = Kept(measured=known or Measured(), write=partial(write_calibrating, key))
        kept.take_up()
        measured = kept.measured
        num_known = _num_measured(measured)
        plan = Plan(
            tuple(_items(request, measured)),
            is_known=partial(_is_known, measured),
            failed=partial(_note_failure, measured, request.device),
            now_s=now_s,
            until_s=begun_s + budget_s - _FIT_S[request.is_quick],
        )
        try:
            num_left = plan.run(progress.begin, progress.detail, kept.ask)
        finally:
            kept.close()
    progress.begin("fitting what was measured")
    calibration = fit_calibration(request, machine, measured, num_left, host)
    progress.end()
    return GpuResult(
        calibration=calibration, num_new=_num_measured(measured) - num_known, num_left=num_left
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

    def time_one(name: str, sample: Sample, precision: Precision) -> None:
        measured.samples[name] = time_sample(sample, precision, timer)

    for sample, precision in wanted_samples(request):
        name = sample_name(sample, precision)
        yield Item(
            name=name,
            stage=f"measuring kernels in {precision}",
            measure=partial(time_one, name, sample, precision),
            about_s=_SAMPLE_S,
        )

    def time_whole(step: WantedStep) -> None:
        measured.steps[step.name] = time_step(step, timer)

    for step in all_steps(is_tiny=request.is_tiny):
        if request.is_quick and not step.is_quick:
            continue
        yield Item(
            name=step.name,
            stage=f"measuring {'whole' if step.compile == EAGER else 'compiled'} steps",
            measure=partial(time_whole, step),
            about_s=step.about_s,
        )


def wanted_samples(request: GpuRequest) -> list[tuple[Sample, Precision]]:
    """Return the samples to take, the short list first, precision by precision."""
    wanted: list[tuple[Sample, Precision]] = []
    samples = all_samples(is_tiny=request.is_tiny)
    precisions = [*PRECISIONS, Precision.FP64]
    if not has_tf32(request.device):
        precisions.remove(Precision.TF32)  # it would be fp32 once more
    for is_quick in (True,) if request.is_quick else (True, False):
        some = [sample for sample in samples if sample.is_quick is is_quick]
        for precision in precisions:
            wanted += [
                (sample, precision)
                for sample in some
                if precision in sample.precisions
                or (precision is Precision.FP64 and request.has_fp64 and sample.has_fp64)
            ]
    return wanted


def sample_name(sample: Sample, precision: Precision) -> str:
    """Return the name of a sample at a precision."""
    return f"{sample.name} {precision}"


def _is_known(measured: Measured, name: str) -> bool:
    if name in measured.failed:
        return True
    if name == "launch":
        return measured.launch is not None
    if name == "copies":
        return bool(measured.copies)
    return name in measured.samples or name in measured.steps


def _num_measured(measured: Measured) -> int:
    return len(measured.samples) + len(measured.copies) + len(measured.steps)


def _note_failure(measured: Measured, device: torch.device, name: str, error: Exception) -> None:
    """Keep why something did not run; a device that answers no more ends the calibration.

    It did before, so that what it was asked last is not asked again.

    Raises:
        BreakevenError: It answers no more.
    """
    reason = measured.failed[name] = reason_of(error)
    try:
        check_gpu(device)
    except BreakevenError as lost:
        if is_for_good(lost.message):
            raise BreakevenError(
                f"the GPU answers no more since {name}: {reason}",
                hint="run breakeven calibrate again: it goes on behind that",
            ) from error


def fit_calibration(
    request: GpuRequest,
    machine: CalibratedMachine,
    measured: Measured,
    num_left: int,
    host: HostSpec | None,
) -> GpuCalibration:
    """Return what predictions use of what was measured.

    Args:
        request: What was asked for.
        machine: Where.
        measured: What was measured.
        num_left: Measurements for which there was no time.
        host: The machine, measured, if it was.

    Raises:
        BreakevenError: It is too little.
    """
    rows: list[tuple[Sample, MeasuredSample, tuple[Kernel, ...]]] = []
    with SampleKernels() as kernels:
        for sample in all_samples(is_tiny=request.is_tiny):
            for precision in Precision:
                found = measured.samples.get(sample_name(sample, precision))
                if found is not None:
                    rows.append((sample, found, kernels.of(sample, precision)))
    copies = fit_copies(tuple(measured.copies.values()))
    known = None if request.device.type == STAND_IN else known_device(machine.gpu)
    spec = known or own_spec(
        request.device,
        machine,
        [(some[0], found.time_ns) for _, found, some in rows if len(some) == 1],
        copy_bytes_per_s=max((copy.bytes_per_s for copy in copies), default=None),
    )
    timed = [
        kernel
        for sample, found, some in rows
        if (kernel := timed_kernel(sample, found, some, spec)) is not None
    ]
    left_out = tuple(f"{name}: {why}" for name, why in measured.failed.items())
    if num_left:
        left_out += (f"{num_left} measurements for which there was no time",)
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
    calibration = msgspec.structs.replace(calibration, effects=fit_factors(timed, calibration))
    if host is None:
        return calibration
    try:
        shown = fit_steps(calibration.steps, calibration, spec, host)
    except BreakevenError as error:  # as on Windows, where no steps are traced
        untold = f"what whole steps show: {error.message}"
        return msgspec.structs.replace(calibration, left_out=(*left_out, untold))
    return msgspec.structs.replace(calibration, effects=_together(calibration.effects, shown))


def measured_of(calibration: GpuCalibration) -> Measured:
    """Return the measurements that a calibration was fitted to."""
    samples = [one for one in calibration.samples if not one.name.startswith(COPY)]
    return Measured(
        launch=calibration.launch,
        samples={f"{one.name} {one.precision}": one for one in samples},
        copies={one.name: one for one in calibration.samples if one.name.startswith(COPY)},
        steps={wanted_step(one).name: one for one in calibration.steps},
    )


def _together(*effects: Iterable[StepEffect]) -> tuple[StepEffect, ...]:
    """Return effects with those of one key as one."""
    sums: dict[tuple[str, ...], float] = {}
    for effect in (one for some in effects for one in some):
        key = (effect.kind, *effect.of)
        sums[key] = sums.get(key, 0.0) + effect.log_factor
    return tuple(
        StepEffect(kind=key[0], of=key[1:], log_factor=round(value, 4))
        for key, value in sorted(sums.items())
    )
