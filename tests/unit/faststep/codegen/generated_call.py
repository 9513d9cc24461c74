"""A function of tensors as generated C that tests call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from faststep.codegen.dividing import lower
from faststep.codegen.emit import emit
from faststep.codegen.generated import Plan, _lanes, find_team
from faststep.codegen.toolchain import load
from faststep.codegen.tracing import hoist_draws, trace


class GeneratedCall:
    """A compiled function; calling it returns the results, and writes to arguments it changes.

    Args:
        function: Takes tensors, may write to them, and returns tensors.
        examples: What it is traced with.
        late: Numbers of the arguments that only an update reads.
        batch: Numbers of the arguments that have samples along their first dimension.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        examples: Sequence[Tensor],
        late: Sequence[int] = (),
        batch: Sequence[int] = (),
    ) -> None:
        graph = trace(lambda *tensors: tuple(function(*tensors)), examples)
        targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        self.operators = {
            target.overloadpacket.__name__
            for target in targets
            if hasattr(target, "overloadpacket")
        }
        self._results = [
            one.meta["val"] for one in next(iter(graph.graph.find_nodes(op="output"))).args[0]
        ]
        self._draws = hoist_draws(graph)
        self.source, size = emit(lower(graph, _lanes(), late, batch))
        self.num_workspace_bytes = size
        self.has_parts = "in_parts(" in self.source
        self.is_divided = "samples_part" in self.source
        # What an earlier step has left in the workspace must not matter: here, it is NaN.
        self._memory = torch.full((size + 64,), 255, dtype=torch.uint8)
        self._library: Any = None

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        if self._library is None:
            self._library = load(self.source)
            self._library.run.argtypes = [ctypes.c_void_p] * 3
            self._library.run.restype = ctypes.c_int64
        results = tuple(torch.empty(one.shape, dtype=one.dtype) for one in self._results)
        drawn = [draw() for draw in self._draws]
        # One step, for which neither numbers nor results move on.
        plan = Plan(num_steps=1, **(find_team() if self.has_parts else {}))
        pointers = [tensor.data_ptr() for tensor in (*arguments, *drawn, *results)]
        addresses = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        workspace = -(-self._memory.data_ptr() // 64) * 64
        if self._library.run(ctypes.addressof(addresses), workspace, ctypes.addressof(plan)) != 1:
            raise IndexError("an index is out of range")
        return results
