"""The attribution of a step's time: each nanosecond has one cause and one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from typing import TypeVar

import msgspec

from breakeven.cost import HostPart
from breakeven.simulate.cost_table import CostTable, RowKind
from breakeven.simulate.critical_path import CriticalPath, Spent
from breakeven.simulate.program import Program
from breakeven.simulate.repeated_step import RepeatedStep
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Phase, Sync

_Key = TypeVar("_Key", bound=Hashable)


class StepCause(StrEnum):
    """The cause of a part of the step's time.

    The host issues operators: ``python`` (modules, wrappers, the script's own lines around them),
    ``dispatcher``, ``autograd`` (recording, and its engine's own work), ``launch`` (of kernels),
    ``optimizer`` (all of that within the optimizer phase). It also does ``data-loading``,
    ``script`` (its own work outside of torch) and ``host-operators`` (which the CPU computes).
    ``copy-pageable`` and ``copy-pinned`` move data between host and device, ``sync`` is the fixed
    cost of a wait; a wait itself counts under the work that it waits for. ``device-*`` are
    kernels by family. ``device-idle`` is the latency from a launch to its kernel, and the gaps
    between kernels. ``overlap`` is the loss of host and device by working at the same time.
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
    """Time of the step with one cause and one place.

    Args:
        cause: A value of `StepCause`, or ``device-`` and the family of a kernel:
            ``device-gemm``.
        phase: Part of the step; empty for the step as a whole.
        module: Dotted path of the module; empty outside of modules.
        file: The user's file; null without one.
        line: Its line.
        time_ns: Whole nanoseconds.
        frames: Functions of a training framework that ran below the line, outermost first, if
            the line leaves the step to one: ``transformers.trainer:Trainer.train``, then those that
            distinguish the parts of the step, ``accelerate.accelerator:Accelerator.backward``.
    """

    cause: str
    phase: str
    module: str
    file: str | None
    line: int | None
    time_ns: int
    frames: tuple[str, ...] = ()


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """A step's time, divided along its critical path.

    The critical path goes through both timelines: at each moment it follows the work that the end
    of the step waits for. So every nanosecond counts once, and the parts add up to the step.

    Args:
        step_ns: The step, in whole nanoseconds.
        parts: Parts, the longest first.
    """

    step_ns: int
    parts: tuple[TimePart, ...]

    def by(self, key: Callable[[TimePart], _Key]) -> dict[_Key, int]:
        """Return the time by the ``key`` of each part, the longest first."""
        found: dict[_Key, int] = {}
        for part in self.parts:
            found[key(part)] = found.get(key(part), 0) + part.time_ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))


_HOST_CAUSES = {
    HostPart.PYTHON: StepCause.PYTHON,
    HostPart.VIEW_PYTHON: StepCause.PYTHON,
    HostPart.AUTOGRAD: StepCause.AUTOGRAD,
    HostPart.BACKWARD_CALL: StepCause.AUTOGRAD,
    HostPart.ACCUMULATE_GRAD: StepCause.AUTOGRAD,
}

_Leaf = tuple[str, str, str, str | None, int | None, tuple[str, ...]]
"""Cause, phase, module, file, line, frames."""


