"""A function of tensors as a graph that the generator can lower."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from faststep.codegen.in_place import replace_writes
from faststep.codegen.operators import covered_operators
from faststep.codegen.program import UnsupportedError
from faststep.codegen.upsampling import upsampling_gradients


def trace(
    function: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]
) -> fx.GraphModule:
    """Return everything that a function does with tensors, its own backward pass included.

    Its arguments are changed by ``copy_`` at its end alone; random numbers are drawn before it, and
    are arguments after its own.

    Args:
        function: Takes the tensors, may write to them, and returns a tuple of tensors.
        examples: What it is called with; neither read nor written.
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


# Constants; what is decomposed into a write that cannot be made a value; complex numbers, which are
# refused under their own names.
_WHOLE = {"lift_fresh", "diagonal_scatter", "polar", "complex"}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what operators are traced as that no code is generated for.

    They are torch's own tables, and upsampling's gradients. Inductor's, which is made of them,
    takes a second to import.
    """
    from torch._decomp import decomposition_table
    from torch._decomp.decompositions_for_rng import extra_random_decomps

    covered = covered_operators()
    kept = covered | _WHOLE | {name.split(".")[0] for name in _DRAWS}
    table: dict[Any, Callable[..., Any]] = {}
    for op, function in {**decomposition_table, **extra_random_decomps}.items():
        # As of `aten::add_.Tensor`.
        name = op.name().split("::")[-1].split(".")[0]
        if name.endswith("_") and name[:-1] in covered:
            table[op] = _in_place(getattr(torch.ops.aten, name[:-1]))
        elif name not in kept:
            table[op] = function
    return table | upsampling_gradients()


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what writes an operator's result to its first operand."""
    return lambda first, *args, **kwargs: first.copy_(function(first, *args, **kwargs))


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Let an LSTM be the operators that it consists of.

    Compiled by Inductor, the one operator of oneDNN fails when it is called. Convolutions are the
    same operator either way, and compiled to oneDNN's.
    """
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled


# Operators that draw random numbers, for tensors of which the shapes alone matter.
_DRAWS = {
    "bernoulli.p",
    "normal_functional.default",
    "prims.normal.default",
    "rand.default",
    "rand_like.default",
    "randn.default",
    "randn_like.default",
    "uniform.default",
}


def hoist_draws(graph: fx.GraphModule) -> list[Callable[[], Tensor]]:
    """Make the random numbers of a graph arguments after its own; return what draws them, in order.

    They are torch's own operators, so that a step draws what the eager step would have drawn.

    Raises:
        UnsupportedError: The graph draws in a way that depends on its data.
    """
    draws: list[Callable[[], Tensor]] = []
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not _is_random(node):
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


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _draw(node: fx.Node) -> Callable[[], Tensor]:
    target: Any = node.target
    kwargs = dict(node.kwargs)

    def example(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        given = arg.meta["val"]
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype)

    args = [example(arg) for arg in node.args]
    return lambda: target(*args, **kwargs)
