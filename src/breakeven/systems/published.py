"""Figures that others published, with where, and the bands within which ours agree with them.

Ours are set beside them and never made from them; bands were fixed before anything was predicted.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from breakeven.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Figures that count as agreeing with a published one.

    Args:
        low: The smallest.
        high: The largest.
    """

    low: float
    high: float

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


DISC_MLP_SOURCE = 'blog post "When to use GPU for training?", 4 September 2019'
# The tenth depth of its table: from there on the laptop's GPU was faster than its CPU.
DISC_MLP_CROSSOVER_PARAMETERS = 700_000
DISC_MLP_CROSSOVER_DEPTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpeed:
    """Iterations per second on Google Colab, at one batch size.

    Args:
        batch_size: Streams watched at once.
        cpu_per_s: On its CPU.
        gpu_per_s: On its GPU, whose model the question does not name.
    """

    batch_size: int
    cpu_per_s: float
    gpu_per_s: float

    @property
    def ratio(self) -> float:
        """Return the GPU's speed against the CPU's."""
        return self.gpu_per_s / self.cpu_per_s


RNN_STREAM_SPEEDS = (
    StreamSpeed(batch_size=100, cpu_per_s=650.0, gpu_per_s=340.0),
    StreamSpeed(batch_size=10_000, cpu_per_s=15.0, gpu_per_s=145.0),
)

WEIGHT_UPDATE_GPU = "GTX 960"
WEIGHT_UPDATE_BATCH_SIZE = 20
WEIGHT_UPDATE_MOMENTUM = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRun:
    """One training run of Leaf's MNIST example on a GTX 960.

    Args:
        place: Where the weights were updated.
        wall_s: Its wall time, in seconds.
        update_fraction: Share of the CPU's time in the update's BLAS calls, where it is told.
        idle_fraction: Share of the time in which the GPU was idle, where its load is told.
    """

    place: str
    wall_s: float
    update_fraction: float | None = None
    idle_fraction: float | None = None


WEIGHT_UPDATE_RUNS = (
    UpdateRun(place="on the host", wall_s=64.03, update_fraction=0.4, idle_fraction=0.8),
    UpdateRun(place="on the device", wall_s=32.57),
)
WEIGHT_UPDATE_SPEEDUP = WEIGHT_UPDATE_RUNS[0].wall_s / WEIGHT_UPDATE_RUNS[1].wall_s

NEURAL_ODE_CLAIM = "orders of magnitude faster on the CPU than on a K40c"
NEURAL_ODE_ITERATIONS = 1_000
# Its packages are of 2019 and 2020; PyTorch then was at 1.1 to 1.6.
NEURAL_ODE_FRAMEWORK = "torch 1.4 CUDA 10.1"


# Judgement: the question names neither its GPU nor what feeds it.
RNN_STREAM_FACTOR = 1.5

# The post's depths are a factor of four apart in parameters: more than the depth before has, and as
# many as the one that follows.
DISC_MLP_BAND = Band(low=300_000, high=3_000_000)
RNN_STREAM_BANDS = {
    speed.batch_size: Band(
        low=speed.ratio / RNN_STREAM_FACTOR, high=speed.ratio * RNN_STREAM_FACTOR
    )
    for speed in RNN_STREAM_SPEEDS
}
# Around twice as fast.
WEIGHT_UPDATE_BAND = Band(low=1.5, high=3.0)
# "Orders of magnitude" says more than one; one is what is asked of ours.
NEURAL_ODE_BAND = Band(low=10.0, high=math.inf)
# "Far slower": not within the spread of links and memories, which is a factor of 2 or 3.
DEVICE_COPY_BAND = Band(low=5.0, high=math.inf)


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
