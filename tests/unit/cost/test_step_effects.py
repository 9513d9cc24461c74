"""Named factors on times, and to what they apply."""

from __future__ import annotations

import math

import msgspec
import pytest

from breakeven.cost import (
    Era,
    Family,
    HostPart,
    Kernel,
    StepEffect,
    StepEffects,
    era_of,
    floor_effect_keys,
    host_effect_keys,
    kernel_effect_keys,
    load_step_effects,
    no_step_effects,
    overlap_effect_keys,
)
from breakeven.device import Precision, find_device

A100 = find_device("A100 SXM4 40GB")
CONVOLUTION = Kernel(
    family=Family.CONVOLUTION,
    flop=2e9,
    read_bytes=1e6,
    write_bytes=1e6,
    precision=Precision.FP16,
    m=1024,
    n=1024,
    k=1024,
    variant="backward_weight",
)


def keys(kernel: Kernel, machine: str = "") -> set[tuple[str, ...]]:
    return set(kernel_effect_keys(kernel, A100, era=Era.TORCH_2, machine=machine))


def test_a_kernel_has_effects_from_the_general_to_the_particular() -> None:
    assert keys(CONVOLUTION) == {
        ("class", "convolution backward_weight", "tensor fp16"),
        ("class+generation", "convolution backward_weight", "tensor fp16", "ampere"),
        ("units", "convolution", "tensor fp16"),
        ("units+generation", "convolution", "tensor fp16", "ampere"),
        ("units+era", "convolution", "tensor fp16", "torch 2"),
        ("chip", "GA100"),
        ("chip+units", "GA100", "convolution", "tensor fp16"),
        ("device", "a100-sxm4-40gb"),
    }


def test_a_known_machine_adds_its_own() -> None:
    own = keys(CONVOLUTION, machine="lab 1") - keys(CONVOLUTION)
    assert own == {
        ("machine", "lab 1"),
        ("machine+units", "lab 1", "convolution", "tensor fp16"),
    }


@pytest.mark.parametrize(
    ("precision", "width"),
    [
        (Precision.FP16, "16 bit"),
        (Precision.BF16, "16 bit"),
        (Precision.FP32, "32 bit"),
        (Precision.FP64, "64 bit"),
    ],
)
def test_of_what_memory_bounds_the_width_of_numbers_counts(
    precision: Precision, width: str
) -> None:
    pointwise = Kernel(
        family=Family.ELEMENTWISE, flop=1, read_bytes=8, write_bytes=8, precision=precision
    )
    assert ("units", "memory", width) in keys(pointwise)
    depthwise = msgspec.structs.replace(CONVOLUTION, variant="depthwise", precision=precision)
    assert ("units", "depthwise", width) in keys(depthwise)


def test_products_share_their_general_effects() -> None:
    for family in (Family.GEMM, Family.BATCHED_GEMM):
        product = msgspec.structs.replace(CONVOLUTION, family=family, variant="")
        assert ("units", "gemm", "tensor fp16") in keys(product)
        assert ("class", str(family), "tensor fp16") in keys(product)


def test_the_floor_has_effects_of_its_own() -> None:
    floor = floor_effect_keys(CONVOLUTION, A100)
    assert set(floor) == {
        ("floor",),
        ("floor+family", "convolution"),
        ("floor+generation", "ampere"),
    }
    assert not set(floor) & keys(CONVOLUTION, machine="lab 1")


def test_a_datasheet_host_has_effects_of_its_kind_era_and_machine() -> None:
    part = HostPart.BACKWARD_GEMM
    general = {("host",), ("host class", "backward_gemm"), ("host era", "torch 1.13")}
    machine = {("host machine", "lab 1"), ("host machine+phase", "lab 1", "backward")}
    found = host_effect_keys(part, era=Era.TORCH_1_LATE, machine="", is_measured=False)
    assert set(found) == general
    found = host_effect_keys(part, era=Era.TORCH_1_LATE, machine="lab 1", is_measured=False)
    assert set(found) == general | machine


def test_what_hosts_have_in_common_under_torch_2_was_measured() -> None:
    part = HostPart.BACKWARD_GEMM
    assert host_effect_keys(part, era=Era.TORCH_2, machine="", is_measured=False) == ()
    found = host_effect_keys(part, era=Era.TORCH_2, machine="lab 1", is_measured=False)
    assert {key[0] for key in found} == {"host machine", "host machine+phase"}


