"""Kernels of a compiled graph: what Inductor's scheduler would fuse, with what crosses its borders.

Parts of operators are joined greedily, each to a kernel that makes what it reads, or else to one
that reads the same. They fit where they loop over equally many points; a pointwise loop over fewer
is inlined into who reads it; reductions fit where they have equally many results. A kernel reads
what was made outside of it, and writes what is read outside of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from breakeven.cost.compiled_parts import Part, parts_of
from breakeven.cost.kernel import Lowering
from breakeven.cost.rules import tensor_bytes
from breakeven.trace import Copy, Event, Op, Sync, TensorSpec

# Source: torch/_inductor/config.py, max_fusion_size.
_MOST_PARTS = 64
# Kernels that read the same are looked for among so many of the last.
_NUM_RECENT = 8


@dataclass(slots=True, eq=False)
class _Value:
    """One version of a storage; what writes in place makes a new one."""

    storage: int
    dtype: str
    writer: _Node | None
    is_live: bool = False
    readers: list[_Node] = field(default_factory=list["_Node"])


@dataclass(slots=True, eq=False)
class _Node:
    """A part of the operator at a position, in one of the compiled graphs; -1 outside of all."""

    position: int
    region: int
    part: Part | None = None
    reads: list[tuple[_Value, float]] = field(default_factory=list[tuple[_Value, float]])
    writes: list[tuple[_Value, float]] = field(default_factory=list[tuple[_Value, float]])
    group: _Group | None = None


@dataclass(slots=True, eq=False)
class _Group:
    """Parts that share a kernel.

    Args:
        nodes: In order.
        numel: Points of the loop.
        rows: Results of its reductions; 0 where there are none.
        keeps_row: As in `Part`, of all of its reductions.
    """

    nodes: list[_Node]
    numel: int
    rows: int
    keeps_row: bool

    def makers(self) -> Iterator[_Group]:
        """Yield the kernels that make what it reads."""
        for node in self.nodes:
            for value, _ in node.reads:
                group = value.writer.group if value.writer is not None else None
                if group is not None and group is not self:
                    yield group


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel:
    """One generated kernel.

    Args:
        positions: Of the events whose operators it computes, in whole or in part.
        reads: What it reads, a flat tensor for each.
        writes: What it writes.
        numel: Points of its loop.
        rows: Results of its reductions; 0 where there are none.
        flop: Arithmetic.
    """

    positions: tuple[int, ...]
    reads: tuple[TensorSpec, ...]
    writes: tuple[TensorSpec, ...]
    numel: int
    rows: int
    flop: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """A step with its compiled graphs fused.

    Args:
        kernels: Generated kernels, by the position of the last operator in each.
        library_calls: Positions of operators that remain calls of a library.
    """

    kernels: tuple[FusedKernel, ...]
    library_calls: frozenset[int]


def fuse(
    events: Sequence[Event], lowerings: Sequence[Lowering | None], regions: Sequence[int]
) -> FusedStep:
    """Return the kernels of the compiled graphs of a step.

    Args:
        events: The step.
        lowerings: Kernels by event, in eager mode; None where it is no operator of the device.
        regions: By event which compiled graph it is in; -1 where it is in none.
    """
    nodes = _Nodes(events)
    for position, event in enumerate(events):
        nodes.add(position, event, lowerings[position], regions[position])
    recent: defaultdict[int, list[_Group]] = defaultdict(list)
    groups: list[_Group] = []
    library_calls: set[int] = set()
    for node in nodes.nodes:
        if node.region < 0 or node.part is None:
            continue
        if node.part.is_library:
            library_calls.add(node.position)
            node.group = _Group([node], 0, 0, False)
            continue
        _place(node, recent[node.region])
        if node.group is not None and node.group.nodes[0] is node:
            groups.append(node.group)
            recent[node.region].append(node.group)
            del recent[node.region][:-_NUM_RECENT]
    kernels = [_kernel(group, nodes.storage_bytes, events) for group in groups if group.nodes]
    return FusedStep(
        kernels=tuple(kernel for kernel in kernels if kernel.writes),
        library_calls=frozenset(library_calls),
    )


class _Nodes:
    """The nodes of a step, and who makes and reads each value."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.nodes: list[_Node] = []
        self.storage_bytes: defaultdict[int, float] = defaultdict(float)
        self._current: dict[int, list[_Value]] = {}
        self._made: set[int] = set()
        for event in events:
            if isinstance(event, Op):
                for spec in (*event.inputs, *event.outputs):
                    size = tensor_bytes(spec)
                    if size > self.storage_bytes[spec.storage]:
                        self.storage_bytes[spec.storage] = size

    def add(self, position: int, event: Event, lowering: Lowering | None, region: int) -> None:
        """Add the nodes of the next event."""
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
            self._add(_Node(position, -1), event.inputs, event.outputs)
            return
        between: dict[int, _Value] = {}
        for part in parts_of(event, lowering):
            node = _Node(position, region, part)
            self._add(node, part.reads, part.writes, between, part.most_read_bytes)

    def _add(
        self,
        node: _Node,
        reads: Iterable[TensorSpec],
        writes: Iterable[TensorSpec],
        between: dict[int, _Value] | None = None,
        most_read_bytes: float = float("inf"),
    ) -> None:
        between = {} if between is None else between
        for spec in reads:
            values = [between[id(spec)]] if spec.storage < 0 and id(spec) in between else None
            if values is None:
                if spec.storage not in self._current:
                    self._current[spec.storage] = [_Value(spec.storage, spec.dtype, None)]
                values = self._current[spec.storage]
            size = min(tensor_bytes(spec), most_read_bytes) / len(values)
            for value in values:
                value.readers.append(node)
                node.reads.append((value, size))
                if value.writer is not None and value.writer.region != node.region:
                    value.is_live = True
        for spec in writes:
            value = _Value(spec.storage, spec.dtype, node)
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


