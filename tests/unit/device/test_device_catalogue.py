"""The catalogue is complete and plausible, and names find the devices that they mean."""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec
import pytest

from breakeven.device import (
    DeviceSpec,
    Precision,
    default_devices,
    find_device,
    load_catalogue,
)
from breakeven.errors import UnknownDeviceError

CATALOGUE = load_catalogue()
NVIDIA = [device for device in CATALOGUE if device.vendor == "nvidia"]
each_device = pytest.mark.parametrize("device", CATALOGUE, ids=lambda device: device.id)
each_nvidia = pytest.mark.parametrize("device", NVIDIA, ids=lambda device: device.id)

GENERATIONS = {
    *("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"),
    *("gcn", "cdna", "rdna", "apple", "xe"),
}
TENSOR_GENERATIONS = {"ampere", "ada", "hopper", "blackwell"}  # TF32 and bf16
# fp32 lanes of one SM, by chip where a generation has two kinds.
CORES_PER_SM = {
    **{"kepler": 192, "maxwell": 128, "pascal": 128, "volta": 64, "turing": 64},
    **{"ampere": 128, "ada": 128, "hopper": 128, "blackwell": 128, "GP100": 64, "GA100": 64},
}


def catalogued(device_id: str) -> DeviceSpec:
    (device,) = [device for device in CATALOGUE if device.id == device_id]
    return device


class TestContents:
    def test_has_many_devices_with_unique_ids_and_names(self) -> None:
        assert len(CATALOGUE) >= 60
        assert len({device.id for device in CATALOGUE}) == len(CATALOGUE)
        assert len({device.name for device in CATALOGUE}) == len(CATALOGUE)

    def test_comes_by_vendor_then_year_and_is_read_once(self) -> None:
        order = [(device.vendor, device.release_year) for device in CATALOGUE]
        assert order == sorted(order)
        assert load_catalogue() is load_catalogue()
        assert load_catalogue() == CATALOGUE

    def test_file_has_no_key_that_the_spec_would_ignore(self) -> None:
        path = resources.files("breakeven.device").joinpath("catalogue.toml")
        entries = tomllib.loads(path.read_text("utf-8"))["device"]
        known = {field.name for field in msgspec.structs.fields(DeviceSpec)}
        assert {key for entry in entries for key in entry} <= known

    def test_default_devices(self) -> None:
        assert [device.name for device in default_devices()] == [
            "RTX 3060 12GB",
            "T4",
            "L4",
            "RTX 4090",
            "A100 SXM4 80GB",
            "H100 SXM5 80GB",
        ]

    def test_figures_of_the_data_sheets(self) -> None:
        a100 = catalogued("a100-sxm4-80gb")
        assert a100.num_sms == 108
        assert a100.peak_flop_per_s == {
            Precision.FP64: 19.5e12,
            Precision.FP32: 19.5e12,
            Precision.TF32: 156e12,
            Precision.FP16: 312e12,
            Precision.BF16: 312e12,
        }
        assert a100.memory_bytes == 80 * 2**30
        assert a100.memory_bytes_per_s == 2039e9
        assert a100.l2_bytes == 40 * 2**20
        assert a100.link_bytes_per_s == 31.5e9
        assert a100.peer_bytes_per_s == 600e9
        # 82 SMs × 128 cores × 2 × 1.695 GHz; fp32 accumulation halves the 142e12 tensor rate.
        rtx_3090 = catalogued("rtx-3090")
        assert rtx_3090.peak_flop_per_s[Precision.FP32] == pytest.approx(35.58e12, rel=1e-3)
        assert rtx_3090.peak_flop_per_s[Precision.FP16] == pytest.approx(71.2e12, rel=1e-3)
        # The A10G of AWS has more SMs than the A10, at half the tensor rate of each.
        assert catalogued("a10g").num_sms == 80
        assert catalogued("a10g").peak_flop_per_s[Precision.BF16] == pytest.approx(70e12, rel=1e-2)
        assert catalogued("l4").num_sms == 58
        # Pascal without and with fast fp16.
        gtx_1080, p100 = catalogued("gtx-1080"), catalogued("p100-pcie-16gb")
        assert gtx_1080.peak_flop_per_s[Precision.FP16] == pytest.approx(8.873e12 / 64, rel=1e-3)
        assert p100.peak_flop_per_s[Precision.FP16] == pytest.approx(
            2 * p100.peak_flop_per_s[Precision.FP32], rel=1e-3
        )
        assert catalogued("gh200").link_bytes_per_s == 450e9
        assert catalogued("mi250x").memory_bytes == 64 * 2**30  # one of the card's two dies


