"""The answer to `breakeven cost`, as values.

The JSON schema is generated from these types, so a changed key breaks the contract: raise
``COST_SCHEMA_VERSION`` with it.
"""

from __future__ import annotations

import msgspec

from breakeven.errors import Caveat
from breakeven.money import Interval, PriceSource
from breakeven.simulate import Bound
from breakeven.timing import Source
from breakeven.verdict import DeviceKind, HostSummary
from breakeven.verdict.results import Nanoseconds

COST_SCHEMA_VERSION = 1


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The training on one machine.

    Args:
        provider: Provider of the machine; empty for this machine.
        machine: The provider's name of it; ``this machine`` for this one.
        device: The device that trains.
        kind: CPU or GPU.
        source: Whether the step was measured here, or predicted.
        num_gpus: GPUs that share the training; 0 for a CPU.
        num_parts: Parts of the batch that follow one another, with accumulated gradients, since
            the whole batch does not fit; 1 for none.
        region: Region of the price; empty if it has none.
        usd_per_hour: Price of the machine; 0 for this machine.
        step_ns: Time of one step.
        time_ns: Time from the start of the machine to the end of the last step.
        usd: Money for that time, as the provider bills it.
        energy_kwh: Electricity, with the building's share.
        energy_counters: Counters of this machine that measured its power, with the idle power and
            that of other processes; empty if the electricity is predicted.
        co2_kg: Emissions of generating it; null if the grid is unknown.
        bound: The bottleneck of the step; null if unknown.
        fits: Whether the device has enough memory; null if unknown.
        peak_memory_bytes: Peak memory of the step; null if unknown.
        largest_batch: The largest batch size that fits the device, 0 for none; null if unknown.
        meets_limits: Whether deadline and budget hold with 95 % confidence.
        is_on_front: Whether no other machine is both faster and cheaper.
        caveats: Reasons to trust the figures less.
    """

    provider: str
    machine: str
    device: str
    kind: DeviceKind
    source: Source
    num_gpus: int
    num_parts: int = 1
    region: str
    usd_per_hour: float
    step_ns: Nanoseconds
    time_ns: Interval
    usd: Interval
    energy_kwh: Interval
    co2_kg: Interval | None
    bound: Bound | None
    fits: bool | None
    peak_memory_bytes: int | None
    largest_batch: int | None
    meets_limits: bool
    is_on_front: bool = False
    energy_counters: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()

    @property
    def is_here(self) -> bool:
        """Return whether it is this machine."""
        return not self.provider

    @property
    def takes_script(self) -> bool:
        """Return whether the script trains there unchanged: one GPU, whole batches, in time."""
        return self.meets_limits and self.num_parts == 1 and self.num_gpus <= 1


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `breakeven cost`.

    Args:
        schema_version: Version of this schema, raised if a key is removed or changes its meaning.
        target: The script or module, as given.
        host: This machine.
        num_steps: Steps of the training.
        batch_size: Samples per step; null if unknown.
        setup_s: Assumed time to start a rented machine, load the software and copy the data.
        deadline_s: The latest end, from now; null for none.
        budget_usd: The most money; null for none.
        power_usd_per_kwh: Price of electricity for this machine.
        prices: The lists of the prices.
        rows: The machines: those that meet the limits first, then by money, then by time.
        answer: The cheapest choice, this machine, and a faster one, in one sentence.
        caveats: Reasons to trust all figures less.
    """

    schema_version: int
    target: str
    host: HostSummary
    num_steps: int
    batch_size: int | None
    setup_s: Interval
    deadline_s: float | None
    budget_usd: float | None
    power_usd_per_kwh: float
    prices: tuple[PriceSource, ...]
    rows: tuple[CostRow, ...]
    answer: str
    caveats: tuple[Caveat, ...] = ()
