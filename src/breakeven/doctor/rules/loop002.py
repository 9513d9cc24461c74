"""LOOP002: a Python loop runs a recurrence over time steps.

What it does:
    Finds loops of the script that repeat the same operators at least four times a step, each
    iteration with the state of the one before and its own part of a sequence: ``LSTMCell``
    and ``GRUCell`` in a loop, hand-written cells, filters.

Why it costs time:
    Some ten to thirty small kernels per time step, forward and backward, where cuDNN runs a
    whole layer of all time steps by a few launches.

Evidence:
    6 to 10 times faster with fused layers in public reports; a hand-written RNN ran at 650
    iterations per second on a CPU and at 340 on a GPU.

Fix:
    ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` over the whole sequence. Where the cell is one of your
    own, take what does not need the state out of the loop, the products with the input above
    all, and compile the rest.

    ```python
    h = x.new_zeros(x.size(0), hidden)
    for t in range(x.size(1)):
        h = self.cell(x[:, t], h)  # nn.GRUCell
    ```

    ```python
    _, h = self.gru(x)  # nn.GRU(features, hidden, batch_first=True)
    ```

Known limits:
    The gain shown is that of cuDNN's layer with the same state, input and gates, which a cell
    of another kind does not reach; without a product of matrices in the loop it is that of
    one pass over operators of as many times the size, as a scan would be. Decoders that feed
    their output back cannot use a fused layer while they do.
"""

from __future__ import annotations

from breakeven.doctor.repeated_loops import (
    batched,
    fused,
    is_over_time,
    occurrence_of,
    worthwhile,
)
from breakeven.doctor.rule import Case, Found

CAUSE = "TIME_LOOP"


def detect(case: Case) -> Found:
    trace = case.trace
    for loop, flow in case.once(worthwhile):
        if is_over_time(trace, loop, flow):
            yield occurrence_of(
                trace,
                loop,
                what=f"a recurrence of {loop.num_iterations} time steps",
                fix="nn.LSTM, nn.GRU or nn.RNN over the whole sequence; for a cell of your own "
                "take the products with the input out of the loop and compile the rest",
                evidence="each with the state of the one before",
                edit=fused(trace, loop, flow) or batched(trace, loop),
            )
