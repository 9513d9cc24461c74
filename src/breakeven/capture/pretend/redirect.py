"""Runs a script written for CUDA on the CPU, at the CPU's speed, for the plain run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device
from torch.nn.parameter import UninitializedTensorMixin  # pyright: ignore[reportAttributeAccessIssue]

from breakeven.capture.pretend.cuda_api import hide_other_gpus, patch_cuda_api
from breakeven.capture.pretend.cuda_graphs import CudaGraphs
from breakeven.capture.pretend.device_functions import device_functions, patch_legacy_types
from breakeven.capture.pretend.parallel import bypass_data_parallel, patch_process_group
from breakeven.capture.pretend.stand_ins import (
    disable_compile,
    patch_default_device,
    patch_device,
    patch_generator,
    patch_module_to,
    patch_serialization,
    patch_torchscript,
)
from breakeven.capture.record.device_map import CudaDevices, is_cuda
from breakeven.configure import Patches
from breakeven.errors import Caveat

COMPILE_IGNORED = Caveat(
    code="compile-ignored",
    message="torch.compile was ignored: the eager step is measured and predicted",
)


class redirect_cuda_to_cpu(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, CUDA devices mean the CPU.

    Args:
        has_cuda: Result of ``torch.cuda.is_available()``.
        on_compile: Called when the script calls ``torch.compile``.
        is_alone: If the script joins other processes, continue without them.
        keeps_compile: Let ``torch.compile`` compile; otherwise it does nothing. It fails with
            replaced functions, so nothing is redirected then. With ``has_cuda``, everything is
            redirected and compilation ignored.
        graphs: Receives updates, which a graph may repeat.
    """

    def __init__(
        self, *, has_cuda: bool = False, on_compile: Callable[[], None] = lambda: None,
        keeps_compile: bool = False, is_alone: bool = False, graphs: CudaGraphs | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._graphs = graphs or CudaGraphs()
        self._is_idle = keeps_compile and not has_cuda
        self._has_cuda = has_cuda
        self._on_compile = on_compile
        self._is_alone = is_alone

    def _apply(self) -> None:
        if self._is_idle:
            hide_other_gpus(self)
            return
        # Every device number means the CPU.
        cuda = CudaDevices(on_other=lambda _: None)
        patch_cuda_api(self, is_available=self._has_cuda, cuda=cuda)
        self.enter_context(self._graphs.patch())
        # Wrap each function in Python, at some 0.3 µs per call. A TorchFunctionMode would see all
        # functions, but costs more than a small operator on every call.
        for found in device_functions():
            self.replace(found.owner, found.name, found.naming(lambda _: "cpu", lambda _: None))
        self.replace(torch.Tensor, "to", _to_on_cpu(torch.Tensor.to))
        # Before they have memory, lazy modules allow some methods, compared by identity.
        allowed = [*UninitializedTensorMixin._allowed_methods, torch.Tensor.to]
        self.replace(UninitializedTensorMixin, "_allowed_methods", allowed)
        self.replace(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
        self.replace(torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor)
        self.replace(torch.Tensor, "record_stream", lambda *_: None)
        patch_device(self)
        patch_default_device(self, _find_on_cpu)
        patch_module_to(self, _find_on_cpu)
        patch_serialization(self, cuda=cuda)
        patch_legacy_types(self)
        bypass_data_parallel(self)
        if self._is_alone:
            patch_process_group(self)
        patch_torchscript(self)
        patch_generator(self)
        disable_compile(self, self._on_compile)


def _to_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], (torch.Tensor, torch.dtype)) and is_cuda(args[0]):
            args = ("cpu", *args[1:])
        device = kwargs.get("device")
        if device is not None and is_cuda(device):
            kwargs["device"] = "cpu"
        return original(tensor, *args, **kwargs)

    return to


def _find_on_cpu(device: Any) -> Any:
    return "cpu" if is_cuda(device) else device
