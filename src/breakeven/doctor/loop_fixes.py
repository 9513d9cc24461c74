"""Loops of the script that are worth a change: as one batch, or one fused recurrent layer."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.doctor.crossings import SIMULATORS
from breakeven.doctor.events import base_name, is_view, op_at, parameters_of
from breakeven.doctor.repeated_loops import (
    LoopFlow,
    RepeatedLoop,
    find_loops,
    flow_of,
    ops_at,
    typical_iteration,
)
from breakeven.doctor.rule import Case, Occurrence
from breakeven.simulate import Edit
from breakeven.source import dotted_name
from breakeven.trace import Copy, Event, HostWork, Op, Phase, StepTrace, Sync, TensorSpec

# A loop that issues less than this part of the step's operators and reads is not worth a change.
_MIN_ISSUED_FRACTION = 0.05
# What asks a simulator for its next state.
_SIMULATOR = re.compile(SIMULATORS + r"\.(step|reset)$")
_PRODUCTS = {"mm": 0, "addmm": 1, "addmv": 1, "mv": 0, "convolution": 0, "_convolution": 0}
_ACTIVATIONS = ("tanh", "relu", "tanh_", "relu_")
# cuDNN's number of the mode, and how many gates it has.
_PLAIN, _LSTM, _GRU = (1, 1), (2, 4), (3, 3)
_Replaced = dict[int, tuple[Event, ...]]


def worthwhile(case: Case) -> Sequence[tuple[RepeatedLoop, LoopFlow]]:
    """Return the loops that issue enough of the step, and stay on the device while they do."""
    found: list[tuple[RepeatedLoop, LoopFlow]] = []
    trace = case.trace
    total = sum(map(_is_issued, trace.events))
    for loop in case.once(find_loops):
        num_issued = _num_issued(trace, loop)
        if num_issued < max(_MIN_ISSUED_FRACTION * total, loop.num_iterations):
            continue
        if not _works_with_the_host(case, loop):
            found.append((loop, flow_of(trace, loop)))
    return found


def occurrence_of(
    trace: StepTrace, loop: RepeatedLoop, *, what: str, fix: str, evidence: str, edit: Edit
) -> Occurrence:
    """Return what a rule reports of a loop.

    Args:
        trace: The step.
        loop: The loop.
        what: What issues the operators, and how often.
        fix: What to change.
        evidence: What is known of its iterations.
        edit: The step after the fix.
    """
    typical = typical_iteration(trace, loop.longest_run)
    per_iteration = sum(isinstance(trace.events[index], Op) for index in typical)
    return Occurrence(
        title=f"{what} issues {_num_issued(trace, loop)} small operators in every step",
        fix=fix,
        evidence=f"the same {per_iteration} operators are issued {loop.num_iterations} times in a "
        f"row from within this loop, {evidence}",
        location=loop.location,
        events=loop.events,
        edit=edit,
    )


def _num_issued(trace: StepTrace, loop: RepeatedLoop) -> int:
    return sum(_is_issued(trace.events[index]) for index in loop.events)


def _is_issued(event: Event) -> bool:
    """Return whether the host issues it to the device: a view takes the host's time as well."""
    return (isinstance(event, Op) and not event.is_on_host) or isinstance(event, Copy | Sync)


def _works_with_the_host(case: Case, loop: RepeatedLoop) -> bool:
    """Return whether iterations wait for a simulator, or feed one: a rollout, not a batch."""
    calls = (node for node in ast.walk(loop.node) if isinstance(node, ast.Call))
    if any(_SIMULATOR.search(dotted_name(call.func)) for call in calls):
        return True
    events = [[case.trace.events[index] for index in own] for own in loop.longest_run]
    paused_ns = sum(e.duration_ns for own in events for e in own if isinstance(e, HostWork))
    operators_ns = sum(e.host_ns for own in events for e in own if isinstance(e, Op))
    pausing = sum(any(isinstance(event, HostWork) for event in own) for own in events)
    if 2 * pausing >= len(events) and paused_ns > operators_ns:
        return True
    # Uploads what the network sees, then reads what it answers. A loss that asks the host for a
    # matching reads first.
    typical = [
        case.trace.events[index] for index in typical_iteration(case.trace, loop.longest_run)
    ]
    crossings = [event for event in typical if isinstance(event, Copy | Sync)]
    kinds = [isinstance(event, Copy) and event.is_to_device for event in crossings]
    return True in kinds and False in kinds[kinds.index(True) :]


