"""Operators that run as one on CUDA but as many on the CPU, recorded as CUDA runs them.

A recurrent layer is one cuDNN call on a GPU and a loop over time on the CPU. Dropout is one fused
kernel on a GPU and three on the CPU. Attention is in a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch._C._autograd import _get_current_graph_task_keep_graph as is_graph_kept

from breakeven.capture.pretend.stand_ins import widened
from breakeven.capture.record.device_map import HOST
from breakeven.capture.record.modes import same_numbers, without_modes
from breakeven.capture.record.recorder import StepRecorder
from breakeven.configure import Patches
from breakeven.measure import own_time_ns

# cuDNN's numbers. Source: torch/backends/cudnn/rnn.py, get_cudnn_mode.
_RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def patch_composites(patches: Patches, recorder: StepRecorder) -> None:
    """Replace the composites for tensors on the fake device."""
    _patch_dropout(patches, recorder)
    for name in _RNN_MODES:
        _patch_rnn(patches, recorder, name)
    _patch_one_hot(patches, recorder)
    _patch_padding(patches, recorder)
    _patch_ctc_loss(patches, recorder)


def is_on_device(recorder: StepRecorder, tensor: Any) -> bool:
    """Return whether ``tensor`` is a tensor on the fake device."""
    return isinstance(tensor, torch.Tensor) and recorder.devices.is_on_device(tensor)


def _patch_dropout(patches: Patches, recorder: StepRecorder) -> None:
    original = torch.dropout

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        # The condition of CUDA's fused kernel.
        # Source: aten/src/ATen/native/Dropout.cpp, is_fused_kernel_acceptable.
        if train and 0 < p < 1 and input.numel() and is_on_device(recorder, input):
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train)

    patches.replace(torch, "dropout", dropout)
    patches.replace(torch._VF, "dropout", dropout)


def _patch_one_hot(patches: Patches, recorder: StepRecorder) -> None:
    original = F.one_hot

    def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        # The CPU reads back the smallest and largest class to check them; CUDA reads only what it
        # needs.
        # Source: aten/src/ATen/native/Onehot.cpp.
        if not is_on_device(recorder, input) or not input.numel():
            return original(input, num_classes)
        if num_classes == -1:
            num_classes = int(input.max().item()) + 1
        device = torch.device(recorder.devices.device_of(input))
        zeros = torch.zeros((*input.shape, num_classes), dtype=input.dtype, device=device)
        return zeros.scatter_(-1, input.unsqueeze(-1), 1)

    patches.replace(F, "one_hot", one_hot)
    patches.replace(vars(torch._C)["_nn"], "one_hot", one_hot)


def _patch_padding(patches: Patches, recorder: StepRecorder) -> None:
    original = torch._VF._pad_packed_sequence

    def pad(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        padded, lengths = original(*args, **kwargs)
        recorder.devices.place(lengths, HOST)
        return padded, lengths

    patches.replace(torch._VF, "_pad_packed_sequence", pad)


def _patch_ctc_loss(patches: Patches, recorder: StepRecorder) -> None:
    original = torch.ctc_loss

    def ctc_loss(
        log_probs: torch.Tensor, targets: torch.Tensor, *lengths: Any, **options: Any
    ) -> torch.Tensor:
        def as_numbers(value: Any) -> Any:
            # The host reads lengths. Source: aten/src/ATen/native/LossCTC.cpp, ctc_loss.
            if not isinstance(value, torch.Tensor):
                return value
            if is_on_device(recorder, value):
                recorder.record_read("ctc_loss", value)
            with recorder.paused():
                return value.tolist()

        if not is_on_device(recorder, log_probs):
            return original(log_probs, targets, *lengths, **options)
        return original(log_probs, targets, *map(as_numbers, lengths), **options)

    patches.replace(torch, "ctc_loss", ctc_loss)


def _patch_rnn(patches: Patches, recorder: StepRecorder, name: str) -> None:
    original = getattr(torch._VF, name)

    def run(input: torch.Tensor, *args: Any) -> Any:
        # A packed sequence passes its batch sizes as a tensor before the states.
        is_packed = isinstance(args[0], torch.Tensor) and isinstance(args[2], (list, tuple))
        states, weights = (args[1], args[2]) if is_packed else (args[0], args[1])
        batch_sizes = args[0] if is_packed else None
        rest = args[3:] if is_packed else args[2:]
        recorder.bring_to_device(input, weights[0])
        if not is_on_device(recorder, input):
            return original(input, *args)
        _, num_layers, dropout, train, bidirectional = rest[:5]
        single = isinstance(states, torch.Tensor)
        all_states = (states,) if single else tuple(states)
        width = all_states[0].shape[-1]

        def compute(source: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inner = tensors[: len(all_states)]
            state: Any = inner[0] if single else inner
            flat = list(tensors[len(all_states) :])
            if batch_sizes is not None:
                return original(source, batch_sizes, state, flat, *rest)  # type: ignore[no-any-return]
            return original(source, state, flat, *rest)  # type: ignore[no-any-return]

        attributes = {
            "mode": _RNN_MODES[name],
            "hidden_size": width,
            # An LSTM's cells keep the width before the projection of its states.
            "proj_size": width if width != all_states[-1].shape[-1] else 0,
            "num_layers": num_layers,
            "batch_first": bool(rest[5]) if len(rest) > 5 else False,
            "dropout": dropout,
            "train": train,
            "bidirectional": bidirectional,
        }
        return record_as_one(
            recorder, compute, (input, *all_states, *weights),
            "aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default", attributes,
        )  # fmt: skip

    patches.replace(torch._VF, name, run)


def record_as_one(
    recorder: StepRecorder, compute: Callable[..., tuple[torch.Tensor, ...]],
    tensors: tuple[torch.Tensor, ...], name: str, backward_name: str, attributes: dict[str, Any],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Run ``compute(*tensors)`` unrecorded, and record it and its backward as one operator each.

    Inside an autocast region the tensors are cast first, as CUDA's autocast does here.
    """
    recorder.check_places(name.rsplit(".", 1)[0], tensors)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        tensors = tuple(
            tensor.to(dtype) if tensor.dtype is torch.float32 else tensor for tensor in tensors
        )
    return FusedOp.apply(recorder, compute, (name, backward_name, attributes), *tensors)  # type: ignore[no-any-return]


