"""The step as one CUDA graph: what changes for it, and what stands in its way."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from breakeven.simulate.program import Edit
from breakeven.trace import Copy, Op, Phase, StepTrace, Sync

# Source: torch 2.13, classes of torch.optim that take capturable=True.
_CAPTURABLE = frozenset(
    {"ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"}
)


def why_not_captured(trace: StepTrace) -> str:
    """Return what keeps a step from being one CUDA graph; empty if nothing is known to.

    What is read before the model is called or after the update stays outside of the graph, as does
    the batch's way to the device.
    """
    if trace.facts.num_shapes > 1:
        return "its shapes differ from step to step"
    num_reads = sum(map(_is_read, trace.events[_captured_part(trace)]))
    if num_reads:
        return f"the host reads from the GPU in the middle of it ({num_reads:,}× per step)"
    counted = [op for _, op in _updates_on_host(trace)]
    if any(spec.numel > 1 for op in counted for spec in op.inputs):
        return "part of its update runs on the CPU"
    for optimizer in trace.facts.optimizers if counted else ():
        if not optimizer.is_from_torch or optimizer.name not in _CAPTURABLE:
            return f"{optimizer.name} counts its steps on the CPU"
    return ""


def capturable(trace: StepTrace, fused: Edit | None = None) -> Edit:
    """Return what changes in a step that is captured: its optimizer counts steps on the device.

    Args:
        trace: The step.
        fused: Its update as one fused kernel, where that is possible.
    """
    moved = {
        index: (msgspec.structs.replace(op, device="cuda:0"),)
        for index, op in _updates_on_host(trace)
    }
    return Edit(replaced=moved).then(fused or Edit())


def _updates_on_host(trace: StepTrace) -> Iterator[tuple[int, Op]]:
    for index, event in enumerate(trace.events):
        if isinstance(event, Op) and event.is_on_host and event.phase is Phase.OPTIMIZER:
            yield index, event


def _captured_part(trace: StepTrace) -> slice:
    """Return the events from the first call of a model that is trained to the end of the update."""
    on_device = [
        index
        for index, event in enumerate(trace.events)
        if isinstance(event, Op) and not event.is_on_host
    ]
    updates = [index for index in on_device if trace.events[index].phase is Phase.OPTIMIZER]
    calls = (call for call in trace.facts.model_calls if call.is_used_in_backward)
    first = next((call.first_event for call in calls), min(on_device, default=0))
    return slice(first, max(updates or on_device, default=0))


def _is_read(event: object) -> bool:
    return isinstance(event, Sync) or (isinstance(event, Copy) and not event.is_to_device)
