"""Gradients of generated convolutions and pooling, against eager ones in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from generated_call import GeneratedCall
from torch import Tensor, nn

from faststep.codegen.generated import Generated
from faststep.codegen.program import UnsupportedError


def gradients_of(model: nn.Module, x: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of a batch and of parameters: result, changed buffers and gradients."""
    names = [name for name, _ in model.named_parameters()]

    def function(batch: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        parameters = [one.detach().requires_grad_() for one in tensors[: len(names)]]
        sample = batch.detach().requires_grad_()
        buffers = {
            name: one.clone()
            for (name, _), one in zip(model.named_buffers(), tensors[len(names) :], strict=True)
        }
        state = dict(zip(names, parameters, strict=True)) | buffers
        result = torch.func.functional_call(model, state, (sample,))
        # Each element of the result has a gradient of its own.
        loss = (result * result.sin()).sum()
        gradients = torch.autograd.grad(loss, [sample, *parameters])
        return (result.detach(), *gradients, *buffers.values())

    return function


def assert_gradients(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = model.to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(shape, dtype=dtype)
    examples = [x, *(one.detach() for one in model.parameters()), *model.buffers()]
    found = GeneratedCall(gradients_of(model, x), examples)(*examples)
    exact_model = copy.deepcopy(model).double()
    exact = gradients_of(exact_model, x)(
        *(one.double() if one.is_floating_point() else one for one in examples)
    )
    largest = max(float(other.abs().max()) for other in exact)
    for one, other in zip(found, exact, strict=True):
        if not one.is_floating_point():
            assert torch.equal(one, other)
            continue
        # A single sum may nearly cancel, and is then as far off as its terms are large; how far
        # depends on their order, and with that on the processor.
        scale = largest if one.numel() == 1 else float(other.abs().max()) or 1e-30
        error = float((one.double() - other).abs().max()) / scale
        assert error < (2e-6 if dtype == torch.float32 else 1e-14), error


# Each is compiled, so that the second half is for the slow tests.
DTYPES = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)]

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "whole-vectors": (lambda: nn.Conv2d(2, 5, 3), (32, 2, 6, 7)),
    "padding": (lambda: nn.Conv2d(3, 7, 5, padding=2), (16, 3, 5, 6)),
    "padding-without-inside": (lambda: nn.Conv2d(2, 3, 3, padding=4), (5, 2, 2, 1)),
    "stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (7, 3, 9, 8)),
    "stride-beyond-kernel": (lambda: nn.Conv2d(2, 3, 2, stride=3), (3, 2, 9, 10)),
    "dilation": (lambda: nn.Conv2d(2, 13, 3, dilation=2, padding=(2, 1)), (9, 2, 8, 9)),
    "stride-and-dilation": (
        lambda: nn.Conv2d(2, 3, 3, stride=(2, 4), dilation=(3, 2), padding=3),
        (4, 2, 11, 10),
    ),
    "groups": (lambda: nn.Conv2d(6, 4, 3, groups=2, padding=1), (17, 6, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, (3, 2), groups=4, stride=(1, 2)), (33, 4, 6, 6)),
    "one-by-one": (lambda: nn.Conv2d(14, 15, 1, bias=False), (31, 14, 3, 3)),
    "one-sample": (lambda: nn.Conv2d(1, 1, 3, padding=1), (1, 1, 19, 21)),
    "1d": (lambda: nn.Conv1d(3, 16, 5), (13, 3, 20)),
    "1d-same": (lambda: nn.Conv1d(2, 3, 5, padding="same"), (8, 2, 11)),
    "1d-dilated-groups": (lambda: nn.Conv1d(4, 6, 3, 2, 2, 2, groups=2), (70, 4, 15)),
    "circular": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (6, 2, 5, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 4, stride=2, padding=1), (16, 3, 4, 5)),
    "transposed-groups": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=(1, 3), groups=2, output_padding=(0, 2)),
        (9, 4, 3, 4),
    ),
    "transposed-dilated": (
        lambda: nn.ConvTranspose2d(2, 3, 3, 2, 2, 1, dilation=2, bias=False),
        (5, 2, 4, 3),
    ),
    "transposed-1d": (lambda: nn.ConvTranspose1d(3, 2, 5, stride=2, padding=2), (33, 3, 9)),
    "there-and-back": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        ),
        (20, 1, 8, 8),
    ),
    "one-after-another": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2, stride=2)),
        (20, 2, 7, 7),
    ),
    "batch-norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Tanh()),
        (12, 2, 6, 5),
    ),
    "channels-last": (
        lambda: nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last),
        (10, 3, 5, 4),
    ),
}

