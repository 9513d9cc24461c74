"""What is told of timed steps: what they trained, what fed them, why to trust them less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from breakeven.capture.answers import LoaderUse
from breakeven.capture.gpus import gpu_with_most
from breakeven.capture.pretend.cuda_graphs import GRAPHS_RUN_EAGERLY
from breakeven.capture.pretend.redirect import COMPILE_IGNORED
from breakeven.capture.record.hooks import OptimizerHooks
from breakeven.capture.requests import RunRequest
from breakeven.configure import Patches
from breakeven.errors import Caveat
from breakeven.processor import cpu_name, cpu_quota, has_half_hardware
from breakeven.timing import BUSY_BESIDE, BUSY_FRACTION, BUSY_MACHINE, EMULATED_ON_CPU
from breakeven.units import format_percent

_NEEDS_CUDA = Caveat(
    code="needs-cuda",
    message="the script refuses to run without a GPU; measured with its CUDA calls run by the CPU",
)

_PRECISIONS: dict[torch.dtype | None, str] = {
    torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
}  # fmt: skip
# Autograd's nodes of the operators that a CPU is slow at in a format that it emulates.
_PRODUCTS = frozenset({
    "AddmmBackward0", "AddmvBackward0", "BaddbmmBackward0", "BmmBackward0", "ConvolutionBackward0",
    "MmBackward0", "MvBackward0",
})  # fmt: skip


class Trained(Patches):
    """What steps train: the parameters of optimizers, or what backward passes begin at.

    While it is entered, regions of autocast are noted.

    Args:
        optimizers: Those of the loop.
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
            # One for CUDA that finds no GPU, or is meant to be off, casts nothing.
            if region._enabled and region.device == (self._gpu or "cpu"):
                self._autocast_dtype = region.fast_dtype
            return original(region)

        self.replace(torch.autocast, "__enter__", enter)

    def note_loss(self, loss: object) -> None:
        """Note what a backward pass began at, where no optimizer says what is trained."""
        if isinstance(loss, torch.Tensor):  # and no edge of the graph
            self._loss_dtype, self._loss_device = loss.dtype, loss.device

    def watch_layers(self) -> None:
        """Note the formats of layers that are called before the first `note_graph`.

        Those without gradients, such as a frozen encoder, are in no graph.
        """

        def note(module: nn.Module, _: object) -> None:
            # Not by its methods, which a script may have its own of.
            own = module.__dict__.get("_parameters", {}).values()
            self._product_dtypes.update(weight.dtype for weight in own if weight is not None)

        self._layers = register_module_forward_pre_hook(note)
        self.callback(self._layers.remove)

    def note_graph(self, outputs: Iterable[object]) -> None:
        """Note in which formats the graph of a backward pass multiplies, casts by hand included.

        Args:
            outputs: What the pass began at.
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
        """Return the GPU that the steps ran on; None where they were left one and it was not used.

        A script that says ``cuda:1`` leaves another one the current device.
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
        """Return the arithmetic of autocast regions, or else of most parameters."""
        if self._autocast_dtype is not None:
            return _PRECISIONS.get(self._autocast_dtype, "fp32")
        counts: Counter[torch.dtype | None] = Counter([self._loss_dtype])
        for parameter in self._optimizers.parameters():
            counts[parameter.dtype] += parameter.numel()
        return _PRECISIONS.get(counts.most_common(1)[0][0], "fp32")

    def precisions(self) -> tuple[str, ...]:
        """Return that arithmetic, and what else products were computed in."""
        products = sorted(_PRECISIONS.get(dtype, "fp32") for dtype in self._product_dtypes)
        return tuple(dict.fromkeys((self.precision(), *products)))


def uses_workers(uses: Sequence[LoaderUse]) -> bool:
    """Return whether data loader workers run, which are other processes but not other work."""
    return any(use.num_workers for use in uses)


def typical_use(
    uses: Sequence[LoaderUse], num_steps: int, alone_ns: float, taking_ns: float
) -> LoaderUse | None:
    """Return what a step takes from the loader that feeds most of them.

    Args:
        uses: Of the steps that took batches.
        num_steps: All of them.
        alone_ns: Time per batch where nothing trains beside worker processes.
        taking_ns: Processor time of this process for such a batch.
    """
    if not uses:
        return None
    # The first fetch starts workers and fills caches.
    waits = [use.wait_ns for use in uses[1:] or uses]
    alike = Counter(replace(use, wait_ns=0.0) for use in uses)
    (typical, count) = alike.most_common(1)[0]
    return replace(
        typical,
        wait_ns=float(median(waits)),
        alone_ns=alone_ns,
        taking_ns=taking_ns,
        fetching_fraction=min(1.0, count / max(num_steps, 1)),
    )


def caveats_of_run(
    request: RunRequest, *, load_fraction: float, is_disturbed: bool, num_threads: int,
    ignores_compile: bool, ignores_graphs: bool, cpu_precisions: Iterable[str],
) -> Iterator[Caveat]:  # fmt: skip
    """Yield reasons to trust the time of the steps less.

    Args:
        request: How the script was run.
        load_fraction: Of the machine, what other processes used meanwhile.
        is_disturbed: Whether they held up every step.
        num_threads: Threads of torch that the steps ran on.
        ignores_compile: Whether the script asked for ``torch.compile``, which was ignored.
        ignores_graphs: Whether what it captured as CUDA graphs ran as operators.
        cpu_precisions: Arithmetic of steps that ran on this CPU; empty for those on a GPU.
    """
    if ignores_compile:
        yield COMPILE_IGNORED
    if load_fraction > BUSY_FRACTION:
        yield _busy(load_fraction, is_disturbed=is_disturbed)
    if request.has_cuda:
        yield _NEEDS_CUDA
    if ignores_graphs:
        yield GRAPHS_RUN_EAGERLY
    halves = [name for name in cpu_precisions if name in ("fp16", "bf16")]
    if emulated := " and no ".join(name for name in halves if not has_half_hardware(name)):
        yield Caveat(
            code=EMULATED_ON_CPU,
            message=f"{cpu_name()} has no {emulated} arithmetic of its own: torch emulates "
            "it there, far slower than fp32",
        )
    quota = cpu_quota()
    if quota is not None and quota < num_threads:
        yield Caveat(
            code="cpu-quota",
            message=f"a limit (cgroup) lets this process have the time of {quota:.3g} processors: "
            "over time, work on more threads than that takes longer than shown, on this CPU and "
            "for the host of a GPU",
        )
    asked = request.configuration.num_threads
    if asked not in (0, num_threads):
        yield Caveat(
            code="own-threads",
            message=f"the script sets torch's threads itself: it ran on {num_threads}, not on "
            f"{asked}",
        )


def _busy(load_fraction: float, *, is_disturbed: bool) -> Caveat:
    used = format_percent(load_fraction)
    beside = f"other processes used {used} of this machine while the step was"
    if is_disturbed:
        message = f"{beside} measured; they held up every step, so that its time is a bound"
        return Caveat(code=BUSY_MACHINE, message=message)
    return Caveat(code=BUSY_BESIDE, message=f"{beside} measured; what they held up is left out")
