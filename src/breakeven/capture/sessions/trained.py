"""The parameters that timed steps train, and their arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
# Autograd nodes of the operators that are slow if the CPU emulates their format.
_PRODUCTS = frozenset({
    "AddmmBackward0", "AddmvBackward0", "BaddbmmBackward0", "BmmBackward0", "ConvolutionBackward0",
    "MmBackward0", "MvBackward0",
})  # fmt: skip


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
        self._autocast_dtype: torch.dtype | None = None
        self._product_dtypes: set[torch.dtype] = set()
        self._layers: RemovableHandle | None = None

    def _apply(self) -> None:
        original: Any = torch.autocast.__enter__

        def enter(region: Any) -> Any:
            # A region for CUDA that finds no GPU, or is disabled, casts nothing.
            if region._enabled and region.device == (self._gpu or "cpu"):
                self._autocast_dtype = region.fast_dtype
            return original(region)

        self.replace(torch.autocast, "__enter__", enter)

    def note_loss(self, loss: object) -> None:
        """Note the start of a backward pass, for loops without an optimizer."""
        if isinstance(loss, torch.Tensor):  # it may be an edge of the graph
            self._loss_dtype, self._loss_device = loss.dtype, loss.device

    def watch_layers(self) -> None:
        """Note the formats of layers that are called before the first `note_graph`.

        Layers without gradients, such as a frozen encoder, are in no graph.
        """

        def note(module: nn.Module, _: object) -> None:
            # Read the dictionary: a script may override the methods.
            own = module.__dict__.get("_parameters", {}).values()
            self._product_dtypes.update(weight.dtype for weight in own if weight is not None)

        self._layers = register_module_forward_pre_hook(note)
        self.callback(self._layers.remove)

    def note_graph(self, outputs: Iterable[object]) -> None:
        """Note the formats of products in a backward pass's graph, including manual casts.

        Args:
            outputs: Tensors at which the pass began.
        """
        if self._layers is not None:
            self._layers.remove()
        seen: set[Any] = {None}
        nodes: set[Any] = {each.grad_fn for each in outputs if isinstance(each, torch.Tensor)}
        while nodes := nodes - seen:
            seen |= nodes
            for node in nodes:
                if type(node).__name__ in _PRODUCTS:
                    self._product_dtypes.update(made.dtype for made in node._input_metadata)
            nodes = {following for node in nodes for following, _ in node.next_functions}

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
        if self._autocast_dtype is not None:
            return _PRECISIONS.get(self._autocast_dtype, "fp32")
        counts: Counter[torch.dtype | None] = Counter([self._loss_dtype])
        for parameter in self._optimizers.parameters():
            counts[parameter.dtype] += parameter.numel()
        return _PRECISIONS.get(counts.most_common(1)[0][0], "fp32")

    def precisions(self) -> tuple[str, ...]:
        """Return that arithmetic, followed by other formats of products."""
        products = sorted(_PRECISIONS.get(dtype, "fp32") for dtype in self._product_dtypes)
        return tuple(dict.fromkeys((self.precision(), *products)))
