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
from operator import itemgetter

import msgspec

from breakeven.doctor.memory import gradients_of, parameters_of, read_by
from breakeven.doctor.operators import base_name, is_in_place
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.simulate import Edit
from breakeven.trace import Event, Location, Op, Phase

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


# Operators of one name in a loop, by their positions.
_Ops = dict[int, Op]


def detect(case: Case) -> Found:
    parameters = parameters_of(case.trace)
    trained = parameters | gradients_of(case.trace)
    loops: dict[object, dict[str, _Ops]] = {}
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op) and _may_be_looped(event, parameters):
            loop = loops.setdefault((event.phase, _place(case, event.location)), {})
            loop.setdefault(event.name, {})[index] = event
    for by_name in loops.values():
        repeated = [own for own in by_name.values() if _is_loop(own)]
        if _is_update(repeated, trained) and not _is_all_there_is(case, repeated):
            yield _occurrence(case, repeated, parameters)


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


def _place(case: Case, location: Location | None) -> object:
    """Return what the operators of one loop share: the loop in the source, or the line."""
    source = case.sources.find(location)
    if location is None:
        return None
    around = source.loops_around(location.line) if source else ()
    return around[0] if around else (location.file, location.line)


def _is_loop(ops: _Ops) -> bool:
    """Return whether each repetition works on a tensor of its own."""
    storages = {tensor.storage for op in ops.values() for tensor in op.inputs[:1]}
    return len(storages - {-1}) >= _MIN_TENSORS


def _all_ops(repeated: list[_Ops]) -> list[Op]:
    return [op for own in repeated for op in own.values()]


def _is_update(repeated: list[_Ops], trained: frozenset[int]) -> bool:
    """Return whether a loop writes tensors in place, or penalises them, that belong to training."""
    ops = _all_ops(repeated)
    if len(read_by(ops) & trained) < _MIN_TENSORS:
        return False
    is_penalty = all(op.phase is Phase.FORWARD for op in ops)
    return any(map(is_in_place, ops)) or (is_penalty and max(map(len, repeated)) >= _MIN_PENALISED)


def _is_all_there_is(case: Case, repeated: list[_Ops]) -> bool:
    """Return whether the loop is within an optimizer of torch's that knows no other way."""
    first = _all_ops(repeated)[0]
    optimizers = case.facts.optimizers
    return (
        first.phase is Phase.OPTIMIZER
        and case.sources.is_at(first.location, lambda s, line: s.call_at(line, "step") is not None)
        and any(own.is_from_torch for own in optimizers)
        and all(own.foreach is None for own in optimizers)
    )


def _occurrence(case: Case, repeated: list[_Ops], parameters: frozenset[int]) -> Occurrence:
    events = tuple(sorted(index for own in repeated for index in own))
    num_tensors = max(map(len, repeated))
    replaced: dict[int, tuple[Event, ...]] = dict.fromkeys(events, ())
    replaced |= {next(iter(own)): (_foreach(list(own.values())),) for own in repeated}
    made = _constructor(case, repeated)
    return Occurrence(
        title=f"{len(events)} operators update some {num_tensors} tensors one by one",
        fix="leave foreach at its default or say fused=True; torch._foreach_* in code of your own",
        evidence=f"the same {len(repeated)} operators are issued for each of some {num_tensors} "
        "tensors" + (f", made so at line {made.line}" if made else ""),
        location=made or _update_line(repeated, parameters),
        events=events,
        edit=Edit(replaced=replaced),
    )


def _update_line(repeated: list[_Ops], parameters: frozenset[int]) -> Location | None:
    """Return the line that writes to the parameters; that of most operators where none does."""
    by_position = sorted((pair for own in repeated for pair in own.items()), key=itemgetter(0))
    ops = [op for _, op in by_position]
    writing = [op for op in ops if is_in_place(op) and op.inputs[0].storage in parameters]
    return Counter(op.location for op in writing or ops).most_common(1)[0][0]


def _constructor(case: Case, repeated: list[_Ops]) -> Location | None:
    """Return where the optimizer is made, if it is a library's that was told to loop."""
    ops = _all_ops(repeated)
    lines = {op.location for op in ops}
    if ops[0].phase is not Phase.OPTIMIZER or len(lines) > 1 or None in lines:
        return None
    made = (own for own in case.facts.optimizers if own.foreach is False and not own.fused)
    return next((own.location for own in made if own.location is not None), None)


def _foreach(ops: list[Op]) -> Op:
    """Return the one operator that does the work of all."""
    base = base_name(ops[0])
    return msgspec.structs.replace(
        ops[0],
        name=f"aten._foreach_{_LIST_NAMES.get(base, base)}.List",
        inputs=tuple(tensor for op in ops for tensor in op.inputs),
        outputs=tuple(tensor for op in ops for tensor in op.outputs),
    )
