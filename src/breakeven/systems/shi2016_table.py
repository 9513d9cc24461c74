"""The published times of the benchmark, as its Table 7 has them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache
from importlib import resources

import msgspec

from breakeven.units import NS_PER_S

# The table's CPUs with their physical cores; with more threads, cores run two each.
CORES = {"desktop CPU": 4, "server CPU": 16}
GPUS: tuple[str, ...] = ("GTX 980", "GTX 1080", "K80")


class PublishedTime(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table.

    Args:
        network: Its name in the table.
        batch_size: Samples per mini-batch.
        framework: Software.
        device: ``desktop CPU``, ``server CPU`` or a GPU.
        num_threads: Threads on a CPU; null on a GPU.
        time_ns: Time of a mini-batch.
    """

    network: str
    batch_size: int
    framework: str
    device: str
    num_threads: int | None
    time_ns: float


@cache
def published_times() -> tuple[PublishedTime, ...]:
    """Return all cells that are not empty, in the order of the table."""
    text = resources.files("breakeven.systems").joinpath("shi2016_table7.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        PublishedTime(
            network=row["network"],
            batch_size=int(row["batch_size"]),
            framework=row["framework"],
            device=row["device"],
            num_threads=int(row["threads"]) if row["threads"] else None,
            time_ns=float(row["seconds_per_minibatch"]) * NS_PER_S,
        )
        for row in rows
    )


def networks() -> dict[str, int]:
    """Return the batch size of each network, in the order of the table."""
    return {time.network: time.batch_size for time in published_times()}


def frameworks(network: str) -> tuple[str, ...]:
    """Return the frameworks that have figures of a network, in the order of the table."""
    return tuple(
        dict.fromkeys(time.framework for time in published_times() if time.network == network)
    )


def cells(network: str, framework: str, device: str) -> dict[int | None, float]:
    """Return times in nanoseconds by number of threads; a GPU's are under None."""
    return {
        time.num_threads: time.time_ns
        for time in published_times()
        if (time.network, time.framework, time.device) == (network, framework, device)
    }


def fastest_ns(network: str, devices: Iterable[str]) -> float:
    """Return the shortest time of any framework, on any of the devices and on any threads."""
    wanted = set(devices)
    return min(
        time.time_ns
        for time in published_times()
        if time.network == network and time.device in wanted
    )


def thread_curves(network: str) -> tuple[tuple[float, ...], ...]:
    """Return times by 1, 2, 4, … threads up to the physical cores, where all were published.

    One curve for each framework on each of the two CPUs.
    """
    curves: list[tuple[float, ...]] = []
    for framework in frameworks(network):
        for device, num_cores in CORES.items():
            times_ns = cells(network, framework, device)
            counts = [2**i for i in range(num_cores.bit_length())]
            if all(count in times_ns for count in counts):
                curves.append(tuple(times_ns[count] for count in counts))
    return tuple(curves)
