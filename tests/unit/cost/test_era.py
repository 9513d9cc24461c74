"""Which years' software a framework is."""

from __future__ import annotations

import pytest

from breakeven.cost import Era, era_of


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
