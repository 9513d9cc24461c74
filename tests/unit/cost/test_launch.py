"""Launches, syncs and copies against the figures that they are taken from."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.cost import Family, Kernel, copy_ns, kernel_times, launch_costs
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
