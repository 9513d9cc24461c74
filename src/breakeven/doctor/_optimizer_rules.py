"""Rules about the optimizer."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, final

import msgspec

from breakeven.doctor._rule import Case, Occurrence
from breakeven.simulate import Edit
from breakeven.trace import Event, Op, Phase, StepTrace

# A loop over fewer parameters is as fast as one call for all of them.
_MIN_TENSORS = 4
_BATCHED = ("aten._foreach_", "aten._fused_", "aten._amp_foreach_")


@final
class ParameterLoop:
    """OPT001: parameters are updated one by one.

    What it does:
        Finds in-place operators that are repeated for one tensor after another in the optimizer
        phase, or on one line elsewhere: an optimizer with ``foreach=False``, a hand-written update,
        a moving average of the weights.

    Why it costs time:
        A launch per parameter and operation, where one per operation would do.

    Evidence:
        Updates became 2 to 7 times faster, which was 3 to 10 % of the step.

    Fix:
        Leave ``foreach`` at its default or say ``fused=True``; for an update of your own use
        ``torch._foreach_add_``, ``torch._foreach_lerp_``, or
        ``torch.optim.swa_utils.get_ema_multi_avg_fn``.

    Known limits:
        The gain shown assumes that each kind of operation becomes one call over all tensors.
    """

    code: ClassVar[str] = "OPT001"
    cause: ClassVar[str] = "OPT_LOOP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loop."""
        loops: dict[tuple[object, ...], dict[str, list[int]]] = {}
        for index, event in enumerate(case.trace.events):
            if isinstance(event, Op) and _may_be_looped(event):
                loop = loops.setdefault(_place(event), {})
                loop.setdefault(event.name, []).append(index)
        found: list[Occurrence] = []
        for by_name in loops.values():
            repeated = {n: own for n, own in by_name.items() if _is_loop(case.trace, own)}
            if any(map(_is_in_place, repeated)):
                found.append(_occurrence(case.trace, list(repeated.values())))
        return tuple(found)


def _may_be_looped(op: Op) -> bool:
    if op.is_on_host or op.phase is Phase.BACKWARD or op.name.startswith(_BATCHED):
        return False
    # A model's own in-place operators (ReLU, the batch counters of batch norms) update no weights.
    return op.phase is Phase.OPTIMIZER or (not op.module and _is_in_place(op.name))


def _is_in_place(name: str) -> bool:
    return name.split(".")[1].endswith("_")


def _place(op: Op) -> tuple[object, ...]:
    """Return what the operators of one loop share: the phase of an optimizer, or a line."""
    if op.phase is Phase.OPTIMIZER or op.location is None:
        return (op.phase,)
    return (op.phase, op.location.file, op.location.line)


def _is_loop(trace: StepTrace, events: list[int]) -> bool:
    """Return whether each repetition works on a tensor of its own."""
    storages: set[int] = set()
    for index in events:
        op = trace.events[index]
        assert isinstance(op, Op)
        storages.update(tensor.storage for tensor in op.inputs[:1])
    return len(storages - {-1}) >= _MIN_TENSORS


def _occurrence(trace: StepTrace, repeated: list[list[int]]) -> Occurrence:
    events = tuple(sorted(index for own in repeated for index in own))
    num_tensors = max(map(len, repeated))
    replaced: dict[int, tuple[Event, ...]] = dict.fromkeys(events, ())
    for own in repeated:
        replaced[own[0]] = (_foreach(trace, own),)
    lines = Counter(trace.events[index].location for index in events)
    return Occurrence(
        title=f"{len(events)} operators update some {num_tensors} tensors one by one",
        fix="leave foreach at its default or say fused=True; torch._foreach_* in code of your own",
        location=lines.most_common(1)[0][0],
        events=events,
        edit=Edit(replaced=replaced),
    )


def _foreach(trace: StepTrace, events: list[int]) -> Op:
    """Return the one operator that does the work of all."""
    ops = [op for op in (trace.events[index] for index in events) if isinstance(op, Op)]
    base = ops[0].name.split(".")[1]
    return msgspec.structs.replace(
        ops[0],
        name=f"aten._foreach_{base}.List",
        inputs=tuple(tensor for op in ops for tensor in op.inputs),
        outputs=tuple(tensor for op in ops for tensor in op.outputs),
    )
