"""The parameters that timed steps train, and their arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from breakeven.capture.gpus import gpu_with_most
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.configure import Patches

_PRECISIONS: dict[torch.dtype | None, str] = {
    torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
}  # fmt: skip


class Trained(Patches):
    """The tensors that steps train: parameters of optimizers, or starts of backward passes.

    Inside, it notes autocast regions.

    Args:
        optimizers: Optimizers of the loop.
        gpu: torch's type of the GPU that the loop may use; empty for none.
    """

    def __init__(self, optimizers: OptimizerHooks, gpu: str) -> None:
        super().__init__()
        self._optimizers = optimizers
        self._gpu = gpu
        self._loss_dtype: torch.dtype | None = None
        self._loss_device: torch.device | None = None
        # Of the last autocast region; None without one.
        self.autocast_dtype: torch.dtype | None = None
        self._layer_dtypes: set[torch.dtype] = set()
        self._watched: RemovableHandle | None = None

    def _apply(self) -> None:
        original: Any = torch.autocast.__enter__

        def enter(region: Any) -> Any:
            # A region for CUDA that finds no GPU, or is disabled, casts nothing.
            if region._enabled and region.device == (self._gpu or "cpu"):
                self.autocast_dtype = region.fast_dtype
            return original(region)

        self.replace(torch.autocast, "__enter__", enter)

    def note_loss(self, loss: object) -> None:
        """Note the start of a backward pass, for loops without an optimizer."""
        if isinstance(loss, torch.Tensor):  # it may be an edge of the graph
            self._loss_dtype, self._loss_device = loss.dtype, loss.device

    def watch_layers(self) -> None:
        """Note the formats of layers that are called from now on, such as a frozen encoder's."""

        def note(module: nn.Module, _: object) -> None:
            # Read the dictionary: a script may override the methods.
            own = module.__dict__.get("_parameters", {}).values()
            self._layer_dtypes.update(weight.dtype for weight in own if weight is not None)

        self._watched = register_module_forward_pre_hook(note)
        self.callback(self._watched.remove)

    def unwatch_layers(self) -> None:
        """Stop that: it slows steps down."""
        if self._watched is not None:
            self._watched.remove()

    def gpu(self) -> torch.device | None:
        """Return the GPU that ran the steps; None if the script did not use it.

        A script that uses ``cuda:1`` may leave another device current.
        """
        parameters = list(self._optimizers.parameters())
        found = gpu_with_most(self._gpu, parameters)
        if found is not None or not self._gpu:
            return found
        if self._loss_device is not None and self._loss_device.type == self._gpu:
            return self._loss_device
        is_known = bool(parameters) or self._loss_device is not None
        return None if is_known else torch.device(self._gpu)

    def precision(self) -> str:
        """Return the dtype of autocast regions, or otherwise that of most parameters."""
        if self.autocast_dtype is not None:
            return _PRECISIONS.get(self.autocast_dtype, "fp32")
        counts: Counter[torch.dtype | None] = Counter([self._loss_dtype])
        for parameter in self._optimizers.parameters():
            counts[parameter.dtype] += parameter.numel()
        return _PRECISIONS.get(counts.most_common(1)[0][0], "fp32")

    def precisions(self) -> tuple[str, ...]:
        """Return that arithmetic, followed by other formats of layers."""
        layers = sorted(_PRECISIONS.get(dtype, "fp32") for dtype in self._layer_dtypes)
        return tuple(dict.fromkeys((self.precision(), *layers)))
