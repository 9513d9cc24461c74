"""Stand-ins for parts of torch on fake devices, and if CUDA means the CPU.

They cover default devices, generators, disabled compilers, and checkpoints written on a GPU or read
onto one. Autocast regions for CUDA become regions for the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
import torch.jit._builtins
import torch.serialization
import torch.utils._device
from torch.jit import annotations

from breakeven.capture.record.device_map import CudaDevices, DeviceMap, is_cuda
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from faststep import FastStep


def patch_default_device(patches: Patches, find: Callable[[Any], Any]) -> None:
    """Make ``set_default_device`` and ``with torch.device(...)`` use the result of ``find``."""
    context = torch.utils._device.DeviceContext
    original = context.__init__

    def initialize(self: Any, device: Any) -> None:
        original(self, find(device))

    patches.replace(context, "__init__", initialize)


def patch_device(patches: Patches) -> None:
    """Make ``torch.device(0)`` a CUDA device even if torch finds none."""
    original: Any = torch.device

    class Kind(type):
        """Replaces a class of torch that cannot be subclassed, also as a dictionary key."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("device")
            if len(args) + len(kwargs) == 1 and isinstance(given, Integral):
                return original("cuda", int(given))
            return original(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

        def __eq__(cls, other: object) -> bool:
            return True if other is cls or other is original else NotImplemented

        def __hash__(cls) -> int:
            return hash(original)

    # Pickle stores devices by the name of their class.
    device = Kind("device", (), {"__module__": "torch", "__doc__": original.__doc__})
    patches.replace(torch, "device", device)
    find_type = annotations.try_ann_to_type

    def find_type_of_device(annotation: Any, *args: Any, **kwargs: Any) -> Any:
        """Recognize the original in older annotations too: TorchScript compares by identity."""
        return find_type(device if annotation is original else annotation, *args, **kwargs)

    patches.replace(annotations, "try_ann_to_type", find_type_of_device)


def patch_module_to(patches: Patches, find: Callable[[Any], Any]) -> None:
    """Make ``Module.to`` accept a device number, which torch rejects without a GPU."""
    functions = vars(torch._C)["_nn"]
    original = functions._parse_to

    def parse(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (find(args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = find(kwargs["device"])
        return original(*args, **kwargs)

    patches.replace(functions, "_parse_to", parse)


def patch_torchscript(patches: Patches) -> None:
    """Make TorchScript, which compares operators by identity, recognize their replacements."""
    original = torch.jit._builtins._find_builtin

    def find_builtin(function: Any) -> Any:
        return original(function) or original(patches.original_of(function))

    patches.replace(torch.jit._builtins, "_find_builtin", find_builtin)


def patch_generator(patches: Patches, name_of: Callable[[Any], str] = lambda _: "cpu") -> None:
    """Make ``torch.Generator(device="cuda")`` a CPU generator.

    Args:
        patches: Restores everything on exit.
        name_of: Returns the generator's device name for a CUDA device.
    """
    original: Any = torch.Generator

    def is_one(_: type, item: object) -> bool:
        return isinstance(item, original)

    kind: Any = type("Kind", (type(original),), {"__instancecheck__": is_one})

    class Generator(original, metaclass=kind):
        """A CPU generator for any requested device."""

        def __new__(cls, device: Any = "cpu") -> Any:
            if not is_cuda(device):
                return original(device)
            generator = original.__new__(cls, "cpu")
            generator.device_name = name_of(device)
            return generator

        @property
        def device(self) -> torch.device:
            return torch.device(self.device_name)

    patches.replace(torch, "Generator", Generator)


def disable_compile(patches: Patches, on_use: Callable[[], None]) -> None:
    """Disable ``torch.compile`` and ``fast_step``: the comparison uses the eager step."""

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        on_use()
        return model if model is not None else lambda function: function

    def compile_module(module: Any, *_: Any, **__: Any) -> None:
        on_use()

    keep_stock_steps(patches, on_use)
    patches.replace(torch, "compile", compile_nothing)
    patches.replace(torch.nn.Module, "compile", compile_module)


def keep_stock_steps(patches: Patches, on_use: Callable[[], object] = lambda: None) -> None:
    """Make ``fast_step`` run the loop's original step."""

    def do_stock(step: FastStep, batch: Any, indices: Any) -> Any:
        on_use()
        return step.do_stock(batch, indices)

    patches.replace(FastStep, "compile", do_stock)


def patch_serialization(
    patches: Patches, devices: DeviceMap | None = None, cuda: CudaDevices | None = None
) -> None:
    """Make ``torch.load`` put CUDA tensors on the CPU.

    Args:
        patches: Restores everything on exit.
        devices: Notes tensors on a fake device; None without fake devices.
        cuda: The fake devices; by default one device.
    """
    original_load = torch.load
    fake = cuda or CudaDevices()

    def place(
        storage: torch.UntypedStorage, device: Any = None, *_: Any, **__: Any
    ) -> torch.UntypedStorage:
        if devices is not None:
            devices.place(storage, fake.name_of(device))
        return storage

    @functools.wraps(original_load)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original_load(f, _restorer(map_location, place), *args, **kwargs)

    patches.replace(torch, "load", load)
    # `map_location=lambda storage, location: storage.cuda(0)`
    patches.replace(torch.UntypedStorage, "cuda", place)
    if devices is None:
        return
    original_tag = torch.serialization.location_tag

    def location_tag(storage: Any) -> str:
        untyped = getattr(storage, "_untyped_storage", storage)
        if not devices.is_on_device(untyped):
            return str(original_tag(storage))
        return devices.device_of(untyped)

    patches.replace(torch.serialization, "location_tag", location_tag)


def _restorer(map_location: Any, place: Callable[..., Any]) -> Callable[[Any, str], Any]:
    """Return a ``map_location`` function, which ``torch.load`` calls with each storage."""

    def restore(storage: Any, location: str) -> Any:
        target: Any = location
        if isinstance(map_location, dict):
            target = map_location.get(location, location)
        elif callable(map_location):
            found = map_location(storage, location)
            if found is not None:
                return found
        elif map_location is not None:
            target = map_location
        if is_cuda(target):
            return place(storage, target)
        return torch.serialization.default_restore_location(storage, str(target))

    return restore


# Operators that run in float32 under CUDA's autocast, but in half precision under the CPU's. Both
# run nearly the same ones in half precision: matrix products and convolutions. CUDA's list of
# float32 operators is far longer. It changes the casts in a step and the bytes that the step moves.
# Source: aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE.
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
# These operators take the dtype of their result as an argument.
_FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
    "sum.dim_IntList", "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
)  # fmt: skip


def patch_autocast_policy(patches: Patches) -> None:
    """Make autocast regions for the CPU choose the same precisions as those for CUDA."""
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
            return operator(*map(widened, args), **kwargs)

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


def widened(value: Any) -> Any:
    """Return a half-precision tensor as float32: the CPU lacks or emulates its format."""
    return value.float() if _is_half(value) else value


def patch_autocast(patches: Patches, recorder: StepRecorder) -> None:
    """Make autocast regions for CUDA cast to the same dtype on the CPU."""
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
