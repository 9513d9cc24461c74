"""The CPU of this machine: name, cores, quota and 16-bit arithmetic."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
# Matrix tiles (AMX), dot products (AVX-512, Arm) or arithmetic of the 16-bit formats, as Linux
# names them. Source: arch/x86/include/asm/cpufeatures.h, Documentation/arch/arm64/elf_hwcaps.rst.
_HALF_FLAGS = {
    "bf16": frozenset(("amx_bf16", "avx512_bf16", "bf16", "svebf16")),
    "fp16": frozenset(("amx_fp16", "avx512_fp16", "asimdhp")),
}
# Apple's names of the Arm features. Source: sysctl(3), hw.optional.arm.
_APPLE_FLAGS = {"bf16": "hw.optional.arm.FEAT_BF16", "fp16": "hw.optional.arm.FEAT_FP16"}
_TOPOLOGY = Path("/sys/devices/system/cpu")
_GROUPS = Path("/proc/self/cgroup")
_GROUP_MOUNT = Path("/sys/fs/cgroup")
# Source: Microsoft's documentation of the registry, HKEY_LOCAL_MACHINE.
_REGISTRY_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
_SYSCTL_LIMIT_S = 5.0


def cpu_name() -> str:
    """Return the CPU's name from the operating system."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    told = sysctl("machdep.cpu.brand_string") or _registry_name()
    return told or platform.processor() or platform.machine()


def is_virtual() -> bool:
    """Return whether Linux reports a hypervisor, as it does on x86."""
    return _CPUINFO.exists() and "hypervisor" in _CPUINFO.read_text()


def sysctl(name: str) -> str:
    """Return macOS's value of a setting; empty on other systems and for an unknown name.

    Source: sysctl(3) of macOS.
    """
    if sys.platform != "darwin":
        return ""
    try:
        answer = subprocess.run(
            ("/usr/sbin/sysctl", "-n", name),
            capture_output=True,
            text=True,
            timeout=_SYSCTL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _registry_name() -> str:
    """Return the CPU's name on Windows; empty elsewhere."""
    try:
        import winreg
    except ImportError:
        return ""
    registry: Any = winreg
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _REGISTRY_KEY) as key:
            return str(registry.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return ""


def num_cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Return the number of physical cores that this process may use.

    Linux lists the processors of each core, and macOS counts cores; elsewhere each processor
    counts as one core.

    Args:
        topology: The kernel's folder of processors.
    """
    if not hasattr(os, "sched_getaffinity"):  # all but Linux
        told = sysctl("hw.physicalcpu")
        return int(told) if told.isdigit() else os.cpu_count() or 1
    return len({_siblings(topology / f"cpu{number}", number) for number in os.sched_getaffinity(0)})


def cpu_quota(groups: Path = _GROUPS, mount: Path = _GROUP_MOUNT) -> float | None:
    """Return the CPU quota of this process in processors; None without a quota.

    Containers set such a quota. Reads both versions of Linux's control groups.

    Args:
        groups: The kernel's list of the groups of this process.
        mount: Mount point of the control groups.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / "cpu" if controllers else mount
        folder = top / path.lstrip("/")
        # A limit holds for all groups below; in a container the path may be another one's.
        quotas += (
            quota
            for group in (folder, *folder.parents)
            if group.is_relative_to(top) and (quota := _quota_of(group)) is not None
        )
    return min(quotas, default=None)


def _quota_of(group: Path) -> float | None:
    """Return a group's quota in processors; None without one."""
    for texts in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota_us, period_us = " ".join((group / name).read_text() for name in texts).split()
            if float(quota_us) > 0:
                return float(quota_us) / float(period_us)
    return None


def _siblings(folder: Path, number: int) -> str:
    """Return the list of processors that share a core: the same text for each of them."""
    try:
        return (folder / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def has_half_hardware(precision: str) -> bool:
    """Return whether the CPU has ``bf16`` or ``fp16`` arithmetic; False if unknown."""
    if platform.system() == "Darwin":
        return sysctl(_APPLE_FLAGS[precision]) == "1"
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return False
    return cpuinfo_has_half(text, precision)


def cpuinfo_has_half(text: str, precision: str) -> bool:
    """Return whether ``/proc/cpuinfo`` lists a CPU with arithmetic in ``precision``.

    Args:
        text: Lines of ``name : value``; flags are in ``flags`` (x86) or ``Features`` (Arm).
        precision: ``bf16`` or ``fp16``.
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features") and _HALF_FLAGS[precision] & set(value.split()):
            return True
    return False
