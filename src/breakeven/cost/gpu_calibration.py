"""The measurements of one GPU by `breakeven calibrate`, and their use in predictions.

A file holds one GPU of one machine: its efficiency by family and precision, its launch and copy
times, and the effects that whole steps showed. A GPU with such a file is predicted from it alone,
as far as the file goes; predictions of other GPUs do not change.
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
# Kinds of effects on the work of the GPU's own host: on all of it, on one class of it, and on the
# fixed cost of a backward pass.
OWN_HOST = "own host"
OWN_HOST_CLASS = "own host class"
OWN_BACKWARD_CALL = "own backward call"
_CONVOLUTION, _UPDATE, _OTHER = "convolution", "update", "other"


class CalibratedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and date of a GPU's measurement.

    Args:
        gpu: The GPU, as its driver names it.
        processor: The CPU, as the operating system names it.
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
    """The efficiency of the GPU in one family of kernels at one precision.

    Args:
        precision: Arithmetic of the measured kernels.
    """

    precision: Precision


class MeasuredLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Time to reach the GPU. Times in nanoseconds.

    Args:
        queued_ns: Host time of one small operator without a wait for it.
        waited_ns: The same with a wait for it.
        sync_ns: Host time of a wait for an idle GPU.
        period_ns: From one small kernel to the next while the queue is full.
    """

    queued_ns: float
    waited_ns: float
    sync_ns: float
    period_ns: float


class MeasuredCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from host memory to the GPU, of one kind.

    Args:
        is_pinned: Whether the host memory is page-locked.
        least_ns: Time of the shortest copy.
        fixed_ns: Part of the time that does not depend on the size.
        bytes_per_s: Rate of the rest.
    """

    is_pinned: bool
    least_ns: float
    fixed_ns: float
    bytes_per_s: float

    def time_ns(self, num_bytes: float) -> float:
        """Return the time of a copy of ``num_bytes``."""
        if num_bytes <= 0:
            return 0.0
        return max(self.least_ns, self.fixed_ns + 1e9 * num_bytes / self.bytes_per_s)


class MeasuredSample(msgspec.Struct, frozen=True, kw_only=True):
    """One timed call.

    Args:
        name: The call, with its sizes: ``linear 512x512x512``.
        precision: ``fp32``, ``tf32``, ``bf16``, ``fp16`` or ``fp64``.
        time_ns: Median of the time on the GPU; for copies and launches, of the host's time.
        spread: 90th over tenth percentile.
        num_calls: Calls behind the median.
    """

    name: str
    precision: Precision
    time_ns: float
    spread: float
    num_calls: int


class CalibrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One whole training step that was measured.

    Args:
        workload: As in tables of ``breakeven validate``, as are the next four.
        batch_size: Samples per step.
        precision: Storage and arithmetic of numbers.
        optimizer: Its name.
        compile: Mode of ``torch.compile``, or ``none``.
        time_ns: Median of the steps.
        issue_ns: Median host time to issue a step without a wait for it.
        spread: 90th over tenth percentile.
        num_steps: Steps behind the median.
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
    """All measurements of one GPU.

    Args:
        version: Version of this format.
        device: Its id: the catalogue's, or its own.
        machine: Machine and date.
        is_quick: Whether the short list of samples was measured.
        launch: Times to reach it; None if not measured.
        families: Efficiencies, one for each family, variant, units and precision.
        effects: Effects that whole steps showed beyond these, as factors.
        copies: Copies to it.
        samples: Measured calls; the fields above are fitted to them.
        steps: Whole steps that were measured.
        left_out: Samples that did not run, with the reasons.
        spec: Its figures from this measurement, if the catalogue has none.
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
        BreakevenError: It is not a calibration, or has another version.
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
    """Return the calibrated GPUs by id; a user's calibration replaces a shipped one.

    Args:
        is_own: Return only the user's calibrations.

    Raises:
        BreakevenError: A file is damaged, or has another version.
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

    A family without a measurement at this precision uses the GPU's other precisions on the same
    units, or else the other devices of the table.

    Args:
        base: Efficiencies of other devices.
        calibration: Measurements of this GPU.
        device: The GPU.
        precision: Precision of the kernels.
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
    """Return the keys of the effects on a kind of work of the GPU's own host."""
    if part is HostPart.BACKWARD_CALL:
        return ((OWN_HOST,), (OWN_BACKWARD_CALL,))
    kind = _OTHER
    if part in CONVOLUTION_PARTS:
        kind = _CONVOLUTION
    elif part in (HostPart.FOREACH, HostPart.FOREACH_TENSORS):
        kind = _UPDATE
    return ((OWN_HOST,), (OWN_HOST_CLASS, kind))


def host_with_steps(host: HostSpec, calibration: GpuCalibration) -> HostSpec:
    """Return the host of a calibrated GPU, corrected by the effects of whole steps.

    Args:
        host: Measured host, without the effects of such steps.
        calibration: Measurements of its GPU.
    """
    effects = msgspec.structs.replace(no_step_effects(), effects=calibration.effects)

    def factor(*keys: EffectKey) -> float:
        return math.exp(effects.log_factor(((OWN_HOST,), *keys)))

    other = factor((OWN_HOST_CLASS, _OTHER))
    # Scale a backward pass with the other work.
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
    """Return the keys of the effects on a kernel that a calibrated GPU shares with all others.

    Effects of its chip and generation are left out: its measurement contains them.

    Args:
        kernel: The kernel.
        device: The GPU.
        era: Software.
    """
    group, units = family_group(kernel), units_of(kernel, device)
    family = f"{kernel.family} {kernel.variant}".strip()
    return (("class", family, units), ("units", group, units), ("units+era", group, units, era))


def own_effect_keys(kernel: Kernel, device: DeviceSpec) -> tuple[EffectKey, ...]:
    """Return the keys of the effects on a kernel from the calibrated GPU's own steps."""
    group, units = family_group(kernel), units_of(kernel, device)
    return (("gpu",), ("gpu+units", group, units))
