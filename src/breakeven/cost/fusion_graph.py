"""A step as parts of operators, and who makes and reads each value that passes between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from breakeven.cost.compiled_parts import Part, parts_of
from breakeven.cost.kernel import Lowering
from breakeven.cost.rules import base_name, tensor_bytes
from breakeven.trace import Copy, Event, Op, Sync, TensorSpec


@dataclass(slots=True, eq=False)
class Value:
    """One version of a storage; what writes in place makes a new one.

    Args:
        storage: Of which it is a version; negative for what passes between parts of an operator.
        dtype: Of its elements.
        writer: What makes it; None where it was there before the step.
        is_live: It outlives the step, or leaves the device.
        is_repeated: The backward pass computes it again rather than reading it.
        readers: Who reads it.
    """

    storage: int
    dtype: str
    writer: Node | None
    is_live: bool = False
    is_repeated: bool = False
    readers: list[Node] = field(default_factory=list["Node"])


@dataclass(slots=True, eq=False)
class Node:
    """A part of the operator at a position, in one of the compiled graphs; -1 outside of all."""

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
        nodes: In order.
        numel: Points of the loop.
        rows: Results of its reductions; 0 where there are none.
        keeps_row: As in `Part`, of all of its reductions.

    Attributes:
        read: Which values it reads, by identity.
    """

    nodes: list[Node]
    numel: int
    rows: int
    keeps_row: bool
    read: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.read = {id(value) for node in self.nodes for value, _ in node.reads}

    def makers(self) -> Iterator[Group]:
        """Yield the kernels that make what it reads."""
        for node in self.nodes:
            for value, _ in node.reads:
                group = value.writer.group if value.writer is not None else None
                if group is not None and group is not self:
                    yield group


class FusionGraph:
    """The nodes of a step, in order.

    Args:
        events: The step.
        is_channels_last: The compiler brings images into channels-last memory.
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
            position: Of the event.
            event: The event.
            lowering: Its kernels in eager mode; None where it is no operator of the device.
            region: Which compiled graph it is in; -1 where it is in none.
        """
        if isinstance(event, Copy | Sync):
            for value in self._current.get(event.storage, ()):
                value.is_live = True
            return
        if not isinstance(event, Op):
            return
        if lowering is not None and not lowering.kernels:
            known = {spec.storage for spec in event.inputs}
            self._made |= {spec.storage for spec in event.outputs if spec.storage not in known}
            return
        if region < 0 or lowering is None:
            self._add(Node(position, -1), event.inputs, event.outputs)
            return
        cast = self._cast_key(event, region)
        if cast in self._casts:
            (result,) = event.outputs
            self._made.add(result.storage)
            self._current[result.storage] = self._casts[cast]
            return
        between: dict[int, Value] = {}
        for part in parts_of(event, lowering, is_channels_last=self._is_channels_last):
            node = Node(position, region, part)
            self._add(node, part.reads, part.writes, between, part.most_read_bytes)
        if cast is not None:
            self._casts[cast] = self._current[event.outputs[0].storage]

    def _cast_key(self, op: Op, region: int) -> Hashable:
        """Return what tells a cast from another; None of another operator.

        Autocast casts an activation anew for each layer that reads it. AOTAutograd computes equal
        expressions once.
        """
        if base_name(op.name) != "_to_copy" or len(op.inputs) != 1 or len(op.outputs) != 1:
            return None
        source, result = op.inputs[0], op.outputs[0]
        values = tuple(self._values(source))
        return region, values, source.shape, result.shape, result.dtype, result.layout

    def _values(self, spec: TensorSpec) -> list[Value]:
        """Return what a storage consists of: one value, or the parts that were written to it."""
        if spec.storage not in self._current:
            self._current[spec.storage] = [Value(spec.storage, spec.dtype, None)]
        return self._current[spec.storage]

    def _add(
        self,
        node: Node,
        reads: Iterable[TensorSpec],
        writes: Iterable[TensorSpec],
        between: dict[int, Value] | None = None,
        most_read_bytes: float = float("inf"),
    ) -> None:
        between = {} if between is None else between
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
            # What is written into a tensor from outside stays there.
            value.is_live = spec.storage not in self._made
            is_part = before is not None and size < self.storage_bytes[spec.storage]
            self._current[spec.storage] = [*before, value] if before and is_part else [value]
        self.nodes.append(node)
