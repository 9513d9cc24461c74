"""Data sets whose samples are nothing but rows of the tensors that they hold."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset


def without_subsets(dataset: Any) -> Any:
    """Return the data set that a subset, or a subset of one, takes its samples from."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def row_tensors(dataset: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors whose rows are the samples of a data set, or of a subset; else none.

    These are `torch.utils.data.TensorDataset`, and classes whose ``__getitem__`` only returns a
    tuple of rows of their own attributes: ``return self.x[index], self.y[index]``.

    Tensors that are not plain are none either: stacked samples of theirs may lie otherwise in
    memory than samples taken at once, or remember where they come from.
    """
    dataset = without_subsets(dataset)
    if type(dataset) is TensorDataset:
        tensors: tuple[Any, ...] = dataset.tensors
    else:
        tensors = _attributes(dataset)
    return tensors if tensors and all(map(_is_plain, tensors)) else ()


def _attributes(dataset: Any) -> tuple[Any, ...]:
    """Return what a sample holds a row of each of, where that is all that it holds."""
    kind = type(dataset)
    method = getattr(kind, "__getitem__", None)
    reads_otherwise = kind.__getattribute__ is not object.__getattribute__
    if not isinstance(method, FunctionType) or reads_otherwise or hasattr(kind, "__getitems__"):
        return ()
    names = _row_names(method.__code__)
    held = getattr(dataset, "__dict__", {})
    # What a class defines under the name, such as a property, may be found in its place.
    if not names or any(name not in held or hasattr(kind, name) for name in names):
        return ()
    return tuple(held[name] for name in names)


@lru_cache(maxsize=64)
def _row_names(code: CodeType) -> tuple[str, ...]:
    """Return the attributes of which ``__getitem__`` returns a row each; none if it does more."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, ValueError):
        return ()
    names = _Rows(function).names() if isinstance(function, ast.FunctionDef) else ()
    # The file may have changed since it was run.
    return names if set(code.co_names) == set(names) else ()


class _Rows:
    """Reads a method of the form ``x = self.x[index]; return x, self.y[index]``."""

    def __init__(self, method: ast.FunctionDef) -> None:
        self._method = method
        self._rows: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        """Return the attributes whose rows are returned, in order; none for another form."""
        if self._method.decorator_list or not self._takes_an_index_alone():
            return ()
        body = list(self._method.body)
        if _is_docstring(body[0]):
            body.pop(0)
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if not (row := self._row(value)):
                        return ()
                    self._rows[name] = row
                case ast.Return(value=ast.Tuple(elts=elements)):
                    rows = tuple(map(self._row, elements))
                    return rows if all(rows) and statement is body[-1] else ()
                case _:
                    return ()
        return ()

    def _takes_an_index_alone(self) -> bool:
        given = self._method.args
        others = (given.posonlyargs, given.kwonlyargs, given.vararg, given.kwarg, given.defaults)
        return len(given.args) == 2 and not any(others)

    def _row(self, value: ast.expr) -> str:
        """Return the attribute that ``value`` is a row of; nothing for what is none."""
        own, index = (argument.arg for argument in self._method.args.args)
        match value:
            case ast.Name(id=name) if name not in (own, index):
                return self._rows.get(name, "")
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=owner), attr=attribute),
                slice=ast.Name(id=place),
            ) if owner == own and place == index and not {own, index} & self._rows.keys():
                return attribute
            case _:
                return ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.dim() > 0
        and not value.requires_grad
        and value.is_contiguous()
    )
