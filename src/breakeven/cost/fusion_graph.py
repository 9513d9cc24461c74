"""A step as parts of operators, with the writer and the readers of each value between them.

The backward pass recomputes some values instead of reading values that the forward pass saved.
AOTAutograd cuts the joint graph of both passes at the fewest bytes, and repeats cheap work, which
is pointwise loops, in the backward pass. This module decides for each crossing value separately,
the last one first. The cut is the same if values share few inputs.
Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from breakeven.cost.kernel import Lowering
from breakeven.cost.lower_compiled import Part, parts_of
from breakeven.cost.rules import base_name, tensor_bytes
from breakeven.trace import Copy, Event, Op, Sync, TensorSpec


@dataclass(slots=True, eq=False)
class Value:
    """One version of a storage; a write in place makes a new version.

    Args:
        storage: Its storage; negative for a value between parts of an operator.
        dtype: Dtype of its elements.
        writer: Node that makes it; None if it existed before the step.
        is_live: It outlives the step, or leaves the device.
        is_repeated: The backward pass recomputes it instead of reading it.
        readers: Nodes that read it.
    """

    storage: int
    dtype: str
    writer: Node | None
    is_live: bool = False
    is_repeated: bool = False
    readers: list[Node] = field(default_factory=list["Node"])


@dataclass(slots=True, eq=False)
class Node:
    """A part of the operator at a position, in a compiled graph; region -1 is outside of all."""

    position: int
    region: int
    part: Part | None = None
    reads: list[tuple[Value, float]] = field(default_factory=list[tuple[Value, float]])
    writes: list[tuple[Value, float]] = field(default_factory=list[tuple[Value, float]])
    group: Group | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Parts that share a kernel.

    Args:
        nodes: Nodes in order.
        numel: Points of the loop.
        rows: Results of its reductions; 0 without reductions.
        keeps_row: As in `Part`, for all of its reductions together.

    Attributes:
        read: The values that it reads, by identity.
    """

    nodes: list[Node]
    numel: int
    rows: int
    keeps_row: bool
    read: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.read = {id(value) for node in self.nodes for value, _ in node.reads}

    def makers(self) -> Iterator[Group]:
        """Yield the other kernels that make its inputs."""
        for node in self.nodes:
            for value, _ in node.reads:
                group = value.writer.group if value.writer is not None else None
                if group is not None and group is not self:
                    yield group


class FusionGraph:
    """The nodes of a step, in order.

    Args:
        events: The step.
        is_channels_last: The compiler converts images to channels-last memory.
    """

    def __init__(self, events: Sequence[Event], *, is_channels_last: bool = False) -> None:
        self._is_channels_last = is_channels_last
        self.nodes: list[Node] = []
        self.storage_bytes: defaultdict[int, float] = defaultdict(float)
        self._current: dict[int, list[Value]] = {}
        self._made: set[int] = set()
        self._casts: dict[Hashable, list[Value]] = {}
        for event in events:
            if isinstance(event, Op):
                for spec in (*event.inputs, *event.outputs):
                    size = tensor_bytes(spec)
                    if size > self.storage_bytes[spec.storage]:
                        self.storage_bytes[spec.storage] = size

    def add(self, position: int, event: Event, lowering: Lowering | None, region: int) -> None:
        """Add the nodes of the next event.

        Args:
            position: Position of the event.
            event: The event.
            lowering: Its kernels in eager mode; None if it is not an operator of the device.
            region: Number of its compiled graph; -1 outside of all.
        """
        if isinstance(event, Copy | Sync):
            for value in self._current.get(event.storage, ()):
                value.is_live = True
        if not isinstance(event, Op):
            return
        if lowering is not None and not lowering.kernels:
            known = {spec.storage for spec in event.inputs}
            self._made |= {spec.storage for spec in event.outputs if spec.storage not in known}
            return
        if region < 0 or lowering is None:
            self._add(Node(position, -1), event.inputs, event.outputs, {})
            return
        # Key of a cast. Autocast casts an activation again for each layer that reads it;
        # AOTAutograd computes equal expressions once.
        cast: Hashable = None
        if base_name(event.name) == "_to_copy" and len(event.inputs) == len(event.outputs) == 1:
            source, result = event.inputs[0], event.outputs[0]
            values = tuple(self._values(source))
            cast = region, values, source.shape, result.shape, result.dtype, result.layout
            if cast in self._casts:
                self._made.add(result.storage)
                self._current[result.storage] = self._casts[cast]
                return
        between: dict[int, Value] = {}
        for part in parts_of(event, lowering, is_channels_last=self._is_channels_last):
            node = Node(position, region, part)
            self._add(node, part.reads, part.writes, between, part.most_read_bytes)
        if cast is not None:
            self._casts[cast] = self._current[event.outputs[0].storage]

    def _values(self, spec: TensorSpec) -> list[Value]:
        """Return the values of a storage: one, or one for each part that was written."""
        if spec.storage not in self._current:
            self._current[spec.storage] = [Value(spec.storage, spec.dtype, None)]
        return self._current[spec.storage]

    def _add(
        self,
        node: Node,
        reads: Iterable[TensorSpec],
        writes: Iterable[TensorSpec],
        between: dict[int, Value],
        most_read_bytes: float = math.inf,
    ) -> None:
        for spec in reads:
            is_between = spec.storage < 0 and id(spec) in between
            values = [between[id(spec)]] if is_between else self._values(spec)
            size = min(tensor_bytes(spec), most_read_bytes) / len(values)
            for value in values:
                value.readers.append(node)
                node.reads.append((value, size))
        for spec in writes:
            value = Value(spec.storage, spec.dtype, node)
            size = tensor_bytes(spec)
            node.writes.append((value, size))
            if spec.storage < 0:
                between[id(spec)] = value
                continue
            before = self._current.get(spec.storage)
            if before is None:
                self._made.add(spec.storage)
            # A write to a tensor from outside the step outlives the step.
            value.is_live = spec.storage not in self._made
            is_part = before is not None and size < self.storage_bytes[spec.storage]
            self._current[spec.storage] = [*before, value] if before and is_part else [value]
        self.nodes.append(node)