class TestPlausibility:
    @each_device
    def test_words_are_known(self, device: DeviceSpec) -> None:
        assert device.id == device.id.lower()
        assert " " not in device.id
        assert device.vendor in {"nvidia", "amd", "apple", "intel"}
        assert device.market in {"consumer", "workstation", "datacenter", "laptop", "integrated"}
        assert device.launch_generation in GENERATIONS
        assert 2012 <= device.release_year <= 2026

    @each_device
    def test_every_figure_has_a_source(self, device: DeviceSpec) -> None:
        assert device.sources
        for source in device.sources:
            # Where it can be read, or that nobody read it for this entry.
            assert "https://" in source or "recalled, not looked up" in source
            assert len(source) > 20

    @each_device
    def test_quantities_are_in_range(self, device: DeviceSpec) -> None:
        assert 5 <= device.num_sms <= 320
        assert 0.8e9 <= device.clock_hz <= 3.1e9
        assert 2 * 2**30 <= device.memory_bytes <= 512 * 2**30
        assert 68e9 <= device.memory_bytes_per_s <= 8e12
        assert 2**20 <= device.l2_bytes <= 408 * 2**20
        assert 10 <= device.tdp_watts <= 1400
        assert device.peer_bytes_per_s == 0 or 50e9 <= device.peer_bytes_per_s <= 1.8e12
        if device.market == "integrated":
            assert device.link_bytes_per_s == device.memory_bytes_per_s
        elif device.id == "gh200":
            assert device.link_bytes_per_s == 450e9
        else:
            assert device.link_bytes_per_s in {15.75e9, 31.5e9, 63e9}

    @each_device
    def test_rates_are_in_proportion(self, device: DeviceSpec) -> None:
        peak = device.peak_flop_per_s
        fp32 = peak[Precision.FP32]
        assert 1e12 <= fp32 <= 200e12
        for precision, flop_per_s in peak.items():
            if precision is not Precision.FP64:
                assert flop_per_s >= 0.99 * fp32 / 64
            assert flop_per_s <= 35 * fp32
        if Precision.TF32 in peak:
            assert 0.98 * fp32 <= peak[Precision.TF32] <= 0.51 * peak[Precision.FP16]
        if Precision.BF16 in peak:
            # The first generation with matrix cores for bf16 ran it at half the fp16 rate.
            ratio = 0.5 if device.id == "mi100" else 1.0
            assert peak[Precision.BF16] == ratio * peak[Precision.FP16]

    @each_nvidia
    def test_fp32_peak_is_cores_times_clock(self, device: DeviceSpec) -> None:
        cores = CORES_PER_SM.get(device.chip) or CORES_PER_SM[device.launch_generation]
        expected = device.num_sms * cores * 2 * device.clock_hz
        assert device.peak_flop_per_s[Precision.FP32] == pytest.approx(expected, rel=0.06)

    @each_nvidia
    def test_tensor_precisions_begin_with_ampere(self, device: DeviceSpec) -> None:
        has_tensor_floats = device.launch_generation in TENSOR_GENERATIONS
        assert device.has_precision(Precision.TF32) == has_tensor_floats
        assert device.has_precision(Precision.BF16) == has_tensor_floats
        has_fp16 = device.launch_generation not in {"kepler", "maxwell"}
        assert device.has_precision(Precision.FP16) == has_fp16

    @each_nvidia
    def test_fp64_rate_is_that_of_the_chip(self, device: DeviceSpec) -> None:
        share = {"kepler": 1 / 3, "ampere": 1 / 64, "ada": 1 / 64, "blackwell": 1 / 64}.get(
            device.launch_generation, 1 / 32
        )
        # Chips for science; from GA100 on with tensor cores for fp64.
        share = {"GP100": 1 / 2, "GV100": 1 / 2, "GA100": 1, "GH100": 1, "GB100": 1 / 2}.get(
            device.chip, share
        )
        fp32 = device.peak_flop_per_s[Precision.FP32]
        assert device.peak_flop_per_s[Precision.FP64] == pytest.approx(share * fp32, rel=0.02)

    @each_device
    def test_a_device_moves_data_at_a_sane_rate_for_its_arithmetic(
        self, device: DeviceSpec
    ) -> None:
        ridge_flop_per_byte = device.peak_flop_per_s[Precision.FP32] / device.memory_bytes_per_s
        assert 7 <= ridge_flop_per_byte <= 120


