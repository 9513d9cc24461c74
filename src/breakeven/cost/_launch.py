"""What it costs to reach a device: launches, syncs and copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from breakeven.device import DeviceSpec

_T = TypeVar("_T")


class LaunchCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Time between the host and a device, apart from the work itself. Times in nanoseconds.

    Args:
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        graph_launch_ns: Host time to launch one captured graph, whatever its size.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
    """

    launch_ns: float
    latency_ns: float
    gap_ns: float
    sync_ns: float
    graph_launch_ns: float
    log_sigma: float


def _costs(
    launch_ns: float, latency_ns: float, gap_ns: float, sync_ns: float, log_sigma: float
) -> LaunchCosts:
    return LaunchCosts(
        launch_ns=launch_ns,
        latency_ns=latency_ns,
        gap_ns=gap_ns,
        sync_ns=sync_ns,
        # No table times it; a graph is one submission of a prepared batch of commands, so it
        # costs the host a few launches rather than one per kernel.
        graph_launch_ns=3 * launch_ns,
        log_sigma=log_sigma,
    )


# Source of ampere, ada and rdna: te42kyfo/gpu-benches, back-to-back launches of a 64 kB kernel
# from C++ (A100 2.62 µs, A40 2.05, L40 1.64, RX 6900 XT 3.28) and in a captured graph (1.34,
# 1.09, 0.94, 3.12); a quarter of the latter is taken as the gap, the rest is the kernel's floor.
# An `add` on an A100 takes 8 µs of host time when queued and 17 µs with a sync each: the
# remaining 9 µs are the latency, the kernel (1.5 µs) and the sync.
# Older NVIDIA generations: idle-device latencies of the same tiny operator (NeuSight tables) are
# 1.0-1.6 times those of the A100. The others have no table; they are placed beside their
# nearest relative, Apple and Intel after the longer command submission of Metal and Level Zero,
# and carry the widest uncertainty.
_BY_GENERATION = {
    "kepler": _costs(4_000, 6_000, 1_000, 6_000, 0.35),
    "maxwell": _costs(3_500, 5_500, 800, 5_500, 0.30),
    "pascal": _costs(3_200, 5_000, 700, 5_000, 0.25),
    "volta": _costs(2_800, 4_500, 500, 4_500, 0.20),
    "turing": _costs(2_600, 4_200, 400, 4_200, 0.20),
    "ampere": _costs(2_300, 4_000, 300, 3_800, 0.15),
    "ada": _costs(1_700, 3_500, 240, 3_500, 0.15),
    "hopper": _costs(2_000, 3_800, 280, 3_500, 0.25),
    "blackwell": _costs(1_900, 3_600, 260, 3_500, 0.30),
    "gcn": _costs(5_000, 8_000, 1_200, 8_000, 0.40),
    "cdna": _costs(4_000, 7_000, 900, 7_000, 0.35),
    "rdna": _costs(3_300, 6_500, 780, 7_000, 0.30),
    "apple": _costs(4_000, 30_000, 2_000, 60_000, 0.60),
    "xe": _costs(5_000, 10_000, 1_500, 12_000, 0.60),
}

# Shortest time that a kernel occupies a device: the rest of the graph replay above.
_FLOOR_NS = {
    "kepler": 3_000.0, "maxwell": 2_300.0, "pascal": 2_000.0, "volta": 1_500.0,
    "turing": 1_300.0, "ampere": 900.0, "ada": 720.0, "hopper": 900.0, "blackwell": 850.0,
    "gcn": 3_500.0, "cdna": 2_800.0, "rdna": 2_350.0, "apple": 4_000.0, "xe": 4_000.0,
}  # fmt: skip

# Pinned host memory to a V100 over PCIe 3.0 x16 (15.75 GB/s), 1 kB to 1 GB, te42kyfo/gpu-benches
# cuda-memcpy: 34 µs for 1-8 kB, the call and its sync included; 12.35 GB/s from 256 MB on.
_COPY_FIXED_NS = 34_000.0
_LINK_FRACTION = 12.35 / 15.75
# Up to 64 KiB of pageable memory travel with the command: no transfer is set up, and the call does
# not wait for one (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution", names 64 KB as
# the size up to which such copies are asynchronous). What remains is the call and torch's sync of
# the stream after it. A sync and its latency take 9 µs (an `add` on an A100: 17 µs with one, 8
# without); half of that is taken for the call. Not measured itself.
_SMALL_PAGEABLE_BYTES = 65_536
_SMALL_PAGEABLE_FIXED_NS = 14_000.0
# Pageable memory goes through a pinned buffer of the driver, which the host fills first.
# stas00/ml-engineering, 1.05 GB in a DataLoader to an A100: 646 ms pageable, 522 ms pinned.
_STAGING_BYTES_PER_S = 1_048_576_000 / 0.124


def launch_costs(device: DeviceSpec) -> LaunchCosts:
    """Return what launches and syncs cost on ``device``, by its launch generation.

    Raises:
        ValueError: The generation is not in the table.
    """
    return _of_generation(_BY_GENERATION, device)


def kernel_floor_ns(device: DeviceSpec) -> float:
    """Return the shortest time that any kernel occupies ``device``, in nanoseconds.

    Raises:
        ValueError: Its launch generation is not in the table.
    """
    return _of_generation(_FLOOR_NS, device)


def _of_generation(table: Mapping[str, _T], device: DeviceSpec) -> _T:
    try:
        return table[device.launch_generation]
    except KeyError:
        raise ValueError(
            f"{device.id}: no launch costs for generation {device.launch_generation!r}; "
            f"known: {', '.join(table)}"
        ) from None


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
    if is_pinned:
        return _COPY_FIXED_NS + num_bytes * ns_per_byte
    ns_per_byte += 1e9 / _STAGING_BYTES_PER_S
    is_small = num_bytes <= _SMALL_PAGEABLE_BYTES
    return (_SMALL_PAGEABLE_FIXED_NS if is_small else _COPY_FIXED_NS) + num_bytes * ns_per_byte
