"""OPT001: parameters are updated one by one.

What it does:
    Finds in-place operators that are repeated for one tensor after another in the optimizer
    phase, or in one loop elsewhere: an optimizer with ``foreach=False``, a hand-written
    update, clipping by hand, a moving average of the weights; and penalties that are summed up
    parameter by parameter.

Why it costs time:
    A launch per parameter and operation, where one per operation would do.

Evidence:
    Updates became 2 to 7 times faster in public reports, which was 3 to 10 % of the step; a
    moving average of the weights went from 100 to 10 ms.

Fix:
    Leave ``foreach`` at its default or say ``fused=True``; for an update of your own use
    ``torch._foreach_add_``, ``torch._foreach_lerp_``, or
    ``torch.optim.swa_utils.get_ema_multi_avg_fn``; for a penalty, ``weight_decay``.

    ```python
    for average, parameter in zip(averages, parameters):
        average.lerp_(parameter, 0.01)
    ```

    ```python
    torch._foreach_lerp_(averages, parameters, 0.01)
    ```

Known limits:
    The gain shown assumes that each kind of operation becomes one call over all tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from breakeven.doctor.memory import gradients_of, parameters_of
from breakeven.doctor.operators import base_name, is_in_place
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import Edit
from breakeven.trace import Event, Location, Op, Phase, StepTrace

CAUSE = "OPT_LOOP"

# A loop over fewer parameters is as fast as one call for all of them.
_MIN_TENSORS = 4
# What a penalty on each parameter is made of. A network has small parameters of its own in a few
# places, so more of them have to be seen at one line.
_MIN_PENALISED = 8
_PENALTIES = frozenset({"pow", "square", "abs", "norm", "linalg_vector_norm", "mul", "sum", "sub"})
_BATCHED = ("aten._foreach_", "aten._fused_", "aten._amp_foreach_")
# Reductions that are one operator on lists.
_LIST_NAMES = {"linalg_vector_norm": "norm", "sum": "norm", "square": "pow"}


def detect(case: Case) -> Found:
    parameters = parameters_of(case.trace)
    trained = parameters | gradients_of(case.trace)
    places: dict[Location | None, tuple[object, ...]] = {}
    loops: dict[tuple[object, ...], dict[str, list[int]]] = {}
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op) and _may_be_looped(event, parameters):
            if event.location not in places:
                places[event.location] = _place(case, event.location)
            loop = loops.setdefault((event.phase, *places[event.location]), {})
            loop.setdefault(event.name, []).append(index)
    found: list[Occurrence] = []
    for by_name in loops.values():
        repeated = {n: own for n, own in by_name.items() if _is_loop(case.trace, own)}
        if _is_update(case.trace, repeated, trained) and not _is_all_there_is(case, repeated):
            found.append(_occurrence(case, list(repeated.values()), parameters))
    return tuple(found)


def _may_be_looped(op: Op, parameters: frozenset[int]) -> bool:
    if op.is_on_host or op.phase is Phase.BACKWARD or op.name.startswith(_BATCHED):
        return False
    name = base_name(op)
    if name == "zero_":  # gradients that are kept: OPT003
        return False
    if op.phase is Phase.OPTIMIZER:
        return True
    # A model's own in-place operators (ReLU, the batch counters of batch norms) update no weights.
    if op.module or not op.inputs:
        return False
    is_penalty = name in _PENALTIES and op.inputs[0].storage in parameters
    return name.endswith("_") or is_penalty


def _place(case: Case, location: Location | None) -> tuple[object, ...]:
    """Return what the operators of one loop share: the loop in the source, or the line."""
    source = case.sources.find(location)
    if location is None or source is None:
        return (location.file, location.line) if location else ()
    around = source.loops_around(location.line)
    if not around:
        return (location.file, location.line)
    return (location.file, around[0].lineno, around[0].col_offset)


def _is_update(trace: StepTrace, repeated: dict[str, list[int]], trained: frozenset[int]) -> bool:
    """Return whether a loop writes tensors in place, or penalises them, that belong to training."""
    ops = [op for own in repeated.values() for op in _ops(trace, own)]
    touched = {tensor.storage for op in ops for tensor in op.inputs} & trained
    if len(touched) < _MIN_TENSORS:
        return False
    if any(is_in_place(op) for op in ops):
        return True
    is_penalty = all(op.phase is Phase.FORWARD for op in ops)
    return is_penalty and max(map(len, repeated.values()), default=0) >= _MIN_PENALISED


def _is_all_there_is(case: Case, repeated: dict[str, list[int]]) -> bool:
    """Return whether the loop is within an optimizer of torch's that knows no other way."""
    ops = [op for own in repeated.values() for op in _ops(case.trace, own)]
    source = case.sources.find(ops[0].location)
    if ops[0].phase is not Phase.OPTIMIZER or source is None or ops[0].location is None:
        return False
    is_step = source.call_at(ops[0].location.line, "step") is not None
    torchs = [own for own in case.facts.optimizers if own.is_from_torch]
    return is_step and bool(torchs) and all(own.foreach is None for own in case.facts.optimizers)


