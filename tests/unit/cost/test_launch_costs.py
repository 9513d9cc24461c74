"""Launches, syncs and copies against the figures that they are taken from."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.cost import (
    Family,
    Kernel,
    PeerLink,
    PeerPath,
    all_reduce_ns,
    broadcast_ns,
    copy_ns,
    kernel_times,
    launch_costs,
    peer_link,
)
from breakeven.device import find_device, load_catalogue


@pytest.mark.parametrize(
    ("name", "graph_replay_us", "launch_us"),
    [
        ("a100-sxm4-80gb", 1.36, 2.66),
        ("a40", 1.13, 2.00),
        ("l40", 0.96, 1.63),
        ("rx-6900-xt", 3.16, 3.32),
    ],
)
def test_small_kernels_back_to_back(name: str, graph_replay_us: float, launch_us: float) -> None:
    device = find_device(name)
    kernel = Kernel(family=Family.ELEMENTWISE, flop=4096, read_bytes=32_768, write_bytes=32_768)
    costs = launch_costs(device)
    replay_ns = kernel_times([kernel], [device], warm_fraction=1.0).time_ns[0, 0] + costs.gap_ns
    assert replay_ns / 1e3 == pytest.approx(graph_replay_us, rel=0.15)
    assert costs.launch_ns / 1e3 == pytest.approx(launch_us, rel=0.15)


def test_in_a_graph_products_wait_longer_than_elementwise_kernels() -> None:
    h200 = find_device("h200-sxm-141gb")
    families = (Family.ELEMENTWISE, Family.REDUCTION, Family.GEMM)
    kernels = [Kernel(family=f, flop=1, read_bytes=4, write_bytes=4) for f in families]
    lists = msgspec.structs.replace(kernels[0], variant="multi_tensor", launches=3)
    replay_ns = kernel_times([*kernels, lists], [h200]).replay_ns[:, 0]

    # The chain of single operators in a captured step on an H200: 1.18 µs each.
    assert replay_ns[0] / 1e3 == pytest.approx(1.18, rel=0.05)
    assert replay_ns[0] < replay_ns[1] < replay_ns[3] / 3 < replay_ns[2]


def test_every_device_of_the_catalogue_has_costs() -> None:
    for device in load_catalogue():
        costs = launch_costs(device)
        assert 0 < costs.gap_ns < costs.launch_ns < costs.latency_ns
        assert costs.launch_ns < costs.graph_launch_ns
        assert costs.log_sigma > 0


def test_generations_without_a_table_are_less_certain() -> None:
    sigmas = [launch_costs(find_device(name)).log_sigma for name in ("a100", "h100", "k80", "m1")]
    assert sigmas == sorted(sigmas)


def test_unknown_generation_is_named() -> None:
    device = msgspec.structs.replace(find_device("t4"), launch_generation="rubin")
    with pytest.raises(ValueError, match="'rubin'"):
        launch_costs(device)


@pytest.mark.parametrize(
    ("num_bytes", "measured_us"),
    [(8_192, 34.1), (16_384, 37.2), (65_536, 37.0), (131_072, 37.9), (262_144, 49.7),
     (524_288, 69.6), (1_048_576, 113.4), (2_097_152, 199.7), (4_194_304, 367.6),
     (16_777_216, 1385), (1_073_741_824, 86_910)],
)  # fmt: skip
def test_pinned_copy_follows_the_measured_curve(num_bytes: int, measured_us: float) -> None:
    device = find_device("v100-pcie-16gb")
    predicted_us = copy_ns(num_bytes, device=device, is_pinned=True) / 1e3
    assert predicted_us == pytest.approx(measured_us, rel=0.06)


def test_pageable_copy_pays_for_the_staging() -> None:
    device = find_device("a100-pcie-80gb")
    size = 1_048_576_000
    extra_ns = copy_ns(size, device=device, is_pinned=False) - copy_ns(
        size, device=device, is_pinned=True
    )
    assert extra_ns == pytest.approx(124e6)


def test_small_pageable_copy_is_a_call_and_a_sync() -> None:
    device = find_device("v100-pcie-16gb")
    times = [
        copy_ns(size, device=device, is_pinned=False) for size in (8, 4_096, 65_536, 65_537, 10**6)
    ]
    assert times == sorted(times)
    assert 10_000 <= times[0] <= 17_000


def test_nothing_to_copy_takes_no_time() -> None:
    assert copy_ns(0, device=find_device("t4"), is_pinned=False) == 0.0


LINK = PeerLink(
    path=PeerPath.PCIE,
    reduce_bytes_per_s=10e9,
    broadcast_bytes_per_s=20e9,
    fixed_ns=20_000,
    hop_ns=5_000,
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
