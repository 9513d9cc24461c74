"""Data sets whose samples are nothing but rows of the tensors that they hold."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

# What makes two functions without constants of their own do the same.
_CODE = ("co_code", "co_names", "co_varnames", "co_argcount", "co_freevars", "co_cellvars")


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
    # The class's own, whatever a metaclass may say.
    method = next((vars(base)["__getitem__"] for base in kind.__mro__ if _indexes(base)), None)
    reads_otherwise = kind.__getattribute__ is not object.__getattribute__
    if not isinstance(method, FunctionType) or reads_otherwise or hasattr(dataset, "__getitems__"):
        return ()
    names = _row_names(method.__code__)
    held = getattr(dataset, "__dict__", {})
    # What a class defines under the name, such as a property, may be found in its place.
    if not names or any(name not in held or hasattr(kind, name) for name in names):
        return ()
    return tuple(held[name] for name in names)


def _indexes(kind: type) -> bool:
    return "__getitem__" in vars(kind)


@lru_cache(maxsize=64)
def _row_names(code: CodeType) -> tuple[str, ...]:
    """Return the attributes of which ``__getitem__`` returns a row each; none if it does more."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, TokenError, ValueError):
        return ()
    if not isinstance(function, ast.FunctionDef) or not _is_source_of(function, code):
        return ()
    return _Rows(function).names()


def _is_source_of(function: ast.FunctionDef, code: CodeType) -> bool:
    """Return whether a function is what runs: the file may have changed since it was read."""
    module = compile(ast.Module([function], []), "", "exec", dont_inherit=True)
    made = (each for each in module.co_consts if isinstance(each, CodeType))
    # Others are of its annotations.
    own = next((each for each in made if each.co_name == function.name), None)
    return all(getattr(own, name, None) == getattr(code, name) for name in _CODE)


class _Rows:
    """Reads a method of the form ``x = self.x[index]; return x, self.y[index]``."""

    def __init__(self, method: ast.FunctionDef) -> None:
        self._method = method
        self._rows: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        """Return the attributes whose rows are returned, in order; none for another form."""
        if self._method.decorator_list or not self._takes_an_index_alone():
            return ()
        *statements, last = self._method.body
        if statements and _is_docstring(statements[0]):
            del statements[0]
        for statement in statements:
            match statement:
                case ast.Assign(targets=[target], value=value) if self._keep(target, value):
                    pass
                case ast.AnnAssign(target=target, value=value) if self._keep(target, value):
                    pass
                case _:
                    return ()
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            return ()
        rows = tuple(map(self._row, last.value.elts))
        return rows if all(rows) else ()

    def _takes_an_index_alone(self) -> bool:
        given = self._method.args
        others = (given.posonlyargs, given.kwonlyargs, given.vararg, given.kwarg, given.defaults)
        return len(given.args) == 2 and not any(others)

    def _keep(self, target: ast.expr, value: ast.expr | None) -> bool:
        """Note an assignment of rows to names, and return whether it is one."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                pairs = list(zip(targets, values, strict=True))
            case _, ast.expr():
                pairs = [(target, value)]
            case _:
                return False
        rows = {name.id: self._row(row) for name, row in pairs if isinstance(name, ast.Name)}
        self._rows |= rows
        is_rebound = any(argument.arg in rows for argument in self._method.args.args)
        return len(rows) == len(pairs) and all(rows.values()) and not is_rebound

    def _row(self, value: ast.expr) -> str:
        """Return the attribute that ``value`` is a row of; nothing for what is none."""
        own, index = (argument.arg for argument in self._method.args.args)
        match value:
            case ast.Name(id=name):
                return self._rows.get(name, "")
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=owner), attr=attribute),
                slice=ast.Name(id=place),
            ) if owner == own and place == index:
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
        and value.stride() == _strides_in_order(value.shape)
    )


def _strides_in_order(shape: torch.Size) -> tuple[int, ...]:
    """Return the strides of a new tensor; a contiguous one has others where a size is 1."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(1, size))
    return tuple(strides)