class FusedOp(torch.autograd.Function):
    """A subgraph that the recorder sees as one operator in each direction."""

    @staticmethod
    def forward(
        ctx: Any, recorder: StepRecorder, compute: Callable[..., Any],
        names: tuple[str, str, dict[str, Any]], *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        started_ns = own_time_ns()
        subgraph = _Subgraph(compute, tensors)
        outputs = recorder.compute(subgraph.forward, *tensors)
        host_ns = own_time_ns() - started_ns
        ctx.backward_ns = None
        if recorder.is_worth_repeating(host_ns):
            host_ns, ctx.backward_ns = _time_again(compute, tensors)
        # The caller ensures that the first tensor, the query or input, is on a device.
        ctx.device = recorder.devices.device_of(tensors[0])
        for output in outputs:
            recorder.devices.place(output, ctx.device)
        ctx.origin = recorder.current_origin()
        # CUDA does not replace a missing gradient by zeros either.
        ctx.set_materialize_grads(False)
        ctx.recorder, ctx.names, ctx.subgraph = recorder, names, subgraph
        # CUDA too keeps them for the backward pass, in their own dtype.
        ctx.tensors = tensors
        recorder.record_op(
            names[0], tensors, outputs, names[2],
            device=ctx.device, host_ns=host_ns, origin=ctx.origin,
        )  # fmt: skip
        ctx.mark_non_differentiable(
            *(
                output
                for output, result in zip(outputs, subgraph.results, strict=True)
                if not result.requires_grad
            )
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        recorder, (_, name, attributes) = ctx.recorder, ctx.names
        started_ns = own_time_ns()
        found = recorder.compute(ctx.subgraph.backward, *gradients)
        host_ns = own_time_ns() - started_ns
        if ctx.backward_ns is not None:
            host_ns = min(host_ns, ctx.backward_ns)
        outputs = [gradient for gradient in found if gradient is not None]
        for output in outputs:
            recorder.devices.place(output, ctx.device)
        inputs = [*ctx.subgraph.used(gradients), *ctx.tensors]
        recorder.record_op(
            name, inputs, outputs, attributes,
            device=ctx.device, host_ns=host_ns, origin=ctx.origin,
        )  # fmt: skip
        remaining = iter(found)
        returned = [next(remaining) if tensor.requires_grad else None for tensor in ctx.tensors]
        return None, None, None, *returned


def _time_again(
    compute: Callable[..., tuple[torch.Tensor, ...]], tensors: tuple[torch.Tensor, ...]
) -> tuple[int, int | None]:
    """Return the host times of both directions in a repeated run, as in a plain run.

    The second time is None if no gradient flows back.
    """
    subgraph = _Subgraph(compute, tensors)
    with same_numbers():
        started_ns = own_time_ns()
        outputs = subgraph.forward(*tensors)
        forward_ns = own_time_ns() - started_ns
    if not any(result.requires_grad for result in subgraph.results):
        return forward_ns, None
    with without_modes():
        gradients = [torch.ones_like(output) for output in outputs]
    started_ns = own_time_ns()
    subgraph.backward(*gradients)
    return forward_ns, own_time_ns() - started_ns


class _Subgraph:
    """A function with the graph of its last call, for its backward pass.

    Args:
        compute: The function.
        tensors: Arguments of its first call.
    """

    def __init__(
        self, compute: Callable[..., tuple[torch.Tensor, ...]], tensors: tuple[torch.Tensor, ...]
    ) -> None:
        self._compute = compute
        self._needs_grad = [tensor.requires_grad for tensor in tensors]
        self._inner: list[torch.Tensor] = []
        self.results: tuple[torch.Tensor, ...] = ()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._dtypes = [tensor.dtype for tensor in tensors]
        with unrecorded(), torch.enable_grad():
            self._inner = [
                widened(tensor.detach()).requires_grad_(needs_grad)
                for tensor, needs_grad in zip(tensors, self._needs_grad, strict=True)
            ]
            self.results = self._compute(*self._inner)
            dtype = tensors[0].dtype
            return tuple(result.detach().to(dtype, copy=True) for result in self.results)

    def used(self, gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return the gradients that the backward pass uses."""
        return [gradient for _, gradient in self._paired(gradients)]

    def backward(self, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the tensors that need one."""
        wanted = [
            (tensor, dtype)
            for tensor, dtype in zip(self._inner, self._dtypes, strict=True)
            if tensor.requires_grad
        ]
        paired = self._paired(gradients)
        with unrecorded():
            found = torch.autograd.grad(
                [result for result, _ in paired],
                [tensor for tensor, _ in wanted],
                [gradient.to(result.dtype) for result, gradient in paired],
                # Keep the graph if the enclosing pass keeps its own: a script may repeat it.
                retain_graph=is_graph_kept(),
                allow_unused=True,
            )
            return distinct_copies(
                None if gradient is None else gradient.to(dtype)
                for gradient, (_, dtype) in zip(found, wanted, strict=True)
            )

    def _paired(
        self, gradients: Iterable[torch.Tensor | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (result, gradient)
            for result, gradient in zip(self.results, gradients, strict=True)
            if result.requires_grad and gradient is not None
        ]


def distinct_copies(gradients: Iterable[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """Return distinct tensors: on the CPU, two biases of a cell share one gradient.

    CUDA's kernel writes one gradient for each; autograd would copy a shared one.
    """
    found: list[torch.Tensor | None] = []
    for gradient in gradients:
        is_again = any(gradient is other for other in found if other is not None)
        found.append(gradient.clone() if gradient is not None and is_again else gradient)
    return tuple(found)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run on the CPU unrecorded, and without casts in an autocast region."""
    # Disable function modes too: under one, torch finds a builtin by name, and would find ours.
    with without_modes(), torch.autocast("cpu", enabled=False):
        yield