def _is_loop(trace: StepTrace, events: list[int]) -> bool:
    """Return whether each repetition works on a tensor of its own."""
    storages = {tensor.storage for op in _ops(trace, events) for tensor in op.inputs[:1]}
    return len(storages - {-1}) >= _MIN_TENSORS


def _occurrence(case: Case, repeated: list[list[int]], parameters: frozenset[int]) -> Occurrence:
    trace = case.trace
    events = tuple(sorted(index for own in repeated for index in own))
    num_tensors = max(map(len, repeated))
    replaced: dict[int, tuple[Event, ...]] = dict.fromkeys(events, ())
    for own in repeated:
        replaced[own[0]] = (_foreach(trace, own),)
    update, made = _update_line(trace, events, parameters), _constructor(case, events)
    return Occurrence(
        title=f"{len(events)} operators update some {num_tensors} tensors one by one",
        fix="leave foreach at its default or say fused=True; torch._foreach_* in code of your own",
        evidence=f"the same {len(repeated)} operators are issued for each of some {num_tensors} "
        "tensors" + (f", made so at line {made.line}" if made else ""),
        location=made or update,
        events=events,
        edit=Edit(replaced=replaced),
    )


def _update_line(
    trace: StepTrace, events: tuple[int, ...], parameters: frozenset[int]
) -> Location | None:
    """Return the line that writes to the parameters; that of most operators where none does."""
    ops = _ops(trace, events)
    writing = [op for op in ops if is_in_place(op) and op.inputs[0].storage in parameters]
    return Counter(op.location for op in writing or ops).most_common(1)[0][0]


def _constructor(case: Case, events: tuple[int, ...]) -> Location | None:
    """Return where the optimizer is made, if it is a library's that was told to loop."""
    lines = {case.trace.events[index].location for index in events}
    location = next(iter(lines))
    phase = case.trace.events[events[0]].phase
    if phase is not Phase.OPTIMIZER or len(lines) > 1 or location is None:
        return None
    looping = [
        own
        for own in case.facts.optimizers
        if own.location is not None and not own.fused and (own.foreach is False)
    ]
    return looping[0].location if looping else None


def _ops(trace: StepTrace, events: Iterable[int]) -> list[Op]:
    return [event for event in map(trace.events.__getitem__, events) if isinstance(event, Op)]


def _foreach(trace: StepTrace, events: list[int]) -> Op:
    """Return the one operator that does the work of all."""
    ops = _ops(trace, events)
    base = base_name(ops[0])
    return msgspec.structs.replace(
        ops[0],
        name=f"aten._foreach_{_LIST_NAMES.get(base, base)}.List",
        inputs=tuple(tensor for op in ops for tensor in op.inputs),
        outputs=tuple(tensor for op in ops for tensor in op.outputs),
    )
