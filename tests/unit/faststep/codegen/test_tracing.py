"""Writes within a traced step become values: the graph computes the same, or is left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from generated_call import GeneratedCall
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from faststep import fast_step
from faststep.codegen import tracing
from faststep.codegen.tracing import replace_writes


def gates(x: Tensor) -> Tensor:
    first, second, third = (x * 1.0).split(2, dim=1)
    first.sigmoid_()
    second.tanh_()
    return first * second + third


def written_twice(x: Tensor) -> Tensor:
    first = x * 2
    first.add_(1)
    kept = first * 3
    first.mul_(x)
    return first + kept


def copied_and_changed(x: Tensor) -> Tensor:
    """The copy stays what it was, whatever becomes of what was copied."""
    source, copied = x * 2, torch.zeros_like(x)
    copied.copy_(source)
    source.add_(1)
    return source * copied


def changed_copy(x: Tensor) -> Tensor:
    """What was copied stays, whatever becomes of the copy."""
    source, copied = x * 2, torch.zeros_like(x)
    copied.copy_(source)
    copied.add_(1)
    return source * copied


def broadcast(x: Tensor) -> Tensor:
    filled = torch.zeros_like(x)
    filled.copy_(x[0])
    return filled * x


def converted(x: Tensor) -> Tensor:
    counts = torch.zeros(x.shape, dtype=torch.int64)
    counts.copy_(x * 3)
    return counts * x


def looked_at_afterwards(x: Tensor) -> Tensor:
    first = x * 2
    first.add_(1)
    return first[:, 1:] * first[:, :-1]


def read_by_the_whole(x: Tensor) -> Tensor:
    whole = x * 2
    whole[:, 0].add_(1)
    return whole * x


def read_by_an_earlier_look(x: Tensor) -> Tensor:
    whole = x * 2
    row = whole[0]
    whole.add_(1)
    return row * x


def read_by_an_overlapping_part(x: Tensor) -> Tensor:
    whole = x * 2
    first, second = whole[:, :4], whole[:, 2:]
    first.add_(1)
    return second * x[:, 2:]


CHANGED = [gates, written_twice, copied_and_changed, changed_copy, broadcast, converted]
LEFT = [read_by_the_whole, read_by_an_earlier_look, read_by_an_overlapping_part]


def trace(function: Callable[[Tensor], Tensor], x: Tensor) -> torch.fx.GraphModule:
    table = tracing.decompositions()
    return make_fx(function, decomposition_table=table, tracing_mode="fake")(x)


@pytest.mark.parametrize("function", [*CHANGED, looked_at_afterwards, *LEFT])
def test_a_graph_computes_the_same_afterwards(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    graph = trace(function, x)
    is_replaced = replace_writes(graph.graph)
    graph.graph.lint()
    graph.recompile()
    torch.testing.assert_close(graph(x.clone()), function(x.clone()))
    assert is_replaced is (function not in LEFT)
    (found,) = GeneratedCall(lambda given: [function(given)], [x])(x.clone())
    torch.testing.assert_close(found, function(x.clone()))
    writes = [node for node in graph.graph.nodes if "copy_." in str(node.target)]
    assert bool(writes) is (function in LEFT)


def test_an_argument_is_written_at_the_end_alone() -> None:
    def at_the_end(x: Tensor) -> Tensor:
        x.copy_(x * 2)
        return torch.ones(1)

    def read_again(x: Tensor) -> Tensor:
        x.copy_(x * 2)
        return x + 1

    x = torch.ones(3, 6)
    assert replace_writes(trace(at_the_end, x).graph)
    assert not replace_writes(trace(read_again, x).graph)


def test_the_gates_of_a_recurrent_layer_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it is traced once more")

    model = nn.LSTM(2, 3, batch_first=True)
    step = fast_step(
        model,
        lambda output, targets: (output[0] - targets).square().mean(),
        torch.optim.Adam(model.parameters()),
        engine="generated",
    )
    monkeypatch.setattr(torch.func, "functionalize", refuse)
    for _ in range(2):
        step(torch.randn(4, 5, 2), torch.randn(4, 5, 3))
    assert step.engine == "generated C"
