"""Kernels of a compiled graph: the fusions of Inductor's scheduler, and their inputs and outputs.

Each part of an operator joins a kernel greedily: one that makes its inputs, or else one that reads
the same inputs. Parts fit together if they loop over equally many points. A pointwise loop over
fewer points is inlined into its reader. Reductions fit if they have equally many results. A kernel
reads values made outside of it, and writes values that are read outside of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from breakeven.cost.fusion_graph import (
    FusionGraph,
    Group,
    Node,
    Value,
    is_backward,
    with_recomputation,
)
from breakeven.cost.kernel import Lowering
from breakeven.trace import Event, Op, TensorSpec

# Source: torch/_inductor/config.py, max_fusion_size.
_MOST_PARTS = 64
# Number of recent kernels that are searched for one with the same inputs.
_NUM_RECENT = 8
# If a search does not show within this many kernels that two are independent, assume they are not.
_MOST_SEARCHED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel:
    """One generated kernel.

    Args:
        positions: Positions of the events whose operators it computes, in whole or in part.
        reads: Its inputs, a flat tensor for each.
        writes: Its outputs.
        numel: Points of its loop.
        rows: Results of its reductions; 0 without reductions.
        keeps_row: As in `Part`, for all of its reductions together.
        flop: Arithmetic.
    """

    positions: tuple[int, ...]
    reads: tuple[TensorSpec, ...]
    writes: tuple[TensorSpec, ...]
    numel: int
    rows: int
    keeps_row: bool
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
    events: Sequence[Event],
    lowerings: Sequence[Lowering | None],
    regions: Sequence[int],
    *,
    is_channels_last: bool = False,
) -> FusedStep:
    """Return the kernels of the compiled graphs of a step.

    Args:
        events: The step.
        lowerings: Kernels by event, in eager mode; None if it is not an operator of the device.
        regions: Number of the compiled graph of each event; -1 outside of all.
        is_channels_last: The compiler converts images to channels-last memory.
    """
    graph = FusionGraph(events, is_channels_last=is_channels_last)
    for position, event in enumerate(events):
        graph.add(position, event, lowerings[position], regions[position])
    groups = _grouped(node for node in graph.nodes if not is_backward(node))
    groups += _grouped(filter(is_backward, with_recomputation(graph.nodes)))
    kernels = [_kernel(group, graph.storage_bytes, events) for group in groups if group.numel]
    return FusedStep(
        kernels=tuple(kernel for kernel in kernels if kernel.writes),
        library_calls=frozenset(group.nodes[0].position for group in groups if not group.numel),
    )


def _grouped(nodes: Iterable[Node]) -> list[Group]:
    """Return the kernels of some nodes, in order; library calls have no points."""
    recent: defaultdict[int, list[Group]] = defaultdict(list)
    groups: list[Group] = []
    for node in nodes:
        part = node.part
        if node.region < 0 or part is None:
            continue
        own = node.group = Group([node], part.numel, part.rows, part.keeps_row)
        if part.is_library:
            groups.append(own)
            continue
        # Join it with its neighbours: kernels that make its inputs, or read the same inputs.
        makers = sorted(
            {id(group): group for group in own.makers() if group.numel}.values(),
            key=lambda group: group.nodes[-1].position,
            reverse=True,
        )
        last = recent[node.region]
        read = {id(value) for value, size in node.reads if size}
        siblings = [
            group
            for group in reversed(last)
            if group.nodes and group not in makers and not read.isdisjoint(group.read)
        ]
        for group in (*(() if part.reads_memory else makers), *siblings):
            if group.nodes and group is not node.group and group.nodes[0].region == node.region:
                _join(group, node.group)
        if node.group.nodes[0] is node:
            groups.append(node.group)
            last.append(node.group)
            del last[:-_NUM_RECENT]
    return [group for group in groups if group.nodes]


def _join(first: Group, second: Group) -> None:
    """Merge two kernels into the one that began first, if they fit."""
    # Neither may need a value that is made outside of both from the other's results.
    if not _fits(first, second) or _reaches(first, second) or _reaches(second, first):
        return
    older, newer = sorted((first, second), key=lambda group: group.nodes[0].position)
    older.nodes = sorted([*older.nodes, *newer.nodes], key=lambda node: node.position)
    older.read |= newer.read
    older.numel = max(older.numel, newer.numel)
    reductions = [group for group in (older, newer) if group.rows]
    older.keeps_row = all(group.keeps_row for group in reductions) and bool(reductions)
    older.rows = max(older.rows, newer.rows)
    for node in newer.nodes:
        node.group = older
    newer.nodes = []


def _fits(first: Group, second: Group) -> bool:
    if len(first.nodes) + len(second.nodes) > _MOST_PARTS:
        return False
    if (first.rows and second.rows) or first.numel == second.numel:
        is_alike = first.numel == second.numel and (
            first.rows == second.rows or not (first.rows and second.rows)
        )
        return is_alike and _can_follow(first, second) and _can_follow(second, first)
    small, large = (first, second) if first.numel < second.numel else (second, first)
    if small.rows:
        return False
    # A pointwise loop over fewer points is recomputed in each of its readers.
    return bool(large.rows and small.numel == large.rows) or any(
        value.writer in small.nodes for node in large.nodes for value, _ in node.reads
    )


def _can_follow(maker: Group, reader: Group) -> bool:
    """Return whether no loop over all points waits for a reduction that does not keep its rows."""
    if not maker.rows or maker.keeps_row:
        return True
    made = {id(value) for node in maker.nodes for value, _ in node.writes}
    return not any(
        id(value) in made and node.part is not None and node.part.numel > maker.rows
        for node in reader.nodes
        for value, _ in node.reads
    )


def _reaches(start: Group, end: Group) -> bool:
    begin = start.nodes[0].position
    pending = [group for group in end.makers() if group is not start]
    seen: set[int] = set()
    while pending:
        if len(seen) > _MOST_SEARCHED:
            return True
        group = pending.pop()
        if id(group) in seen or group is end or group.nodes[-1].position < begin:
            continue
        if group is start:
            return True
        seen.add(id(group))
        pending += group.makers()
    return False


def _kernel(group: Group, storage_bytes: dict[int, float], events: Sequence[Event]) -> FusedKernel:
    reads: dict[int, tuple[Value, float]] = {}
    writes: list[tuple[Value, float]] = []
    for node in group.nodes:
        for value, size in node.reads:
            if value.writer is None or value.writer.group is not group:
                # Reading several parts of a storage moves at most the whole storage.
                whole = storage_bytes[value.storage] if value.storage >= 0 else size
                known = reads[id(value)][1] if id(value) in reads else 0.0
                reads[id(value)] = (value, min(whole, known + size))
        for value, size in node.writes:
            outside = any(reader.group is not group for reader in value.readers)
            is_result = not value.readers and not value.is_repeated and value is node.writes[0][0]
            if outside or value.is_live or is_result:
                writes.append((value, size))
    event = events[group.nodes[-1].position]
    device = event.device if isinstance(event, Op) else "cuda:0"
    return FusedKernel(
        positions=tuple(dict.fromkeys(node.position for node in group.nodes)),
        reads=tuple(_flat(value, size, device) for value, size in reads.values()),
        writes=tuple(_flat(value, size, device) for value, size in writes),
        numel=group.numel,
        rows=group.rows,
        keeps_row=group.keeps_row,
        flop=sum(node.part.flop for node in group.nodes if node.part is not None),
    )


def _flat(value: Value, size: float, device: str) -> TensorSpec:
    spec = TensorSpec(shape=(), dtype=value.dtype, device=device, storage=value.storage)
    numel = max(1, round(size / spec.element_bytes))
    return msgspec.structs.replace(spec, shape=(numel,))
