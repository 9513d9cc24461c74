"""A step lowered to kernels for any device, edits of it, and scenarios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, chain
from typing import Protocol

import msgspec

from breakeven.cost import HostPart, Kernel, KernelTimes, LaunchCosts, Lowering, shipped_costs
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import Caveat
from breakeven.trace import Event, Op, Settings, StepTrace


class CostModel(Protocol):
    """Costs of operators, kernels, launches and copies. ``breakeven.cost.StepCosts`` is one."""

    @property
    def overlap_loss_fraction(self) -> float:
        """Fraction of the time in which host and device both work that is lost."""
        ...

    def lower(self, op: Op, settings: Settings) -> Lowering:
        """Return the kernels of an operator."""
        ...

    def kernel_times(self, kernels: Sequence[Kernel], devices: Sequence[DeviceSpec]) -> KernelTimes:
        """Return the times of all kernels on all devices, as (kernel, device) arrays."""
        ...

    def launch_costs(self, device: DeviceSpec) -> LaunchCosts:
        """Return the costs of launches and syncs."""
        ...

    def copy_ns(self, num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
        """Return the time of a copy between host and device."""
        ...

    def host_op_ns(self, op: Op, lowering: Lowering, host: HostSpec) -> float:
        """Return the host's time to issue an operator, without its launches."""
        ...

    def host_op_parts(
        self, op: Op, lowering: Lowering, host: HostSpec
    ) -> tuple[tuple[HostPart, float], ...]:
        """Return the same time by kind of work."""
        ...

    def dispatch_ns(self, host: HostSpec) -> float:
        """Return the host's time per dispatch, outside of operators."""
        ...

    def calibration_date(self, device: DeviceSpec) -> str:
        """Return the date of this GPU's calibration; empty without one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of a step, by the positions of its events.

    Args:
        replaced: New events by the position of the event that they replace; none to remove it.
        settings: torch's switches after the change; None to keep them.
    """

    replaced: Mapping[int, tuple[Event, ...]] = field(default_factory=dict[int, tuple[Event, ...]])
    settings: Settings | None = None

    def event(self, index: int, event: Event) -> tuple[Event, ...]:
        """Return the events that replace the one at ``index``."""
        return self.replaced.get(index, (event,))

    def apply(self, trace: StepTrace) -> StepTrace:
        """Return the changed step, with the positions of models' calls updated."""
        kept = [self.event(index, event) for index, event in enumerate(trace.events)]
        starts = (0, *accumulate(map(len, kept)))
        calls = tuple(
            msgspec.structs.replace(
                call,
                first_event=starts[call.first_event],
                num_events=starts[call.first_event + call.num_events] - starts[call.first_event],
            )
            for call in trace.facts.model_calls
        )
        return msgspec.structs.replace(
            trace,
            events=tuple(chain.from_iterable(kept)),
            settings=trace.settings if self.settings is None else self.settings,
            facts=msgspec.structs.replace(trace.facts, model_calls=calls),
        )

    def then(self, other: Edit) -> Edit:
        """Return both changes of the same step as one; if both replace an event, this one wins.

        Args:
            other: A change by positions of the same, unchanged step.
        """
        return Edit(
            replaced={**other.replaced, **self.replaced},
            settings=other.settings if self.settings is None else self.settings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step and the kernels of its operators, independent of device and host.

    Args:
        trace: The step.
        lowerings: Kernels by event; None if the event is not an operator of the device.
        costs: The cost model that lowered them.
    """

    trace: StepTrace
    lowerings: tuple[Lowering | None, ...]
    costs: CostModel

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
        """Return the number of kernels that the device runs."""
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
        """Return the same kernels under another cost model, which must lower operators equally."""
        return Program(trace=self.trace, lowerings=self.lowerings, costs=costs)

    def edited(self, edit: Edit) -> Program:
        """Return the program of the edited step.

        Only new operators are lowered; if the settings change, all are.
        """
        trace = edit.apply(self.trace)
        if trace.settings != self.trace.settings:
            return build_program(trace, costs=self.costs)
        lowerings = tuple(
            lowering if kept is event else lowered(kept, trace.settings, self.costs)
            for index, (event, lowering) in enumerate(
                zip(self.trace.events, self.lowerings, strict=True)
            )
            for kept in edit.event(index, event)
        )
        return Program(trace=trace, lowerings=lowerings, costs=self.costs)


def build_program(trace: StepTrace, *, costs: CostModel | None = None) -> Program:
    """Return the step with each operator lowered once.

    Args:
        trace: The step.
        costs: The cost model; the shipped one by default.
    """
    costs = costs or shipped_costs()
    return Program(
        trace=trace,
        lowerings=tuple(lowered(event, trace.settings, costs) for event in trace.events),
        costs=costs,
    )


def lowered(event: Event, settings: Settings, costs: CostModel) -> Lowering | None:
    """Return the kernels of an event; None if it is not an operator of the device."""
    if isinstance(event, Op) and not event.is_on_host:
        return costs.lower(event, settings)
    return None


# Two-sided 90 % of a normal distribution.
Z_90 = 1.6449


class Bound(StrEnum):
    """The limit of a step: the resource whose removal shortens it the most.

    ``launch`` is the host's issuing of device operators. ``compute``, ``memory`` and ``latency``
    are kernels by their limit: arithmetic, bytes, or the wait for the kernel or the time step
    before, if neither fills the device. ``transfer`` is the copies between host and device,
    ``sync`` the host's waiting for values and explicit syncs. ``host-optimizer`` is the CPU's
    work in the optimizer phase. ``host-data`` is all its other work for the step: loading, the
    script's own Python and operators that stay on the host.
    """

    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY = "memory"
    LATENCY = "latency"
    TRANSFER = "transfer"
    SYNC = "sync"
    HOST_DATA = "host-data"
    HOST_OPTIMIZER = "host-optimizer"

    @property
    def word(self) -> str:
        """The limit for a reader: ``host`` for ``host-data``, which need not be about data."""
        return "host" if self is Bound.HOST_DATA else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One set of circumstances; a simulation runs its steps under several at once.

    Args:
        deviation: Error of the logarithm of every modelled time, in standard deviations, all in
            the same direction. For kernels, the part of the error that averages out over a step
            is removed first (`spread_in_step`); host, copies and launches have no such part.
            Recorded durations deviate like the host's.
        kernel_deviation: The same for the kernels, if they deviate differently; None for the
            same deviation.
        without: Resources that are free of charge, to find the limit of the step.
        is_captured: One CUDA graph replays all launches instead of the host issuing them.
    """

    deviation: float = 0.0
    kernel_deviation: float | None = None
    without: frozenset[Bound] = frozenset()
    is_captured: bool = False

    @property
    def kernels_deviate_by(self) -> float:
        """Return the standard deviations of the kernels."""
        return self.deviation if self.kernel_deviation is None else self.kernel_deviation


TYPICAL = Scenario()
FAST = Scenario(deviation=-Z_90)
SLOW = Scenario(deviation=Z_90)
CAPTURED = Scenario(is_captured=True)
WITHOUT_EACH = tuple(Scenario(without=frozenset({bound})) for bound in Bound)

# Two independent errors are as likely to both be this large as one alone to be `Z_90`.
_BOTH = Z_90 / math.sqrt(2.0)
MIXED = (
    Scenario(deviation=_BOTH, kernel_deviation=-_BOTH),
    Scenario(deviation=-_BOTH, kernel_deviation=_BOTH),
)
"""A slow host with a fast device, and a fast host with a slow one."""
