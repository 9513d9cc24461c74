"""Collectives between the GPUs of one machine: what path they take, and how long they last."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.device import DeviceSpec, generation_of


class PeerPath(StrEnum):
    """How the GPUs of a machine reach each other.

    ``fabric`` joins all of them (SXM boards, Infinity Fabric), ``bridge`` two, ``pcie`` is direct
    access over the bus, ``host`` passes through host memory.
    """

    FABRIC = "fabric"
    BRIDGE = "bridge"
    PCIE = "pcie"
    HOST = "host"


class PeerLink(msgspec.Struct, frozen=True, kw_only=True):
    """What a ring of GPUs reaches.

    Args:
        path: How they reach each other.
        reduce_bytes_per_s: Bus bandwidth of an all-reduce: what each GPU sends at a time.
        broadcast_bytes_per_s: The same of a broadcast or a reduction to one GPU, which use each
            link in one direction only.
        fixed_ns: Cost of a call, whatever its size.
        hop_ns: Cost of each step of the ring.
        log_sigma: Standard deviation of the logarithm of a collective's time.
    """

    path: PeerPath
    reduce_bytes_per_s: float
    broadcast_bytes_per_s: float
    fixed_ns: float
    hop_ns: float
    log_sigma: float


# deepbench, all-reduce of 0.4 to 258 MB over 2, 4 and 8 GPUs of one node (NCCL 2.0, PCIe 3.0, 15.75
# GB/s). GTX 1080 Ti with direct access: 12.2, 11.0 and 8.7 GB/s, and 29 to 68 µs for nothing.
# P100 and M40, through the host: 5.9 GB/s for any number, and 36 to 116 µs. These six constants
# reproduce the 63 rows with a median error of 2 % and at most 22 % (the 67 MB rows of P100 and M40
# are slower than their neighbours on both sides). Rows they were not made from: A100 of PCIe 4.0,
# three in a ring, 20 GB/s, here 23; RTX 5090 of PCIe 5.0, 28 (eight) and 35 GB/s (four), here 24.
_PCIE_FRACTION = 0.775
_PCIE_CROWDING = 0.062
_HOST_FRACTION = 0.38
_DIRECT_FIXED_NS, _DIRECT_HOP_NS = 22_000.0, 3_300.0
_HOST_FIXED_NS, _HOST_HOP_NS = 25_000.0, 6_500.0
# nccl-tests issue 178: two bridged A100 reach 208 GB/s of 300 per direction. No table has a fabric
# of many; it is taken to do as well.
_PEER_FRACTION = 208 / 300
# A broadcast uses a PCIe link in one direction. What `nn.DataParallel` replicates arrives with 8.9
# GB/s on RTX 2080 Ti and 9.6 on TITAN RTX (ryujaehun, PCIe 3.0, vgg and wide_resnet), which have
# no direct access. With direct access it is not faster than an all-reduce.
_HOST_BROADCAST_FRACTION = 0.58

# Direct access over PCIe differs least; through the host, memory channels and sockets decide too
# (three RTX 2080 Ti of one machine take three times as long for a broadcast as two or four do).
_LOG_SIGMA = {
    PeerPath.FABRIC: 0.3,
    PeerPath.BRIDGE: 0.3,
    PeerPath.PCIE: 0.25,
    PeerPath.HOST: 0.4,
}


def peer_link(
    device: DeviceSpec,
    num_devices: int,
    *,
    has_peer_access: bool | None = None,
    has_bridge: bool = False,
) -> PeerLink:
    """Return how ``num_devices`` of ``device`` in one machine reach each other.

    Args:
        device: Its ``peer_bytes_per_s`` is the sum of both directions.
        num_devices: At least 2.
        has_peer_access: Whether they may access each other's memory; None for what such boards
            usually do. Without it everything passes through the host, even where there is NVLink.
        has_bridge: Whether pairs of cards are bridged. Boards with a fabric need none.

    Raises:
        ValueError: There are fewer than two devices.
    """
    if num_devices < 2:
        raise ValueError(f"a collective takes at least 2 devices, not {num_devices}")
    path = _path(device, num_devices, has_peer_access=has_peer_access, has_bridge=has_bridge)
    link = device.link_bytes_per_s
    match path:
        case PeerPath.FABRIC | PeerPath.BRIDGE:
            reduce = broadcast = _PEER_FRACTION * device.peer_bytes_per_s / 2
        case PeerPath.PCIE:
            reduce = broadcast = link * _PCIE_FRACTION / (1 + _PCIE_CROWDING * (num_devices - 2))
        case PeerPath.HOST:
            reduce, broadcast = link * _HOST_FRACTION, link * _HOST_BROADCAST_FRACTION
    is_direct = path is not PeerPath.HOST
    return PeerLink(
        path=path,
        reduce_bytes_per_s=reduce,
        broadcast_bytes_per_s=broadcast,
        fixed_ns=_DIRECT_FIXED_NS if is_direct else _HOST_FIXED_NS,
        hop_ns=_DIRECT_HOP_NS if is_direct else _HOST_HOP_NS,
        log_sigma=_LOG_SIGMA[path],
    )


def _path(
    device: DeviceSpec, num_devices: int, *, has_peer_access: bool | None, has_bridge: bool
) -> PeerPath:
    if has_peer_access is False:
        return PeerPath.HOST
    generation = generation_of(device)
    if device.peer_bytes_per_s > 0:
        if any(part in device.id for part in generation.fabric_boards):
            return PeerPath.FABRIC
        if has_bridge and num_devices == 2:
            return PeerPath.BRIDGE
    is_closed = device.market == "consumer" and not generation.has_consumer_peer_access
    return PeerPath.HOST if is_closed and has_peer_access is None else PeerPath.PCIE


def all_reduce_ns(num_bytes: float, num_devices: int, link: PeerLink) -> float:
    """Return the time of one all-reduce over a ring, in nanoseconds.

    Args:
        num_bytes: Size of the tensor; nothing to reduce takes no time.
        num_devices: GPUs in the ring.
        link: What the ring reaches.

    Source: each GPU sends 2 (n - 1) / n times the tensor, in as many steps of 1 / n each (Patarasu
    and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009).
    """
    if num_bytes <= 0:
        return 0.0
    steps = 2 * (num_devices - 1)
    sent_bytes = steps / num_devices * num_bytes
    return link.fixed_ns + steps * link.hop_ns + sent_bytes * 1e9 / link.reduce_bytes_per_s


def broadcast_ns(
    num_bytes: float, num_devices: int, link: PeerLink, *, num_calls: int = 1
) -> float:
    """Return the time to bring a tensor to all devices, or to sum it up on one, in nanoseconds.

    A ring passes it on in small pieces, so that the number of devices hardly matters.

    Args:
        num_bytes: Size of the tensor; nothing to send takes no time.
        num_devices: GPUs in the ring, source included.
        link: What the ring reaches.
        num_calls: Pieces in which it is sent, one after another.
    """
    if num_bytes <= 0:
        return 0.0
    per_call_ns = link.fixed_ns + (num_devices - 1) * link.hop_ns
    return num_calls * per_call_ns + num_bytes * 1e9 / link.broadcast_bytes_per_s
