"""breakeven's own small networks, named ``breakeven:NAME?args``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.workloads.spec import WorkloadSpec, suggest
from breakeven.workloads.timed_step import BuiltStep, StepFactory

# By depth: blocks of each of the four stages, and the factor by which a block's output is wider.
STAGES = {18: ((2, 2, 2, 2), 1), 34: ((3, 4, 6, 3), 1), 50: ((3, 4, 6, 3), 4)}
_WIDTH = 64


class ResidualNetwork(nn.Module):
    """A classifier of images.

    Args:
        depth: 18, 34 or 50 layers.
        classes: Number of classes.
    """

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        stages, expansion = STAGES[depth]
        self.stem = nn.Sequential(*_convolution(3, _WIDTH, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        width = _WIDTH
        for number, num_blocks in enumerate(stages):
            inner = _WIDTH << number
            for block in range(num_blocks):
                stride = 2 if number and not block else 1
                blocks.append(_Block(width, inner, inner * expansion, stride))
                width = inner * expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of images, (batch, 3, height, width)."""
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, end: int, stride: int) -> None:
        super().__init__()
        if inner == end:
            shapes = ((width, inner, 3, stride), (inner, end, 3, 1))
        else:
            shapes = ((width, inner, 1, 1), (inner, inner, 3, stride), (inner, end, 1, 1))
        layers = [layer for shape in shapes for layer in (*_convolution(*shape), nn.ReLU())]
        self.body = nn.Sequential(*layers[:-1])
        is_same = width == end and stride == 1
        self.short = nn.Sequential(*(() if is_same else _convolution(width, end, 1, stride)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


def _convolution(width: int, end: int, window: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(width, end, window, stride, window // 2, bias=False)
    return convolution, nn.BatchNorm2d(end)


def prepare_own(spec: WorkloadSpec, dtype: torch.dtype) -> StepFactory:
    """Build one of breakeven's own networks, and return a factory of its steps.

    Args:
        spec: Options are the arguments of the network's function.
        dtype: Dtype of parameters and inputs.

    Raises:
        WorkloadError: If there is no such network or argument.
    """
    build = _NETWORKS.get(spec.name)
    if build is None:
        raise WorkloadError(
            f"breakeven has no workload {spec.name!r}", hint=suggest(spec.name, _NETWORKS)
        )
    options: dict[str, Any] = dict(spec.options)
    parameters = list(inspect.signature(build).parameters)[1:]
    for key, value in options.items():
        if key not in parameters:
            raise WorkloadError(
                f"{spec.name} has no option {key!r}", hint=f"it has {', '.join(parameters)}"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise WorkloadError(
                f"{key}={value} of {spec.name} is not a number of 1 or more", hint=f"{key}=8"
            )
    return build(dtype, **options)


def _perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _disc_mlp(dtype: torch.dtype, depth: int = 8) -> StepFactory:
    """Classify points of the plane; each of ``depth`` layers is twice as wide as the previous."""
    model = _perceptron([*(2**power for power in range(1, depth + 1)), 2])
    return _classifier(model.to(dtype), (2,), dtype, reads_loss=True)


def _mlp(
    dtype: torch.dtype, input: int = 784, width: int = 1024, depth: int = 3, classes: int = 10
) -> StepFactory:
    """Classify vectors with ``depth`` linear layers and ReLU between them."""
    model = _perceptron([input, *[width] * (depth - 1), classes])
    return _classifier(model.to(dtype), (input,), dtype)


def _lstm(
    dtype: torch.dtype, hidden: int = 320, layers: int = 1, seq: int = 1000, input: int = 123,
    classes: int = 10,
) -> StepFactory:  # fmt: skip
    """Classify sequences by the last state of an LSTM."""
    return _classifier(_LastState(input, hidden, layers, classes).to(dtype), (seq, input), dtype)


class _LastState(nn.Module):
    """An LSTM, and a linear layer on its last state."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, num_classes: int
    ) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
        self.head = nn.Linear(hidden_size, num_classes)

    def forward(self, sequence_BTC: torch.Tensor) -> torch.Tensor:  # noqa: N803
        states_BTH, _ = self.recurrent(sequence_BTC)  # noqa: N806
        return self.head(states_BTH[:, -1])


def _classifier(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, *, reads_loss: bool = False
) -> StepFactory:
    def make_step(batch_size: int) -> BuiltStep:
        inputs = torch.empty(batch_size, *shape, dtype=dtype)
        labels = torch.zeros(batch_size, dtype=torch.int64)
        return BuiltStep(
            model=model,
            inputs=(inputs,),
            targets=(labels,),
            forward=lambda: model(inputs),
            loss=lambda output: F.cross_entropy(output, labels),
            reads_loss=reads_loss,
        )

    return make_step


def _rnn_stream(dtype: torch.dtype, input: int = 8, hidden: int = 256) -> StepFactory:
    """Predict the next frame of streams from a frame and a state, one frame per step."""
    model = _FrameCell(input, hidden).to(dtype)

    def make_step(batch_size: int) -> BuiltStep:
        frame = torch.empty(batch_size, input, dtype=dtype)
        state = torch.empty(batch_size, hidden, dtype=dtype)
        target = torch.empty(batch_size, input, dtype=dtype)
        return BuiltStep(
            model=model,
            inputs=(frame,),
            targets=(target,),
            forward=lambda: model(frame, state.detach())[0],
            loss=lambda output: F.mse_loss(output, target),
            max_grad_norm=10.0,
            reads_loss=True,
        )

    return make_step


class _FrameCell(nn.Module):
    """A recurrent cell written by hand: two linear layers on the concatenated frame and state."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.to_hidden = nn.Linear(input_size + hidden_size, hidden_size)
        self.to_output = nn.Linear(input_size + hidden_size, input_size)

    def forward(
        self, frame: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        combined = torch.cat((frame, state), dim=1)
        return self.to_output(combined), torch.tanh(self.to_hidden(combined))


def _resnet(
    dtype: torch.dtype, depth: int = 18, image: int = 224, classes: int = 1000
) -> StepFactory:
    """Classify square images by a residual network of 18, 34 or 50 layers."""
    if depth not in STAGES:
        raise WorkloadError(f"a residual network has no {depth} layers", hint="18, 34 or 50")
    return _classifier(ResidualNetwork(depth, classes).to(dtype), (3, image, image), dtype)


_NETWORKS: dict[str, Callable[..., StepFactory]] = {
    "disc-mlp": _disc_mlp,
    "lstm": _lstm,
    "mlp": _mlp,
    "resnet": _resnet,
    "rnn-stream": _rnn_stream,
}
