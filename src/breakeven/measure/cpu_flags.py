"""Whether this machine's processor multiplies bfloat16 in hardware."""

from __future__ import annotations

import platform
from pathlib import Path

from breakeven.processor import sysctl

_CPUINFO = Path("/proc/cpuinfo")
# Matrix tiles (AMX) or dot products (AVX-512, Arm) of bfloat16, as Linux names them.
# Source: arch/x86/include/asm/cpufeatures.h, Documentation/arch/arm64/elf_hwcaps.rst.
_BF16_FLAGS = frozenset(("amx_bf16", "avx512_bf16", "bf16", "svebf16"))
# Apple's name of the Arm feature. Source: sysctl(3), hw.optional.arm.
_APPLE_FLAG = "hw.optional.arm.FEAT_BF16"


def has_bf16_hardware() -> bool:
    """Return whether the processor multiplies bfloat16 itself; False where nothing tells."""
    if platform.system() == "Darwin":
        return sysctl(_APPLE_FLAG) == "1"
    try:
        text = _CPUINFO.read_text(errors="replace")
    except OSError:
        return False
    return cpuinfo_has_bf16(text)


def cpuinfo_has_bf16(text: str) -> bool:
    """Return whether a processor in the text of Linux's ``/proc/cpuinfo`` multiplies bfloat16.

    Args:
        text: Lines of ``name : value``; flags are in ``flags`` (x86) or ``Features`` (Arm).
    """
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features") and _BF16_FLAGS & set(value.split()):
            return True
    return False
