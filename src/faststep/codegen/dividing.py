"""Lowering of a traced step to a program, divided by samples if that is faster.

A separate function does forward and backward for one part of the batch. Threads call it for all
parts, each with its own memory, which stays in the caches of the thread's core. The sums over all
parts and the update follow once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

# Each module registers the operators that it lowers.
from faststep.codegen import (  # noqa: F401
    conv_ops,
    pointwise_ops,
    reduce_ops,
    view_ops,
)
from faststep.codegen.emit import choose_sample_parts
from faststep.codegen.lowering import Lowering
from faststep.codegen.program import Buffer, Part, Program
from faststep.codegen.samples import (
    IndivisibleError,
    Partial,
    Samples,
    Split,
    State,
    States,
    Whole,
    closure_of,
    filled_with,
    name_of,
)


def lower(
    graph: fx.GraphModule, lanes: int, late: Sequence[int], batch: Sequence[int] = ()
) -> Program:
    """Return a traced function of tensors as a program.

    Args:
        graph: A graph traced by ``make_fx``; its arguments and results are tensors, and it writes
            to arguments only by ``copy_``.
        lanes: Number of float32 elements in a vector.
        late: Numbers of the arguments that only the update reads: state of the optimizer, numbers
            of the update.
        batch: Numbers of the arguments with samples along their first dimension; they allow a
            division of the step by samples.

    Raises:
        UnsupportedError: An operator, type or layout is not supported; names it.
    """
    if batch:
        try:
            division = Division(graph.graph, set(batch))
        except IndivisibleError:
            pass
        else:
            program = _lower_divided(division, graph, lanes, late)
            if program is not None:
                return program
    return Lowering(graph.graph, graph, lanes, late).run()


def _lower_divided(
    division: Division, graph: fx.GraphModule, lanes: int, late: Sequence[int]
) -> Program | None:
    """Return a program divided by samples; None if a division does not pay."""
    if division.num_samples % 2:
        return None
    divided = division.divide(2)
    part = Lowering(divided.part, graph, lanes, late).run_part()
    parts = choose_sample_parts(part, division.num_samples, lanes)
    if not parts:
        return None
    if parts != 2:
        divided = division.divide(parts)
        part = Lowering(divided.part, graph, lanes, late).run_part()
    buffers = {
        view.buffer: [Buffer(view.dtype, view.buffer.size) for _ in range(parts)]
        for view in part.kept
    }
    sums = [[replace(view, buffer=one) for one in buffers[view.buffer]] for view in part.kept]
    program = Lowering(divided.rest, graph, lanes, late, sums).run()
    offsets = tuple(
        offset * argument.dtype.itemsize
        for offset, argument in zip(divided.offsets, part.arguments, strict=True)
    )
    program.part = Part(part, parts, divided.sources, offsets, buffers)
    return program


@dataclass(frozen=True, slots=True)
class Divided:
    """A graph divided in two.

    Args:
        part: The graph for each part of the samples. Its arguments are those of the whole graph,
            some of them shorter, then some of them again in full. The rest sums its results over
            all parts.
        rest: The graph after all parts. Its arguments are those of the whole graph, then the sums.
        sources: For each argument of ``part``, the number of the whole graph's argument.
        offsets: For each argument of ``part``, its elements before the second part.
    """

    part: fx.Graph
    rest: fx.Graph
    sources: tuple[int, ...]
    offsets: tuple[int, ...]


class Division:
    """The division of a graph by samples, for any number of parts.

    Args:
        graph: A traced step.
        batch: Numbers of the arguments that are tensors of the batch. Those as long as the first
            one have samples along their first dimension.

    Raises:
        IndivisibleError: The graph cannot be divided.
    """

    def __init__(self, graph: fx.Graph, batch: Set[int]) -> None:
        self._nodes = list(graph.nodes)
        self._arguments = [node for node in self._nodes if node.op == "placeholder"]
        given = [self._arguments[number] for number in sorted(batch)]
        lengths = {node: node.meta["val"].shape[0] for node in given if node.meta["val"].dim()}
        self.num_samples = next(iter(lengths.values()), 1)
        self._samples = Samples(self.num_samples)
        states = self._samples.states
        for node in self._nodes:
            if node.op == "placeholder":
                is_split = self.num_samples > 1 and lengths.get(node) == self.num_samples
                states[node] = Split(0) if is_split else Whole()
            elif node.op == "call_function":
                states[node] = self._samples.find(node)
            elif node.op == "get_attr":
                states[node] = Whole()
        # The sums that the rest of a step reads from its parts.
        sums: set[fx.Node] = set()
        self._rest: set[fx.Node] = set()
        todo = [n for n in self._nodes if n.op == "output" or name_of(n) == "copy_"]
        while todo:
            node = todo.pop()
            if node in self._rest or node in sums:
                continue
            state = states.get(node)
            if isinstance(state, Partial):
                sums.add(node)
                continue
            if state is not None and _has(state, Split | Partial):
                raise IndivisibleError(f"{node} is needed of all samples")
            self._rest.add(node)
            if filled_with(node) is None:
                todo += node.all_input_nodes
        self._sums = [node for node in self._nodes if node in sums]

    def divide(self, parts: int) -> Divided:
        """Divide the graph; the number of parts must divide the number of samples."""
        states = self._samples.states
        part, made = fx.Graph(), dict[fx.Node, fx.Node]()
        needed = set(self._sums)
        for node in reversed(self._nodes):
            if node in needed and filled_with(node) is None:
                needed.update(set(node.all_input_nodes) - self._early_of(node))
        for node in self._arguments:
            made[node] = self._copy(part, node, made, {}, parts)
        # Early sums read the whole batch.
        closure = {
            one for node in needed for early in self._early_of(node) for one in closure_of(early)
        }
        again = [node for node in self._arguments if node in closure]
        whole = {node: part.placeholder(f"whole_{n}") for n, node in enumerate(again)}
        for node, copied in whole.items():
            copied.meta = dict(node.meta)
        for node in self._nodes:
            if node in closure and node not in whole:
                whole[node] = _copied(part, node, whole.__getitem__)
        for node in self._nodes:
            if node in needed and node not in made:
                made[node] = self._copy(part, node, made, whole, parts)
        part.output(tuple(made[node] for node in self._sums))
        rest, kept = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self._arguments:
            kept[node] = rest.node_copy(node)
        for number, node in enumerate(self._sums):
            kept[node] = rest.placeholder(f"sum_{number}")
            kept[node].meta = dict(node.meta)
        for node in self._nodes:
            if node in self._rest and node not in kept:
                kept[node] = _copied(rest, node, kept.__getitem__)
        size = self.num_samples // parts
        offsets = (
            size * node.meta["val"].stride(0) if isinstance(states[node], Split) else 0
            for node in self._arguments
        )
        sources = (*range(len(self._arguments)), *map(self._arguments.index, again))
        return Divided(part, rest, sources, (*offsets, *(0 for _ in again)))

    def _early_of(self, node: fx.Node) -> set[fx.Node]:
        """Return the early sums among the inputs of a node with samples."""
        given = node.all_input_nodes
        if not any(_has(self._samples.states[one], Split) for one in given):
            return set()
        return {one for one in given if one in self._samples.early}

    def _copy(
        self,
        graph: fx.Graph,
        node: fx.Node,
        made: dict[fx.Node, fx.Node],
        whole: dict[fx.Node, fx.Node],
        parts: int,
    ) -> fx.Node:
        """Copy a node to the graph of a part.

        Args:
            graph: The graph of the part.
            node: The node of the whole graph.
            made: The copies so far.
            whole: The copies of nodes that read the whole batch.
            parts: Number of parts.
        """
        early = self._early_of(node)

        def given(one: fx.Node) -> fx.Node:
            if one in early:
                return whole[one]
            dim = self._samples.narrowed.get((node, one))
            if dim is None:
                return made[one]
            val = one.meta["val"]
            size = val.shape[dim] // parts
            short = graph.call_function(torch.ops.aten.slice.Tensor, (made[one], dim, 0, size))
            short.meta["val"] = _part_of(val, Split(dim), parts)
            return short

        if node in self._samples.means:
            first: Any = node.args[0]
            dims = list(node.args[1]) if len(node.args) > 1 else []  # pyright: ignore
            total = graph.call_function(torch.ops.aten.sum.dim_IntList, (made[first], dims))
            total.meta = {"val": node.meta["val"]}
            size = first.meta["val"].numel() // max(1, node.meta["val"].numel())
            copied = graph.call_function(torch.ops.aten.div.Tensor, (total, size))
            copied.meta = dict(node.meta)
            return copied
        copied = _copied(graph, node, given)
        state = self._samples.states[node]
        val: Any = copied.meta.get("val")
        if isinstance(state, tuple):
            pairs = zip(val, state, strict=True)
            copied.meta["val"] = [_part_of(one, s, parts) for one, s in pairs]
        elif isinstance(state, Split):
            copied.meta["val"] = _part_of(val, state, parts)
        return copied


def _has(state: States, kind: Any) -> bool:
    return any(isinstance(one, kind) for one in (state if isinstance(state, tuple) else (state,)))


def _copied(graph: fx.Graph, node: fx.Node, given: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Copy a node to another graph; replace a tensor filled with one number by ``full``."""
    value = filled_with(node)
    if value is None:
        return graph.node_copy(node, given)
    shape = list(node.meta["val"].shape)
    copied = graph.call_function(torch.ops.aten.full.default, (shape, value))
    copied.meta = dict(node.meta)
    return copied


def _part_of(tensor: Any, state: State, parts: int) -> Any:
    """Return a tensor without values, like one part of the given tensor."""
    if not isinstance(state, Split) or not isinstance(tensor, torch.Tensor):
        return tensor
    shape = [size // parts if dim == state.dim else size for dim, size in enumerate(tensor.shape)]
    return torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device="meta")
