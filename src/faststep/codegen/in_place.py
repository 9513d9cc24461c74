"""Writes to what lies between operators, made values: what reads it later reads the new value.

Recurrent layers write their gates in place, each to its part of one tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

_COPY_TO, _COPY = torch.ops.aten.copy_.default, torch.ops.aten.copy.default


def replace_writes(graph: fx.Graph) -> bool:
    """Replace what is written to tensors by values; return whether that could be done.

    It cannot where memory is read by another name after the write, or is written to by more than
    ``copy_``. The graph computes the same either way. A copy to an argument that nobody reads
    afterwards stays: so an update ends.

    Args:
        graph: Traced operators, each with its result without values.
    """
    places = {node: number for number, node in enumerate(graph.nodes)}

    def is_read_after(node: fx.Node, write: fx.Node) -> bool:
        return any(places[user] > places[write] for user in node.users)

    for write in list(graph.nodes):
        if not _is_mutable(write):
            continue
        target = write.args[0]
        if write.target is not _COPY_TO or not isinstance(target, fx.Node):
            return False
        # What is made of the written tensor from here on gets the value.
        renewed = {write, *(user for user in target.users if places[user] > places[write])}
        if any(is_read_after(one, write) for one in _overlapping(target, renewed)):
            return False
        if _names(target)[-1].op != "placeholder":
            value = _value(graph, write, target)
            places[value] = places.get(value, places[write])
            for user in list(target.users):
                if places[user] > places[write]:
                    user.replace_input_with(target, value)
            write.replace_all_uses_with(value)
            graph.erase_node(write)
        elif target.op != "placeholder" or is_read_after(target, write) or write.users:
            return False
    return True


def _value(graph: fx.Graph, write: fx.Node, target: fx.Node) -> fx.Node:
    """Return what a tensor is after a copy to it."""
    given, old = write.args[1], target.meta["val"]
    if (
        isinstance(given, fx.Node)
        and given.op == "call_function"
        and list(given.users) == [write]
        and _viewed(given) is None
        and given.meta["val"].shape == old.shape
        and given.meta["val"].dtype == old.dtype
    ):
        return given
    # What was copied may change later, and this does not.
    with graph.inserting_before(write):
        value = graph.call_function(_COPY, (target, given))
    value.meta = dict(target.meta)
    return value


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return what a result shares its memory with; None where it has its own."""
    given = node.args[0] if node.args else None
    if not isinstance(given, fx.Node):
        return None
    if node.target is operator.getitem:  # of a split tensor
        return None if _viewed(given) is None else given
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(one.alias_info is not None for one in schema.arguments)
    return given if is_view else None


def _names(node: fx.Node) -> list[fx.Node]:
    """Return it and what it is a look at, up to what has the memory."""
    names = [node]
    while (viewed := _viewed(names[-1])) is not None:
        names.append(viewed)
    return names


def _overlapping(target: fx.Node, renewed: set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the other names of the memory of a tensor, or of parts of it, but renewed ones."""
    parts = {one.args[0]: one for one in _names(target) if one.target is operator.getitem}
    todo = [_names(target)[-1]]
    while todo:
        one = todo.pop()
        part = parts.get(one.args[0]) if one.target is operator.getitem else None
        if part is not None and part.args[1] != one.args[1]:
            continue  # beside it
        if one is not target:
            yield one
        todo += [user for user in one.users if _viewed(user) is one and user not in renewed]
