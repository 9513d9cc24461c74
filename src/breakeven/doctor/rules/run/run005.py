"""RUN005: a sum or a list keeps the graph of every step alive.

What it does:
    Finds ``total += loss`` and ``losses.append(loss)`` in a training loop, or in the function
    that runs a step, where ``loss`` is the tensor on which ``backward()`` was called and
    nothing takes its history away.

Why it costs time:
    The sum refers to the graph of each step so far. Memory grows with every step, and so does
    the chain of nodes that is walked when it is freed at last.

Evidence:
    Slow growth until the memory is full, in public reports.

Fix:
    Add up what has no history.

    ```python
    total += loss
    ```

    ```python
    total += loss.detach()
    ```

Known limits:
    Read from the source: a tensor that reaches the sum under another name is not seen. No gain
    is shown, for a single step shows none.
"""

from __future__ import annotations

from itertools import pairwise

from breakeven.doctor.rule import Case, Occurrence
from breakeven.doctor.run_graph import kept_graphs
from breakeven.units import format_bytes

CAUSE = "GRAPH_RETAINED"


def detect(case: Case) -> tuple[Occurrence, ...]:
    return tuple(
        Occurrence(
            title=f"{target} keeps the graph of {value} alive in every step",
            fix=f"add {value}.detach() instead",
            evidence=f"{value} has a history here, and {target} outlives the step" + _growth(case),
            location=source.location(statement),
        )
        for source in case.sources
        for statement, target, value in kept_graphs(source)
    )


def _growth(case: Case) -> str:
    live = case.facts.live_bytes
    if len(live) < 3 or any(after <= before for before, after in pairwise(live)):
        return ""
    return f"; live memory grew by {format_bytes(live[-1] - live[0])} in {len(live)} steps"
