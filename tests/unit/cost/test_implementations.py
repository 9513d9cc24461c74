"""Fused attention: what runs it on which device, and how long it takes."""

from __future__ import annotations

import pytest

from breakeven.cost import Family, Kernel, kernel_times
from breakeven.cost.implementations import implementation_on
from breakeven.device import Precision, find_device


@pytest.mark.parametrize(
    ("device", "variant", "expected"),
    [
        ("H100 SXM5", "cudnn|flash|efficient", "cudnn"),
        ("B200", "cudnn|efficient_backward", "cudnn_backward"),
        ("RTX 5090", "cudnn|flash|efficient", "flash"),
        ("RTX 4090", "cudnn|flash|efficient", "flash"),
        ("A100 SXM4 80GB", "cudnn|efficient", "efficient"),
        ("T4", "cudnn|flash|efficient_backward", "efficient_backward"),
        ("V100 SXM2 16GB", "efficient", "efficient"),
        ("MI300X", "cudnn|flash|efficient", "flash"),
        ("H100 SXM5", "flash", "flash"),
    ],
)
def test_the_device_decides_what_runs(device: str, variant: str, expected: str) -> None:
    assert implementation_on(find_device(device), variant) == expected


def make_attention(
    num_tokens: int = 4096, width: int = 128, *, is_backward: bool = False, variant: str = "flash"
) -> Kernel:
    """Return attention of 16k tokens in all, 2,048 columns in all heads."""
    batch = 16_384 // num_tokens * 2048 // width
    flop = 4.0 * batch * num_tokens**2 * width * (2.5 if is_backward else 1.0)
    return Kernel(
        family=Family.ATTENTION,
        variant=variant + ("_backward" if is_backward else ""),
        precision=Precision.FP16,
        flop=flop,
        read_bytes=3 * 2.0 * batch * num_tokens * width,
        write_bytes=2.0 * batch * num_tokens * width,
        m=num_tokens,
        n=width,
        k=num_tokens,
        batch=batch,
    )


def tflop_per_s(device: str, *kernels: Kernel) -> float:
    times = kernel_times(kernels, [find_device(device)])
    return sum(kernel.flop for kernel in kernels) / float(times.time_ns.sum()) / 1e3


# Source: FlashAttention-2's figures, forward and backward, TFLOP/s; A5000: forward alone.
def test_flash_attention_reaches_what_was_timed() -> None:
    def both(width: int, num_tokens: int) -> float:
        kernels = [make_attention(num_tokens, width, is_backward=back) for back in (False, True)]
        return tflop_per_s("A100 SXM4 80GB", *kernels)

    assert both(64, 16_384) == pytest.approx(176, rel=0.06)
    assert both(128, 16_384) == pytest.approx(203, rel=0.06)
    a5000 = tflop_per_s("RTX A5000", make_attention(4096, 64))
    assert a5000 == pytest.approx(81.7, rel=0.08)


def test_efficient_attention_reaches_what_was_timed() -> None:
    kernels = [
        make_attention(8192, 128, is_backward=back, variant="efficient") for back in (False, True)
    ]
    assert tflop_per_s("A100 SXM4 80GB", *kernels) == pytest.approx(97, rel=0.06)


def test_narrow_heads_spend_more_of_their_time_on_the_softmax() -> None:
    narrow, wide = (tflop_per_s("RTX 4090", make_attention(width=width)) for width in (32, 128))
    assert narrow < 0.85 * wide


def test_cudnn_uses_the_units_of_hopper() -> None:
    flash = tflop_per_s("H100 SXM5", make_attention())
    assert tflop_per_s("H100 SXM5", make_attention(variant="cudnn|flash")) > 1.2 * flash


def test_an_old_gpu_has_no_flash() -> None:
    named = tflop_per_s("T4", make_attention(variant="cudnn|flash|efficient"))
    assert named == tflop_per_s("T4", make_attention(variant="efficient"))
