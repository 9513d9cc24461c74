"""What else ``torch.cuda`` is asked, answered by a rule in place of a list.

A function that is answered is so wherever torch keeps it. One that nobody thought of is called;
where it fails for lack of CUDA it returns the least that its annotation allows.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.cuda

from breakeven.configure import Patches

_PACKAGES = ("torch.cuda", "torch.accelerator", "torch.backends.cuda")
# Captured graphs are no questions.
_LEFT_OUT = ("torch.cuda.graphs",)

_LEAST: dict[str, Any] = {
    "": None, "None": None, "int": 0, "float": 0.0, "bool": False, "str": "", "dict": {},
    "ordereddict": {}, "list": [], "tuple": (),
}  # fmt: skip

# How a torch without CUDA, or a machine without its driver, says so.
_LACK = re.compile(
    r"no attribute '(_cuda|_nccl|_gds|_record_untuned|_accelerator|cuda)|dummy base class"
    r"|not compiled with CUDA|requires CUDA|Cannot access accelerator|nvidia-ml-py|NVIDIA driver"
)


def answer_the_rest(patches: Patches, before: dict[str, Any]) -> None:
    """Let every question to ``torch.cuda`` have an answer.

    Args:
        patches: Has replaced what is answered by name, and restores everything.
        before: What ``torch.cuda`` held before that.
    """
    answered = {
        id(before[name]): value
        for name, value in vars(torch.cuda).items()
        if name in before and before[name] is not value
    }
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in answered:
                patches.replace(module, name, answered[id(value)])
    for module, name, function, stand_in in _questions():
        if vars(module)[name] is function:
            patches.replace(module, name, stand_in)


@functools.cache
def _questions() -> tuple[tuple[ModuleType, str, FunctionType, Callable[..., Any]], ...]:
    """Return the public functions whose result may be the least, and what stands in for each."""
    found: list[tuple[ModuleType, str, FunctionType, Callable[..., Any]]] = []
    for module in _modules():
        for name, value in vars(module).items():
            if name.startswith("_") or not isinstance(value, FunctionType):
                continue
            is_own = value.__module__.startswith(_PACKAGES)
            if is_own and not value.__module__.startswith(_LEFT_OUT):
                result = _result_of(value)
                if result in _LEAST:
                    found.append((module, name, value, _answering(value, _LEAST[result])))
    return tuple(found)


def _modules() -> list[ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_PACKAGES) and not name.startswith(_LEFT_OUT)
    ]


def _result_of(function: FunctionType) -> str:
    """Return the name of the type that a function returns, without its parameters."""
    found = function.__annotations__.get("return", "")
    name = found if isinstance(found, str) else getattr(found, "__name__", str(found))
    return name.partition("[")[0].lower() if name != "None" else name


def _answering(original: Callable[..., Any], least: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (AssertionError, AttributeError, ImportError, RuntimeError) as error:
            if _LACK.search(str(error)) is None:
                raise
            return least.copy() if isinstance(least, (dict, list)) else least

    return call