def _place(node: _Node, recent: Sequence[_Group]) -> None:
    """Put a loop into a kernel that is there, or into one of its own; join the kernels it links."""
    part = node.part
    assert part is not None
    own = _Group([node], part.numel, part.rows, part.keeps_row)
    node.group = own
    makers = sorted(
        {id(group): group for group in own.makers() if group.numel}.values(),
        key=lambda group: group.nodes[-1].position,
        reverse=True,
    )
    read = {id(value) for value, size in node.reads if size}
    siblings = [
        group
        for group in reversed(recent)
        if group.nodes
        and group not in makers
        and any(id(value) in read for other in group.nodes for value, _ in other.reads)
    ]
    for group in (*(() if part.reads_memory else makers), *siblings):
        if group.nodes and group is not node.group and group.nodes[0].region == node.region:
            _join(group, node.group)


def _join(first: _Group, second: _Group) -> None:
    """Let two kernels be one, where that can be: the one that began first."""
    if not _fits(first, second) or _depends_around(first, second):
        return
    older, newer = first, second
    if older.nodes[0].position > newer.nodes[0].position:
        older, newer = newer, older
    older.nodes = sorted([*older.nodes, *newer.nodes], key=lambda node: node.position)
    older.numel = max(older.numel, newer.numel)
    reductions = [group for group in (older, newer) if group.rows]
    older.keeps_row = all(group.keeps_row for group in reductions) and bool(reductions)
    older.rows = max(older.rows, newer.rows)
    for node in newer.nodes:
        node.group = older
    newer.nodes = []


def _fits(first: _Group, second: _Group) -> bool:
    if len(first.nodes) + len(second.nodes) > _MOST_PARTS:
        return False
    if first.rows and second.rows:
        return (first.numel, first.rows) == (second.numel, second.rows) and _can_follow(
            first, second
        )
    if first.numel == second.numel:
        return _can_follow(first, second)
    small, large = (first, second) if first.numel < second.numel else (second, first)
    if small.rows:
        return False
    if large.rows and small.numel == large.rows:
        return True
    # A pointwise loop over fewer points is computed wherever it is read.
    made = {id(value) for node in small.nodes for value, _ in node.writes}
    return any(id(value) in made for node in large.nodes for value, _ in node.reads)


def _can_follow(first: _Group, second: _Group) -> bool:
    """Return whether nothing over all points waits for a reduction that does not keep them."""
    for maker, reader in ((first, second), (second, first)):
        if not maker.rows or maker.keeps_row:
            continue
        made = {id(value) for node in maker.nodes for value, _ in node.writes}
        for node in reader.nodes:
            if any(id(value) in made for value, _ in node.reads):
                assert node.part is not None
                if node.part.numel > maker.rows:
                    return False
    return True


def _depends_around(first: _Group, second: _Group) -> bool:
    """Return whether one needs something that is made, outside of both, from the other."""
    return _reaches(first, second) or _reaches(second, first)


def _reaches(start: _Group, end: _Group) -> bool:
    begin = start.nodes[0].position
    pending = [group for group in end.makers() if group is not start]
    seen: set[int] = set()
    while pending:
        group = pending.pop()
        if id(group) in seen or group is end or group.nodes[-1].position < begin:
            continue
        if group is start:
            return True
        seen.add(id(group))
        pending += group.makers()
    return False


def _kernel(group: _Group, storage_bytes: dict[int, float], events: Sequence[Event]) -> FusedKernel:
    reads: dict[int, tuple[_Value, float]] = {}
    writes: dict[int, tuple[_Value, float]] = {}
    for node in group.nodes:
        for value, size in node.reads:
            if value.writer is None or value.writer.group is not group:
                # Of a storage no more is read than there is, however many parts of it are.
                whole = storage_bytes[value.storage] if value.storage >= 0 else size
                known = reads[id(value)][1] if id(value) in reads else 0.0
                reads[id(value)] = (value, min(whole, known + size))
        for value, size in node.writes:
            outside = any(reader.group is not group for reader in value.readers)
            is_result = not value.readers and value is node.writes[0][0]
            if outside or value.is_live or is_result:
                writes[id(value)] = (value, size)
    event = events[group.nodes[-1].position]
    device = event.device if isinstance(event, Op) else "cuda:0"
    return FusedKernel(
        positions=tuple(dict.fromkeys(node.position for node in group.nodes)),
        reads=tuple(_flat(value, size, device) for value, size in reads.values()),
        writes=tuple(_flat(value, size, device) for value, size in writes.values()),
        numel=group.numel,
        rows=group.rows,
        flop=sum(node.part.flop for node in group.nodes if node.part is not None),
    )


def _flat(value: _Value, size: float, device: str) -> TensorSpec:
    spec = TensorSpec(shape=(), dtype=value.dtype, device=device, storage=value.storage)
    numel = max(1, round(size / spec.element_bytes))
    return msgspec.structs.replace(spec, shape=(numel,))
