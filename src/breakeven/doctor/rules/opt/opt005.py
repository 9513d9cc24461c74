"""OPT005: the optimizer works on the CPU although the model is on the GPU.

What it does:
    Finds operators of the optimizer phase that the host computes on tensors of the size of
    parameters.

Why it costs time:
    Gradients travel to the host and parameters back in each step, and the CPU updates them
    many times more slowly.

Evidence:
    In a public report the GPU's utilisation rose from between 10 and 80 % to over 70 % once
    the model was moved before the optimizer was made.

Fix:
    Make the optimizer after the model was moved, and keep its state there.

    ```python
    master = [p.detach().cpu().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(master)
    ```

    ```python
    optimizer = torch.optim.Adam(model.parameters())
    ```

Known limits:
    Offloading may be meant, where the state does not fit the device. The gain shown is that of
    the same operators on the device, without the copies.
"""

from __future__ import annotations

from collections import Counter

from breakeven.doctor.copy_edits import on_device
from breakeven.doctor.events import op_at
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Op, Phase

CAUSE = "PART_ON_CPU"

# Part of the parameters that the host must update for its optimizer to be a finding.
_MIN_HOST_PARAMETERS = 0.1


def detect(case: Case) -> Found:
    events: list[int] = []
    updated: dict[int, int] = {}
    for index, event in enumerate(case.trace.events):
        if event.phase is not Phase.OPTIMIZER or not isinstance(event, Op):
            continue
        if event.is_on_host and event.inputs and event.inputs[0].numel > 1:
            events.append(index)
            updated |= {tensor.storage: tensor.numel for tensor in event.inputs}
    is_on_device = any(op.phase is Phase.BACKWARD and not op.is_on_host for op in case.trace.ops)
    num_parameters = max(1, case.trace.num_parameters)
    # A layer that runs on the host is updated there too: then the layer is the cause.
    used = {
        tensor.storage
        for op in case.trace.ops
        if op.is_on_host and op.phase is Phase.FORWARD
        for tensor in op.inputs
    }
    updated = {storage: size for storage, size in updated.items() if storage not in used}
    if not is_on_device or sum(updated.values()) < _MIN_HOST_PARAMETERS * num_parameters:
        return
    lines = Counter(case.trace.events[index].location for index in events)
    yield Occurrence(
        title="the CPU updates the parameters of a model that is on the GPU",
        fix="make the optimizer from the parameters on the GPU, and keep its state there",
        evidence=f"{len(events)} operators of the update work on tensors of the host",
        location=lines.most_common(1)[0][0],
        events=tuple(events),
        edit=_on_device(case, events),
    )


def _on_device(case: Case, events: list[int]) -> Edit:
    """Return the step that updates on the device and copies neither gradients nor parameters."""
    replaced: dict[int, tuple[Event, ...]] = {}
    touched: set[int] = set()
    for index in events:
        op = op_at(case.trace, index)
        touched.update(tensor.storage for tensor in (*op.inputs, *op.outputs))
        replaced[index] = (on_device(op),)
    for index, event in enumerate(case.trace.events):
        is_update = event.phase is Phase.OPTIMIZER or getattr(event, "storage", -1) in touched
        if isinstance(event, Copy) and is_update:
            replaced[index] = ()
    return Edit(replaced=replaced)
