"""DEV003: a part of the model, the loss or an average of the weights runs on the host.

What it does:
    Finds operators of layers and losses that the host computes while others run on the device:
    those that gradients flow through, those of layers that take a twentieth of the step or
    more, and weights that are read back to be averaged on the host. The line is that which
    makes the part, where the source shows one.

Why it costs time:
    The host computes them many times slower than the device, and activations and gradients
    travel back and forth, with a wait each time.

Evidence:
    2 to 10 times faster trainings in public reports, after a backbone, a loss or a moving
    average had been moved to the GPU.

Fix:
    Move the module, and compute the loss where the outputs are.

    ```python
    loss = criterion(model(x).cpu(), y)
    ```

    ```python
    loss = criterion(model(x), y.to(device))
    ```

Known limits:
    What does not fit the device may have to stay on the host. The gain shown assumes that the
    same operators run on the device and that nothing travels.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from breakeven.doctor.copies import on_device
from breakeven.doctor.crossings import Made, Upload, is_layer, made_on_host, uploads
from breakeven.doctor.device_source import made_at
from breakeven.doctor.events import line_of, parameters_of
from breakeven.doctor.rule import Case, Found, Occurrence, by_line, changed
from breakeven.doctor.waits import NEAR, Wait, is_average, waits_of
from breakeven.simulate import Edit
from breakeven.trace import Event, Location, Op, Phase
from breakeven.units import format_duration

CAUSE = "PART_ON_CPU"

# A host part without gradients matters from this share of the step on.
_MIN_SHARE_FRACTION = 0.05
# Smaller tensors are counters and weights of losses, which may stay anywhere.
_MIN_ELEMENTS = 16


def detect(case: Case) -> Found:
    if case.trace.uses_device:
        yield from _host_part(case)
    yield from _averages(case)


def _host_part(case: Case) -> Found:
    faults = {line_of(fault.location) for fault in case.trace.faults if fault.location}
    made = made_on_host(case.trace)
    on_host = {index: op for index, op in case.each(Op) if op.is_on_host}
    # The hooks of the script run in the backward pass as well, and compute for operators of the
    # device what no gradient flows through.
    with_forward = {line_of(op) for op in on_host.values() if op.phase is Phase.FORWARD}
    part = {
        index: op
        for index, op in on_host.items()
        if _is_part(op, made) and line_of(op) in with_forward - faults
    }
    part_ns = sum(op.host_ns for op in part.values())
    has_gradients = any(op.phase is Phase.BACKWARD for op in part.values())
    is_large = part_ns >= _MIN_SHARE_FRACTION * case.step_ns
    if not part or not (has_gradients or is_large):
        return
    lines = Counter[tuple[str, int] | None]()
    for op in part.values():
        lines[line_of(op)] += op.host_ns + 1
    dearest = lines.most_common(1)[0][0]
    copies = (i for i, kind in uploads(case).items() if kind is Upload.OF_HOST_PART)
    gone = (*waits_of(case, Wait.HOST_PART), *copies)
    yield Occurrence(
        title=f"the host computes a part of the step for {format_duration(part_ns, 2)}, "
        "between operators of the GPU",
        fix="move the module or the loss to the GPU, with its inputs",
        evidence=f"{len(part)} operators on the host"
        + (", gradients flow through them" if has_gradients else ""),
        location=_line_of_part(case, [op for op in part.values() if line_of(op) == dearest]),
        events=tuple(sorted({*part, *gone})),
        edit=changed({index: on_device(op) for index, op in part.items()}, gone),
    )


def _line_of_part(case: Case, ops: list[Op]) -> Location | None:
    """Return the line that makes the module of these operators, else that of the first of them."""
    module = next((op.module for op in ops if op.module), "")
    elsewhere = {f"{op.module}." for op in case.trace.ops if not op.is_on_host}
    parts = module.split(".") if module else []
    # The outermost that has nothing on the device.
    wholes = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
    whole = next(
        (one for one in wholes if not any(path.startswith(f"{one}.") for path in elsewhere)), ""
    )
    parameters = parameters_of(case.trace)
    # A loss has none: it computes where its inputs are.
    has_parameters = whole and any(
        tensor.storage in parameters
        for op in case.trace.ops
        if f"{op.module}.".startswith(f"{whole}.")
        for tensor in op.inputs
    )
    made = made_at(case.sources, whole) if has_parameters else None
    return made or ops[0].location


def _is_part(op: Op, made: dict[int, Made]) -> bool:
    if not op.is_on_host or not any(t.numel >= _MIN_ELEMENTS for t in (*op.inputs, *op.outputs)):
        return False
    if all(tensor.storage in made for tensor in op.inputs):
        return False
    return op.phase is Phase.BACKWARD or is_layer(op)


def _averages(case: Case) -> Found:
    """Yield lines that read weights to the host and change tensors there with them."""
    events = case.trace.events
    for location, reads in by_line(case.trace, waits_of(case, Wait.AVERAGE)):
        updates = [
            index
            for read in reads
            for index in range(read + 1, min(read + 1 + NEAR, len(events)))
            if is_average(events[index]) or _is_beside(events[index], events[read])
        ]
        gone = {*reads, *updates}
        averages = [events[index] for index in updates if is_average(events[index])]
        yield Occurrence(
            title=f"{len(reads)} weights are copied to the host in every step and averaged there",
            fix="keep the average on the GPU: torch.optim.swa_utils.AveragedModel with "
            "get_ema_multi_avg_fn",
            evidence=f"{len(reads)} reads of parameters, each followed by an update on the host",
            location=location,
            events=tuple(sorted(gone)),
            edit=Edit(replaced={**dict.fromkeys(gone, ()), reads[0]: _averaged_at_once(averages)}),
        )


def _averaged_at_once(updates: list[Event]) -> tuple[Event, ...]:
    """Return the one operator of the device that updates all averages."""
    ops = [on_device(update) for update in updates]
    if not ops:
        return ()
    averages = tuple(max(op.inputs, key=lambda tensor: tensor.numel) for op in ops)
    name = "aten._foreach_lerp_.Scalar"
    return (replace(ops[0], name=name, inputs=averages + averages, outputs=()),)


def _is_beside(event: Event, read: Event) -> bool:
    """Return whether the host computes on the line that read, as in ``a * old + b * p.cpu()``."""
    return isinstance(event, Op) and event.is_on_host and line_of(event) == line_of(read)
