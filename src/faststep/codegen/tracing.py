"""Tracing of a function of tensors to a graph that the generator can lower.

In-place writes to intermediate tensors become new values, and later operators read those.
Recurrent layers write their gates in place, each to its part of one tensor.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from faststep.codegen.operators import covered_operators
from faststep.codegen.program import UnsupportedError


def trace(
    function: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]
) -> fx.GraphModule:
    """Return a graph of all operators of a function, including its own backward pass.

    The graph changes its arguments only by ``copy_`` at the end. It still draws random numbers;
    ``hoist_draws`` makes them arguments.

    Args:
        function: Takes the tensors, may write to them, and returns a tuple of tensors.
        examples: Tensors like those of later calls; neither read nor written.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    table = decompositions()
    with without_onednn(), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        graph = make_fx(function, decomposition_table=table, tracing_mode="fake")(*examples)
    if not replace_writes(graph.graph):
        pure = torch.func.functionalize(graph, remove="mutations")
        graph = make_fx(pure, tracing_mode="fake")(*examples)
    graph.graph.eliminate_dead_code()
    return graph


# Operators to leave whole: constants; an operator whose decomposition contains a write that cannot
# become a value; complex numbers, so that messages name these operators.
_WHOLE = {"lift_fresh", "diagonal_scatter", "polar", "complex"}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of the operators without generated code.

    The table consists of torch's own tables. Inductor's contains them too, but takes a second to
    import.
    """
    from torch._decomp import decomposition_table
    from torch._decomp.decompositions_for_rng import extra_random_decomps

    covered = covered_operators()
    kept = covered | _WHOLE | {name.split(".")[0] for name in _DRAWS}
    table: dict[Any, Callable[..., Any]] = {}
    for op, function in {**decomposition_table, **extra_random_decomps}.items():
        # For example, `add_` of `aten::add_.Tensor`.
        name = op.name().split("::")[-1].split(".")[0]
        if name.endswith("_") and name[:-1] in covered:
            # Write the operator's result to its first operand.
            pure = getattr(torch.ops.aten, name[:-1])
            table[op] = lambda first, *args, pure=pure, **kw: first.copy_(pure(first, *args, **kw))
        elif name not in kept:
            table[op] = function
    return table


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Disable oneDNN inside the context, so that an LSTM is traced as its single operators.

    Inductor compiles oneDNN's LSTM operator, but the call then fails. Convolutions do not change:
    Inductor compiles them to oneDNN's either way.
    """
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled


# Operators that draw random numbers and depend only on the shapes of their operands.
_DRAWS = {
    *("bernoulli.p", "normal_functional.default", "prims.normal.default", "rand.default"),
    *("rand_like.default", "randn.default", "randn_like.default", "uniform.default"),
}


def hoist_draws(graph: fx.GraphModule) -> list[Callable[[], Tensor]]:
    """Append the random draws of a graph to its arguments; return the draw functions in order.

    The functions call torch's own operators, so that a step draws the same numbers as eager code.

    Raises:
        UnsupportedError: A draw depends on data, or uses a separate generator.
    """
    draws: list[Callable[[], Tensor]] = []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        name = str(node.target).removeprefix("aten.")
        if name not in _DRAWS:
            raise UnsupportedError(f"{node.target} draws random numbers that depend on data")
        if node.kwargs.get("generator") is not None:
            raise UnsupportedError(f"{node.target} draws from a generator of its own")
        with graph.graph.inserting_after(last):
            drawn = graph.graph.placeholder(f"drawn_{len(draws)}")
        drawn.meta["val"] = node.meta["val"]
        draws.append(_draw(node))
        node.replace_all_uses_with(drawn)
        graph.graph.erase_node(node)
        last = drawn
    graph.graph.eliminate_dead_code()
    return draws


def _draw(node: fx.Node) -> Callable[[], Tensor]:
    target: Any = node.target
    args, kwargs = list[Any](node.args), dict(node.kwargs)
    for number, arg in enumerate(args):
        if isinstance(arg, fx.Node):
            given = arg.meta["val"]
            args[number] = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)
    return lambda: target(*args, **kwargs)


_COPY_TO, _COPY = torch.ops.aten.copy_.default, torch.ops.aten.copy.default


def replace_writes(graph: fx.Graph) -> bool:
    """Replace in-place writes by new values; return whether this worked for all.

    A write cannot be replaced if another view of its memory is read later, or if the operator is
    not ``copy_``. The graph computes the same in either case. Keep a copy to an argument that no
    later operator reads: it ends an update.

    Args:
        graph: Traced operators, each with its result without values.
    """
    places = {node: number for number, node in enumerate(graph.nodes)}

    def is_read_after(node: fx.Node, write: fx.Node) -> bool:
        return any(places[user] > places[write] for user in node.users)

    for write in list(graph.nodes):
        schema = getattr(write.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        target = write.args[0]
        if write.target is not _COPY_TO or not isinstance(target, fx.Node):
            return False
        # Later operators on the written tensor read the value.
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
    """Return the value of a tensor after a copy to it."""
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
    # Copy the source: it may change later.
    with graph.inserting_before(write):
        value = graph.call_function(_COPY, (target, given))
    value.meta = dict(target.meta)
    return value


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return the tensor whose memory a result shares; None if it has its own memory."""
    given = node.args[0] if node.args else None
    if not isinstance(given, fx.Node):
        return None
    if node.target is operator.getitem:  # of a split tensor
        return None if _viewed(given) is None else given
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(one.alias_info is not None for one in schema.arguments)
    return given if is_view else None


def _names(node: fx.Node) -> list[fx.Node]:
    """Return a node and the chain of tensors that it views, up to the owner of the memory."""
    names = [node]
    while (viewed := _viewed(names[-1])) is not None:
        names.append(viewed)
    return names


def _overlapping(target: fx.Node, renewed: set[fx.Node]) -> Iterator[fx.Node]:
    """Yield the other views that share memory with a tensor, except renewed ones."""
    parts = {one.args[0]: one for one in _names(target) if one.target is operator.getitem}
    todo = [_names(target)[-1]]
    while todo:
        one = todo.pop()
        part = parts.get(one.args[0]) if one.target is operator.getitem else None
        if part is not None and part.args[1] != one.args[1]:
            continue  # a different part of the split tensor
        if one is not target:
            yield one
        todo += [user for user in one.users if _viewed(user) is one and user not in renewed]