def attribution_of(
    program: Program,
    table: CostTable,
    repeated: RepeatedStep,
    path: CriticalPath,
    step_ns: float,
) -> Attribution:
    """Return the time of a step by cause and place.

    Args:
        program: The step.
        table: Its costs on one device.
        repeated: The step in steady state, with a point for each row.
        path: Its critical path.
        step_ns: Its time: its period plus the loss of overlapping host and device work.
    """
    trace = program.trace

    def leaf(cause: str, event: Event) -> _Leaf:
        location = event.location
        module = event.module if isinstance(event, Op) else ""
        file, line = (location.file, location.line) if location else (None, None)
        return str(cause), str(event.phase), module, file, line, trace.frames_of(event)

    # Before the first event: the optimizer's own Python, or the launch of a captured step.
    updates = (op for op in trace.ops if op.phase is Phase.OPTIMIZER)
    update = next(updates, None) if table.host.step_ns else None
    lead: _Leaf = (str(StepCause.LAUNCH), "", "", None, None, ())
    lead = lead if update is None else leaf(StepCause.OPTIMIZER, update)
    leaves: dict[_Leaf, float] = {}
    for piece in path.pieces:
        if piece.spent is Spent.LEAD:
            leaves[lead] = leaves.get(lead, 0.0) + piece.time_ns
            continue
        event = trace.events[int(table.rows.event[piece.point])]
        for cause, share in _causes(program, table, piece.point, piece.spent):
            key = leaf(cause, event)
            leaves[key] = leaves.get(key, 0.0) + share * piece.time_ns
    lost_ns = max(0.0, step_ns - repeated.period_ns.item())
    path_ns = sum(leaves.values())
    scale = (step_ns - lost_ns) / path_ns if path_ns > 0 else 0.0
    times = {leaf: time_ns * scale for leaf, time_ns in leaves.items()}
    if lost_ns > 0:
        times[str(StepCause.OVERLAP), "", "", None, None, ()] = lost_ns
    total_ns = round(step_ns)
    parts = [
        TimePart(
            cause=cause, phase=phase, module=module, file=file, line=line, time_ns=time_ns,
            frames=frames,
        )
        for (cause, phase, module, file, line, frames), time_ns in zip(
            times, whole_parts(times.values(), total_ns), strict=True
        )
        if time_ns
    ]  # fmt: skip
    parts.sort(key=lambda part: -part.time_ns)
    return Attribution(step_ns=total_ns, parts=tuple(parts))


def whole_parts(values: Iterable[float], total: int) -> tuple[int, ...]:
    """Return whole numbers near ``values`` that add up to ``total``.

    Each value is rounded down; those with the largest remainders get the rest.

    Args:
        values: Not negative; their sum is near ``total``.
        total: Sum of the result.
    """
    # Sums of the same times in another order differ by less than this rounding.
    values = tuple(round(value, 3) for value in values)
    whole = [math.floor(value) for value in values]
    by_remainder = sorted(range(len(whole)), key=lambda i: whole[i] - values[i])
    left = total - sum(whole)
    for position in by_remainder[: max(0, left)]:
        whole[position] += 1
    return tuple(whole)


def _causes(
    program: Program, table: CostTable, row: int, spent: Spent
) -> tuple[tuple[str, float], ...]:
    """Return the causes of a piece of the path, each with its share."""
    index = int(table.rows.event[row])
    event = program.trace.events[index]
    if spent in (Spent.LATENCY, Spent.GAP):
        return ((StepCause.DEVICE_IDLE, 1.0),)
    match event:
        case Copy():
            cause = StepCause.COPY_PINNED if event.is_pinned else StepCause.COPY_PAGEABLE
        case HostWork():
            cause = StepCause.DATA_LOADING if event.kind == "data" else StepCause.SCRIPT
        case GraphLaunch():
            cause = StepCause.LAUNCH
        case Sync():
            cause = StepCause.SYNC
        case Op() if spent is Spent.KERNEL:
            cause = f"device-{table.kernels.kernels[int(table.rows.kernel[row, 0])].family}"
        case Op() if event.is_on_host:
            cause = StepCause.HOST_OPERATORS
        case Op() if event.phase is Phase.OPTIMIZER:
            cause = StepCause.OPTIMIZER
        case Op() if table.rows.kind[row] == RowKind.KERNEL:
            cause = StepCause.LAUNCH
        case Op():
            lowering = program.lowerings[index]
            assert lowering is not None
            parts = program.costs.host_op_parts(event, lowering, table.host)
            total_ns = sum(time_ns for _, time_ns in parts)
            return tuple(
                (_HOST_CAUSES.get(part, StepCause.DISPATCHER), time_ns / total_ns)
                for part, time_ns in parts
                if time_ns > 0
            )
    return ((cause, 1.0),)
