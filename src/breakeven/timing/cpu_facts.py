"""What was measured of a step on the CPU, for what slows it down there."""

from __future__ import annotations

import msgspec

from breakeven.timing.estimate import Estimate


class CpuTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The step under another setting of the CPU, measured beside the step as it is.

    Args:
        setting: What was changed: ``threads=1``, ``flush-denormal``.
        estimate: Time of a step under it.
    """

    setting: str
    estimate: Estimate


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The step on this machine's CPU.

    Args:
        name: Processor.
        estimate: Time of a step as the script runs it.
        num_threads: torch's intra-op threads in that run.
        num_cores: Processors that the process may use.
        trials: The same step under other settings.
        has_bf16: Whether the processor multiplies bfloat16 in hardware (AMX, AVX512-BF16).
        dispatch_ns: Python, dispatcher and autograd of one operator, measured on this machine.
        load_fraction: Part of its processors that other processes used meanwhile.
    """

    name: str
    estimate: Estimate
    num_threads: int
    num_cores: int
    trials: tuple[CpuTrial, ...] = ()
    has_bf16: bool = False
    dispatch_ns: float = 0.0
    load_fraction: float = 0.0
