"""What was measured of one GPU by `breakeven calibrate`, and how predictions use it.

A file holds one GPU of one machine: what its kernels reach of the datasheet by family and
precision, what launches and copies take, and what whole steps showed beyond. A GPU with such a file
is predicted from it alone, where it says something; no other GPU's prediction changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import msgspec

from breakeven.cost.efficiency import DeviceEfficiency, EfficiencyTable, FamilyEfficiency
from breakeven.cost.host_cost import CONVOLUTION_PARTS, HostPart
from breakeven.cost.kernel import Kernel
from breakeven.cost.roofline import sustained_fraction
from breakeven.cost.step_effects import (
    EffectKey,
    Era,
    StepEffect,
    family_group,
    no_step_effects,
    units_of,
)
from breakeven.device import (
    DeviceSpec,
    DeviceWork,
    HostSpec,
    Precision,
    calibration_files,
    own_calibration_files,
)
from breakeven.errors import BreakevenError

GPU_CALIBRATION_VERSION = 1
# Kinds of effects on the work of the host that the GPU is in: on all of it, on that of one class,
# and on what a backward pass takes by itself.
OWN_HOST = "own host"
OWN_HOST_CLASS = "own host class"
OWN_BACKWARD_CALL = "own backward call"
_CONVOLUTION, _UPDATE, _OTHER = "convolution", "update", "other"


class CalibratedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when a GPU was measured.

    Args:
        gpu: The GPU, as its driver calls it.
        processor: The CPU, as the operating system calls it.
        num_cores: Processors that the measurement could use.
        system: Operating system.
        driver: Driver and libraries of the GPU: CUDA, cuDNN, ROCm.
        torch_version: torch that issued the work.
        python_version: Python that ran it.
        breakeven_version: breakeven that measured.
        date: Day of the measurement, ISO 8601.
    """

    gpu: str
    processor: str
    num_cores: int
    system: str
    driver: str
    torch_version: str
    python_version: str
    breakeven_version: str
    date: str


class PrecisionEfficiency(FamilyEfficiency, frozen=True, kw_only=True):
    """How far the GPU gets in one family of kernels at one precision.

    Args:
        precision: Arithmetic of the measured kernels.
    """

    precision: Precision


class MeasuredLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to reach the GPU. Times in nanoseconds.

    Args:
        queued_ns: Host time of one small operator that is not waited for.
        waited_ns: The same with a wait for it.
        sync_ns: Host time of a wait for an idle GPU.
        period_ns: From one small kernel to the next where the queue is full.
    """

    queued_ns: float
    waited_ns: float
    sync_ns: float
    period_ns: float


class MeasuredCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from host memory to the GPU, of one kind.

    Args:
        is_pinned: Whether the host memory is page-locked.
        least_ns: The shortest one.
        fixed_ns: Time that does not grow with the size.
        bytes_per_s: Rate of the rest.
    """

    is_pinned: bool
    least_ns: float
    fixed_ns: float
    bytes_per_s: float

    def time_ns(self, num_bytes: float) -> float:
        """Return the time of a copy of so many bytes."""
        if num_bytes <= 0:
            return 0.0
        return max(self.least_ns, self.fixed_ns + 1e9 * num_bytes / self.bytes_per_s)


class MeasuredSample(msgspec.Struct, frozen=True, kw_only=True):
    """One timed call.

    Args:
        name: What was called, with its sizes: ``linear 512x512x512``.
        precision: ``fp32``, ``tf32``, ``bf16``, ``fp16`` or ``fp64``.
        time_ns: Median of the time on the GPU; of copies and launches as the host sees it.
        spread: 90th over tenth percentile.
        num_calls: Calls that the median is of.
    """

    name: str
    precision: Precision
    time_ns: float
    spread: float
    num_calls: int


class CalibrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One whole training step that was timed.

    Args:
        workload: As in tables of ``breakeven validate``, as are the next four.
        batch_size: Samples per step.
        precision: How numbers are stored and multiplied.
        optimizer: Its name.
        compile: Mode of ``torch.compile``, or ``none``.
        time_ns: Median of the steps.
        issue_ns: Host time to issue a step that is not waited for, the median.
        spread: 90th over tenth percentile.
        num_steps: Steps that the median is of.
    """

    workload: str
    batch_size: int
    precision: str
    optimizer: str
    compile: str
    time_ns: float
    issue_ns: float
    spread: float
    num_steps: int


class GpuCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured of one GPU.

    Args:
        version: Of this format.
        device: Its id: the catalogue's, or one of its own.
        machine: Where and when.
        is_quick: Whether the short list of samples was measured.
        launch: What it takes to reach it; None where that was not measured.
        families: Efficiencies, one for each family, variant, units and precision.
        effects: What whole steps took beyond that, as factors.
        copies: Copies to it.
        samples: What was timed; the above is fitted to it.
        steps: Whole steps that were timed.
        left_out: What did not run, and why.
        spec: Its figures where the catalogue has none, from this measurement.
    """

    version: int
    device: str
    machine: CalibratedMachine
    is_quick: bool
    launch: MeasuredLaunch | None
    families: tuple[PrecisionEfficiency, ...]
    effects: tuple[StepEffect, ...] = ()
    copies: tuple[MeasuredCopy, ...] = ()
    samples: tuple[MeasuredSample, ...] = ()
    steps: tuple[CalibrationStep, ...] = ()
    left_out: tuple[str, ...] = ()
    spec: DeviceSpec | None = None