# A value that the forward pass writes only for the backward pass costs a write and a read; one that
# it writes anyway costs only the read. Source: the same file, get_node_weight.
_WRITTEN_FOR_IT = 2.0
# Greatest length of a chain of cheap loops.
_LONGEST_CHAIN = 16


def is_backward(node: Node) -> bool:
    """Return whether a node is in the graph of a backward pass; these have odd numbers."""
    return node.region >= 0 and node.region % 2 == 1


def with_recomputation(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a step, with the recomputed ones in its backward pass.

    Args:
        nodes: Nodes in order; those of forward graphs with their kernels.
    """
    order = {node: number for number, node in enumerate(nodes)}
    anchors = {node: node for node in nodes if is_backward(node)}
    # Cache both: a value with many readers is looked up as often.
    is_cheap, saved_bytes = cache(_is_cheap), cache(_saved_bytes)
    inserted: defaultdict[Node, list[Node]] = defaultdict(list)

    def made_at(value: Value) -> int:
        return order[_writer(value)]

    def is_of_forward(value: Value) -> bool:
        node = value.writer
        return node is not None and node.region >= 0 and not is_backward(node)

    def is_there(value: Value) -> bool:
        return not is_of_forward(value) or value in kept or value in repeated

    def repeated_bytes(value: Value, most: float, depth: int = 0) -> float:
        """Return the bytes to save for recomputing a value; infinity if at least ``most``."""
        total = 0.0
        for needed, _ in _writer(value).reads:
            if is_there(needed):
                continue
            size = saved_bytes(needed)
            if is_cheap(needed) and depth < _LONGEST_CHAIN:
                size = min(size, repeated_bytes(needed, size, depth + 1))
            total += size
            if total >= most:
                return math.inf
        return total

    def settle(value: Value) -> None:
        """Decide whether the backward pass reads a value or recomputes it."""
        if is_there(value):
            return
        if is_cheap(value) and repeated_bytes(value, saved_bytes(value)) < saved_bytes(value):
            repeated.add(value)
            for needed, _ in _writer(value).reads:
                settle(needed)
        else:
            kept.add(value)

    read = {value for node in anchors for value, _ in node.reads}
    crossing = sorted(filter(is_of_forward, read), key=made_at, reverse=True)
    kept, repeated = {value for value in crossing if not is_cheap(value)}, set[Value]()
    for value in crossing:
        settle(value)
    # The backward pass computes a value before the first of its readers there.
    for value in sorted(repeated, key=made_at, reverse=True):
        writer = _writer(value)
        readers = [node for node in value.readers if node in anchors]
        anchor = min((anchors[node] for node in readers), key=order.__getitem__)
        node = Node(anchor.position, anchor.region, writer.part, reads=list(writer.reads))
        again = Value(value.storage, value.dtype, node, readers=readers)
        node.writes = [(again, size) for _, size in writer.writes]
        anchors[node] = anchor
        # Insert its inputs before it: the loop runs from the last value to the first.
        inserted[anchor].insert(0, node)
        for needed, _ in node.reads:
            needed.readers.append(node)
        for reader in readers:
            reader.reads = [(again if v is value else v, size) for v, size in reader.reads]
        value.readers = [node for node in value.readers if node not in anchors]
        value.is_repeated = True
    return [each for node in nodes for each in (*inserted.get(node, ()), node)]


def _writer(value: Value) -> Node:
    assert value.writer is not None
    return value.writer


def _is_cheap(value: Value) -> bool:
    """Return whether AOTAutograd would recompute a value.

    It recomputes pointwise loops without random numbers whose result no library call reads.
    """
    node = _writer(value)
    part = node.part
    return (
        part is not None
        and not (part.is_library or part.rows or part.reads_memory or part.is_random)
        and len(node.writes) == 1
        and not any(
            is_backward(reader) and (reader.part is None or reader.part.is_library)
            for reader in value.readers
        )
    )


def _saved_bytes(value: Value) -> float:
    """Return the bytes moved by saving a value for the backward pass."""
    node = _writer(value)
    size = sum(size for written, size in node.writes if written is value)
    is_written = value.is_live or any(
        reader.group is not node.group for reader in value.readers if not is_backward(reader)
    )
    return size if is_written else _WRITTEN_FOR_IT * size
