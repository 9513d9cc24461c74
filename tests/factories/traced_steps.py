"""Inductor steps that run as traced graphs, since compiling takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from faststep import inductor
from faststep.inductor import trace_tensors


def run_as_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Inductor's compilation in a test by the traced graphs that it would compile."""

    def trace(function: Any, examples: Any, mode: str) -> Callable[..., Any]:
        graph = trace_tensors(function, examples)

        def call(*args: Tensor) -> Any:
            with torch.no_grad():
                return graph(*args)

        return call

    monkeypatch.setattr(inductor, "compile_tensors", trace)
