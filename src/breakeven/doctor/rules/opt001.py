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
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from breakeven.doctor.events import (
    base_name,
    gradients_of,
    is_in_place,
    line_of,
    parameters_of,
    read_by,
)
from breakeven.doctor.rule import Case, Found, Occurrence, changed
from breakeven.trace import Location, Op, Phase

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

_Ops = Mapping[int, Op]


def detect(case: Case) -> Found:
    parameters = parameters_of(case.trace)
    trained = parameters | gradients_of(case.trace)
    loops: dict[object, dict[str, dict[int, Op]]] = {}
    for index, op in case.each_on_device():
        if _may_be_looped(op, parameters):
            loop = loops.setdefault((op.phase, _place(case, op.location)), {})
            loop.setdefault(op.name, {})[index] = op
    for by_name in loops.values():
        repeated = [ops for ops in by_name.values() if _is_loop(ops)]
        ops = {index: own[index] for own in repeated for index in own}
        ops = {index: ops[index] for index in sorted(ops)}
        num_tensors = max(map(len, repeated), default=0)
        if not _is_update(ops.values(), num_tensors, trained) or _is_all_there_is(case, ops):
            continue
        made = _constructor(case, ops)
        yield Occurrence(
            title=f"{len(ops)} operators update some {num_tensors} tensors one by one",
            fix="leave foreach at its default or say fused=True; torch._foreach_* in code of your "
            "own",
            evidence=f"the same {len(repeated)} operators are issued for each of some "
            f"{num_tensors} tensors" + (f", made so at line {made.line}" if made else ""),
            location=made or _update_line(ops.values(), parameters),
            events=tuple(ops),
            edit=changed({next(iter(own)): _foreach(own) for own in repeated}, gone=ops),
        )


def _may_be_looped(op: Op, parameters: frozenset[int]) -> bool:
    if op.phase is Phase.BACKWARD or op.name.startswith(_BATCHED):
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
    around = source.loops_around(location.line) if source and location else ()
    return around[0] if around else line_of(location)


def _is_loop(ops: _Ops) -> bool:
    """Return whether each repetition works on a tensor of its own."""
    storages = {tensor.storage for op in ops.values() for tensor in op.inputs[:1]}
    return len(storages - {-1}) >= _MIN_TENSORS


def _is_update(ops: Iterable[Op], num_tensors: int, trained: frozenset[int]) -> bool:
    """Return whether a loop writes tensors in place, or penalises them, that belong to training."""
    if len(read_by(ops) & trained) < _MIN_TENSORS:
        return False
    if any(is_in_place(op) for op in ops):
        return True
    return num_tensors >= _MIN_PENALISED and all(op.phase is Phase.FORWARD for op in ops)


def _is_all_there_is(case: Case, ops: _Ops) -> bool:
    """Return whether the loop is within an optimizer of torch's that knows no other way."""
    first, optimizers = next(iter(ops.values())), case.facts.optimizers
    if first.phase is not Phase.OPTIMIZER:
        return False
    is_step = case.sources.call_at(first.location, "step") is not None
    is_torchs = any(own.is_from_torch for own in optimizers)
    return is_step and is_torchs and all(own.foreach is None for own in optimizers)


def _update_line(ops: Iterable[Op], parameters: frozenset[int]) -> Location | None:
    """Return the line that writes to the parameters; that of most operators where none does."""
    writing = [op for op in ops if is_in_place(op) and op.inputs[0].storage in parameters]
    return Counter(op.location for op in writing or ops).most_common(1)[0][0]


def _constructor(case: Case, ops: _Ops) -> Location | None:
    """Return where the optimizer is made, if it is a library's that was set to loop."""
    lines = {op.location for op in ops.values()}
    is_one_line = len(lines) == 1 and None not in lines
    if not is_one_line or next(iter(ops.values())).phase is not Phase.OPTIMIZER:
        return None
    looping = (own for own in case.facts.optimizers if own.foreach is False and not own.fused)
    return next((own.location for own in looping if own.location is not None), None)


def _foreach(ops: _Ops) -> Op:
    """Return the one operator that does the work of all."""
    first = next(iter(ops.values()))
    base = base_name(first)
    return replace(
        first,
        name=f"aten._foreach_{_LIST_NAMES.get(base, base)}.List",
        inputs=tuple(tensor for op in ops.values() for tensor in op.inputs),
        outputs=tuple(tensor for op in ops.values() for tensor in op.outputs),
    )
