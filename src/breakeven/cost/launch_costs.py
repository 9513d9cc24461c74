"""The cost of reaching a device: launches, syncs, copies, and collectives between its peers."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.cost.kernel import Family, Kernel
from breakeven.device import DeviceSpec, generation_of


class LaunchCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Times between the host and a device, without the work itself, in nanoseconds.

    Args:
        launch_ns: Host time of one kernel launch, beyond the operator's dispatch.
        latency_ns: From the enqueuing of a kernel to its start on an idle device.
        gap_ns: Smallest time between the end of a kernel and the start of the next on a stream.
        sync_ns: Host time of a stream sync or a blocked read once the device is idle.
        graph_launch_ns: Host time to launch one captured graph of any size.
        log_sigma: Standard deviation of the logarithm of these times between hosts and drivers.
        read_ns: Extra time of a sync that reads a number: the start of a copy.
    """

    launch_ns: float
    latency_ns: float
    gap_ns: float
    sync_ns: float
    graph_launch_ns: float
    log_sigma: float
    read_ns: float = 0.0


# Host cost of launching a graph, in launches. No table measures it; a graph is one submission of a
# prepared batch of commands, so it costs a few launches rather than one per kernel.
_GRAPH_LAUNCHES = 3

# Time of a launch in a CUDA graph of a step, up to the start of the next kernel and without its
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
# Standard deviation of the logarithm of a step of such launches, in addition to the generation's.
# On that machine it is 0.17, with each network left out of the fit. The rest extends the 90 %
# interval to another H200 under older software, whose smallest kernels take 2.3 µs
# (te42kyfo/gpu-benches).
REPLAYED_LOG_SIGMA = 0.3


def replayed_floors(kernel: Kernel) -> float:
    """Return the time of a kernel's launch in a CUDA graph, in floors and gaps of the device."""
    if kernel.variant == "multi_tensor":
        return _REPLAYED_LISTS
    return _REPLAYED_FLOORS.get(kernel.family, 1.0)


# Pinned host memory to a V100 over PCIe 3.0 x16 (15.75 GB/s), 1 kB to 1 GB, te42kyfo/gpu-benches
# cuda-memcpy: 34-37 µs up to 64 kB, including the call and its sync, which hide the bytes; above
# that 28.5 µs plus the bytes at 12.35 GB/s. The rows lie within 6 % of that.
_COPY_LEAST_NS = 35_000.0
_COPY_FIXED_NS = 28_500.0
_LINK_FRACTION = 12.35 / 15.75
# Up to 64 KiB of pageable memory travel with the command: no transfer is set up, and the call does
# not wait for one (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution", names 64 KB as
# the size up to which such copies are asynchronous). The call and torch's sync of the stream after
# it remain. A sync and its latency take 9 µs (an `add` on an A100: 17 µs with one, 8 without); the
# call is assumed to take half of that. Not measured itself.
_SMALL_PAGEABLE_BYTES = 65_536
_SMALL_PAGEABLE_FIXED_NS = 14_000.0
# Pageable memory goes through a pinned buffer of the driver, which the host fills first.
# stas00/ml-engineering, 1.05 GB in a DataLoader to an A100: 646 ms pageable, 522 ms pinned. Only
# the difference is known: no table isolates a pageable copy.
_STAGING_BYTES_PER_S = 1_048_576_000 / 0.124


def launch_costs(device: DeviceSpec) -> LaunchCosts:
    """Return the launch and sync costs of ``device``, by its generation.

    Raises:
        ValueError: The catalogue lacks the generation.
    """
    generation = generation_of(device)
    return LaunchCosts(
        launch_ns=generation.launch_ns,
        latency_ns=generation.latency_ns,
        gap_ns=generation.gap_ns,
        sync_ns=generation.sync_ns,
        graph_launch_ns=_GRAPH_LAUNCHES * generation.launch_ns,
        log_sigma=generation.log_sigma,
        # The device starts a copy as it starts a kernel. After 0.1 ms of work on an H200, `item()`
        # took 3.7 µs more than a sync (`benchmarks/data/pairs_h200_2026-11-28.csv`).
        read_ns=generation.launch_ns + generation.floor_ns,
    )


def copy_ns(num_bytes: float, *, device: DeviceSpec, is_pinned: bool) -> float:
    """Return the time of one copy between host and device, either way, in nanoseconds.

    It runs from the call to the arrival on an idle device, as seen by a host that waits for it.

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


class PeerPath(StrEnum):
    """The path between the GPUs of a machine.

    ``fabric`` joins all of them (SXM boards, Infinity Fabric), ``bridge`` two, ``pcie`` is direct
    access over the bus, ``host`` goes through host memory.
    """

    FABRIC = "fabric"
    BRIDGE = "bridge"
    PCIE = "pcie"
    HOST = "host"


class PeerLink(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and costs of a ring of GPUs.

    Args:
        path: Path between them.
        reduce_bytes_per_s: Bus bandwidth of an all-reduce: bytes that each GPU sends per second.
        broadcast_bytes_per_s: The same for a broadcast or a reduction to one GPU, which use each
            link in one direction only.
        fixed_ns: Cost of a call of any size.
        hop_ns: Cost of each step of the ring.
    """

    path: PeerPath
    reduce_bytes_per_s: float
    broadcast_bytes_per_s: float
    fixed_ns: float
    hop_ns: float


