"""Statements that threads share: the same numbers for any number of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from generated_call import GeneratedCall
from torch import Tensor, nn

from faststep.codegen.emit import choose_parts
from faststep.codegen.generated import find_team
from faststep.codegen.program import Buffer, Call, Loop, View


def products(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return x @ w, w.T @ x.T, x.T @ x


def products_of_batches(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (torch.bmm(x, w),)


def loops(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.tanh(x) * y, torch.erf(x[:, :-3]) + y[:, 3:], torch.sin(x.T) + y[0, 0]


def convolutions(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    w = w.detach().requires_grad_()
    x = x.detach().requires_grad_()
    result = nn.functional.conv2d(x, w, padding=2)
    return result.detach(), *torch.autograd.grad((result * result).sum(), [x, w])


def convolutions_of_lines(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    w = w.detach().requires_grad_()
    x = x.detach().requires_grad_()
    result = nn.functional.conv1d(x, w, groups=2, dilation=2)
    return result.detach(), *torch.autograd.grad((result * result).sum(), [x, w])


def pooling(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    largest = nn.functional.max_pool2d(x, 3, 2, padding=1)
    average = nn.functional.avg_pool2d(x, 2)
    (gradient,) = torch.autograd.grad((largest * y).sum() + (average * average).sum(), [x])
    return largest.detach(), average.detach(), gradient


# Sizes that leave tiles and vectors over; each is large enough to be shared.
STEPS: dict[str, tuple[Callable[..., tuple[Tensor, ...]], tuple[int, ...], tuple[int, ...]]] = {
    "products": (products, (133, 259), (259, 101)),
    "products-of-batches": (products_of_batches, (5, 131, 130), (5, 130, 141)),
    "loops": (loops, (777, 1003), (777, 1003)),
    "pooling": (pooling, (65, 7, 56, 58), (65, 7, 28, 29)),
    "convolutions": (convolutions, (33, 5, 19, 17), (7, 5, 5, 5)),
    "convolutions-of-lines": (convolutions_of_lines, (36, 14, 131), (18, 7, 5)),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "products" else pytest.param(name, marks=pytest.mark.full) for name in STEPS],
)
def test_numbers_do_not_depend_on_the_number_of_threads(name: str) -> None:
    function, *shapes = STEPS[name]
    torch.manual_seed(0)
    examples = [torch.randn(shape) for shape in shapes]
    call = GeneratedCall(function, examples)
    assert call.has_parts
    assert find_team()["share"]
    torch.set_num_threads(1)
    alone = call(*examples)
    exact = function(*(one.double() for one in examples))
    for one, other in zip(alone, exact, strict=True):
        assert (one - other).abs().max() < 2e-6 * other.abs().max()
    for threads in (2, 3, 5, 2, 1, 4, 2):
        torch.set_num_threads(threads)
        for one, other in zip(call(*examples), alone, strict=True):
            assert torch.equal(one, other), threads


def test_small_steps_are_not_shared() -> None:
    view = View(Buffer(torch.float32, 64), (64,), (1,))
    loop = Loop((64,), (0,), 0)
    small, large = (
        Call("", (view,), (view,), 1, operations=operations, most_parts=100)
        for operations in (6e6, 9e6)
    )
    assert choose_parts([(loop, 4), (small, 100)]) == [1, 1]
    assert choose_parts([(loop, 4), (large, 100)]) == [1, 18]
    assert choose_parts([(large, 3), (small, 100)]) == [3, 12]


@pytest.mark.slow
def test_a_forked_process_ends_with_the_same_numbers() -> None:
    script = """
        import os, sys
        import torch
        sys.path.insert(0, sys.argv[1])
        from generated_call import GeneratedCall
        x, w = torch.randn(133, 259), torch.randn(259, 301)
        call = GeneratedCall(lambda x, w: (x @ w,), (x, w))
        assert call.has_parts
        torch.set_num_threads(2)
        for _ in range(20):
            (before,) = call(x, w)
        child = os.fork()
        if not child:
            os._exit(0 if all(torch.equal(call(x, w)[0], before) for _ in range(20)) else 3)
        _, status = os.waitpid(child, 0)
        assert torch.equal(call(x, w)[0], before)
        print(os.waitstatus_to_exitcode(status))
    """
    here = str(__file__).rpartition("/")[0]
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), here]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "0", done.stderr
