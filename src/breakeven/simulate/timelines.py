"""Steps on two timelines, host and device: their times, and the moments of their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.device import DeviceSpec, HostSpec
from breakeven.simulate.cost_table import Array, CostTable, RowKind, cost_table, row_kind
from breakeven.simulate.priced_step import IS_ON_DEVICE, price
from breakeven.simulate.program import TYPICAL, Program, Scenario
from breakeven.simulate.repeated_step import LAUNCH_QUEUE_DEPTH, ROUNDING_NS, RepeatedStep

# Limit for a chunk of devices: its arrays, four numbers per point, stay within some 100 MB.
_MAX_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """Steps of several programs on several devices under several scenarios.

    Args:
        step_ns: Time of a step in steady state, shaped (programs, devices, scenarios).
        host_busy_ns: The host's own work per step, in the same shape.
        device_busy_ns: Kernels and copies per step, in the same shape.
    """

    step_ns: Array
    host_busy_ns: Array
    device_busy_ns: Array


def simulate(
    programs: Sequence[Program],
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    *,
    scenarios: Sequence[Scenario] = (TYPICAL,),
    queue_depth: int = LAUNCH_QUEUE_DEPTH,
) -> Timelines:
    """Return the steady state of each program on each device under each scenario.

    The device may lag behind the host from one step to the next. The time of a step is the period
    of the steady state, plus a fraction of its overlapping work (see ``costs``).

    Args:
        programs: Steps, of equal structure or not.
        devices: Devices.
        host: Host that issues the work.
        scenarios: Circumstances.
        queue_depth: Launches that may wait; for programs of equal structure, counted on the one
            with the most.

    Raises:
        ValueError: There is nothing to simulate.
    """
    if not programs or not devices or not scenarios:
        raise ValueError("simulate needs at least one program, device and scenario")
    shape = (len(programs), len(devices), len(scenarios))
    step, host_busy, device_busy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    groups: dict[tuple[RowKind, ...], list[int]] = {}
    for index, program in enumerate(programs):
        groups.setdefault(tuple(map(row_kind, program.trace.events)), []).append(index)
    for members in groups.values():
        group = [programs[index] for index in members]
        num_slots = max(len(p.kernels) + len(p.trace.events) for p in group)
        per_device = num_slots * len(group) * len(scenarios)
        chunk = max(1, _MAX_ELEMENTS // max(1, per_device))
        whole = cost_table(group, devices, host)
        for first in range(0, len(devices), chunk):
            columns = range(first, min(first + chunk, len(devices)))
            some = slice(first, first + chunk)
            table = whole.on(columns, whole.kernels.on(columns))
            repeated = RepeatedStep(price(table, scenarios), queue_depth)
            step[members, some] = repeated.step_ns
            host_busy[members, some] = repeated.step.host_ns
            device_busy[members, some] = repeated.step.device_ns
    return Timelines(step_ns=step, host_busy_ns=host_busy, device_busy_ns=device_busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The work of one event on one of the timelines.

    Args:
        event: Position of the event in the trace.
        is_on_device: Whether it is on the device's timeline.
        start_ns: Time since the start of the step on the host.
        end_ns: End; on the host it includes waiting for the device.
    """

    event: int
    is_on_device: bool
    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step in steady state.

    Args:
        step_ns: From one step to the next.
        host_busy_ns: The host's own work within it.
        device_busy_ns: Kernels and copies within it.
        spans: Spans in the order of the events.
    """

    step_ns: float
    host_busy_ns: float
    device_busy_ns: float
    spans: tuple[Span, ...]


def timeline_of(table: CostTable, repeated: RepeatedStep) -> Timeline:
    """Return the first step in steady state in detail.

    Args:
        table: One program on one device.
        repeated: The step under one scenario, with a point for each row.
    """
    step = repeated.step
    moments = repeated.moments
    is_on_device = IS_ON_DEVICE[step.kinds] & ~step.is_free.ravel()
    spans: list[Span] = []
    for row, event in enumerate(table.rows.event.tolist()):
        start_ns, end_ns = moments.host_before_ns[row], moments.host_ns[row]
        if end_ns - start_ns > ROUNDING_NS:
            spans.append(Span(event=event, is_on_device=False, start_ns=start_ns, end_ns=end_ns))
        if is_on_device[row]:
            start_ns, end_ns = moments.start_ns[row], moments.device_ns[row]
            spans.append(Span(event=event, is_on_device=True, start_ns=start_ns, end_ns=end_ns))
    return Timeline(
        step_ns=repeated.step_ns.item(),
        host_busy_ns=step.host_ns.item(),
        device_busy_ns=step.device_ns.item(),
        spans=tuple(spans),
    )
