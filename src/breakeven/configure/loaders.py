"""Patches that change the arguments of DataLoaders and gather whole batches from tensors."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from breakeven.configure.patching import Patches

# Two functions without constants are the same if these attributes are equal.
_CODE = ("co_code", "co_names", "co_varnames", "co_argcount", "co_freevars", "co_cellvars")


class whole_batches(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, a DataLoader over tensors indexes them once per batch.

    It applies to data sets whose samples are rows of their tensors, to subsets of these, and only
    with torch's own collation. Batches are equal to the bit, and the sampler draws the same random
    numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        # Number of DataLoaders made so far whose batches are gathered.
        self.num_applied = 0

    def _apply(self) -> None:
        original_fetch = _MapDatasetFetcher.fetch

        def count(loader: DataLoader[Any]) -> None:
            self.num_applied += has_whole_batches(loader)

        @functools.wraps(original_fetch)
        def fetch(fetcher: Any, indices: Any) -> Any:
            if fetcher.auto_collation and _stacks(fetcher.collate_fn):
                batch = gather(fetcher.dataset, indices)
                if batch is not None:
                    return batch
            return original_fetch(fetcher, indices)

        self.call_after_making(DataLoader, count)
        self.replace(_MapDatasetFetcher, "fetch", fetch)


def has_whole_batches(loader: Any) -> bool:
    """Whether the batches of a DataLoader can be gathered from its data set's tensors."""
    is_collated = loader._auto_collation and _stacks(loader.collate_fn)
    return is_collated and bool(row_tensors(loader.dataset))


def gather(dataset: Any, indices: Any) -> list[torch.Tensor] | None:
    """Return the batch at ``indices``; None if it cannot be gathered."""
    tensors = row_tensors(dataset)
    if not tensors:
        return None
    rows = _row_numbers(indices)
    while rows and type(dataset) is Subset:
        chosen, dataset = dataset.indices, dataset.dataset
        rows = _row_numbers([chosen[row] for row in rows])
    if not rows:
        return None
    index = torch.tensor(rows)
    return [tensor[index] for tensor in tensors]


def _row_numbers(indices: Any) -> list[int] | None:
    """Return row numbers as Python integers; None if the sampler yields anything else."""
    if type(indices) is not list:
        return None
    are_numbers = all(isinstance(one, Integral) and not isinstance(one, bool) for one in indices)
    return [int(one) for one in indices] if are_numbers else None


def _stacks(collate: Any) -> bool:
    """Whether the collation stacks samples tensor by tensor, as torch does by default."""
    return (
        collate is default_collate
        and default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn
        and not any(issubclass(tuple, kind) for kind in default_collate_fn_map)
    )


def without_subsets(dataset: Any) -> Any:
    """Return the data set below all nested subsets."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def row_tensors(dataset: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors whose rows are the samples of a data set or subset; else ``()``.

    These are `torch.utils.data.TensorDataset`, and classes whose ``__getitem__`` only returns a
    tuple of rows of their own attributes: ``return self.x[index], self.y[index]``.

    The result is also ``()`` if a tensor is not plain: its stacked samples may have another memory
    layout than a gathered batch, or a gradient history.
    """
    dataset = without_subsets(dataset)
    if type(dataset) is TensorDataset:
        tensors: tuple[Any, ...] = dataset.tensors
    else:
        tensors = _attributes(dataset)
    return tensors if tensors and all(map(_is_plain, tensors)) else ()


def _attributes(dataset: Any) -> tuple[Any, ...]:
    """Return the attributes whose rows make up a sample; ``()`` if a sample holds anything else."""
    kind = type(dataset)
    # Search the classes directly: a metaclass may answer otherwise.
    method = next(filter(None, (vars(base).get("__getitem__") for base in kind.__mro__)), None)
    reads_otherwise = kind.__getattribute__ is not object.__getattribute__
    if not isinstance(method, FunctionType) or reads_otherwise or hasattr(dataset, "__getitems__"):
        return ()
    names = _row_names(method.__code__)
    held = getattr(dataset, "__dict__", {})
    # If the class defines the name too, for example as a property, that may hide the attribute.
    if not names or any(name not in held or hasattr(kind, name) for name in names):
        return ()
    return tuple(held[name] for name in names)


@lru_cache(maxsize=64)
def _row_names(code: CodeType) -> tuple[str, ...]:
    """Return the attributes that ``__getitem__`` takes rows of; ``()`` if it does more."""
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, TokenError, ValueError):
        return ()
    if not isinstance(function, ast.FunctionDef) or not _is_source_of(function, code):
        return ()
    return _rows_of(function)


def _is_source_of(function: ast.FunctionDef, code: CodeType) -> bool:
    """Whether the parsed source is the running code: the file may have changed since its import."""
    module = compile(ast.Module([function], []), "", "exec", dont_inherit=True)
    made = (each for each in module.co_consts if isinstance(each, CodeType))
    # The other code objects belong to annotations.
    own = next((each for each in made if each.co_name == function.name), None)
    return all(getattr(own, name, None) == getattr(code, name) for name in _CODE)


def _rows_of(method: ast.FunctionDef) -> tuple[str, ...]:
    """Return the attributes of ``x = self.x[index]; return x, self.y[index]``, in order."""
    given = method.args
    others = (given.posonlyargs, given.kwonlyargs, given.vararg, given.kwarg, given.defaults)
    if method.decorator_list or len(given.args) != 2 or any(others):
        return ()
    own, index = (argument.arg for argument in given.args)
    rows: dict[str, str] = {}

    def row(value: ast.expr | None) -> str:
        match value:
            case ast.Name(id=name):
                return rows.get(name, "")
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=owner), attr=attribute),
                slice=ast.Name(id=place),
            ) if owner == own and place == index:
                return attribute
            case _:
                return ""

    *statements, last = method.body
    if ast.get_docstring(method) is not None:
        del statements[:1]
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pass
            case ast.Assign(targets=[target], value=value):
                targets, values = [target], [value]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets, values = [target], [value]
            case _:
                return ()
        if len(targets) != len(values):
            return ()
        found = [row(value) for value in values]
        for target, name in zip(targets, found, strict=True):
            if not name or not isinstance(target, ast.Name) or target.id in (own, index):
                return ()
            rows[target.id] = name
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
        return ()
    returned = tuple(map(row, last.value.elts))
    return returned if all(returned) else ()


def _is_plain(value: Any) -> bool:
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.dim() == 0:
        return False
    # Compare with the strides of a new tensor; a contiguous one may differ if a size is 1.
    strides = [1]
    for size in reversed(value.shape[1:]):
        strides.insert(0, strides[0] * max(1, size))
    return not value.requires_grad and value.stride() == tuple(strides)


def change_loaders(
    patches: Patches, change: Callable[[dict[str, Any], DataLoader[Any]], None]
) -> None:
    """Let ``change`` edit the arguments of new DataLoaders, until the patches are undone.

    Args:
        patches: Holds the patch and undoes it.
        change: Takes the arguments that the script passes, by name, and the loader under
            construction.
            that is about to be made.
    """
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(loader, *args, **kwargs).arguments
        except TypeError:  # torch raises the clearer error
            return original(loader, *args, **kwargs)
        given.pop(next(iter(signature.parameters)))  # the loader itself
        change(given, loader)
        return original(loader, **given)

    patches.replace(DataLoader, "__init__", initialize)