POOLINGS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "max": (lambda: nn.MaxPool2d(2), (32, 3, 6, 8)),
    "max-left-over": (lambda: nn.MaxPool2d(2), (5, 3, 7, 9)),
    "max-overlapping": (lambda: nn.MaxPool2d(3, 2, 1), (9, 2, 7, 8)),
    "max-ceil": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), (4, 2, 8, 6)),
    "max-large": (lambda: nn.MaxPool2d(17), (3, 2, 17, 18)),
    "max-1d": (lambda: nn.MaxPool1d(2), (6, 3, 10)),
    "average": (lambda: nn.AvgPool2d(2), (16, 3, 6, 8)),
    "average-padded": (lambda: nn.AvgPool2d(3, 2, 1), (5, 2, 7, 8)),
    "average-inside": (
        lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        (5, 2, 8, 7),
    ),
    "average-ceil": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (5, 2, 8, 7)),
    "average-1d": (lambda: nn.AvgPool1d(3, 2, 1), (6, 3, 10)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d((3, 2)), (7, 2, 7, 5)),
    "adaptive-to-one": (lambda: nn.AdaptiveAvgPool2d(1), (7, 2, 7, 5)),
    "adaptive-1d": (lambda: nn.AdaptiveAvgPool1d(4), (7, 2, 10)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_gradients_of_convolutions(name: str, dtype: torch.dtype) -> None:
    make, shape = CONVOLUTIONS[name]
    assert_gradients(make(), shape, dtype)


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
def test_gradients_of_pooling(name: str, dtype: torch.dtype) -> None:
    make, shape = POOLINGS[name]
    assert_gradients(make(), shape, dtype)


def test_max_of_equal_numbers_and_of_nan_is_eagers() -> None:
    x = torch.randint(0, 2, (9, 2, 7, 7)).float()
    x[0, 0, 2, 2] = x[3, 1, 6, 6] = torch.nan

    def function(batch: Tensor) -> tuple[Tensor, ...]:
        sample = batch.detach().requires_grad_()
        result = nn.functional.max_pool2d(sample, 3, 2, 1)
        (gradient,) = torch.autograd.grad(result, sample, torch.ones_like(result))
        return result.detach(), gradient

    for one, other in zip(GeneratedCall(function, [x])(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (nn.Conv3d(2, 3, 3), (4, 2, 5, 5, 5), "3 dimensions"),
        (nn.Conv2d(2, 3, 3).to(torch.bfloat16), (4, 2, 5, 5), "bfloat16"),
        (nn.MaxPool2d(2, 1, dilation=2), (4, 2, 5, 5), "dilated"),
        (nn.AvgPool2d(2, divisor_override=3), (4, 2, 5, 5), "divisor"),
        (nn.Upsample(scale_factor=2), (4, 2, 5, 5), "nearest2d_backward"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (4, 2, 5, 5), "bilinear2d_backward"),
    ],
)
def test_what_is_not_covered_is_named(model: nn.Module, shape: tuple[int, ...], why: str) -> None:
    parameters = list(model.parameters())
    x = torch.randn(shape, dtype=parameters[0].dtype if parameters else None)
    with pytest.raises(UnsupportedError, match=why):
        Generated(gradients_of(model, x), [x, *(one.detach() for one in parameters)], [])


def test_indices_of_a_pooling_are_not_for_others() -> None:
    def function(batch: Tensor) -> tuple[Tensor, ...]:
        _, indices = nn.functional.max_pool2d(batch, 2, return_indices=True)
        return ((indices + 1).float(),)

    with pytest.raises(UnsupportedError, match="_Taps"):
        Generated(function, [torch.randn(2, 1, 4, 4)], [])