# deepbench, all-reduce of 0.4 to 258 MB over 2, 4 and 8 GPUs of one node (NCCL 2.0, PCIe 3.0, 15.75
# GB/s). GTX 1080 Ti with direct access: 12.2, 11.0 and 8.7 GB/s, and 29 to 68 µs without data.
# P100 and M40, through the host: 5.9 GB/s for any number, and 36 to 116 µs. These six constants
# reproduce the 63 rows with a median error of 2 % and at most 22 % (the 67 MB rows of P100 and M40
# are slower than their neighbours on both sides). Not in the fit: A100 with PCIe 4.0, three in
# a ring, 20 GB/s, here 23; RTX 5090 with PCIe 5.0, 28 (eight) and 35 GB/s (four), here 24.
_PCIE_FRACTION = 0.775
_PCIE_CROWDING = 0.062
_HOST_FRACTION = 0.38
_DIRECT_FIXED_NS, _DIRECT_HOP_NS = 22_000.0, 3_300.0
_HOST_FIXED_NS, _HOST_HOP_NS = 25_000.0, 6_500.0
# nccl-tests issue 178: two bridged A100 reach 208 GB/s of 300 per direction. No table has a fabric
# of many GPUs; it is assumed to reach the same fraction.
_PEER_FRACTION = 208 / 300
# A broadcast uses a PCIe link in one direction. `nn.DataParallel` replicates at 8.9 GB/s on RTX
# 2080 Ti and 9.6 on TITAN RTX (ryujaehun, PCIe 3.0, vgg and wide_resnet), which have no direct
# access. With direct access it is not faster than an all-reduce.
_HOST_BROADCAST_FRACTION = 0.58


def peer_link(
    device: DeviceSpec,
    num_devices: int,
    *,
    has_peer_access: bool | None = None,
    has_bridge: bool = False,
) -> PeerLink:
    """Return the link between ``num_devices`` of ``device`` in one machine.

    Args:
        device: Its ``peer_bytes_per_s`` is the sum of both directions.
        num_devices: At least 2.
        has_peer_access: Whether they may access each other's memory; None for the usual setting of
            such boards. Without it all data goes through the host, even with NVLink.
        has_bridge: Whether pairs of cards are bridged. Boards with a fabric need no bridge.

    Raises:
        ValueError: There are fewer than two devices.
    """
    if num_devices < 2:
        raise ValueError(f"a collective takes at least 2 devices, not {num_devices}")
    generation, link = generation_of(device), device.link_bytes_per_s
    has_fabric = any(part in device.id for part in generation.fabric_boards)
    is_closed = device.market == "consumer" and not generation.has_consumer_peer_access
    if has_peer_access is False:
        path = PeerPath.HOST
    elif device.peer_bytes_per_s > 0 and has_fabric:
        path = PeerPath.FABRIC
    elif device.peer_bytes_per_s > 0 and has_bridge and num_devices == 2:
        path = PeerPath.BRIDGE
    else:
        path = PeerPath.HOST if is_closed and has_peer_access is None else PeerPath.PCIE
    reduce = broadcast = _PEER_FRACTION * device.peer_bytes_per_s / 2
    if path is PeerPath.PCIE:
        reduce = broadcast = link * _PCIE_FRACTION / (1 + _PCIE_CROWDING * (num_devices - 2))
    elif path is PeerPath.HOST:
        reduce, broadcast = link * _HOST_FRACTION, link * _HOST_BROADCAST_FRACTION
    is_direct = path is not PeerPath.HOST
    return PeerLink(
        path=path,
        reduce_bytes_per_s=reduce,
        broadcast_bytes_per_s=broadcast,
        fixed_ns=_DIRECT_FIXED_NS if is_direct else _HOST_FIXED_NS,
        hop_ns=_DIRECT_HOP_NS if is_direct else _HOST_HOP_NS,
    )


def all_reduce_ns(num_bytes: float, num_devices: int, link: PeerLink) -> float:
    """Return the time of one all-reduce over a ring, in nanoseconds.

    Args:
        num_bytes: Size of the tensor; nothing to reduce takes no time.
        num_devices: GPUs in the ring.
        link: Rates of the ring.

    Source: each GPU sends 2 (n - 1) / n times the tensor, in 2 (n - 1) steps of 1 / n each
    (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009).
    """
    if num_bytes <= 0:
        return 0.0
    steps = 2 * (num_devices - 1)
    sent_bytes = steps / num_devices * num_bytes
    return link.fixed_ns + steps * link.hop_ns + sent_bytes * 1e9 / link.reduce_bytes_per_s


def collective_ns(kind: str, num_bytes: float, num_devices: int, link: PeerLink) -> float:
    """Return the time of a collective of one process per GPU, in nanoseconds.

    Args:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``; any other goes as a broadcast.
        num_bytes: Bytes that each process puts in.
        num_devices: GPUs in the ring.
        link: Rates of the ring.

    Source: an all-reduce is a reduce-scatter and an all-gather of the results (as there).
    """
    match kind:
        case "all_reduce":
            return all_reduce_ns(num_bytes, num_devices, link)
        case "all_gather" | "reduce_scatter" if num_bytes:
            whole = num_bytes * num_devices if kind == "all_gather" else num_bytes
            return (link.fixed_ns + all_reduce_ns(whole, num_devices, link)) / 2
        case _:
            return broadcast_ns(num_bytes, num_devices, link)


def broadcast_ns(
    num_bytes: float, num_devices: int, link: PeerLink, *, num_calls: int = 1
) -> float:
    """Return the time to send a tensor to all devices, or to sum it on one, in nanoseconds.

    A ring forwards it in small pieces, so the time hardly depends on the number of devices.

    Args:
        num_bytes: Size of the tensor; nothing to send takes no time.
        num_devices: GPUs in the ring, source included.
        link: Rates of the ring.
        num_calls: Pieces of the tensor, sent one after another.
    """
    if num_bytes <= 0:
        return 0.0
    per_call_ns = link.fixed_ns + (num_devices - 1) * link.hop_ns
    return num_calls * per_call_ns + num_bytes * 1e9 / link.broadcast_bytes_per_s
