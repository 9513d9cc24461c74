"""This machine's GPU: its name and properties, copies and launches, and its calibration file."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import numpy as np
import torch

from breakeven.cost import (
    CalibratedMachine,
    Family,
    GpuCalibration,
    Kernel,
    MeasuredCopy,
    MeasuredLaunch,
    MeasuredSample,
    read_calibrations_again,
)
from breakeven.device import DeviceSpec, Precision, user_calibrations
from breakeven.errors import BreakevenError, UsageError
from breakeven.measure import DeviceTimer
from breakeven.processor import cpu_name, num_cores
from breakeven.store import installed_version, lined_json, write_document

# torch's device type that replaces a GPU in tests of the whole path.
STAND_IN = "cpu"
_KINDS = ("cuda", "xpu", "mps")
ISSUES = "https://github.com/OWNER/breakeven/issues"


def find_gpu(name: str) -> torch.device | None:
    """Return the GPU called ``name``; None if any GPU will do and there is none.

    Args:
        name: ``auto``, or torch's name of a device: ``cuda:0``, ``mps``, ``xpu``.

    Raises:
        UsageError: If it is no name of a GPU.
        BreakevenError: If there is no such GPU.
    """
    if name == "auto":
        return next((torch.device(kind, 0) for kind in _KINDS if _is_there(kind)), None)
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KINDS:
        raise UsageError(
            f"--device {name!r} is no GPU", hint="say cuda, cuda:0, xpu, mps, auto or none"
        )
    if not _is_there(device.type):
        raise BreakevenError(
            f"torch sees no {device.type} device here",
            hint="see whether torch was built for it: python -m torch.utils.collect_env",
        )
    index = device.index or 0
    count = torch.get_device_module(device.type).device_count()
    if index >= count:
        raise BreakevenError(f"there is no {name}", hint=f"torch sees {count}, from 0 on")
    return torch.device(device.type, index)


def _is_there(kind: str) -> bool:
    return bool(torch.get_device_module(kind).is_available())


def check_gpu(device: torch.device) -> None:
    """Compute something on the GPU.

    Raises:
        BreakevenError: If it fails: the driver or this torch does not support the GPU, or other
            processes occupy it.
    """
    try:
        torch.ones(2, device=device).mul(2).sum().item()
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BreakevenError(
            f"the GPU computes nothing: {first_line}",
            hint="check that this torch is built for it (python -m torch.utils.collect_env), and "
            "which other programs use it",
        ) from error


def has_tf32(device: torch.device) -> bool:
    """Return whether torch's switch for TF32 affects the GPU."""
    if device.type == STAND_IN:
        return True
    return device.type == "cuda" and not torch.version.hip and properties_of(device).major >= 8


def gpu_name(device: torch.device) -> str:
    """Return the driver's name of the GPU; Apple's GPUs have their processor's name."""
    if device.type in ("mps", STAND_IN):
        return cpu_name()
    name = str(torch.get_device_module(device.type).get_device_name(device))
    if torch.version.hip and not any(map(str.isdigit, name)):
        # Without its list of names, ROCm names every GPU "AMD Radeon Graphics" or nothing.
        name = f"{name or 'AMD'} {properties_of(device).gcnArchName.partition(':')[0]}"
    return name


def properties_of(device: torch.device) -> Any:
    """Return the properties of the GPU from torch's backend; None if it has none."""
    if device.type in ("mps", STAND_IN):
        return None
    return torch.get_device_module(device.type).get_device_properties(device)


def describe_machine(device: torch.device) -> CalibratedMachine:
    """Describe the machine and its software as of now."""
    return CalibratedMachine(
        gpu=gpu_name(device),
        processor=cpu_name(),
        num_cores=num_cores(),
        system=f"{platform.system()} {platform.release()}",
        driver=_driver(device),
        torch_version=str(torch.__version__),
        python_version=platform.python_version(),
        breakeven_version=installed_version("breakeven"),
        date=f"{datetime.now(tz=UTC):%Y-%m-%d}",
    )


def _driver(device: torch.device) -> str:
    if device.type == "mps":
        return f"macOS {platform.mac_ver()[0]}"
    if device.type == STAND_IN:
        return "none"
    if device.type == "xpu":
        return str(getattr(properties_of(device), "driver_version", ""))
    if torch.version.hip:
        return f"ROCm {torch.version.hip}, MIOpen {torch.backends.cudnn.version()}"
    return f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


