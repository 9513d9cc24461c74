"""The step as one CUDA graph: what changes for it, or what stands in its way."""

from __future__ import annotations

import msgspec

from breakeven.simulate.program import Edit
from breakeven.trace import Copy, Op, Phase, StepTrace, Sync

# Classes of torch.optim that take capturable=True (torch 2.13), and SGD, which counts nothing.
_CAPTURABLE = frozenset({
    "ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip


def captured_step(trace: StepTrace, fused: Edit | None = None) -> Edit | str:
    """Return what changes in a step that one CUDA graph replays, or why none can.

    The optimizer counts its steps on the device. What is read before a model is called or after the
    update stays outside of the graph, and so do copies to the device: where the host reads nothing,
    what it makes depends on no result, and may be copied before.

    Args:
        trace: The step.
        fused: Its update as one fused kernel, where that is possible.
    """
    if trace.facts.num_shapes > 1:
        return "its shapes differ from step to step"
    ops = {index: event for index, event in enumerate(trace.events) if isinstance(event, Op)}
    on_device = [index for index, op in ops.items() if not op.is_on_host]
    updates = [index for index in on_device if ops[index].phase is Phase.OPTIMIZER]
    calls = (call for call in trace.facts.model_calls if call.is_used_in_backward)
    first = next((call.first_event for call in calls), min(on_device, default=0))
    num_reads = sum(
        isinstance(event, Sync) or (isinstance(event, Copy) and not event.is_to_device)
        for event in trace.events[first : max(updates or on_device, default=0)]
    )
    if num_reads:
        return f"the host reads or waits for the GPU in the middle of it ({num_reads:,}× per step)"
    on_host = {i: op for i, op in ops.items() if op.is_on_host and op.phase is Phase.OPTIMIZER}
    if any(spec.numel > 1 for op in on_host.values() for spec in op.inputs):
        return "part of its update runs on the CPU"
    for optimizer in trace.facts.optimizers if on_host else ():
        if not optimizer.is_from_torch or optimizer.name not in _CAPTURABLE:
            return f"{optimizer.name} counts its steps on the CPU"
    moved = {i: (msgspec.structs.replace(op, device="cuda:0"),) for i, op in on_host.items()}
    return Edit(replaced=moved).then(fused or Edit())