def read_calibration(document: bytes, name: str) -> GpuCalibration:
    """Return the calibration in a file.

    Args:
        document: Its bytes.
        name: Its name, for messages.

    Raises:
        BreakevenError: It is no calibration, or one of another version.
    """
    hint = "measure it again: breakeven calibrate --force; or remove the file"
    try:
        calibration = msgspec.json.decode(document, type=GpuCalibration)
    except msgspec.MsgspecError as error:
        raise BreakevenError(f"{name} is no calibration of a GPU: {error}", hint=hint) from None
    if calibration.version != GPU_CALIBRATION_VERSION:
        raise BreakevenError(
            f"{name} has version {calibration.version}, this breakeven reads "
            f"{GPU_CALIBRATION_VERSION}",
            hint=hint,
        )
    return calibration


@cache
def load_calibrations(*, is_own: bool = False) -> Mapping[str, GpuCalibration]:
    """Return the calibrated GPUs by id: those that ship, and before them the user's own.

    Args:
        is_own: The user's own alone.

    Raises:
        BreakevenError: A file is damaged, or of another version.
    """
    found: dict[str, GpuCalibration] = {}
    for name, document in own_calibration_files() if is_own else calibration_files():
        calibration = read_calibration(document, name)
        found[calibration.device] = calibration
    return found


def calibrated_table(
    base: EfficiencyTable, calibration: GpuCalibration, device: DeviceSpec, precision: Precision
) -> EfficiencyTable:
    """Return the efficiencies for kernels of one precision on a calibrated GPU.

    What it was not measured in comes from the other devices of the table, or from other precisions
    of its own where its units are the same.

    Args:
        base: Efficiencies of other devices.
        calibration: Of this GPU.
        device: The GPU.
        precision: Of the kernels.
    """
    known = next((item for item in base.devices if item.device == device.id), None)
    ranked = (
        *(entry for entry in calibration.families if entry.precision == precision),
        *(entry for entry in calibration.families if entry.precision != precision),
        *(known.families if known else ()),
    )
    chosen: dict[tuple[str, str, str], FamilyEfficiency] = {}
    for entry in ranked:
        chosen.setdefault((entry.family, entry.variant, entry.arithmetic), entry)
    own = DeviceEfficiency(
        device=device.id,
        chip=device.chip,
        launch_generation=device.launch_generation,
        sustained_fraction=sustained_fraction(device),
        families=tuple(chosen.values()),
        source=f"calibrated on {calibration.machine.date}",
    )
    others = (item for item in base.devices if item.device != device.id)
    return msgspec.structs.replace(base, devices=(own, *others))


def own_host_keys(part: HostPart) -> tuple[EffectKey, ...]:
    """Return the effects on a kind of work of the host that the GPU is in."""
    if part is HostPart.BACKWARD_CALL:
        return ((OWN_HOST,), (OWN_BACKWARD_CALL,))
    kind = _OTHER
    if part in CONVOLUTION_PARTS:
        kind = _CONVOLUTION
    elif part in (HostPart.FOREACH, HostPart.FOREACH_TENSORS):
        kind = _UPDATE
    return ((OWN_HOST,), (OWN_HOST_CLASS, kind))


def host_with_steps(host: HostSpec, calibration: GpuCalibration) -> HostSpec:
    """Return the host that a calibrated GPU is in, with what whole steps showed of it.

    Args:
        host: Measured, without any such steps.
        calibration: Of its GPU.
    """
    effects = msgspec.structs.replace(no_step_effects(), effects=calibration.effects)

    def factor(*keys: EffectKey) -> float:
        return math.exp(effects.log_factor(((OWN_HOST,), *keys)))

    other = factor((OWN_HOST_CLASS, _OTHER))
    # A backward pass is scaled with the other work.
    call = factor((OWN_BACKWARD_CALL,)) / other
    handoff_ns = call * (host.backward_call_ns + host.seen_work.handoff_ns) - host.backward_call_ns
    return msgspec.structs.replace(
        host,
        forward_factor=host.forward_factor * other,
        backward_factor=host.backward_factor * other,
        optimizer_factor=host.optimizer_factor * factor((OWN_HOST_CLASS, _UPDATE)),
        device_work=DeviceWork(
            handoff_ns=max(handoff_ns, 0.0),
            convolution_factor=factor((OWN_HOST_CLASS, _CONVOLUTION)) / other,
            has_steps=True,
        ),
    )


def calibrated_effect_keys(
    kernel: Kernel, device: DeviceSpec, *, era: Era
) -> tuple[EffectKey, ...]:
    """Return the effects of steps on a kernel that a calibrated GPU shares with all others.

    What a chip or a generation differs in was measured.

    Args:
        kernel: The kernel.
        device: The GPU.
        era: Software.
    """
    group, units = family_group(kernel), units_of(kernel, device)
    family = f"{kernel.family} {kernel.variant}".strip()
    return (("class", family, units), ("units", group, units), ("units+era", group, units, era))


def own_effect_keys(kernel: Kernel, device: DeviceSpec) -> tuple[EffectKey, ...]:
    """Return the effects on a kernel that the calibrated GPU's own steps may have shown."""
    group, units = family_group(kernel), units_of(kernel, device)
    return (("gpu",), ("gpu+units", group, units))