# Launch generations by NVIDIA's compute capability: the first entry that is not above it.
_CAPABILITIES = (
    ((10, 0), "blackwell"), ((9, 0), "hopper"), ((8, 9), "ada"), ((8, 0), "ampere"),
    ((7, 5), "turing"), ((7, 0), "volta"), ((6, 0), "pascal"), ((5, 0), "maxwell"),
    ((0, 0), "kepler"),
)  # fmt: skip
_VENDORS = {"mps": ("apple", "apple"), "xpu": ("intel", "xe")}
# Share of a datasheet's rate that the best of a few sizes reaches, as for GPUs of the catalogue:
# products 0.8 to 0.95, streams 0.85 to 0.93. The efficiencies compensate an error here.
_BEST_FRACTION = 0.9
_CLOCK_HZ = 1.5e9
_NUM_SMS = 32
_CACHE_BYTES = 4 * 2**20
_MEMORY_BYTES = 8 * 2**30
# PCIe 4.0 x16, if copies were not measured.
_LINK_BYTES_PER_S = 31.5e9
_LINK_FRACTION = 0.78
_NEVER_SLOWS = 1_000.0  # W


def own_spec(
    device: torch.device,
    machine: CalibratedMachine,
    timed: Iterable[tuple[Kernel, float]],
    *,
    copy_bytes_per_s: float | None,
) -> DeviceSpec:
    """Derive the spec of a GPU without a datasheet.

    Args:
        device: The GPU.
        machine: Its machine.
        timed: Kernels, each with its time in nanoseconds.
        copy_bytes_per_s: Rate of long copies to it; None if unknown.

    Raises:
        BreakevenError: If no measurement determines its rates.
    """
    rates: dict[Precision, float] = {}
    stream = 0.0
    for kernel, time_ns in timed:
        if kernel.family is Family.GEMM:
            rate = 1e9 * kernel.flop / time_ns
            rates[kernel.precision] = max(rates.get(kernel.precision, 0.0), rate)
        stream = max(stream, 1e9 * kernel.num_bytes / time_ns)
    if Precision.FP32 not in rates or not stream:
        raise BreakevenError(
            f"too little was measured of {machine.gpu}, which is not in the catalogue",
            hint="run breakeven calibrate again: it continues from there",
        )
    vendor, generation = _generation(device)
    facts = properties_of(device)
    memory_bytes = _first(facts, "total_memory") or _MEMORY_BYTES
    if device.type == "mps":
        memory_bytes = float(torch.mps.recommended_max_memory())
    link = _LINK_BYTES_PER_S if copy_bytes_per_s is None else copy_bytes_per_s / _LINK_FRACTION
    if rates.get(Precision.TF32, 0.0) < 1.2 * rates[Precision.FP32]:
        rates.pop(Precision.TF32, None)  # the switch has no effect here
    return DeviceSpec(
        id=re.sub(r"[^a-z0-9]+", "-", machine.gpu.casefold()).strip("-"),
        name=machine.gpu,
        vendor=vendor,
        market="measured",
        architecture=generation,
        num_sms=int(_first(facts, "multi_processor_count", "gpu_subslice_count") or _NUM_SMS),
        clock_hz=1e3 * _first(facts, "clock_rate") or _CLOCK_HZ,
        peak_flop_per_s={one: rate / _BEST_FRACTION for one, rate in rates.items()},
        memory_bytes=memory_bytes,
        memory_bytes_per_s=stream / _BEST_FRACTION,
        l2_bytes=_first(facts, "L2_cache_size", "last_level_cache_size") or _CACHE_BYTES,
        link_bytes_per_s=link,
        launch_generation=generation,
        release_year=int(machine.date[:4]),
        tdp_watts=_NEVER_SLOWS,
        sources=(f"measured by breakeven calibrate on {machine.date}",),
        notes="no datasheet: rates are the measured ones divided by 0.9",
    )


def _first(facts: Any, *names: str) -> float:
    """Return the first of the named figures that a backend has; 0 if it has none."""
    return next((float(value) for name in names if (value := getattr(facts, name, 0))), 0.0)


def _generation(device: torch.device) -> tuple[str, str]:
    if device.type in _VENDORS:
        return _VENDORS[device.type]
    facts = properties_of(device)
    if torch.version.hip:
        is_matrix = str(getattr(facts, "gcnArchName", "")).startswith("gfx9")
        return "amd", "cdna" if is_matrix else "rdna"
    capability = (int(getattr(facts, "major", 8)), int(getattr(facts, "minor", 0)))
    return "nvidia", next(name for least, name in _CAPABILITIES if capability >= least)


# Prefix of the names of measured copies.
COPY = "copy "
_BUDGET_S = 0.3
_COPY_BYTES = (4_096, 65_536, 1 << 20, 1 << 23, 1 << 26)
_TINY_COPY_BYTES = (4_096, 65_536, 1 << 20)