def batched(trace: StepTrace, loop: RepeatedLoop) -> Edit:
    """Return the step whose loop is one pass over operators of as many times the size."""

    def is_of_loop(event: Event) -> bool:
        # The host's own work is not the loop's: it stays.
        return isinstance(event, Op | Copy) or getattr(event, "kind", "script") != "script"

    replaced = {
        index: new
        for run in loop.runs
        for index, new in _at_once(trace, run).items()
        if is_of_loop(trace.events[index])
    }
    return Edit(replaced={**replaced, **_batched_backward(trace, loop, loop.backward)})


def fused(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> Edit | None:
    """Return the step whose loop is a fused recurrent layer; None where it is none.

    What does not wait for the time step before, such as an output layer, is done for all of them
    at once.
    """
    layer = _layer(trace, loop, flow)
    if layer is None:
        return None
    lines = {trace.events[index].stack for index in flow.recurrent}
    replaced: _Replaced = {}
    for run in loop.runs:
        for index, new in _at_once(trace, run).items():
            event = trace.events[index]
            if isinstance(event, Op):
                replaced[index] = () if event.stack in lines else new
        first = next(index for index in run[0] if isinstance(trace.events[index], Op))
        layer_op = layer.op(trace, first, len(run), is_backward=False)
        replaced[first] = (layer_op, *replaced[first])
    recurrent = [index for index in loop.backward if trace.events[index].stack in lines]
    others = [index for index in loop.backward if trace.events[index].stack not in lines]
    replaced |= dict.fromkeys(recurrent, ())
    if recurrent:
        replaced[recurrent[0]] = tuple(
            layer.op(trace, recurrent[0], len(run), is_backward=True) for run in loop.runs
        )
    return Edit(replaced={**replaced, **_batched_backward(trace, loop, others)})


def _at_once(trace: StepTrace, run: tuple[tuple[int, ...], ...]) -> _Replaced:
    """Return what takes the place of a run's events: those of one iteration, as much larger."""
    parameters = parameters_of(trace)
    kept = frozenset(typical_iteration(trace, run))
    return {
        index: (_scaled(trace.events[index], len(run), parameters),) if index in kept else ()
        for iteration in run
        for index in iteration
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A recurrent layer of cuDNN; letters as in the cost model: T steps, B sequences, H, I."""

    mode: int
    num_gates: int
    num_layers: int
    state: TensorSpec
    input_width: int

    def op(self, trace: StepTrace, index: int, num_steps: int, *, is_backward: bool) -> Op:
        """Return its forward or backward operator in the place of the event at ``index``."""
        width, gates = self.state.shape[-1], self.num_gates * self.state.shape[-1]
        num_sequences = max(1, self.state.numel // width)

        def tensor(*shape: int) -> TensorSpec:
            return TensorSpec(shape=shape, dtype=self.state.dtype, device=self.state.device)

        sequence = tensor(num_steps, num_sequences, width if is_backward else self.input_width)
        states = tensor(self.num_layers, num_sequences, width)
        weights = tensor(gates, self.input_width), tensor(gates, width)
        return replace(
            op_at(trace, index),
            name=f"aten._cudnn_rnn{'_backward' if is_backward else ''}.default",
            inputs=(sequence, states, *weights),
            outputs=(tensor(num_steps, num_sequences, width), states),
            attributes={
                "mode": self.mode,
                "hidden_size": width,
                "num_layers": self.num_layers,
                "batch_first": False,
                "bidirectional": False,
            },
        )


def _layer(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> _Layer | None:
    """Return the layer that computes what the loop does, by its activations."""
    state = flow.state
    typical = typical_iteration(trace, loop.longest_run)
    counts = Counter(base_name(op) for op in ops_at(trace, typical))
    has_product = any(counts[name] for name in ("mm", "addmm", "bmm", "mv", "addmv"))
    if state is None or not state.shape or not has_product:
        return None
    num_sigmoids = counts["sigmoid"] + counts["sigmoid_"]
    num_activations = sum(counts[name] for name in _ACTIVATIONS)
    if not num_sigmoids and not num_activations:
        return None
    if not num_sigmoids:
        (mode, num_gates), per_layer, seen = _PLAIN, 1, num_activations
    elif 3 * num_activations >= 2 * num_sigmoids:
        (mode, num_gates), per_layer, seen = _LSTM, 3, num_sigmoids
    else:
        (mode, num_gates), per_layer, seen = _GRU, 2, num_sigmoids
    return _Layer(
        mode=mode,
        num_gates=num_gates,
        num_layers=max(1, seen // per_layer),
        state=state,
        input_width=flow.sequence_width or state.shape[-1],
    )


def _batched_backward(trace: StepTrace, loop: RepeatedLoop, backward: Sequence[int]) -> _Replaced:
    """Return the backward operators of the loop, each kind once per run and as much larger."""
    parameters = parameters_of(trace)
    num_runs = len(loop.runs)
    total = sum(map(len, loop.runs))
    groups: dict[tuple[object, ...], list[int]] = {}
    for index in backward:
        event = trace.events[index]
        if isinstance(event, Op):
            shapes = tuple(len(tensor.shape) for tensor in event.inputs)
            groups.setdefault((event.name, event.stack, shapes), []).append(index)
    replaced: _Replaced = {}
    for own in groups.values():
        num_kept = max(1, round(len(own) * num_runs / total))
        # Gradients of what all iterations share are added up between them: one addition fewer.
        if len(own) == total - num_runs:
            num_kept = 0
        if num_kept < len(own):
            factor = round(len(own) / max(1, num_kept))
            replaced |= dict.fromkeys(own, ())
            for index in own[:num_kept]:
                replaced[index] = (_scaled(trace.events[index], factor, parameters),)
    return replaced


def _scaled(event: Event, factor: int, parameters: frozenset[int]) -> Event:
    """Return an event that does the work of ``factor`` of its kind at once."""
    if isinstance(event, Copy):
        return replace(event, num_bytes=event.num_bytes * factor)
    if not isinstance(event, Op):
        return event
    inputs, outputs = event.inputs, event.outputs
    name = base_name(event)
    if name in ("mm", "addmm") and _is_weight_gradient(event, parameters):
        # A product over all samples: the inner dimension grows, the result does not.
        first, second = inputs[-2:]
        grown = (_grown(first, factor, dimension=1), _grown(second, factor))
        return replace(event, inputs=(*inputs[:-2], *grown))
    position = _PRODUCTS.get(name)

    def larger(tensor: TensorSpec) -> TensorSpec:
        return tensor if tensor.storage in parameters else _grown(tensor, factor)

    return replace(
        event,
        inputs=tuple(
            larger(tensor) if position in (None, number) else tensor
            for number, tensor in enumerate(inputs)
        ),
        outputs=tuple(map(larger, outputs)),
    )


def _is_weight_gradient(op: Op, parameters: frozenset[int]) -> bool:
    return (
        op.phase is Phase.BACKWARD
        and not is_view(op)
        and all(len(tensor.shape) == 2 for tensor in op.inputs[-2:])
        and not any(tensor.storage in parameters for tensor in op.inputs)
    )


def _grown(tensor: TensorSpec, factor: int, *, dimension: int = 0) -> TensorSpec:
    shape = list(tensor.shape) or [1]
    shape[dimension] *= factor
    return replace(tensor, shape=tuple(shape))
