"""A step whose operators were lowered to kernels, ready to be simulated on any device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from breakeven.cost import Kernel, Lowering, shipped_costs
from breakeven.errors import Caveat
from breakeven.simulate.cost_model import CostModel
from breakeven.simulate.edit import Edit
from breakeven.trace import Copy, Event, GraphLaunch, HostWork, Op, Settings, StepTrace, Sync


class EventKind(IntEnum):
    """How an event acts on the two timelines."""

    DEVICE_OP = 0
    HOST_OP = 1
    BLOCKING_COPY = 2
    QUEUED_COPY = 3
    SYNC = 4
    HOST_WORK = 5
    LOADER_WAIT = 6
    GRAPH_LAUNCH = 7
    REPLAYED_OP = 8
    REPLAYED_COPY = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step and the kernels of its operators, independent of device and host.

    Args:
        trace: The step.
        lowerings: Kernels by event; None where the event is no operator of the device.
        costs: The cost model that lowered them.
    """

    trace: StepTrace
    lowerings: tuple[Lowering | None, ...]
    costs: CostModel

    @property
    def kinds(self) -> tuple[EventKind, ...]:
        """Return how each event acts; programs of equal kinds are simulated together."""
        return tuple(map(_kind, self.trace.events))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Return all kernels in launch order."""
        return tuple(
            kernel
            for lowering in self.lowerings
            if lowering is not None
            for kernel in lowering.kernels
        )

    @property
    def num_kernels(self) -> int:
        """Return how many kernels the device runs."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return the caveats of the lowerings, each once, in order of appearance."""
        found = dict.fromkeys(
            lowering.caveat
            for lowering in self.lowerings
            if lowering is not None and lowering.caveat is not None
        )
        return tuple(found)

    def with_costs(self, costs: CostModel) -> Program:
        """Return the same kernels under another cost model, which must lower operators alike."""
        return Program(trace=self.trace, lowerings=self.lowerings, costs=costs)

    def edited(self, edit: Edit) -> Program:
        """Return the program of the edited step.

        Only new operators are lowered; under other settings all are.
        """
        if edit.settings is not None and edit.settings != self.trace.settings:
            return build_program(edit.apply(self.trace), costs=self.costs)
        events: list[Event] = []
        lowerings: list[Lowering | None] = []
        for index, event in enumerate(self.trace.events):
            for kept in edit.event(index, event):
                events.append(kept)
                is_same = kept is event
                lowerings.append(
                    self.lowerings[index]
                    if is_same
                    else lowered(kept, self.trace.settings, self.costs)
                )
        return Program(trace=edit.apply(self.trace), lowerings=tuple(lowerings), costs=self.costs)


def build_program(trace: StepTrace, *, costs: CostModel | None = None) -> Program:
    """Return the step with each operator lowered once.

    Args:
        trace: The step.
        costs: The cost model; that which ships by default.
    """
    costs = costs or shipped_costs()
    return Program(
        trace=trace,
        lowerings=tuple(lowered(event, trace.settings, costs) for event in trace.events),
        costs=costs,
    )


def lowered(event: Event, settings: Settings, costs: CostModel) -> Lowering | None:
    """Return the kernels of an event; None where it is no operator of the device."""
    if isinstance(event, Op) and not event.is_on_host:
        return costs.lower(event, settings)
    return None


def _kind(event: Event) -> EventKind:
    match event:
        case Op():
            if event.is_replayed:
                return EventKind.REPLAYED_OP
            return EventKind.HOST_OP if event.is_on_host else EventKind.DEVICE_OP
        case Copy():
            if event.is_replayed:
                return EventKind.REPLAYED_COPY
            return EventKind.BLOCKING_COPY if event.is_blocking else EventKind.QUEUED_COPY
        case Sync():
            return EventKind.SYNC
        case HostWork():
            return EventKind.LOADER_WAIT if event.num_workers else EventKind.HOST_WORK
        case GraphLaunch():
            return EventKind.GRAPH_LAUNCH
