"""What the backward pass computes again, rather than having the forward pass save it.

AOTAutograd cuts the joint graph of both passes where the fewest bytes cross, and lets the backward
pass repeat what is cheap: pointwise loops. Here each value that crosses is looked at alone, the
last one first; that is the same cut where values share few inputs.
Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

from breakeven.cost.fusion_graph import Node, Value

# What the forward pass writes for the backward pass alone is written and read; what it writes in
# any case is only read. Source: the same file, get_node_weight.
_WRITTEN_FOR_IT = 2.0
# Chains of cheap loops are followed so far.
_LONGEST_CHAIN = 16


def is_backward(node: Node) -> bool:
    """Return whether a node is in a graph of a backward pass, which have odd numbers."""
    return node.region >= 0 and node.region % 2 == 1


def with_recomputation(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a step, and in its backward pass what that computes again.

    Args:
        nodes: In order; those of forward graphs with the kernels that they are in.
    """
    return _Partition(nodes).nodes()


class _Partition:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._order = {node: number for number, node in enumerate(nodes)}
        self._anchors = {node: node for node in nodes if is_backward(node)}
        self._kept: set[Value] = set()
        self._repeated: set[Value] = set()
        # A value with many readers is asked for by as many.
        self._is_cheap, self._saved_bytes = cache(_is_cheap), cache(_saved_bytes)
        self._inserted: defaultdict[Node, list[Node]] = defaultdict(list)

    def nodes(self) -> list[Node]:
        read = (value for node in self._anchors for value, _ in node.reads)
        crossing = sorted(filter(_is_of_forward, set(read)), key=self._made_at, reverse=True)
        self._kept = {value for value in crossing if not self._is_cheap(value)}
        for value in crossing:
            self._settle(value)
        for value in sorted(self._repeated, key=self._made_at, reverse=True):
            self._repeat(value)
        return [each for node in self._nodes for each in (*self._inserted.get(node, ()), node)]

    def _made_at(self, value: Value) -> int:
        assert value.writer is not None
        return self._order[value.writer]

    def _settle(self, value: Value) -> None:
        """Decide whether the backward pass reads a value or computes it again."""
        if self._is_there(value):
            return
        saved_bytes = self._saved_bytes(value)
        if self._is_cheap(value) and self._repeated_bytes(value, saved_bytes) < saved_bytes:
            self._repeated.add(value)
            for needed in _needed(value):
                self._settle(needed)
        else:
            self._kept.add(value)

    def _is_there(self, value: Value) -> bool:
        return not _is_of_forward(value) or value in self._kept or value in self._repeated

    def _repeated_bytes(self, value: Value, most: float, depth: int = 0) -> float:
        """Return what must be saved to compute a value again; infinity where it is ``most``."""
        total = 0.0
        for needed in _needed(value):
            if self._is_there(needed):
                continue
            saved_bytes = self._saved_bytes(needed)
            if self._is_cheap(needed) and depth < _LONGEST_CHAIN:
                saved_bytes = min(saved_bytes, self._repeated_bytes(needed, saved_bytes, depth + 1))
            total += saved_bytes
            if total >= most:
                return math.inf
        return total

    def _repeat(self, value: Value) -> None:
        """Let the backward pass compute a value before the first of its readers there."""
        writer = value.writer
        assert writer is not None
        readers = [node for node in value.readers if node in self._anchors]
        anchor = min((self._anchors[node] for node in readers), key=self._order.__getitem__)
        node = Node(anchor.position, anchor.region, writer.part, reads=list(writer.reads))
        again = Value(value.storage, value.dtype, node, readers=readers)
        node.writes = [(again, size) for _, size in writer.writes]
        self._anchors[node] = anchor
        # What it needs is computed before it: the last was inserted first.
        self._inserted[anchor].insert(0, node)
        for needed, _ in node.reads:
            needed.readers.append(node)
        for reader in readers:
            reader.reads = [(again if v is value else v, size) for v, size in reader.reads]
        value.readers = [node for node in value.readers if node not in self._anchors]
        value.is_repeated = True


def _is_of_forward(value: Value) -> bool:
    node = value.writer
    return node is not None and node.region >= 0 and not is_backward(node)


def _needed(value: Value) -> list[Value]:
    assert value.writer is not None
    return [needed for needed, _ in value.writer.reads]


def _is_cheap(value: Value) -> bool:
    """Return whether AOTAutograd would compute a value again.

    That is a pointwise loop, without random numbers, which no library reads from memory.
    """
    node = value.writer
    assert node is not None
    part = node.part
    return (
        part is not None
        and not (part.is_library or part.rows or part.reads_memory or part.is_random)
        and len(node.writes) == 1
        and not any(is_backward(reader) and _is_call(reader) for reader in value.readers)
    )


def _is_call(node: Node) -> bool:
    return node.part is None or node.part.is_library


def _saved_bytes(value: Value) -> float:
    """Return what it moves to save a value for the backward pass."""
    node = value.writer
    assert node is not None
    size = sum(size for written, size in node.writes if written is value)
    is_written = value.is_live or any(
        reader.group is not node.group for reader in value.readers if not is_backward(reader)
    )
    return size if is_written else _WRITTEN_FOR_IT * size
