"""The devices that `--device NAME` selects: GPUs of the catalogue, or CPUs of the hosts' table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from breakeven.device.catalogue import HostCpu, default_devices, find_device, find_host_cpu
from breakeven.device.spec import DeviceSpec
from breakeven.errors import BreakevenError, UnknownDeviceError, UsageError

# A cloud rents part of a socket: "4 cores of EPYC 7R13".
_CORES_OF = re.compile(r"(\d{1,4}) cores? of (.+)", re.IGNORECASE)


def select_devices(names: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Return the GPUs of these names, each once; `default_devices` for no names.

    Raises:
        UnknownDeviceError: A name matches no GPU or several, or names a CPU.
    """
    gpus, cpus = split_devices(names)
    if cpus:
        raise UnknownDeviceError(
            f"{cpus[0].name} is a CPU, and GPUs are wanted here.",
            hint="Of CPUs that are absent, `breakeven check` predicts the step. "
            "Run `breakeven devices` for all names of GPUs.",
        )
    return gpus


def split_devices(names: Sequence[str]) -> tuple[tuple[DeviceSpec, ...], tuple[HostCpu, ...]]:
    """Return the GPUs and the CPUs of these names, each once.

    If no GPU is named, return `default_devices`. If a name fits both, it is the GPU's.

    Args:
        names: Names of GPUs, as for `find_device`, and of CPUs, as for `find_host_cpu`;
            ``4 cores of`` may precede a CPU's name.

    Raises:
        UnknownDeviceError: A name matches neither, or several.
        UsageError: A CPU has fewer cores than the name says.
    """
    gpus: dict[str, DeviceSpec] = {}
    cpus: dict[str, HostCpu] = {}
    for name in names:
        some_cores = _CORES_OF.fullmatch(name.strip())
        if some_cores:
            cpu, num_cores = find_host_cpu(some_cores[2]), int(some_cores[1])
            if not 0 < num_cores <= cpu.num_cores:
                raise UsageError(
                    f"{cpu.name} has {cpu.num_cores} cores, not {num_cores}",
                    hint="a CPU is one socket: name as many of its cores, or fewer",
                )
            rate = cpu.memory_bytes_per_s
            share = None if rate is None else num_cores / cpu.num_cores * rate
            cpus[f"{num_cores} {cpu.id}"] = replace(
                cpu, num_cores=num_cores, memory_bytes_per_s=share
            )
            continue
        try:
            gpu = find_device(name)
        except UnknownDeviceError as error:
            try:
                cpu = find_host_cpu(name)
            except BreakevenError as of_cpus:
                raise UnknownDeviceError(
                    f"{error.message} Among CPUs, {of_cpus.message}.",
                    hint="Run `breakeven devices` for all names of GPUs, and "
                    "`breakeven devices --hosts` for those of CPUs.",
                ) from None
            cpus[f"{cpu.num_cores} {cpu.id}"] = cpu
        else:
            gpus[gpu.id] = gpu
    return tuple(gpus.values()) or default_devices(), tuple(cpus.values())
