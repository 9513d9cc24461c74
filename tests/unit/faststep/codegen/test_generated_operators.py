"""Single operators: generated results are those of eager torch, or the operator is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from generated_call import GeneratedCall
from operator_cases import CASES, words
from torch import Tensor

from faststep.codegen.operators import covered_operators
from faststep.codegen.program import UnsupportedError

# Operators whose result needs a search, a decomposition of a matrix or a size known only then.
REFUSED = set(
    words("""
    __lshift__ __rshift__ _cdist_forward _embedding_bag_forward_only _fft_r2c _linalg_det
    _trilinear as_strided_scatter bincount bucketize cummax diagonal_scatter digamma erf_inv
    erfinv histc kthvalue linalg_inv_ex logcumsumexp masked_scatter median mode polar
    scatter_reduce sort topk
""")
)
# Covered, but not in every form.
PARTLY = set(
    words("""
    avg_pool2d div fmod index index_put mean mm remainder var view as_strided
""")
)
TOGETHER = 60


def test_lists_of_operators_agree_with_what_is_registered() -> None:
    assert not REFUSED & covered_operators()
    assert covered_operators() >= PARTLY


def as_tuple(results: Any) -> tuple[Tensor, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def lowered(name: str) -> bool:
    """Return whether a case is covered; refuse that others are missing from the lists."""
    function, arguments = CASES[name]
    reason = None
    try:
        GeneratedCall(lambda *given: as_tuple(function(*given)), arguments)
    except UnsupportedError as error:
        reason = error.message
    if reason is not None:
        operator = reason.split(".")[1]
        assert operator in REFUSED | PARTLY, f"{name}: {reason}"
    return reason is None


def assert_same(name: str, wanted: Tensor, got: Tensor) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
    if not wanted.is_floating_point():
        assert torch.equal(got, wanted), f"{name}: {got} is not {wanted}"
        return
    finite = wanted[wanted.isfinite()].abs()
    tolerance = 2e-6 if wanted.dtype == torch.float32 else 1e-13
    torch.testing.assert_close(
        got,
        wanted,
        rtol=tolerance,
        atol=tolerance * max(1.0, float(finite.max()) if finite.numel() else 1.0),
        equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )


def check(names: Sequence[str]) -> None:
    """Compare cases, as many as are covered, in one generated function."""
    covered = [name for name in names if lowered(name)]
    spans: list[tuple[int, int]] = []
    arguments: list[Tensor] = []
    for name in covered:
        spans.append((len(arguments), len(arguments) + len(CASES[name][1])))
        arguments += [one.clone() for one in CASES[name][1]]

    def every(*given: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for name, (first, last) in zip(covered, spans, strict=True):
            found += as_tuple(CASES[name][0](*given[first:last]))
        return found

    got = iter(GeneratedCall(every, arguments)(*arguments))
    for name, (first, last) in zip(covered, spans, strict=True):
        function, given = CASES[name]
        for one, kept in zip(arguments[first:last], given, strict=True):
            torch.testing.assert_close(one, kept, rtol=0, atol=0, equal_nan=True)
        for wanted in as_tuple(function(*given)):
            assert_same(name, wanted, next(got))


@pytest.mark.parametrize("start", range(0, len(CASES), 8 * TOGETHER))
def test_some_operators(start: int) -> None:
    check(list(CASES)[start + start // TOGETHER % 7 :: 8][: TOGETHER // 2])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, len(CASES), TOGETHER))
def test_all_operators(start: int) -> None:
    check(list(CASES)[start : start + TOGETHER])


def run(function: Callable[..., Sequence[Tensor]], *arguments: Tensor) -> tuple[Tensor, ...]:
    return GeneratedCall(function, arguments)(*arguments)


def compare(function: Callable[..., Sequence[Tensor]], *arguments: Tensor) -> None:
    """Compare results, and what is in the arguments afterwards."""
    others = [one.clone() for one in arguments]
    wanted = tuple(one.clone() for one in function(*others))
    got = run(function, *arguments)
    for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert_same(f"result {number}", other, one)
    for number, (one, other) in enumerate(zip(arguments, others, strict=True)):
        assert_same(f"argument {number}", other, one)


def test_what_is_read_after_it_was_written_has_its_new_value() -> None:
    def function(kept: Tensor, x: Tensor) -> list[Tensor]:
        before = kept * 2
        row = kept[1]
        kept.copy_(x.mean(0).expand_as(kept) + before)
        return [x - kept, row * 3, before]

    compare(function, torch.randn(3, 4), torch.randn(5, 4)[:3])


def test_a_part_of_an_argument_is_written() -> None:
    def function(kept: Tensor, x: Tensor) -> list[Tensor]:
        kept[1:, ::2] = x[:2, :2]
        kept.t()[0].add_(1)
        return [kept.sum()]

    compare(function, torch.randn(3, 4), torch.randn(3, 4))


def test_arguments_that_are_exchanged_and_returned() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        old, other = x + 0, y.clone()
        x.copy_(other)
        y.copy_(old.flip(0))
        return [old, other, old.t()]

    compare(function, torch.randn(3, 3), torch.randn(3, 3))


def test_an_argument_and_a_view_of_it_are_results() -> None:
    compare(lambda x: [x, x.t(), x[1:], x * 2], torch.randn(3, 4))


def test_an_argument_is_given_twice() -> None:
    x = torch.randn(4, 4)
    got = run(lambda a, b: [a @ b + a, a - b], x, x)
    assert_same("product", x @ x + x, got[0])
    assert_same("difference", torch.zeros_like(x), got[1])


def test_an_index_out_of_range_is_noticed_before_it_is_used() -> None:
    def function(table: Tensor, index: Tensor, kept: Tensor) -> list[Tensor]:
        other = (index + 1).float()
        kept.copy_(table[index].sum(1) + other)
        return [kept]

    table, index, kept = torch.randn(5, 3), torch.tensor([0, 4, 2]), torch.zeros(3)
    call = GeneratedCall(function, [table, index, kept])
    call(table, index, kept)
    before = kept.clone()
    for wrong in (5, -6, 2**40):
        with pytest.raises(IndexError):
            call(table, torch.tensor([0, wrong, 2]), kept)
    assert torch.equal(kept, before)


def test_sums_of_many_numbers_keep_their_digits() -> None:
    x, y = torch.rand(1_000_003), torch.rand(100_003, 7)
    for function in (lambda x, y: [x.sum(), x.mean(), y.sum(0), y.mean(0), y.t().sum(1)],):
        exact = function(x.double(), y.double())
        for got, wanted in zip(run(function, x, y), exact, strict=True):
            error = (got.double() - wanted).abs() / wanted
            assert float(error.max()) < 1e-7


def test_rows_of_a_padded_embedding_get_no_gradient() -> None:
    table = torch.randn(6, 4)
    for index in (torch.tensor([0, 1, 1, 5]), torch.tensor([[1, 0], [5, 1], [2, 2]])):

        def function(table: Tensor, index: Tensor) -> list[Tensor]:
            table = table.detach().requires_grad_()
            loss = F.embedding(index, table, padding_idx=1).square().sum()
            return list(torch.autograd.grad(loss, table))

        compare(function, table, index)


def test_dimensions_of_size_1_may_have_any_stride() -> None:
    x = torch.randn(40).as_strided((4, 1, 5), (5, 17, 1))
    y = torch.randn(40).as_strided((1, 6), (33, 1))
    compare(lambda x, y: [x * y[:, :5], x.sum(0), y.t() @ y, x + y[0, 0]], x, y)
