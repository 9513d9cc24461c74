"""Small networks of images made at random: convolutions, pooling, normalisation, upsampling."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from random_models import ACTIVATIONS, POINTWISE, Apply, Case, Residual, loss_for
from torch import Tensor, nn

MOST_PLACES = 144


def make_image_case(seed: int) -> Case:
    """Return the network of a seed, over one or two dimensions."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    num_dims = rng.choice((1, 2, 2))
    sizes = [rng.randint(4, 9) for _ in range(num_dims)]
    inputs = torch.randn(rng.choice((1, 2, 5, 8, 13, 16, 33)), rng.choice((1, 2, 3, 4)), *sizes)
    if num_dims == 2 and rng.random() < 0.2:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    layers: list[nn.Module] = []
    x = inputs
    for _ in range(rng.randint(2, 5)):
        layers.append(_layer(rng, x))
        x = layers[-1](x).detach()
    layers += [nn.Flatten(), nn.Linear(x[0].numel(), rng.choice((1, 2, 10)))]
    model = nn.Sequential(*layers)
    loss_fn, targets = loss_for(rng, model(inputs).detach())
    return Case(model, loss_fn, inputs, targets, torch.float32)


def _layer(rng: random.Random, x: Tensor) -> nn.Module:
    """Return a layer for a batch of images or signals."""
    channels, sizes = x.shape[1], x.shape[2:]
    is_image = len(sizes) == 2
    least = min(sizes)

    def convolution() -> nn.Module:
        groups = rng.choice([n for n in (1, 1, 2, 3, channels) if channels % n == 0])
        kernel = rng.randint(1, min(4, least))
        make = nn.Conv2d if is_image else nn.Conv1d
        return make(
            channels,
            groups * rng.choice((1, 2, 3)),
            kernel,
            stride=rng.choice((1, 1, 2, 3)),
            padding=rng.randint(0, 2),
            dilation=2 if 2 * kernel <= least and rng.random() < 0.2 else 1,
            groups=groups,
            bias=rng.random() < 0.8,
        )

    def transposed() -> nn.Module:
        groups = rng.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
        kernel, stride = rng.randint(1, 4), rng.choice((1, 2, 3))
        make = nn.ConvTranspose2d if is_image else nn.ConvTranspose1d
        return make(
            channels,
            groups * rng.choice((1, 2)),
            kernel,
            stride=stride,
            padding=rng.randint(0, (kernel - 1) // 2),
            output_padding=rng.randint(0, stride - 1),
            groups=groups,
            bias=rng.random() < 0.8,
        )

    makers: list[Callable[[], nn.Module]] = [
        convolution,
        convolution,
        convolution,
        lambda: rng.choice(ACTIVATIONS)(),
        lambda: Apply(*rng.choice(list(POINTWISE.items()))),
        lambda: Residual((nn.Conv2d if is_image else nn.Conv1d)(channels, channels, 3, padding=1)),
    ]
    # Torch itself crashes in the backward of one that is first and has its channels last.
    if x[0, 0].numel() > 1 and x.is_contiguous():
        makers.append(lambda: nn.GroupNorm(channels, channels))
    if x[:, 0].numel() > 1:
        makers.append(lambda: (nn.BatchNorm2d if is_image else nn.BatchNorm1d)(channels))
    if x[0, 0].numel() <= MOST_PLACES:
        makers += [transposed, transposed]
        makers.append(lambda: nn.Upsample(scale_factor=2, mode="nearest"))
    if least > 1:
        stride = rng.choice((1, 2))
        makers += [
            lambda: (nn.MaxPool2d if is_image else nn.MaxPool1d)(2, stride),
            lambda: (nn.AvgPool2d if is_image else nn.AvgPool1d)(2, stride, 1),
            lambda: (nn.AdaptiveAvgPool2d if is_image else nn.AdaptiveAvgPool1d)(2),
        ]
    return rng.choice(makers)()
