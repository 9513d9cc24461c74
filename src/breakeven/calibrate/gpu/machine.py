"""The GPU that is here: which one, and what it says of itself."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import torch

from breakeven.cost import CalibratedMachine
from breakeven.errors import BreakevenError, UsageError
from breakeven.processor import cpu_name, num_cores
from breakeven.store import installed_version

# torch's type of a stand-in for a GPU where there is none, for tests of the whole path.
STAND_IN = "cpu"
_KINDS = ("cuda", "xpu", "mps")


def find_gpu(name: str) -> torch.device | None:
    """Return the GPU that ``name`` means; None where it means any, and there is none.

    Args:
        name: ``auto``, or torch's name of a device: ``cuda:0``, ``mps``, ``xpu``.

    Raises:
        UsageError: It is no name of a GPU.
        BreakevenError: There is no such GPU.
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
        BreakevenError: It cannot: the driver, or this torch, is not for it, or others use it up.
    """
    try:
        torch.ones(2, device=device).mul(2).sum().item()
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BreakevenError(
            f"the GPU computes nothing: {first_line}",
            hint="see whether this torch is built for it (python -m torch.utils.collect_env), and "
            "what else uses it",
        ) from error


def has_tf32(device: torch.device) -> bool:
    """Return whether torch's switch for TF32 changes what the GPU does."""
    if device.type == STAND_IN:
        return True
    return device.type == "cuda" and not torch.version.hip and properties_of(device).major >= 8


def gpu_name(device: torch.device) -> str:
    """Return what the driver calls the GPU; Apple's is called as the processor that it is in."""
    if device.type in ("mps", STAND_IN):
        return cpu_name()
    name = str(torch.get_device_module(device.type).get_device_name(device))
    if torch.version.hip and not any(map(str.isdigit, name)):
        # Where its list of names is missing, ROCm says "AMD Radeon Graphics" of all, or nothing.
        name = f"{name or 'AMD'} {properties_of(device).gcnArchName.partition(':')[0]}"
    return name


def properties_of(device: torch.device) -> Any:
    """Return what torch's backend says of the GPU; None where it says nothing."""
    if device.type in ("mps", STAND_IN):
        return None
    return torch.get_device_module(device.type).get_device_properties(device)


def describe_machine(device: torch.device) -> CalibratedMachine:
    """Return the machine of this moment."""
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