class TestFindDevice:
    @each_device
    def test_every_written_name_finds_its_device(self, device: DeviceSpec) -> None:
        for name in (device.id, device.name, *device.aliases):
            assert find_device(name) is device, name

    @each_device
    def test_the_capacity_may_be_named(self, device: DeviceSpec) -> None:
        capacity = round(device.memory_bytes / 2**30)
        found = find_device(f"{device.name} {capacity}GB")
        assert found is device

    @pytest.mark.parametrize(
        ("name", "device_id"),
        [
            ("3060", "rtx-3060"),
            ("rtx3060", "rtx-3060"),
            ("RTX_3060", "rtx-3060"),
            ("3060 ti", "rtx-3060-ti"),
            ("a100", "a100-sxm4-80gb"),
            ("A100-80GB", "a100-sxm4-80gb"),
            ("a100-40gb", "a100-sxm4-40gb"),
            ("v100", "v100-sxm2-16gb"),
            ("V100-32GB", "v100-sxm2-32gb"),
            ("h100", "h100-sxm5-80gb"),
            ("mi300x", "mi300x"),
            ("t4 16 GiB", "t4"),
            ("a10", "a10"),
            ("A10G", "a10g"),
            ("RTX 6000 Ada", "rtx-6000-ada"),
            ("a6000", "rtx-a6000"),
            ("Quadro A6000", "rtx-a6000"),
            ("quadro-rtx6000", "quadro-rtx-6000"),
            ("1060", "gtx-1060"),
            ("k80", "k80"),
            ("m1", "m1"),
            ("M4 max", "m4-max"),
            ("apple m2 ultra", "m2-ultra"),
            ("7900xtx", "rx-7900-xtx"),
            ("arc a770", "arc-a770"),
            ("3070 laptop", "rtx-3070-laptop"),
            ("RX 5700", "rx-5700"),
            ("6800", "rx-6800"),
            ("orin nano", "jetson-orin-nano"),
        ],
    )
    def test_forgives_spelling(self, name: str, device_id: str) -> None:
        assert find_device(name).id == device_id

    @pytest.mark.parametrize(
        ("name", "device_id"),
        [
            ("NVIDIA GeForce RTX 3090", "rtx-3090"),
            ("NVIDIA GeForce RTX 4060 Ti", "rtx-4060-ti"),
            ("NVIDIA GeForce RTX 3080 Laptop GPU", "rtx-3080-laptop"),
            ("GeForce RTX 2070 with Max-Q Design", "rtx-2070-max-q"),
            ("GeForce GTX 1080 Ti", "gtx-1080-ti"),
            ("NVIDIA GeForce GTX 1060 6GB", "gtx-1060"),
            ("GeForce GTX TITAN X", "gtx-titan-x"),
            ("TITAN X (Pascal)", "titan-x-pascal"),
            ("TITAN Xp", "titan-xp"),
            ("NVIDIA TITAN RTX", "titan-rtx"),
            ("Tesla T4", "t4"),
            ("Tesla K80", "k80"),
            ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
            ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
            ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
            ("Quadro RTX 6000", "quadro-rtx-6000"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
            ("NVIDIA RTX A5000", "rtx-a5000"),
            ("NVIDIA A10G", "a10g"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
            ("A100-PCIE-40GB", "a100-pcie-40gb"),
            ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
            ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
            ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
            ("NVIDIA H100 NVL", "h100-nvl"),
            ("NVIDIA H200", "h200-sxm-141gb"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
            ("AMD Instinct MI210", "mi210"),
            ("AMD Radeon RX 6900 XT", "rx-6900-xt"),
            ("AMD Radeon 780M Graphics", "radeon-780m"),
            ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", "rtx-5070-ti-laptop"),
            ("Intel(R) Arc(TM) B580 Graphics", "arc-b580"),
            ("Intel(R) Data Center GPU Max 1550", "max-1550"),
        ],
    )
    def test_knows_what_drivers_call_them(self, name: str, device_id: str) -> None:
        assert find_device(name).id == device_id

    @pytest.mark.parametrize(
        ("name", "candidates"),
        [
            ("rtx", ["RTX 2070", "and"]),
            ("titan x", ["TITAN X (Maxwell)", "TITAN X (Pascal)", "TITAN Xp"]),
            ("mi2", ["Radeon Instinct MI25", "Instinct MI210", "Instinct MI250X"]),
            ("apple", ["M1", "M4"]),
            ("RTX 6000", ["Quadro RTX 6000", "RTX 6000 Ada"]),
            ("nvidia rtx-5000", ["Quadro RTX 5000", "RTX 5000 Ada"]),
        ],
    )
    def test_an_ambiguous_name_lists_the_candidates(self, name: str, candidates: list[str]) -> None:
        with pytest.raises(UnknownDeviceError, match="could be any of") as caught:
            find_device(name)
        assert all(candidate in caught.value.message for candidate in candidates)
        assert caught.value.hint is not None
        assert "breakeven devices" in caught.value.hint

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("rtx 3095", "RTX 3090"),
            ("A10O", "A10G"),
            ("geforce rtx 9090", "RTX 4090"),
            ("mi300y", "Instinct MI300X"),
        ],
    )
    def test_an_unknown_name_lists_near_ones(self, name: str, near: str) -> None:
        with pytest.raises(UnknownDeviceError, match="No device called") as caught:
            find_device(name)
        assert near in caught.value.message
        assert "breakeven devices" in str(caught.value.hint)

    @pytest.mark.parametrize("name", ["", "   ", "xylophone", "TPU v4", "80GB"])
    def test_a_name_like_nothing_is_unknown(self, name: str) -> None:
        with pytest.raises(UnknownDeviceError) as caught:
            find_device(name)
        assert caught.value.exit_code == 3

    @pytest.mark.parametrize(
        "name",
        [
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "GRID A100D-10C",
            "NVIDIA GeForce RTX 3060 Ti SUPER",
            "Tesla V100-SXM2-24GB",
        ],
    )
    def test_never_gives_another_device_for_a_part_or_variant(self, name: str) -> None:
        with pytest.raises(UnknownDeviceError):
            find_device(name)
