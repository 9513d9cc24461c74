"""Attention as CUDA computes it: by a fused kernel, or by single operators if none is usable.

The choice of the fused kernel also depends on the GPU. So a recorded call names all candidates in
torch's order of preference, and the cost model checks the device.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.nn.attention import SDPBackend, sdpa_kernel

from breakeven.capture.pretend.composites import is_on_device, record_as_one
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches

_HALF = (torch.float16, torch.bfloat16)
_MAX_FLASH_WIDTH = 256
# Only on Hopper does cuDNN take heads twice as wide.
_MAX_CUDNN_WIDTH = 128


def patch_attention(patches: Patches, recorder: StepRecorder) -> None:
    """Record attention of tensors on the fake device as CUDA runs it."""
    original = F.scaled_dot_product_attention

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        if not is_on_device(recorder, query):
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        implementations = usable(query, key, value, attn_mask, is_causal=is_causal)
        has_math = torch.backends.cuda.math_sdp_enabled()
        if not implementations and not has_math:
            raise RuntimeError("No available kernel. Aborting execution.")
        if not implementations:
            # The CPU's fused kernel would accept operands that CUDA's kernels refuse.
            with sdpa_kernel(SDPBackend.MATH):
                return original(query, key, value, attn_mask, dropout_p, is_causal, **options)

        def compute(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            # The CPU may lack the implementations that the script leaves enabled for CUDA.
            with nullcontext() if has_math else sdpa_kernel(SDPBackend.MATH):
                given = mask[0] if mask else None
                return (original(q, k, v, given, dropout_p, is_causal, **options),)

        # Name the implementation for most GPUs: earlier ones run only on the newest GPUs.
        named = implementations[-1] if "flash" not in implementations else "flash"
        name = f"aten._scaled_dot_product_{named}_attention"
        tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        attributes = {
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "implementations": "|".join(implementations),
        }
        return record_as_one(
            recorder, compute, tensors, f"{name}.default", f"{name}_backward.default", attributes
        )[0]

    patches.replace(F, "scaled_dot_product_attention", attend)
    patches.replace(vars(torch._C)["_nn"], "scaled_dot_product_attention", attend)


def usable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
) -> tuple[str, ...]:
    """Return the fused implementations that accept these operands, in torch's order of preference.

    Implementations that the script disables (``sdpa_kernel``,
    ``torch.backends.cuda.enable_flash_sdp``) are left out. If the result is empty, single
    operators compute attention.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the checks of each use_*.
    """
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu") and dtype is torch.float32:
        dtype = torch.get_autocast_dtype("cpu")
    is_half = dtype in _HALF
    if dtype is torch.float64 or query.dim() != 4 or not query.numel() or not key.numel():
        return ()
    width, value_width = query.shape[-1], value.shape[-1]
    is_square = query.shape[-2] == key.shape[-2]
    switches = torch.backends.cuda
    found: list[str] = []
    is_narrow = max(width, value_width) <= _MAX_CUDNN_WIDTH
    is_aligned = width % 8 == value_width % 8 == 0
    if switches.cudnn_sdp_enabled() and is_half and is_narrow and is_aligned:
        found.append("cudnn")
    # If the width of a head is no multiple of 8, torch pads it with zeros.
    fits_flash = width == value_width <= _MAX_FLASH_WIDTH and (is_square or not is_causal)
    if switches.flash_sdp_enabled() and is_half and mask is None and fits_flash:
        found.append("flash")
    alignment = 8 if is_half else 4
    is_aligned = width % alignment == value_width % alignment == 0
    if switches.mem_efficient_sdp_enabled() and is_aligned:
        found.append("efficient")
    return tuple(found)
