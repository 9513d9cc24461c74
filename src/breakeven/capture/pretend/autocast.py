"""Which operators autocast runs in float32 on CUDA, where the CPU's keeps half precision.

An autocast region for CUDA becomes one for the CPU in a traced run. The operators that both run in
half precision are nearly the same, matrix products and convolutions; CUDA's list of those that
want float32 is far longer, which decides about the casts in a step and the bytes that move.

Source: aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches

_KEY = "AutocastCPU"
_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "group_norm", "frobenius_norm.dim",
    "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
)  # fmt: skip
# These take the dtype of their result as an argument.
_FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
)  # fmt: skip


def patch_autocast_policy(patches: Patches) -> None:
    """Let autocast regions for the CPU choose precisions as those for CUDA do."""
    library = torch.library.Library("aten", "IMPL")
    patches.callback(library._destroy)
    for names, make in ((_FLOAT32, _in_float32), (_FLOAT32_RESULT, _to_float32)):
        for name in names:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
                library.impl(name, make(_overload(name)), _KEY)


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _in_float32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operator(*map(_widened, args), **kwargs)

    return run


def _to_float32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if kwargs.get("dtype") is None and _is_half(args[0]):
                kwargs["dtype"] = torch.float32
            return operator(*args, **kwargs)

    return run


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
    )


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def patch_autocast(patches: Patches, recorder: StepRecorder) -> None:
    """Let autocast regions for CUDA cast on the CPU, to the same dtype."""
    original = torch.autocast.__init__
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return is_enabled("cpu" if device_type == "cuda" else device_type)

    def get_autocast_dtype(device_type: str = "cuda") -> torch.dtype:
        if device_type == "cuda" and is_enabled("cpu"):
            device_type = "cpu"
        return get_dtype(device_type)

    def initialize(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        if device_type == "cuda":
            device_type = "cpu"
            dtype = dtype or get_dtype("cuda")
            if enabled:
                recorder.autocast_dtype = str(dtype).removeprefix("torch.")
        original(self, device_type, dtype, enabled, cache_enabled)

    patches.replace(torch.autocast, "__init__", initialize)
    patches.replace(torch, "is_autocast_enabled", is_autocast_enabled)
    patches.replace(torch, "get_autocast_dtype", get_autocast_dtype)
    patches.replace(torch, "get_autocast_gpu_dtype", get_autocast_dtype)
