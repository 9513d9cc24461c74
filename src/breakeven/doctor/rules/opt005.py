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

from breakeven.doctor.copies import on_device
from breakeven.doctor.rule import Case, Found, Occurrence, changed
from breakeven.trace import Copy, Op, Phase

CAUSE = "PART_ON_CPU"

# Part of the parameters that the host must update for its optimizer to be a finding.
_MIN_HOST_PARAMETERS = 0.1


def detect(case: Case) -> Found:
    on_host = {index: op for index, op in case.each(Op) if op.is_on_host}
    updates = {
        index: op
        for index, op in on_host.items()
        if op.phase is Phase.OPTIMIZER and op.inputs and op.inputs[0].numel > 1
    }
    # A layer that runs on the host is updated there too: then the layer is the cause.
    used = {
        tensor.storage
        for op in on_host.values()
        if op.phase is Phase.FORWARD
        for tensor in op.inputs
    }
    updated = {
        tensor.storage: tensor.numel
        for op in updates.values()
        for tensor in op.inputs
        if tensor.storage not in used
    }
    is_on_device = any(op.phase is Phase.BACKWARD for _, op in case.each_on_device())
    least = _MIN_HOST_PARAMETERS * max(1, case.trace.num_parameters)
    if not is_on_device or sum(updated.values()) < least:
        return
    # Neither gradients nor parameters are copied then.
    touched = {tensor.storage for op in updates.values() for tensor in (*op.inputs, *op.outputs)}
    copies = (
        index
        for index, copy in case.each(Copy)
        if copy.phase is Phase.OPTIMIZER or copy.storage in touched
    )
    yield Occurrence(
        title="the CPU updates the parameters of a model that is on the GPU",
        fix="make the optimizer from the parameters on the GPU, and keep its state there",
        evidence=f"{len(updates)} operators of the update work on tensors of the host",
        location=Counter(op.location for op in updates.values()).most_common(1)[0][0],
        events=tuple(updates),
        edit=changed({index: on_device(op) for index, op in updates.items()}, gone=copies),
    )
