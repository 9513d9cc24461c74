"""Whether samples of a data set are rows of its tensors, from what its class looks like."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from breakeven.configure.loaders import row_tensors

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)


class Base(Dataset[Any]):
    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)


class Rows(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


class Named(Base):
    def __getitem__(self, idx: int) -> Any:
        """Return a sample."""
        label = self.y[idx]
        image = self.x[idx]
        return image, label, image


class Documented(Base):
    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        It is a pair.
        """
        x: torch.Tensor = self.x[index]
        return x, self.y[index]


class Unpacked(Base):
    def __getitem__(self, index: int) -> Any:
        x, y = self.x[index], self.y[index]
        return x, y


class Inherited(Named):
    pass


class Alone(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i]


class List(Base):
    def __getitem__(self, i: int) -> Any:
        return [self.x[i], self.y[i]]


class Scaled(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i] / 255, self.y[i]


class Shifted(Base):
    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i - 1]


class Changed(Base):
    def __getitem__(self, i: int) -> Any:
        x = self.x[i]
        x += 1
        return x, self.y[i]


class Rebound(Base):
    def __getitem__(self, i: int) -> Any:
        i = self.y[i]  # type: ignore[assignment]
        return self.x[i], self.y[i]


class Swapped(Base):
    def __getitem__(self, i: int) -> Any:
        self = self.y[i]
        return self.x[i], self.y[i]


class Counting(Base):
    count = 0

    def __getitem__(self, i: int) -> Any:
        self.count += 1
        return self.x[i], self.y[i]


class Sometimes(Base):
    def __getitem__(self, i: int) -> Any:
        if i > 3:
            return self.x[i], self.x[i]
        return self.x[i], self.y[i]


class Optional(Base):
    def __getitem__(self, i: int, extra: int = 0) -> Any:
        return self.x[i], self.y[i]


class Keyword(Base):
    def __getitem__(self, i: int, *, extra: int = 0) -> Any:
        return self.x[i], self.y[i]


class Positional(Base):
    def __getitem__(self, i: int, /) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.x[i], self.y[i]


class Other(Base):
    def __getitem__(self, i: int) -> Any:
        return X[i], self.y[i]


class Star(Base):
    def __getitem__(self, i: int) -> Any:
        return *self.x[i], self.y[i]


class Nothing(Base):
    def __getitem__(self, i: int) -> Any:
        x = self.x[i]  # noqa: F841


class Property(Rows):
    x = property(lambda self: X + 1, lambda self, value: None)  # type: ignore[assignment]


class Reading(Rows):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Whole(Rows):
    def __getitems__(self, indices: Any) -> Any:
        return [self[i] for i in indices]


class Delegating(Rows):
    def __getattr__(self, name: str) -> Any:
        return {"__getitems__": lambda indices: [self[i] for i in indices]}[name]


class Static(Base):
    __getitem__ = staticmethod(Rows(X, Y).__getitem__)  # type: ignore[assignment]


class Meta(type):
    @property
    def __getitem__(cls) -> Any:
        return Rows.__dict__["__getitem__"]


class OfMeta(Base, metaclass=Meta):
    pass


def twice(method: Any) -> Any:
    @functools.wraps(method)
    def doubled(self: Any, i: int) -> Any:
        x, y = method(self, i)
        return 2 * x, y

    return doubled


class Decorated(Base):
    @twice
    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i]


def same(found: tuple[torch.Tensor, ...], *expected: torch.Tensor) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", [Rows, Named, Inherited, Documented, Unpacked])
def test_rows_of_own_tensors_are_told(kind: Any) -> None:
    expected = (X, Y, X) if issubclass(kind, Named) else (X, Y)
    assert same(row_tensors(kind()), *expected)
    assert same(row_tensors(Subset(Subset(kind(), [4, 2, 1]), [0])), *expected)


@pytest.mark.parametrize(
    "kind",
    [
        Alone, List, Scaled, Shifted, Changed, Rebound, Swapped, Counting, Sometimes, Optional,
        Keyword, Positional, Other, Star, Nothing, Property, Reading, Whole, Delegating,
        Static, OfMeta, Decorated, Base,
    ],
)  # fmt: skip
def test_whatever_else_a_sample_may_be_is_left_alone(kind: Any) -> None:
    assert row_tensors(kind()) == ()


@pytest.mark.parametrize(
    "held",
    [
        X.numpy(),
        list(X),
        X.T,
        torch.rand(6, 4, 4, 1).permute(0, 3, 1, 2),
        torch.rand(6, requires_grad=True),
        torch.nn.Parameter(X),
        X.to_sparse(),
        torch.tensor(1.0),
    ],
)
def test_what_is_not_a_plain_tensor_has_no_rows(held: Any) -> None:
    assert row_tensors(Rows(held)) == ()


def test_lists_and_concatenations_are_left_alone() -> None:
    assert row_tensors([1, 2]) == ()
    assert row_tensors(ConcatDataset([TensorDataset(X), TensorDataset(X)])) == ()
    assert same(row_tensors(TensorDataset(X, Y)), X, Y)


SOURCE = "class Rows:\n    def __getitem__(self, i):\n        return self.x[i], self.y[i]{}\n"


@pytest.mark.parametrize(
    ("runs", "is_read"),
    [
        (SOURCE.format(" / 255"), SOURCE.format("")),
        (SOURCE.format("").replace("x[i], self.y", "y[i], self.x"), SOURCE.format("")),
        (SOURCE.format("").replace("y", "z"), SOURCE.format("")),
        (SOURCE.format(""), "class Rows:\n    def __getitem__(self, i):\n        return (self.x["),
        (SOURCE.format(""), None),
    ],
)
def test_source_that_is_not_what_runs_says_nothing(
    runs: str, is_read: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "data.py"
    module = ModuleType("data")
    exec(compile(runs, str(file), "exec"), module.__dict__)
    if is_read is not None:
        file.write_text(is_read)
    rows = module.Rows()
    rows.x, rows.y, rows.z = X, Y, X
    assert row_tensors(rows) == ()
