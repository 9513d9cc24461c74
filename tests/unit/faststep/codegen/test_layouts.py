"""Changes of layout: by blocks where a tensor is transposed, and none of what is zero anyway."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from generated_call import GeneratedCall
from torch import Tensor


def _is_transposed_by_blocks(call: GeneratedCall) -> bool:
    return any("_transpose(" in text for text in call.source.split("noinline))")[1:])


@pytest.mark.parametrize("shape", [(2, 9, 3, 17), (8, 2, 8, 3), (2, 3, 4, 5)])
def test_a_permuted_copy_is_the_permuted_tensor(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    orders = list(permutations(range(4)))

    def permuted(given: Tensor) -> list[Tensor]:
        return [given.permute(order).contiguous() for order in orders]

    for found, expected in zip(GeneratedCall(permuted, [x])(x), permuted(x), strict=True):
        assert torch.equal(found, expected)


def test_heads_of_attention_are_transposed_by_blocks() -> None:
    """One batch and one head after the other: innermost, (positions, width of a head)."""
    x = torch.randn(3, 2, 16, 24, generator=torch.Generator().manual_seed(0))
    call = GeneratedCall(lambda given: [given.transpose(-1, -2).contiguous()], [x])
    assert _is_transposed_by_blocks(call)
    assert torch.equal(call(x)[0], x.transpose(-1, -2))


@pytest.mark.parametrize("index", [0, 2, -1])
def test_steps_without_a_gradient_are_no_memory_of_zeros(index: int) -> None:
    """The loss of a recurrent layer's last output has no gradient at the other time steps."""
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))

    def at_each_step(given: Tensor) -> list[Tensor]:
        outputs = given.new_zeros(40, 5, 30).select_scatter(given, 1, index)
        return [step + given for step in outputs.transpose(0, 1).unbind()]

    call = GeneratedCall(at_each_step, [x])
    for found, expected in zip(call(x), at_each_step(x), strict=True):
        assert torch.equal(found, expected)
    num_bytes = 5 * x.numel() * x.element_size()
    assert call.num_workspace_bytes < num_bytes


def test_a_product_with_many_long_rows_is_done_by_blocks_of_them() -> None:
    """The gradient of a wide layer's weights, of many samples: 12 MB of inputs, in rows of 4 kB."""
    generator = torch.Generator().manual_seed(0)
    changes, inputs = (torch.randn(2_900, size, generator=generator) for size in (9, 1_101))
    call = GeneratedCall(lambda dy, x: [dy.t() @ x], [changes, inputs])
    assert ", 64, part, parts)" in call.source
    assert call.has_parts
    before = torch.get_num_threads()
    try:
        found = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            found += call(changes, inputs)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)  # in parts or not
    expected = changes.double().t() @ inputs.double()
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=1e-3)
