"""Where the time of a step goes: each nanosecond of it belongs to one cause."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import TypeVar

import msgspec

_Key = TypeVar("_Key", bound=Hashable)


class StepCause(StrEnum):
    """What a part of the step is spent on.

    The host issues operators: ``python`` (modules, wrappers, the script's own lines around them),
    ``dispatcher``, ``autograd`` (recording, and its engine's own work), ``launch`` (of kernels),
    ``optimizer`` (all of that within the optimizer phase). It also does ``data-loading``,
    ``script`` (its own work outside of torch) and ``host-operators`` (which the CPU computes).
    ``copy-pageable`` and ``copy-pinned`` move data between host and device, ``sync`` is the fixed
    cost of a wait; what the host waits for is counted where it comes from. ``device-*`` are
    kernels by family. ``device-idle`` is the latency from a launch to its kernel, and the gaps
    between kernels. ``overlap`` is what host and device lose by working at the same time.
    """

    PYTHON = "python"
    DISPATCHER = "dispatcher"
    AUTOGRAD = "autograd"
    LAUNCH = "launch"
    OPTIMIZER = "optimizer"
    DATA_LOADING = "data-loading"
    SCRIPT = "script"
    HOST_OPERATORS = "host-operators"
    COPY_PAGEABLE = "copy-pageable"
    COPY_PINNED = "copy-pinned"
    SYNC = "sync"
    DEVICE_IDLE = "device-idle"
    OVERLAP = "overlap"


class TimePart(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the step that has one cause, in one place.

    Args:
        cause: A value of `StepCause`, or ``device-`` and the family of a kernel:
            ``device-gemm``.
        phase: Part of the step; empty for what belongs to the step as a whole.
        module: Dotted path of the module; empty outside of modules.
        file: The user's file; null where there is none.
        line: Its line.
        time_ns: Whole nanoseconds.
        frames: Functions of a training framework that ran below the line, outermost first, where
            the line leaves the step to one: ``transformers.trainer:Trainer.train``, then what
            tells the parts of the step apart, ``accelerate.accelerator:Accelerator.backward``.
    """

    cause: str
    phase: str
    module: str
    file: str | None
    line: int | None
    time_ns: int
    frames: tuple[str, ...] = ()


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """A step, taken apart along its critical path.

    The critical path goes through both timelines: at each moment it is on what the end of the
    step waits for. So every nanosecond is counted once, and the parts add up to the step.

    Args:
        step_ns: The step, in whole nanoseconds.
        parts: The longest first.
    """

    step_ns: int
    parts: tuple[TimePart, ...]

    def by(self, key: Callable[[TimePart], _Key]) -> dict[_Key, int]:
        """Return the time by what ``key`` tells of a part, the longest first."""
        found: dict[_Key, int] = {}
        for part in self.parts:
            found[key(part)] = found.get(key(part), 0) + part.time_ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))
