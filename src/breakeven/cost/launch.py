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


# Launches and gaps of ampere, ada and rdna: te42kyfo/gpu-benches, back-to-back launches of the
# fifteen smallest kernels from C++ (medians: A100 2.66 µs, A40 2.00, L40 1.63, RX 6900 XT 3.32) and
# in a captured graph (1.36, 1.13, 0.96, 3.16); a quarter of the latter is taken as the gap, the
# rest is the kernel's floor. A100 and A40 lie 14 % to either side of ampere's launch: its sigma.
# Latency and sync of ampere: an `add` on an A100 takes 8 µs of host time when queued and 17 µs with
# a sync each (Torch-FL PR 27, 2026): the remaining 9 µs are the kernel (1.2 µs) and, split evenly,
# the latency and the sync.
# All else is judgement, placed between relatives. On an idle GPU an addition takes, beyond an empty
# pair of events, 20 µs (A100), 30 (P100), 16 (P4), 15 (T4), 21 (V100) and 10 (MI100; NeuSight
# tables): that orders Pascal behind the others and leaves CDNA's launch at no more than twice an
# A100's, but hosts differ there, too, and take most of it. Kepler, Maxwell and GCN are placed
# before their successors, Hopper and Blackwell between ampere and ada, Apple and Intel after the
# longer command submission of Metal and Level Zero, with the widest uncertainty.
_BY_GENERATION = {
    "kepler": _costs(4_000, 6_000, 1_000, 6_000, 0.35),
    "maxwell": _costs(3_500, 5_500, 800, 5_500, 0.30),
    "pascal": _costs(3_200, 5_000, 700, 5_000, 0.25),
    "volta": _costs(2_800, 4_500, 500, 4_500, 0.20),
    "turing": _costs(2_600, 4_200, 400, 4_200, 0.20),
    "ampere": _costs(2_300, 4_000, 300, 3_800, 0.15),
    "ada": _costs(1_630, 3_500, 240, 3_500, 0.15),
    "hopper": _costs(2_000, 3_800, 280, 3_500, 0.25),
    "blackwell": _costs(1_900, 3_600, 260, 3_500, 0.30),
    "gcn": _costs(5_000, 8_000, 1_200, 8_000, 0.40),
    "cdna": _costs(4_000, 7_000, 900, 7_000, 0.35),
    "rdna": _costs(3_320, 6_500, 780, 7_000, 0.30),
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
    if not is_pinned:
        ns_per_byte += 1e9 / _STAGING_BYTES_PER_S
        if num_bytes <= _SMALL_PAGEABLE_BYTES:
            return _SMALL_PAGEABLE_FIXED_NS + num_bytes * ns_per_byte
    return max(_COPY_LEAST_NS, _COPY_FIXED_NS + num_bytes * ns_per_byte)
