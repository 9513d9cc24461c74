"""The devices that are here, and how much memory is free on them."""

from __future__ import annotations

import torch

from breakeven.memory import available_bytes


def devices_present() -> tuple[torch.device, ...]:
    """Return the CPU, one CUDA device of each model of GPU, and Apple's GPU where there is one.

    Of several CUDA devices with one name the current one counts, so that each process of a
    distributed run keeps its own.
    """
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        current = torch.cuda.current_device()
        by_name: dict[str, int] = {}
        for index in (current, *range(torch.cuda.device_count())):
            by_name.setdefault(torch.cuda.get_device_name(index), index)
        devices += [torch.device("cuda", index) for index in by_name.values()]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return tuple(devices)


def device_title(device: torch.device) -> str:
    """Return a device's name for a person: ``cuda:0 (NVIDIA L4)``."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


def free_bytes(device: torch.device) -> int | None:
    """Return the memory that is free on a device; None where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_bytes() if device.type == "cpu" else None
