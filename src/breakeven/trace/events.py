"""The events of a training step, in the order in which the host issues them."""

from __future__ import annotations

from enum import StrEnum
from math import prod
from pathlib import PurePath
from typing import Any

import msgspec


class Phase(StrEnum):
    """Part of the step in which an event happens."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


# None of these is ever part of a cycle. A step has some hundred thousand of them, and Python's
# garbage collector would scan them repeatedly.


NOTEBOOK = ".ipynb"
# Line 2 of a notebook's cell 3 is line 3002: one number names both, everywhere.
CELL_LINES = 1000


def line_text(file: str, line: int) -> str:
    """Return ``:12``; for a notebook, `` cell 3, line 2``."""
    return f" {line_words(file, line)}" if is_notebook(file) else f":{line}"


def line_words(file: str, line: int) -> str:
    """Return ``line 12``; for a notebook, ``cell 3, line 2``."""
    cell, of_cell = divmod(line, CELL_LINES)
    return f"cell {cell}, line {of_cell}" if is_notebook(file) else f"line {line}"


def is_notebook(file: str) -> bool:
    """Return whether a file is a notebook, by its suffix."""
    return file.lower().endswith(NOTEBOOK)


class Location(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of one of the user's files; line 2 of a notebook's cell 3 is line 3002."""

    file: str
    line: int
    function: str = ""

    @property
    def place(self) -> str:
        """Return the line with the path of its file."""
        return self.file + line_text(self.file, self.line)

    @property
    def text(self) -> str:
        """Return the line with the name of its file, without folders."""
        return PurePath(self.file).name + line_text(self.file, self.line)

    @property
    def words(self) -> str:
        """Return the line alone, as words."""
        return line_words(self.file, self.line)


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The properties of a tensor that cost models need.

    Args:
        shape: Size of each dimension; ``()`` for a scalar. For a sparse tensor, the shape of its
            values, which are stored and computed with.
        dtype: torch's name without the prefix: ``float32``, ``int64``, ``bool``.
        device: ``cpu`` or ``cuda:0``: its device, or its device on a machine with a GPU.
        layout: ``contiguous``, ``channels_last``, ``transposed`` (last two dimensions swapped),
            ``expanded`` (a dimension of stride 0), ``sparse`` or ``strided``. Strides themselves
            are not stored: they are products of sizes and do not scale with the batch as sizes do.
        storage: Number of the memory block, unique in the trace; views share it.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    layout: str = "contiguous"
    storage: int = -1

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def is_sparse(self) -> bool:
        """Return whether only some values are stored."""
        return self.layout == "sparse"

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one element."""
        return _DTYPE_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all elements (an expanded tensor occupies fewer)."""
        return self.numel * self.element_bytes


_DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


class Op(msgspec.Struct, frozen=True, kw_only=True, tag="op", gc=False):
    """One operator, as the dispatcher sees it below autograd and autocast.

    Args:
        name: Overload: ``aten.addmm.default``.
        inputs: Tensor arguments, lists flattened, in the order of the schema.
        outputs: Tensor results, lists flattened.
        attributes: Non-tensor arguments by their schema name, such as ``stride`` and ``groups``.
        phase: Part of the step.
        device: Device that runs it: the device of its inputs.
        location: Line of the user's file; for backward ops, the line of the forward op.
        module: Dotted path of the ``nn.Module`` that issued it; empty outside of modules.
        thread: 0 for the thread of the training loop.
        host_ns: Its time on the CPU of the tracing machine.
        stack: Position in the trace's stacks of the lines that led to it; -1 if unknown.
        is_replayed: A CUDA graph runs it, without the host; lines are those of the capture.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: dict[str, Any] = {}
    phase: Phase = Phase.FORWARD
    device: str = "cuda:0"
    location: Location | None = None
    module: str = ""
    thread: int = 0
    host_ns: int = 0
    stack: int = -1
    is_replayed: bool = False

    @property
    def is_on_host(self) -> bool:
        """Return whether the CPU computes it, even on a machine with a GPU."""
        return self.device == "cpu"


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag="copy", gc=False):
    """A copy between host and device memory.

    Args:
        source: Device of the source: ``cpu`` or ``cuda:0``.
        destination: Device of the destination.
        num_bytes: Bytes copied.
        is_pinned: Whether the host memory is page-locked.
        non_blocking: Whether the script asked not to wait.
        phase: Part of the step.
        location: Line of the user's file.
        storage: Number of the copied memory block, as in `TensorSpec`.
        dtype: Dtype of the copied tensor.
        via: Dotted name of the library module that copies, called from the user's line; empty
            if the line copies itself.
        stack: As in `Op`.
        is_replayed: As in `Op`.
    """

    source: str
    destination: str
    num_bytes: int
    is_pinned: bool = False
    non_blocking: bool = False
    phase: Phase = Phase.FORWARD
    location: Location | None = None
    storage: int = -1
    dtype: str = ""
    via: str = ""
    stack: int = -1
    is_replayed: bool = False

    @property
    def is_to_device(self) -> bool:
        """Return whether the data goes from the host to the device."""
        return self.source == "cpu"

    @property
    def is_blocking(self) -> bool:
        """Return whether the host waits: a copy of pageable memory always blocks."""
        return not (self.is_pinned and self.non_blocking)


class Sync(msgspec.Struct, frozen=True, kw_only=True, tag="sync", gc=False):
    """The host waits until the device has finished all issued work.

    Args:
        kind: Cause of the wait: ``item``, ``bool``, ``nonzero``, ``print``, ``synchronize``, ...
        num_bytes: Bytes read back by the same call; 0 without a read.
        phase: Part of the step.
        location: Line of the user's file.
        storage: Memory block that it reads, as in `TensorSpec`; -1 without a read.
        via: As in `Copy`: the library module that waits, such as ``torch.distributions.normal``.
        stack: As in `Op`.
    """

    kind: str
    num_bytes: int = 0
    phase: Phase = Phase.FORWARD
    location: Location | None = None
    storage: int = -1
    via: str = ""
    stack: int = -1


class HostWork(msgspec.Struct, frozen=True, kw_only=True, tag="host", gc=False):
    """Time that the host spends outside of torch's operators.

    Args:
        kind: ``data`` (the data loader), ``script`` (the user's own Python, NumPy, simulators),
            ``save`` (``torch.save``), ``gc`` (``gc.collect``) or ``log`` (a logger of histograms).
        duration_ns: Time on the CPU of the tracing machine.
        num_workers: Processes that share the work besides the training process; if any, the
            work overlaps the step.
        taking_ns: Time of the training process to receive the work of other processes.
        phase: Part of the step.
        location: Line of the user's file.
        stack: As in `Op`.
    """

    kind: str
    duration_ns: int
    num_workers: int = 0
    taking_ns: int = 0
    phase: Phase = Phase.DATA
    location: Location | None = None
    stack: int = -1


class GraphLaunch(msgspec.Struct, frozen=True, kw_only=True, tag="graph", gc=False):
    """The host launches a CUDA graph; the events that it replays follow.

    Args:
        phase: Part of the step.
        location: Line of the user's file that replays it.
        stack: As in `Op`.
    """

    phase: Phase = Phase.FORWARD
    location: Location | None = None
    stack: int = -1


Event = Op | Copy | Sync | HostWork | GraphLaunch
