"""What a traced step consists of."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor, nn

from faststep.inductor import trace_tensors

# In a process of its own: what another test has imported must not help.
_POOLING = """
import torch
from faststep.inductor import trace_tensors

def step(x):
    return (torch.nn.functional.max_pool2d(x, 2),)

print(len(trace_tensors(step, [torch.randn(1, 1, 4, 4)]).graph.nodes) > 2)
"""


def test_pooling_is_traced_before_anything_is_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _POOLING], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


def test_lstm_is_traced_as_operators_that_can_be_compiled() -> None:
    lstm = nn.LSTM(3, 4, batch_first=True)
    parameters = list(lstm.parameters())

    def step(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        names = (name for name, _ in lstm.named_parameters())
        by_name = dict(zip(names, weights, strict=True))
        output, _ = torch.func.functional_call(lstm, by_name, (x,))
        return torch.autograd.grad(output.sum(), weights)

    x = torch.randn(2, 5, 3)
    graph = trace_tensors(step, [x, *parameters])
    names = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert any("mm" in name for name in names)
    assert not any("rnn" in name for name in names)
    assert torch.backends.mkldnn.enabled
    with torch.no_grad():
        found = graph(x, *parameters)
    for traced, stock in zip(found, step(x, *parameters), strict=True):
        torch.testing.assert_close(traced, stock)
