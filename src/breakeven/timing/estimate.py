"""Times with intervals: where they come from, by what clock, what was measured on the CPU."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec


class Source(StrEnum):
    """How a figure came about. A prediction is never called a measurement."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A duration with its 90 % interval, in nanoseconds."""

    value_ns: float
    low_ns: float
    high_ns: float
    source: Source

    @classmethod
    def predicted(cls, value_ns: float, low_ns: float, high_ns: float) -> Estimate:
        """Return a prediction whose interval holds its value, whatever its ends are."""
        return cls(
            value_ns=value_ns,
            low_ns=min(low_ns, value_ns),
            high_ns=max(high_ns, value_ns),
            source=Source.PREDICTED,
        )


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a step, each the median of all steps, in nanoseconds.

    Args:
        backward_ns: Backward passes.
        optimizer_ns: From the end of each last backward pass to the end of the update; 0 where the
            script updates its weights itself.
    """

    backward_ns: float
    optimizer_ns: float


class CpuSetting(StrEnum):
    """What a trial changes."""

    THREADS = "threads"
    FLUSH_DENORMAL = "flush-denormal"
    CHANNELS_LAST = "channels_last"


class CpuTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The step under another setting of the CPU, measured beside the step as it is.

    Args:
        setting: What was changed, as a document writes it: ``threads=1``, ``flush-denormal``.
        estimate: Time of a step under it.
    """

    setting: str
    estimate: Estimate

    def changes(self, setting: CpuSetting) -> bool:
        """Return whether it is one of that setting."""
        return self.setting.partition("=")[0] == setting

    @property
    def num_threads(self) -> int:
        """Return the number of threads tried; 0 where something else is."""
        number = self.setting.partition("=")[2]
        return int(number) if self.changes(CpuSetting.THREADS) and number.isdigit() else 0


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


class Clock(Protocol):
    """A monotonic clock of the host that can also wait for the device."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since an arbitrary moment."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        ...
