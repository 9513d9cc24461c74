"""Compilation of a function of tensors to one C function of their addresses."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from faststep.codegen.dividing import lower
from faststep.codegen.emit import NO_NUMBERS, emit
from faststep.codegen.toolchain import load, load_once
from faststep.codegen.tracing import hoist_draws, trace


class Gathered(ctypes.Structure):
    """A tensor of a data set from which each step gathers its batch; mirrors ``driver.h``."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("batch", ctypes.c_void_p),
    )


class Plan(ctypes.Structure):
    """The plan of a call; mirrors ``driver.h``."""

    _fields_ = (
        ("num_steps", ctypes.c_int64),
        ("numbers", ctypes.c_int64),
        ("options", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("loss", ctypes.c_int64),
        ("loss_bytes", ctypes.c_int64),
        ("num_counters", ctypes.c_int64),
        ("counters", ctypes.c_void_p),
        ("num_gathered", ctypes.c_int64),
        ("batch_size", ctypes.c_int64),
        ("gathered", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("share", ctypes.c_void_p),
        ("num_threads", ctypes.c_void_p),
    )


class Generated:
    """A compiled function of tensors of fixed shapes, strides and types, on the CPU.

    Args:
        function: Takes the tensors, may write to them, and returns a tuple of tensors.
        examples: Tensors like those of later calls; neither read nor written.
        late: Numbers of the arguments that only the update reads.
        numbers: C code that defines ``update_numbers`` of ``driver.h``.
        batch: Numbers of the arguments that have samples along their first dimension.
        is_kept: Keep the binary for later runs.

    Raises:
        UnsupportedError: The function contains something unsupported; names it.
        CompilerError: There is no C compiler, or it failed.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        examples: Sequence[Tensor],
        late: Sequence[int],
        numbers: str = NO_NUMBERS,
        batch: Sequence[int] = (),
        *,
        is_kept: bool = True,
    ) -> None:
        graph = trace(function, examples)
        output = next(iter(graph.graph.find_nodes(op="output")))
        # Fake tensors like the results, without values.
        self.results: tuple[Tensor, ...] = tuple(one.meta["val"] for one in output.args[0])
        self.draws = hoist_draws(graph)
        if batch:  # draws also have samples along their first dimension
            batch = (*batch, *range(len(examples), len(examples) + len(self.draws)))
        self.source, size = emit(lower(graph, _lanes(), late, batch), numbers)
        self.num_arguments = len(examples)
        library = load(self.source) if is_kept else load_once(self.source)
        self.run = library.run
        self.run.argtypes = [ctypes.c_void_p] * 3
        self.run.restype = ctypes.c_int64
        self.address = ctypes.cast(self.run, ctypes.c_void_p).value or 0
        # The plan's fields for threads; empty if no statement has parts.
        self.team: dict[str, int] = find_team() if "in_parts(" in self.source else {}
        # All calls share this memory: two threads must not do steps at once.
        self._memory = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
        self.workspace = -(-self._memory.data_ptr() // 64) * 64


# at::get_num_threads(): what torch.get_num_threads calls.
_NUM_THREADS = "_ZN2at15get_num_threadsEv"


@functools.cache
def find_team() -> dict[str, int]:
    """Return the plan's fields for threads: the addresses of two functions.

    ``share`` hands out parts of statements to the same threads for all steps. ``num_threads``
    returns torch's number of threads in each call. If torch lacks that symbol, use one thread.
    """
    num_threads = getattr(ctypes.CDLL(torch._C.__file__), _NUM_THREADS, None)
    if num_threads is None:
        return {}
    share = load('#include "threads.h"\n').share
    functions = {"share": share, "num_threads": num_threads}
    return {name: ctypes.cast(one, ctypes.c_void_p).value or 0 for name, one in functions.items()}


def _lanes() -> int:
    """Return the number of 32-bit elements in a vector of this processor."""
    level = torch.backends.cpu.get_cpu_capability()
    return 16 if level.startswith("AVX512") else 8 if level.startswith("AVX") else 4
