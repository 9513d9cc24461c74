from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch

from breakeven.capture.record import operators
from breakeven.capture.record.operators import attributes_of, run_on_cpu, sync_kind

aten = torch.ops.aten
X = torch.zeros(2, 3)
MASK = torch.zeros(2, 3, dtype=torch.bool)
INDEX = torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "expected"),
    [
        (aten.sum.dim_IntList, (X, [1], True), {}, {"dim": [1], "keepdim": True}),
        (aten.addmm.default, (X, X, X), {"beta": 2, "alpha": 0.5}, {"beta": 2, "alpha": 0.5}),
        (aten._to_copy.default, (X,), {"dtype": torch.float16}, {"dtype": "torch.float16"}),
        (aten.clamp.default, (X, None, 3), {}, {"max": 3}),
        (aten.clamp.default, (X, -math.inf, math.nan), {}, {"min": "-inf", "max": "nan"}),
        (aten.cat.default, ([X, X], 1), {}, {"dim": 1}),
        (aten.index.Tensor, (X, [None, INDEX]), {}, {}),
        (aten.dropout.default, (X, 0.1, False), {}, {"p": 0.1, "train": False}),
        (
            aten.convolution.default,
            (X, X, None, [1, 2], [0, 0], [1, 1], False, [0, 0], 4),
            {},
            {
                "stride": [1, 2], "padding": [0, 0], "dilation": [1, 1], "transposed": False,
                "output_padding": [0, 0], "groups": 4,
            },
        ),
    ],
)  # fmt: skip
def test_attributes_are_named_by_the_schema(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = attributes_of(func, args, kwargs)
    assert found == expected
    assert msgspec.json.decode(msgspec.json.encode(found)) == expected


@pytest.mark.parametrize(
    ("name", "inputs", "kind"),
    [
        ("aten._local_scalar_dense.default", [X], "item"),
        ("aten.nonzero.default", [X], "nonzero"),
        ("aten.masked_select.default", [X, MASK], "mask"),
        ("aten.index.Tensor", [X, MASK], "mask"),
        ("aten.index.Tensor", [X, INDEX], None),
        # The indexed tensor may be of any type; only the indices count.
        ("aten.index.Tensor", [MASK, INDEX], None),
        ("aten._unique2.default", [X], "unique"),
        ("aten.bincount.default", [INDEX], "bincount"),
        ("aten.repeat_interleave.Tensor", [INDEX], "repeat_interleave"),
        ("aten.repeat_interleave.self_int", [X], None),
        ("aten.equal.default", [X, X], "equal"),
        ("aten.where.self", [MASK, X, X], None),
        ("aten.masked_fill.Scalar", [X, MASK], None),
        ("aten.addmm.default", [X, X, X], None),
        ("aten.item_like_name.default", [X], None),
    ],
)
def test_what_makes_the_host_wait(name: str, inputs: list[torch.Tensor], kind: str | None) -> None:
    assert sync_kind(name, inputs) == kind


@pytest.mark.parametrize(
    ("has_bf16", "dtype", "expected"),
    [
        (False, torch.bfloat16, torch.float32),
        (True, torch.bfloat16, torch.bfloat16),
        (False, torch.float16, torch.float32),
        (True, torch.float16, torch.float32),
        (False, torch.float64, torch.float64),
    ],
)
def test_products_are_computed_in_single_precision_where_the_processor_emulates_half(
    *, has_bf16: bool, dtype: torch.dtype, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "has_half_hardware", lambda _: has_bf16)
    monkeypatch.setattr(operators, "_slow_dtypes", operators._slow_dtypes.__wrapped__)
    seen: list[torch.dtype] = []

    def product(*tensors: torch.Tensor) -> torch.Tensor:
        seen.extend(tensor.dtype for tensor in tensors)
        return aten.mv.default(*tensors)

    x, y = torch.randn(8, 8).to(dtype), torch.randn(8).to(dtype)
    result = run_on_cpu(product, "aten.mv", (x, y), {})
    assert seen == [expected, expected]
    assert result.dtype is dtype
    torch.testing.assert_close(result, x @ y)


def test_a_product_in_half_precision_is_written_where_it_belongs() -> None:
    x = torch.randn(8, 8).to(torch.float16)
    out = torch.empty_like(x)
    result = run_on_cpu(aten.mm.out, "aten.mm", (x, x), {"out": out})
    assert result is out
    torch.testing.assert_close(out, x @ x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_torch_refuses_is_refused(dtype: torch.dtype) -> None:
    x = torch.randn(8, 8)
    with pytest.raises(RuntimeError, match="same dtype"):
        run_on_cpu(aten.mm.default, "aten.mm", (x, x.to(dtype)), {})


def test_a_backward_pass_in_half_precision_gives_what_is_asked_for() -> None:
    wide = torch.randn(2, 4, 6, 6), torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    half = tuple(tensor.half() for tensor in wide)
    rest = [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    backward = aten.convolution_backward.default
    found = run_on_cpu(backward, "aten.convolution_backward", (*half, *rest), {})
    assert found[2] is None
    assert {each.dtype for each in found[:2]} == {torch.float16}
    exact = backward(*(tensor.float() for tensor in half), *rest)
    for each, other in zip(found[:2], exact[:2], strict=True):
        torch.testing.assert_close(each, other.half())
