"""What it costs to reach a device: launches, syncs and copies."""

from __future__ import annotations

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.device import DeviceSpec, generation_of


class LaunchCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Time between the host and a device, apart from the work itself. Times in nanoseconds.

    Args:
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        graph_launch_ns: Host time to launch one captured graph, whatever its size.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
        read_ns: What a sync takes more that reads a number: the start of a copy.
    """

    launch_ns: float
    latency_ns: float
    gap_ns: float
    sync_ns: float
    graph_launch_ns: float
    log_sigma: float
    read_ns: float = 0.0


# What the launch of a graph costs the host, in launches. No table times it; a graph is one
# submission of a prepared batch of commands, so it takes a few rather than one per kernel.
_GRAPH_LAUNCHES = 3

# What a launch takes in a CUDA graph of a step, up to the start of the next kernel and beside its
# work, in units of the generation's floor and gap. Each kernel waits for the one before. A product
# loads its first tiles, a reduction adds up in rounds, a kernel on lists reads their addresses.
# Source: fitted to 27 of 28 captured steps on an H200, of 20 to 840 kernels
# (`benchmarks/data/pairs_h200_2026-11-28.csv`; the LSTM cell runs other kernels than recorded):
# 1.16 µs for elementwise kernels, 1.4 for reductions and gathers, 1.65 for lists, 2.8 for products.
_REPLAYED_FLOORS = {
    Family.GEMM: 2.4, Family.BATCHED_GEMM: 2.4, Family.CONVOLUTION: 2.4, Family.ATTENTION: 2.4,
    Family.LINALG: 2.4, Family.REDUCTION: 1.2, Family.NORMALIZATION: 1.2, Family.SOFTMAX: 1.2,
    Family.GATHER: 1.2, Family.SORT: 1.2,
}  # fmt: skip
_REPLAYED_LISTS = 1.4
# Standard deviation of the logarithm of a step of such launches, beside that of the generation. On
# that machine it is 0.17, each network left out of the fit. The rest lets 90 % intervals reach
# another H200 under older software, whose smallest kernels take 2.3 µs (te42kyfo/gpu-benches).
REPLAYED_LOG_SIGMA = 0.3


def replayed_floors(kernel: Kernel) -> float:
    """Return what a launch of a kernel takes in a CUDA graph, in floors and gaps of the device."""
    if kernel.variant == "multi_tensor":
        return _REPLAYED_LISTS
    return _REPLAYED_FLOORS.get(kernel.family, 1.0)


# Pinned host memory to a V100 over PCIe 3.0 x16 (15.75 GB/s), 1 kB to 1 GB, te42kyfo/gpu-benches
# cuda-memcpy: 34-37 µs up to 64 kB, the call and its sync included, into which the bytes fit; from
# there on 28.5 µs and the bytes, at 12.35 GB/s. The rows lie within 6 % of that.
_COPY_LEAST_NS = 35_000.0
_COPY_FIXED_NS = 28_500.0
_LINK_FRACTION = 12.35 / 15.75
# Up to 64 KiB of pageable memory travel with the command: no transfer is set up, and the call does
# not wait for one (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution", names 64 KB as
# the size up to which such copies are asynchronous). What remains is the call and torch's sync of
# the stream after it. A sync and its latency take 9 µs (an `add` on an A100: 17 µs with one, 8
# without); half of that is taken for the call. Not measured itself.
_SMALL_PAGEABLE_BYTES = 65_536
_SMALL_PAGEABLE_FIXED_NS = 14_000.0
# Pageable memory goes through a pinned buffer of the driver, which the host fills first.
# stas00/ml-engineering, 1.05 GB in a DataLoader to an A100: 646 ms pageable, 522 ms pinned. The
# difference alone is known: no table has a pageable copy by itself.
_STAGING_BYTES_PER_S = 1_048_576_000 / 0.124


def launch_costs(device: DeviceSpec) -> LaunchCosts:
    """Return what launches and syncs cost on ``device``, by its generation.

    Raises:
        ValueError: The generation is not in the catalogue.
    """
    generation = generation_of(device)
    return LaunchCosts(
        launch_ns=generation.launch_ns,
        latency_ns=generation.latency_ns,
        gap_ns=generation.gap_ns,
        sync_ns=generation.sync_ns,
        graph_launch_ns=_GRAPH_LAUNCHES * generation.launch_ns,
        log_sigma=generation.log_sigma,
        # The device starts a copy as it starts a kernel. Behind 0.1 ms of work on an H200, `item()`
        # took 3.7 µs more than a sync (`benchmarks/data/pairs_h200_2026-11-28.csv`).
        read_ns=generation.launch_ns + generation.floor_ns,
    )


def copy_ns(num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
    """Return the time of one copy between host and device, either way, in nanoseconds.

    Counted from the call to the arrival on an idle device, as a host that waits for it sees it.

    Args:
        num_bytes: Size of the copy; nothing to copy takes no time.
        device: Its ``link_bytes_per_s`` is the datasheet's rate per direction.
        is_pinned: Whether the host memory is page-locked.
    """
    if num_bytes <= 0:
        return 0.0
    ns_per_byte = 1e9 / (device.link_bytes_per_s * _LINK_FRACTION)
    if not is_pinned:
        ns_per_byte += 1e9 / _STAGING_BYTES_PER_S
        if num_bytes <= _SMALL_PAGEABLE_BYTES:
            return _SMALL_PAGEABLE_FIXED_NS + num_bytes * ns_per_byte
    return max(_COPY_LEAST_NS, _COPY_FIXED_NS + num_bytes * ns_per_byte)
