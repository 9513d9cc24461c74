"""LAUNCH003: a frozen part of the model is computed again in every epoch.

What it does:
    Finds modules that take half of the forward pass's arithmetic or more, that no backward
    pass goes through and that no optimizer updates. Advice: it is never why a GPU does not
    pay.

Why it costs time:
    Without augmentation its results are the same in every epoch.

Evidence:
    Named as a remedy in public reports of slow fine-tuning, without figures.

Fix:
    Run it once over the data set, keep its results, and train the rest on those.

    ```python
    for images, labels in loader:
        with torch.no_grad():
            features = backbone(images)
        loss = criterion(head(features), labels)
    ```

    ```python
    features = torch.cat([backbone(images) for images, _ in loader])  # once, in no_grad
    ```

Known limits:
    Not where each epoch sees other samples: random augmentation, a replay buffer, a target
    network that is updated now and then. The gain shown leaves reading the kept results out.
"""

from __future__ import annotations

from breakeven.doctor.events import base_name, common_start, parameters_of
from breakeven.doctor.rule import Case, Found, Occurrence, without
from breakeven.trace import Location, Op, Phase, StepTrace
from breakeven.units import format_percent

CAUSE = "RECOMPUTE_FROZEN"

# Part of the forward pass's arithmetic that must be frozen for its results to be worth keeping.
_MIN_FLOP_FRACTION = 0.5

_PRODUCTS = ("mm", "addmm", "bmm", "convolution")


def detect(case: Case) -> Found:
    trace = case.trace
    trained = {op.module for op in trace.ops if op.phase is Phase.BACKWARD}
    if not trained:
        return
    owned = parameters_of(trace)
    flop: dict[str, float] = {}
    forward = {index: op for index, op in case.each(Op) if op.phase is Phase.FORWARD}
    for index, op in forward.items():
        if case.program.lowerings[index] is not None:
            own = sum(kernel.flop for kernel in case.kernels_of(index))
            flop[op.module] = flop.get(op.module, 0.0) + own
            if any(tensor.storage in owned for tensor in op.inputs):
                trained.add(op.module)
    frozen = {module for module in flop if module and module not in trained}
    total = sum(flop.values())
    part = sum(flop[module] for module in frozen) / total if total else 0.0
    if part < _MIN_FLOP_FRACTION:
        return
    events = [index for index, op in forward.items() if op.module in frozen]
    if not any(base_name(forward[index]) in _PRODUCTS for index in events):
        return
    yield Occurrence(
        title=f"{format_percent(part)} of the forward pass's arithmetic is in frozen modules",
        fix="run the frozen part once over the data set, and train the rest on its results",
        evidence=f"no backward pass goes through {len(frozen)} of {len(flop)} modules, and "
        "no optimizer updates them",
        location=_call(trace, events),
        events=tuple(events),
        edit=without(events),
    )


def _call(trace: StepTrace, events: list[int]) -> Location | None:
    """Return the innermost line that leads to all of these events."""
    stacks = (trace.stack_of(trace.events[index]) for index in events)
    common = common_start(stack for stack in stacks if stack)
    return common[-1] if common else trace.events[events[0]].location