def measure_launch(timer: DeviceTimer) -> MeasuredLaunch:
    """Measure the costs of launches and waits."""
    one, other = (torch.ones(1, device=timer.device) for _ in range(2))

    def issue() -> object:
        return torch.mul(one, other)

    def issue_and_wait() -> None:
        issue()
        timer.synchronize()

    queued = timer.time_call(issue, budget_s=_BUDGET_S, fills_queue=False)
    return MeasuredLaunch(
        queued_ns=queued.issue_ns,
        waited_ns=timer.time_call(issue_and_wait, budget_s=_BUDGET_S, fills_queue=False).time_ns,
        sync_ns=timer.time_call(timer.synchronize, budget_s=_BUDGET_S, fills_queue=False).time_ns,
        period_ns=timer.time_call(issue, budget_s=_BUDGET_S).time_ns,
    )


def measure_copies(timer: DeviceTimer, *, is_tiny: bool) -> Iterator[MeasuredSample]:
    """Time blocking copies to the device, first from pageable memory; yield the times."""
    sizes = _TINY_COPY_BYTES if is_tiny else _COPY_BYTES
    kinds = ("pageable",) if timer.device.type in ("mps", STAND_IN) else ("pageable", "pinned")
    for kind in kinds:
        for num_bytes in sizes:
            source = torch.ones(num_bytes, dtype=torch.uint8)
            if kind == "pinned":
                source = source.pin_memory()
            target = torch.empty_like(source, device=timer.device)

            def copy(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
                target.copy_(source)
                timer.synchronize()

            found = timer.time_call(copy, budget_s=_BUDGET_S, fills_queue=False)
            yield MeasuredSample(
                name=f"{COPY}{kind} {num_bytes}",
                precision=Precision.FP32,
                time_ns=found.time_ns,
                spread=round(found.spread, 3),
                num_calls=found.num_calls,
            )


def fit_copies(samples: Sequence[MeasuredSample]) -> tuple[MeasuredCopy, ...]:
    """Fit a line to the larger copies of each kind, and find the shortest copy."""
    fitted: list[MeasuredCopy] = []
    for kind in ("pageable", "pinned"):
        known = [
            (float(sample.name.rpartition(" ")[2]), sample.time_ns)
            for sample in samples
            if sample.name.startswith(f"{COPY}{kind} ")
        ]
        if len(known) < 2:
            continue
        sizes, times = np.array(sorted(known)).T
        slope = (times[-1] - times[0]) / (sizes[-1] - sizes[0])
        slope = max(slope, 1e-6)  # a petabyte per second, so that no copy is free
        fixed_ns = float(np.median(times - slope * sizes))
        fitted.append(
            MeasuredCopy(
                is_pinned=kind == "pinned",
                least_ns=float(times.min()),
                fixed_ns=max(fixed_ns, 0.0),
                bytes_per_s=float(1e9 / slope),
            )
        )
    return tuple(fitted)


_LISTS = ("families", "effects", "copies", "samples", "steps", "left_out")


def calibration_bytes(calibration: GpuCalibration) -> bytes:
    """Return a calibration as it is stored: JSON, with one line per measurement."""
    return lined_json(calibration, {name: getattr(calibration, name) for name in _LISTS})


def save_calibration(calibration: GpuCalibration) -> Path:
    """Write a calibration to this user's folder, and return its file; predictions then use it.

    Raises:
        BreakevenError: If the user wants no folder, or it cannot be written.
    """
    folder = user_calibrations()
    if folder is None:
        raise BreakevenError(
            "BREAKEVEN_CALIBRATIONS is empty: calibrations are neither kept nor used",
            hint="name a folder, or unset it",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BreakevenError(
            f"cannot make the folder {folder}: {error.strerror}",
            hint="name another one: BREAKEVEN_CALIBRATIONS=FOLDER",
        ) from None
    path = folder / f"{calibration.device}.json"
    write_document(path, calibration_bytes(calibration), force=True)
    read_calibrations_again()
    return path


def sharing_text(path: Path, calibration: GpuCalibration) -> str:
    """Explain how to share a calibration: a link to a new issue, with all that it holds."""
    machine = calibration.machine
    held = msgspec.json.format(
        msgspec.json.encode((machine, calibration.launch)), indent=1
    ).decode()
    body = (
        f"```json\n{held}\n```\nAttach {path.name} here.\n\nDid other programs use the GPU "
        "meanwhile? Was its power or were its clocks limited?\n"
    )
    issue = {"title": f"Calibration of {machine.gpu}", "body": body}
    return f"""\
To let everyone's predictions use this calibration, open this link, attach {path}, and send it:

{ISSUES}/new?{urlencode(issue, quote_via=quote)}

The issue holds the text below. The file holds the measurements too. Neither names you, this
machine, your network or your files.

{body}"""
