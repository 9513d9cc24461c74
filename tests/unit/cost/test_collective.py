"""What path GPUs take to each other, and how long collectives last; values worked by hand."""

from __future__ import annotations

import pytest

from breakeven.cost import PeerLink, PeerPath, all_reduce_ns, broadcast_ns, peer_link
from breakeven.device import find_device

LINK = PeerLink(
    path=PeerPath.PCIE,
    reduce_bytes_per_s=10e9,
    broadcast_bytes_per_s=20e9,
    fixed_ns=20_000,
    hop_ns=5_000,
    log_sigma=0.2,
)


@pytest.mark.parametrize(
    ("num_devices", "expected_ns"),
    [
        # 100 MB at 10 GB/s is 10 ms; each GPU sends 2 (n - 1) / n of it in 2 (n - 1) steps.
        (2, 20_000 + 2 * 5_000 + 10_000_000),
        (4, 20_000 + 6 * 5_000 + 15_000_000),
        (8, 20_000 + 14 * 5_000 + 17_500_000),
    ],
)
def test_ring_all_reduce(num_devices: int, expected_ns: float) -> None:
    assert all_reduce_ns(100e6, num_devices, LINK) == pytest.approx(expected_ns)


def test_broadcast_sends_the_bytes_once_and_pays_for_each_call() -> None:
    # 100 MB at 20 GB/s is 5 ms; three hops between four GPUs.
    assert broadcast_ns(100e6, 4, LINK) == pytest.approx(5_000_000 + 20_000 + 15_000)
    assert broadcast_ns(100e6, 4, LINK, num_calls=10) == pytest.approx(5_000_000 + 350_000)


def test_nothing_takes_no_time() -> None:
    assert all_reduce_ns(0, 8, LINK) == 0
    assert broadcast_ns(0, 8, LINK, num_calls=3) == 0


@pytest.mark.parametrize(
    ("name", "num_devices", "path"),
    [
        ("A100 SXM4 80GB", 8, PeerPath.FABRIC),
        ("V100 SXM2 16GB", 4, PeerPath.FABRIC),
        ("H100 SXM5 80GB", 2, PeerPath.FABRIC),
        ("A100 PCIe 40GB", 4, PeerPath.PCIE),
        ("RTX A4000", 8, PeerPath.PCIE),
        ("GTX 1080 Ti", 4, PeerPath.PCIE),
        ("RTX 2080 Ti", 2, PeerPath.HOST),
        ("RTX 4090", 4, PeerPath.HOST),
    ],
)
def test_usual_path(name: str, num_devices: int, path: PeerPath) -> None:
    assert peer_link(find_device(name), num_devices).path is path


def test_access_that_was_switched_off_passes_through_the_host() -> None:
    device = find_device("A100 SXM4 80GB")
    link = peer_link(device, 8, has_peer_access=False)
    assert link.path is PeerPath.HOST
    assert link.reduce_bytes_per_s < peer_link(device, 8).reduce_bytes_per_s / 5


def test_bridge_joins_two_cards_only() -> None:
    device = find_device("A100 PCIe 80GB")
    bridged = peer_link(device, 2, has_bridge=True)
    assert bridged.path is PeerPath.BRIDGE
    # 208 GB/s were measured, of the 300 per direction of the datasheet.
    assert bridged.reduce_bytes_per_s == pytest.approx(208e9)
    assert peer_link(device, 3, has_bridge=True).path is PeerPath.PCIE


def test_access_that_is_known_to_work_is_used() -> None:
    assert peer_link(find_device("RTX 2080 Ti"), 2, has_peer_access=True).path is PeerPath.PCIE


@pytest.mark.parametrize(
    ("name", "num_devices", "has_peer_access", "num_bytes", "measured_ms"),
    [
        # deepbench: NCCL 2.0, PCIe 3.0; P100 through the host.
        ("GTX 1080 Ti", 2, None, 400_000, 0.062329),
        ("GTX 1080 Ti", 2, None, 258_000_000, 21.135),
        ("GTX 1080 Ti", 8, None, 26_214_400, 5.313),
        ("P100 PCIe 16GB", 2, False, 12_390_400, 2.081),
        ("P100 PCIe 16GB", 4, False, 400_000, 0.167),
        ("P100 PCIe 16GB", 8, False, 258_000_000, 76.631),
    ],
)
def test_measured_all_reduces(
    name: str, num_devices: int, has_peer_access: bool | None, num_bytes: int, measured_ms: float
) -> None:
    link = peer_link(find_device(name), num_devices, has_peer_access=has_peer_access)
    predicted_ms = all_reduce_ns(num_bytes, num_devices, link) / 1e6
    assert predicted_ms == pytest.approx(measured_ms, rel=0.1)


def test_one_device_is_no_ring() -> None:
    with pytest.raises(ValueError, match="at least 2 devices, not 1"):
        peer_link(find_device("T4"), 1)
