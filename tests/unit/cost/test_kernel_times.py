"""Kernel times: hand-worked rooflines, fallbacks of precision, known devices, measured rows."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import pytest

from breakeven.cost import (
    TILE_SET_NAMES,
    DeviceEfficiency,
    EfficiencyTable,
    Family,
    FamilyEfficiency,
    Kernel,
    kernel_times,
    load_efficiencies,
    sustained_fraction,
    transferred_efficiency,
)
from breakeven.cost.family_times import datasheet_ns
from breakeven.cost.kernel import Algorithm
from breakeven.cost.roofline import clock_headroom
from breakeven.device import DeviceSpec, Precision, find_device, load_catalogue


def make_device(**changes: object) -> DeviceSpec:
    """Return a round machine: 10 SMs, 10 TFLOP/s, 1 TB/s, no cache to speak of."""
    device = DeviceSpec(
        id="round",
        name="Round",
        vendor="nvidia",
        market="datacenter",
        architecture="Ampere",
        num_sms=10,
        clock_hz=1e9,
        peak_flop_per_s={Precision.FP32: 10e12, Precision.FP64: 5e12},
        memory_bytes=16e9,
        memory_bytes_per_s=1e12,
        l2_bytes=1.0,
        link_bytes_per_s=16e9,
        launch_generation="ampere",
        release_year=2020,
        tdp_watts=300,
        sources=("made up",),
    )
    return msgspec.structs.replace(device, **changes)


def make_table(**changes: Any) -> EfficiencyTable:
    """Return a table in which the round machine reaches its datasheet, without losses."""
    families = tuple(
        msgspec.structs.replace(
            FamilyEfficiency(
                family=family,
                arithmetic=arithmetic,
                compute_fraction=1.0,
                tile_loss=0.0,
                prologue_k=0.0,
                tiles="8+",
                memory_fraction=1.0,
                num_rows=1,
                median_error_fraction=0.1,
                log_sigma=0.1,
            ),
            **changes,
        )
        for family in (Family.GEMM, Family.ELEMENTWISE)
        for arithmetic in ("vector", "tensor")
    )
    device = DeviceEfficiency(
        device="round",
        chip="",
        launch_generation="ampere",
        sustained_fraction=1.0,
        families=families,
        source="made up",
    )
    return EfficiencyTable(version=1, provenance="made up", devices=(device,), held_out=())


def gemm(m: int, n: int, k: int, *, precision: Precision = Precision.FP32) -> Kernel:
    return Kernel(
        family=Family.GEMM,
        flop=2.0 * m * n * k,
        read_bytes=4.0 * (m * k + k * n),
        write_bytes=4.0 * m * n,
        precision=precision,
        m=m,
        n=n,
        k=k,
    )


def unaligned(precision: Precision, alignment_bytes: int) -> Kernel:
    kernel = gemm(8192, 50_257, 768, precision=precision)
    return msgspec.structs.replace(
        kernel,
        read_bytes=kernel.read_bytes / 2,
        write_bytes=kernel.write_bytes / 2,
        alignment_bytes=alignment_bytes,
    )


def test_matrix_units_wait_for_rows_that_are_not_aligned() -> None:
    # The more arithmetic an SM does in a cycle, the more of it waits.
    devices = [find_device(name) for name in ("RTX 4090", "A100 SXM4 80GB", "H100 SXM")]
    kernels = [unaligned(Precision.BF16, size) for size in (16, 8, 4, 2)]
    times = kernel_times(kernels, devices).time_ns
    assert (np.diff(times, axis=0) >= 0).all()
    slower = times[-1] / times[0]
    assert 1.0 <= slower[0] < slower[1] < slower[2]
    assert slower[2] > 4


def test_plain_units_load_number_by_number_anyway() -> None:
    aligned, odd = (unaligned(Precision.FP32, size) for size in (16, 4))
    times = kernel_times([aligned, odd], [find_device("A100 SXM4 80GB")]).time_ns
    assert times[0, 0] == times[1, 0]
    # Half precision without matrix units for it.
    halves = [unaligned(Precision.FP16, size) for size in (16, 2)]
    times = kernel_times(halves, [find_device("P100 PCIe 16GB")]).time_ns
    assert times[0, 0] == times[1, 0]


def elementwise(num_bytes: float, *, launches: int = 1) -> Kernel:
    return Kernel(
        family=Family.ELEMENTWISE,
        flop=num_bytes / 12,
        read_bytes=num_bytes * 2 / 3,
        write_bytes=num_bytes / 3,
        launches=launches,
    )


def time_ns(kernel: Kernel, device: DeviceSpec, table: EfficiencyTable) -> float:
    return float(kernel_times([kernel], [device], efficiencies=table).time_ns[0, 0])


def test_traffic_over_bandwidth_plus_floor() -> None:
    times = kernel_times([elementwise(1e9)], [make_device()], efficiencies=make_table())
    # 1 GB at 1 TB/s is 1 ms; the floor of an Ampere kernel is 0.9 µs.
    assert times.time_ns[0, 0] == pytest.approx(1e6 + 900)
    assert times.is_memory_bound[0, 0]
    assert not times.is_latency_bound[0, 0]


def test_loads_of_single_elements_take_their_cycles_where_that_is_longer() -> None:
    few, many = (msgspec.structs.replace(elementwise(1e9), loads=loads) for loads in (1e6, 1e12))
    device, table = make_device(), make_table()
    assert time_ns(few, device, table) == time_ns(elementwise(1e9), device, table)
    # A tenth of a cycle each, spread over 10 SMs at 1 GHz; 0.9 µs before.
    assert time_ns(many, device, table) == pytest.approx(1e12 * 0.1 / 10 + 900)


def test_every_launch_pays_the_floor() -> None:
    times = kernel_times(
        [elementwise(12.0, launches=7)], [make_device()], efficiencies=make_table()
    )
    assert times.time_ns[0, 0] == pytest.approx(7 * 900, rel=1e-3)
    assert times.is_latency_bound[0, 0]


def test_full_waves_of_full_tiles_reach_the_peak() -> None:
    # 2560 × 1280 is 100 tiles of 256 × 128: 10 waves over 10 SMs.
    # 2 × 2560 × 1280 × 4096 FLOP / 10 TFLOP/s = 2.684 ms.
    times = kernel_times([gemm(2560, 1280, 4096)], [make_device()], efficiencies=make_table())
    assert times.time_ns[0, 0] == pytest.approx(2_684_354.56 + 900)
    assert not times.is_memory_bound[0, 0]


def test_one_large_tile_keeps_one_sm_busy() -> None:
    # Only one tile is shipped: one of ten SMs computes 128 × 128 × 1024 at 1 TFLOP/s; split in
    # eight, eight SMs share it and 8 × 4 bytes per result go out and come back.
    table = make_table(tiles="128x128")
    seconds = 2 * 128 * 128 * 128 / 1e12 + 2 * 8 * 4 * 128 * 128 / 1e12
    assert time_ns(gemm(128, 128, 1024), make_device(), table) == pytest.approx(seconds * 1e9 + 900)


def test_operands_larger_than_the_cache_are_read_for_each_wave() -> None:
    # 10 × 10 tiles in waves of 10, each a strip of 128 rows and all 1280 columns:
    # 10 × (128 + 1280) × 4096 × 4 bytes at 10 GB/s are 23.07 ms; the arithmetic takes 1.34.
    device = make_device(memory_bytes_per_s=1e10)
    product = gemm(1280, 1280, 4096)
    table = make_table(tiles="128x128")
    assert time_ns(product, device, table) == pytest.approx(23_068_672 + 900)
    # Held in the cache, each operand is read once: 2 × 1280 × 4096 and 1280² results of 4 bytes,
    # half of them at the cache's own 160 GB/s.
    cached = msgspec.structs.replace(device, l2_bytes=1e9)
    assert time_ns(product, cached, table) < 23_068_672 / 4


def test_the_fastest_algorithm_runs_on_plain_units_alone() -> None:
    # The other way has a quarter of the arithmetic, and moves 1 GB more: 1 ms at 1 TB/s.
    direct = gemm(12_800, 1280, 4096)
    other = Algorithm(
        flop=direct.flop / 4, m=12_800, n=1280, k=1024, workspace_bytes=1e9, tiles="128x128"
    )
    table = make_table(tiles="128x128")
    both = msgspec.structs.replace(direct, algorithms=(other,))
    # 2 × 12800 × 1280 × 4096 FLOP at 10 TFLOP/s.
    assert time_ns(direct, make_device(), table) == pytest.approx(13_421_772.8 + 900)
    expected = 13_421_772.8 / 4 + 1e6 + 900
    assert time_ns(both, make_device(), table) == pytest.approx(expected)
    costly = msgspec.structs.replace(other, workspace_bytes=1e12)
    neither = msgspec.structs.replace(direct, algorithms=(costly,))
    assert time_ns(neither, make_device(), table) == time_ns(direct, make_device(), table)
    half = [msgspec.structs.replace(kernel, precision=Precision.FP16) for kernel in (direct, both)]
    times = kernel_times(half, [find_device("v100-sxm2-16gb")]).time_ns
    assert times[0, 0] == times[1, 0]


def test_a_transferred_efficiency_has_the_tiles_of_the_nearest_reference_device() -> None:
    table = make_table(tiles="128x128")
    (near,) = table.devices
    far = msgspec.structs.replace(
        near,
        device="far",
        launch_generation="pascal",
        families=tuple(msgspec.structs.replace(entry, tiles="64x128") for entry in near.families),
    )
    found = transferred_efficiency(
        msgspec.structs.replace(table, devices=(far, near)),
        [make_device(id="new"), make_device(id="old", launch_generation="maxwell")],
        Family.GEMM,
        "",
        "vector",
    )
    assert [TILE_SET_NAMES[tiles] for tiles in found.arrays.tile_set[0]] == [
        "128x128",
        "64x128",
    ]


def test_partly_filled_tiles_cost_full_ones() -> None:
    table = make_table(tiles="128x128")
    full = time_ns(gemm(1280, 128 * 10, 512), make_device(), table)
    partly = time_ns(gemm(1280 - 100, 128 * 10 - 100, 512), make_device(), table)
    assert partly == full


def test_tile_loss_and_prologue_slow_the_product() -> None:
    ideal = time_ns(gemm(2560, 1280, 4096), make_device(), make_table()) - 900
    slowed = time_ns(
        gemm(2560, 1280, 4096), make_device(), make_table(tile_loss=25.6, prologue_k=409.6)
    )
    # 25.6 × (1/256 + 1/128) = 0.3; 409.6 more steps on 4096 are 10 %.
    assert slowed - 900 == pytest.approx(ideal * 1.3 * 1.1)


def test_resident_data_comes_at_cache_speed() -> None:
    device = make_device(l2_bytes=1e9, num_sms=100)
    kernel = elementwise(1e8)
    times = [
        float(
            kernel_times([kernel], [device], efficiencies=make_table(), warm_fraction=warm).time_ns[
                0, 0
            ]
        )
        for warm in (0.0, 0.5, 1.0)
    ]
    # 100 SMs × 16 bytes × 1 GHz = 1.6 TB/s.
    assert times == pytest.approx([1e5 + 900, (1e5 + 6.25e4) / 2 + 900, 6.25e4 + 900])


@pytest.mark.parametrize(
    ("name", "precision", "rate_of"),
    [
        ("v100-sxm2-16gb", Precision.TF32, Precision.FP32),
        ("t4", Precision.BF16, Precision.FP32),
        ("gtx-1080-ti", Precision.FP16, Precision.FP32),
        ("p100-pcie-16gb", Precision.FP16, Precision.FP32),
        ("gtx-1660-ti", Precision.FP16, Precision.FP32),
    ],
)
def test_missing_precision_runs_as_fp32(
    name: str, precision: Precision, rate_of: Precision
) -> None:
    device = find_device(name)
    asked, actual = (gemm(4096, 4096, 4096, precision=p) for p in (precision, rate_of))
    times = kernel_times([asked, actual], [device]).time_ns
    assert times[0, 0] == times[1, 0]


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "t4", "a100-sxm4-80gb", "h100-sxm5-80gb"])
def test_tensor_cores_speed_up_large_products(name: str) -> None:
    kernels = [gemm(8192, 8192, 8192, precision=p) for p in (Precision.FP32, Precision.FP16)]
    fp32, fp16 = kernel_times(kernels, [find_device(name)]).time_ns[:, 0]
    assert fp32 / fp16 > 3


def test_first_layer_stays_off_the_tensor_cores() -> None:
    def convolution(k: int) -> Kernel:
        return msgspec.structs.replace(
            gemm(100_352, 64, k, precision=Precision.FP16), family=Family.CONVOLUTION
        )

    rgb, wide = kernel_times(
        [convolution(147), convolution(144)], [find_device("a100-sxm4-80gb")]
    ).time_ns[:, 0]
    assert rgb / wide > 2


def test_elementwise_work_of_any_precision_takes_its_traffic() -> None:
    kernel = elementwise(1e9)
    half = msgspec.structs.replace(kernel, precision=Precision.FP16)
    times = kernel_times([kernel, half], [find_device("a100")]).time_ns
    assert times[0, 0] == times[1, 0]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.TF32])
def test_known_devices_in_order_for_a_large_product(precision: Precision) -> None:
    names = ("h100-sxm5-80gb", "a100-sxm4-80gb", "v100-sxm2-16gb", "t4")
    devices = [find_device(name) for name in names]
    times = kernel_times([gemm(8192, 8192, 8192, precision=precision)], devices).time_ns[0]
    assert list(times) == sorted(times)


def test_board_short_of_power_clocks_down() -> None:
    # 18 W per fp32 TFLOP/s: a T4 would need 146 W and has 70.
    assert sustained_fraction(find_device("t4")) == pytest.approx(70 / (18 * 8.1), rel=0.02)
    assert sustained_fraction(find_device("v100-sxm2-16gb")) == 1.0


def test_boards_of_one_chip_run_at_one_clock_where_they_need_little_power() -> None:
    devices = [find_device(name) for name in ("TITAN RTX", "RTX 2080 Ti")]

    def ratio(precision: Precision) -> float:
        titan_ns, geforce_ns = kernel_times(
            [gemm(8192, 8192, 8192, precision=precision)], devices
        ).time_ns[0]
        return titan_ns / geforce_ns

    # pytorch-gpu-benchmark: 42 fp64 steps of 68 SMs against 72 take 0.955 and 0.961 times as long.
    assert ratio(Precision.FP64) == pytest.approx(68 / 72, abs=0.04)
    assert ratio(Precision.FP32) < 0.9
    # Those of a data center and those within a processor keep to the clock of their datasheet.
    assert clock_headroom(find_device("A100 SXM4 40GB")) == 1.0
    assert clock_headroom(find_device("Jetson AGX Orin")) == 1.0


def test_instructions_that_are_issued_two_at_once_count_as_one() -> None:
    # 60 compute units each; both datasheets say 1.0 to 1.2 TFLOP/s in fp64, 16 and 37 in fp32.
    devices = [find_device(name) for name in ("RX 6800", "RX 7800 XT")]
    for precision, ratio in ((Precision.FP32, 2.105 / 2.43), (Precision.FP64, 2 * 2.105 / 2.43)):
        rdna2_ns, rdna3_ns = kernel_times(
            [gemm(8192, 8192, 8192, precision=precision)], devices
        ).time_ns[0]
        assert rdna3_ns / rdna2_ns == pytest.approx(ratio, rel=0.15)


def test_matrix_units_of_a_board_with_less_power_clock_down() -> None:
    pcie, sxm = (
        sustained_fraction(find_device(f"a100-{form}-80gb"), "tensor") for form in ("pcie", "sxm4")
    )
    # stas00/ml-engineering: 252.9 and 271.2 TFLOP/s.
    assert pcie / sxm == pytest.approx(252.9 / 271.2, rel=0.03)
    assert sustained_fraction(find_device("h100-pcie-80gb"), "tensor") < 0.9
    assert sustained_fraction(find_device("h100-sxm5-80gb"), "tensor") == pytest.approx(1, abs=0.01)


def test_calibrated_devices_share_less_of_their_errors() -> None:
    kernel = Kernel(
        family=Family.GEMM, flop=2e9, read_bytes=8e6, write_bytes=4e6, m=1000, n=1000, k=1000
    )
    names = ("a100-pcie-40gb", "a100-sxm4-40gb", "rtx-2080-ti", "h100-sxm5-80gb", "arc-a770")
    times = kernel_times([kernel], [find_device(name) for name in names])
    shared = list(times.shared_log_sigma[0])
    assert shared == sorted(shared)
    assert len(set(shared)) == len(names)
    assert (times.shared_log_sigma < times.log_sigma).all()


def test_uncalibrated_devices_are_less_certain() -> None:
    kernel = gemm(4096, 4096, 4096)
    names = ("a100-pcie-40gb", "a100-sxm4-80gb", "rtx-3080", "arc-a770")
    sigmas = kernel_times([kernel], [find_device(name) for name in names]).log_sigma[0]
    assert list(sigmas) == sorted(set(sigmas))


# Rows of the tables that the calibration rests on, in ms: the model has to stay near them.
MEASURED = [
    ("a100-pcie-40gb", gemm(975, 20759, 2004), 5.606, 0.15),
    ("v100-pcie-32gb", gemm(975, 20759, 2004), 7.450, 0.15),
    ("t4", gemm(975, 20759, 2004), 23.73, 0.25),
    ("p100-pcie-16gb", gemm(975, 20759, 2004), 12.38, 0.35),
    ("v100-sxm2-16gb", msgspec.structs.replace(
        gemm(4096, 7000, 4096, precision=Precision.FP16), read_bytes=90.9e6, write_bytes=57.3e6
    ), 2.12, 0.30),
    ("a100-pcie-40gb", elementwise(12.0 * 15766 * 2431), 0.336, 0.10),
    ("p100-pcie-16gb", elementwise(12.0 * 15766 * 2431), 0.808, 0.10),
    ("t4", elementwise(12.0 * 15766 * 2431), 1.884, 0.10),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kernel", "measured_ms", "budget_fraction"), MEASURED)
def test_near_measured_rows(
    name: str, kernel: Kernel, measured_ms: float, budget_fraction: float
) -> None:
    predicted = kernel_times([kernel], [find_device(name)]).time_ns[0, 0]
    assert predicted / 1e6 == pytest.approx(measured_ms, rel=budget_fraction)


def test_every_family_has_a_time_on_every_kind_of_device() -> None:
    kernels = [
        Kernel(family=family, flop=1e6, read_bytes=1e6, write_bytes=1e6, precision=precision)
        for family in Family
        for precision in Precision
    ]
    names = ("k80", "m40", "gtx-1080-ti", "t4", "rtx-3060", "h100-sxm5-80gb", "mi100", "m1",
             "arc-a770")  # fmt: skip
    times = kernel_times(kernels, [find_device(name) for name in names])
    assert times.time_ns.shape == times.log_sigma.shape == (len(kernels), len(names))
    assert np.isfinite(times.time_ns).all()
    assert (times.time_ns > 0).all()
    assert (times.log_sigma > 0).all()


def test_no_kernels_or_devices_give_empty_arrays() -> None:
    assert kernel_times([], [make_device()]).time_ns.shape == (0, 1)
    assert kernel_times([elementwise(1.0)], []).time_ns.shape == (1, 0)


def test_repeated_kernels_keep_their_order() -> None:
    small, large = elementwise(1e6), elementwise(1e9)
    times = kernel_times([large, small, large], [make_device()], efficiencies=make_table()).time_ns
    assert times[0, 0] == times[2, 0] > times[1, 0]


def test_shipped_table_is_plausible() -> None:
    table = load_efficiencies()
    for device in table.devices:
        assert find_device(device.device).launch_generation == device.launch_generation
        for entry in device.families:
            assert 0 < entry.compute_fraction <= 1
            assert 0 < entry.memory_fraction <= 1
            assert entry.num_rows > 0
    assert len(table.devices) >= 10
    assert table.held_out


@pytest.mark.timing
def test_all_at_once_is_far_cheaper_than_one_by_one() -> None:
    kernels = [gemm(m, 512, 512) for m in range(1, 151)]
    kernels += [elementwise(1e4 * size) for size in range(1, 151)]
    devices = list(load_catalogue()[:20])

    def seconds(calls: list[list[Kernel]]) -> float:
        start = perf_counter()
        for some in calls:
            kernel_times(some, devices)
        return perf_counter() - start

    together = min(seconds([kernels]) for _ in range(3))
    assert seconds([[kernel] for kernel in kernels]) > 5 * together


def test_only_matrix_units_need_another_memory_format() -> None:
    kernel = Kernel(
        family=Family.CONVOLUTION, flop=2e10, read_bytes=1e7, write_bytes=1e7, m=10_000, n=1_000,
        k=1_000, precision=Precision.FP16,
    )  # fmt: skip
    converted = msgspec.structs.replace(kernel, conversion_bytes=4e7)
    devices = [find_device("gtx-1080-ti"), find_device("v100-sxm2-16gb")]
    extra_ns = np.diff(kernel_times([kernel, converted], devices).time_ns, axis=0)[0]
    assert extra_ns[0] == 0
    # 40 MB at 0.7 of 900 GB/s.
    assert extra_ns[1] == pytest.approx(63_500, rel=0.01)


def test_channels_last_memory_is_faster_on_matrix_units_alone() -> None:
    kernel = Kernel(
        family=Family.CONVOLUTION, flop=2e10, read_bytes=1e7, write_bytes=1e7, m=10_000, n=1_000,
        k=1_000, precision=Precision.FP16, matrix_share=0.5,
    )  # fmt: skip
    devices = [find_device("gtx-1080-ti"), find_device("v100-sxm2-16gb")]
    plain = msgspec.structs.replace(kernel, matrix_share=1.0)
    faster, slower = kernel_times([kernel, plain], devices).time_ns
    assert faster[0] == slower[0]
    assert faster[1] == pytest.approx(0.5 * slower[1], rel=0.02)


def make_recurrence(hidden: int, num_steps: int = 50, *, batch: int = 32) -> Kernel:
    """Return the time steps of an LSTM."""
    return Kernel(
        family=Family.RECURRENT,
        variant="lstm",
        flop=2.0 * num_steps * batch * 4 * hidden * hidden,
        read_bytes=4.0 * 4 * hidden * (hidden + num_steps * batch),
        write_bytes=4.0 * num_steps * batch * 6 * hidden,
        m=batch,
        n=4 * hidden,
        k=hidden,
        launches=num_steps,
    )


def test_steps_of_a_small_recurrent_layer_follow_the_clock() -> None:
    devices = [find_device(name) for name in ("T4", "L4", "RTX 3090", "RTX 4090", "H100 SXM5")]
    small, large = kernel_times([make_recurrence(64), make_recurrence(2048)], devices).time_ns
    clocks = np.array([device.clock_hz for device in devices])
    cycles = small * clocks
    assert cycles.max() < 1.5 * cycles.min()
    # What the units can compute decides once a step is large.
    assert large[0] > 3 * large[4]


def test_a_step_waits_for_the_one_before_it() -> None:
    device = find_device("V100 SXM2 16GB")
    once, twice = kernel_times([make_recurrence(64), make_recurrence(64, 100)], [device]).time_ns
    assert twice[0] == pytest.approx(2 * once[0], rel=0.05)
    # The layer's own arithmetic would take far less than a microsecond for each.
    assert once[0] / 50 > 10_000


@pytest.mark.parametrize("name", ["L4", "RTX 3090", "RTX 4090", "A100 SXM4 40GB"])
def test_a_recurrent_layer_with_a_large_batch_streams_its_states(name: str) -> None:
    device = find_device(name)
    for kernel in (
        make_recurrence(256, batch=10_000),
        msgspec.structs.replace(make_recurrence(96, batch=16_384), precision=Precision.FP16),
    ):
        (least_ns,) = datasheet_ns([kernel], [device])[0]
        assert kernel_times([kernel], [device]).time_ns[0, 0] < 4 * least_ns


def test_weights_that_the_cache_does_not_hold_are_read_in_each_time_step() -> None:
    device = find_device("V100 SXM2 16GB")
    kernels = [make_recurrence(hidden, batch=1) for hidden in (256, 4096)]
    weight_bytes = [4 * kernel.n * kernel.k for kernel in kernels]
    assert weight_bytes[0] < device.l2_bytes < weight_bytes[1]
    small_ns, large_ns = kernel_times(kernels, [device]).time_ns[:, 0] / 50
    reading_ns = [1e9 * size / device.memory_bytes_per_s for size in weight_bytes]
    assert large_ns > reading_ns[1]
    assert large_ns < small_ns + 3 * reading_ns[1]


def make_double(pixels: int, channels: int) -> Kernel:
    """Return a convolution of 3 x 3 pixels in fp64, of 12 images."""
    m, k = 12 * pixels**2, 9 * channels
    return Kernel(
        family=Family.CONVOLUTION,
        variant="winograd",
        flop=2.0 * m * channels * k,
        read_bytes=8.0 * (m * channels + channels * k),
        write_bytes=8.0 * m * channels,
        precision=Precision.FP64,
        m=m,
        n=channels,
        k=k,
    )


@pytest.mark.parametrize("name", ["RTX 2080 Ti", "TITAN RTX", "GTX 1080 Ti"])
def test_few_units_for_fp64_are_as_busy_with_small_images_as_with_large_ones(name: str) -> None:
    kernels = [make_double(112, 128), make_double(28, 256), make_double(7, 512)]
    time_ns = kernel_times(kernels, [find_device(name)]).time_ns[:, 0]
    rate = np.array([kernel.flop for kernel in kernels]) / time_ns
    assert rate.max() < 1.3 * rate.min()


def test_convolutions_in_fp64_have_no_tensor_cores() -> None:
    device = find_device("A100 SXM4 40GB")
    plain_flop_per_s = device.peak_flop_per_s[Precision.FP32] / 2
    assert device.peak_flop_per_s[Precision.FP64] > plain_flop_per_s
    kernel = make_double(112, 128)
    assert kernel.flop / kernel_times([kernel], [device]).time_ns[0, 0] * 1e9 < plain_flop_per_s
    product = msgspec.structs.replace(
        kernel, family=Family.GEMM, variant="", m=8192, k=8192, n=8192
    )
    product = msgspec.structs.replace(product, flop=2.0 * 8192**3)
    assert product.flop / kernel_times([product], [device]).time_ns[0, 0] * 1e9 > plain_flop_per_s


def test_other_vendors_devices_say_nothing_where_the_own_vendor_has_one() -> None:
    table = make_table()
    (own,) = table.devices
    other = msgspec.structs.replace(
        own,
        device="other",
        launch_generation="cdna",
        families=tuple(
            msgspec.structs.replace(entry, compute_fraction=0.1) for entry in own.families
        ),
    )
    both = msgspec.structs.replace(table, devices=(own, other))
    # As far away in generations as the other vendor is taken to be.
    device = make_device(id="late", launch_generation="blackwell")
    for entry in (both, table):
        found = transferred_efficiency(entry, [device], Family.GEMM, "", "vector")
        assert found.arrays.compute_fraction[0, 0] == pytest.approx(1.0)
    alone = msgspec.structs.replace(table, devices=(other,))
    found = transferred_efficiency(alone, [device], Family.GEMM, "", "vector")
    assert found.arrays.compute_fraction[0, 0] == pytest.approx(0.1)
