"""A step from the user's file: a function that makes it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.workloads.spec import WorkloadSpec, suggest
from breakeven.workloads.timed_step import BuiltStep, StepFactory

_CONTRACT = (
    "the function is called with the batch size and returns (model, inputs) or "
    "(model, inputs, loss)"
)


def prepare_user_function(spec: WorkloadSpec, dtype: torch.dtype) -> StepFactory:
    """Import the user's file, and return a factory of its function's steps.

    The function is called as ``function(batch_size, **options)``, under fake tensors: it may
    create tensors of any size, and must not read their values. It returns one of

    - ``(model, inputs)``: the model is called with ``inputs``, a tensor, a tuple of positional or
      a dictionary of keyword arguments; backward starts from the mean of its result;
    - ``(model, inputs, loss)``: backward starts from ``loss(result)``.

    Args:
        spec: The file and the function.
        dtype: Dtype of parameters and of floating-point inputs.

    Raises:
        WorkloadError: If there is no such file or function, or it returns something else.
    """
    function = _find_function(spec)
    options = dict(spec.options)

    def make_step(batch_size: int) -> BuiltStep:
        found: Any = function(batch_size, **options)
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            raise WorkloadError(
                f"{spec.text!r} returned {type(found).__name__}, not a step", hint=_CONTRACT
            )
        model, inputs = found[:2]
        if not isinstance(model, nn.Module):
            raise WorkloadError(
                f"{spec.text!r} returned {type(model).__name__} as its model", hint=_CONTRACT
            )
        model = model.to(dtype)
        keywords = _cast(dict(inputs), dtype) if isinstance(inputs, dict) else {}
        listed = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        positional = [] if keywords else list(_cast(dict(enumerate(listed)), dtype).values())
        tensors = (*positional, *keywords.values())
        return BuiltStep(
            model=model,
            inputs=tuple(value for value in tensors if isinstance(value, torch.Tensor)),
            targets=(),
            forward=lambda: model(*positional, **keywords),
            loss=found[2] if len(found) == 3 else _mean,
        )

    return make_step


def _find_function(spec: WorkloadSpec) -> Any:
    path = Path(spec.path)
    if not path.is_file():
        raise WorkloadError(f"there is no file {spec.path!r}", hint="check the path")
    name = f"_breakeven_workload_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None, "the name ends in .py"
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # let the file import its neighbours, as when it is run
        sys.path.insert(0, folder)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
    function = getattr(module, spec.name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise WorkloadError(
            f"{spec.path} has no function {spec.name!r}",
            hint=suggest(spec.name, names) if names else _CONTRACT,
        )
    return function


def _cast(values: dict[Any, Any], dtype: torch.dtype) -> dict[Any, Any]:
    return {
        key: value.to(dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for key, value in values.items()
    }


def _mean(result: Any) -> torch.Tensor:
    found = result if isinstance(result, torch.Tensor) else next(iter(result))
    return found.float().mean() if found.dtype in (torch.float16, torch.bfloat16) else found.mean()