@pytest.mark.parametrize("part", list(HostPart))
def test_a_measured_host_has_no_effects(part: HostPart) -> None:
    assert host_effect_keys(part, era=Era.TORCH_2, machine="lab 1", is_measured=True) == ()


def test_effects_add_up_and_unseen_ones_add_nothing() -> None:
    effects = StepEffects(
        version=1,
        provenance="made up",
        spread=no_step_effects().spread,
        effects=(
            StepEffect(kind="floor", of=(), log_factor=0.25),
            StepEffect(kind="chip", of=("GA100",), log_factor=-0.5),
        ),
    )
    assert effects.log_factor([("floor",), ("chip", "GA100")]) == pytest.approx(-0.25)
    assert effects.log_factor([("chip", "GA102"), ("chip",), ("device", "GA100")]) == 0.0
    assert effects.has(("chip", "GA100"))
    assert not effects.has(("chip", "GA102"))


def test_no_effects_are_a_perfect_overlap_too() -> None:
    effects = no_step_effects()
    assert math.exp(effects.log_factor(overlap_effect_keys(machine="lab 1"))) < 1e-9
    assert effects.log_factor(keys(CONVOLUTION, machine="lab 1")) == 0.0


def test_what_ships_is_of_this_version_and_survives_json() -> None:
    effects = load_step_effects()
    assert msgspec.json.decode(msgspec.json.encode(effects), type=StepEffects) == effects
    assert len(set(effects.calibrated_on)) == len(effects.calibrated_on)
    assert len({(effect.kind, *effect.of) for effect in effects.effects}) == len(effects.effects)


@pytest.mark.parametrize(
    ("framework", "era"),
    [
        ("torch7 cudnn 5005", Era.TORCH7),
        ("torch7 no cudnn", Era.TORCH7),
        ("Caffe 1.0 CUDA 8.0", Era.TORCH7),
        ("torch ~0.4/1.0 (2018; not recorded)", Era.TORCH_0),
        ("torch 1.0 (Jan 2019)", Era.TORCH_0),
        ("PyTorch 1.0 (Jan 2019)", Era.TORCH_0),
        ("torch 1.4 CUDA 10.0 cuDNN 7600", Era.TORCH_1_EARLY),
        ("torch 1.4.0a0+a5b4d78", Era.TORCH_1_EARLY),
        ("torch (version not recorded) CUDA 10.2 cuDNN 7605", Era.TORCH_1_EARLY),
        ("torch NGC 20.10 (1.7.0a0) CUDA 11.1 cuDNN 8004", Era.TORCH_1),
        ("torch 1.10.0a0+ecc3718", Era.TORCH_1),
        ("torch 1.12.1", Era.TORCH_1),
        ("torch 1.13.0a0+d0d6b1f", Era.TORCH_1_LATE),
        ("torch NGC 23.10 (2.1.0a0) CUDA 12.2", Era.TORCH_2),
        ("torch 2.1.0 CUDA 12.1 cuDNN 8902", Era.TORCH_2),
        ("torch 2.4.1 (ROCm)", Era.TORCH_2),
        ("torch nightly 2.14.0.dev20261101", Era.TORCH_2),
        ("torch (not recorded)", Era.UNKNOWN),
        ("torch (2018)", Era.UNKNOWN),
        ("torch", Era.UNKNOWN),
        ("torchvision 0.15", Era.UNKNOWN),
        ("jax 0.4", Era.UNKNOWN),
        ("", Era.UNKNOWN),
        # Versions of other software say nothing about torch.
        ("torch (version not recorded) cuDNN 7.6 CUDA 10.1", Era.TORCH_1_EARLY),
        ("torch (version not recorded) CUDA 9.2", Era.TORCH_0),
        ("torch (version not recorded) CUDA 11.1 Python 3.8", Era.TORCH_1),
        ("torch (version not recorded) CUDA 12.1", Era.TORCH_2),
        ("torch ROCm 5.4", Era.UNKNOWN),
        ("Torch Python 3.8", Era.UNKNOWN),
    ],
)
def test_era_of_a_framework(framework: str, era: Era) -> None:
    assert era_of(framework) is era


def test_which_eras_set_gradients_to_zero_in_place() -> None:
    assert {era for era in Era if not era.is_before_torch_2} == {
        Era.TORCH7,
        Era.TORCH_2,
        Era.UNKNOWN,
    }
