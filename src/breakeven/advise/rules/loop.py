"""LOOP: Python loops that a step repeats, and the step without them."""

from __future__ import annotations

import ast
import re
from collections import Counter

from msgspec.structs import replace

from breakeven.advise.events import bare_name, op_at, parameters_of, read_by
from breakeven.advise.repeated_loops import (
    LoopFlow,
    RepeatedLoop,
    find_loops,
    flow_of,
    is_launch,
    is_over_time,
    ops_at,
    typical_iteration,
)
from breakeven.advise.rule import Match, Matches, RuleInput, once, rule
from breakeven.advise.transfers import SIMULATORS
from breakeven.simulate import Edit
from breakeven.source import dotted_name, nodes_in
from breakeven.trace import Copy, Event, HostWork, ModelCall, Op, Phase, StepTrace, Sync, TensorSpec

# A loop that issues a smaller fraction of the step's operators and reads is not worth a change.
_MIN_ISSUED_FRACTION = 0.05
# Index of the input that grows with the number of samples; for other operators, all grow.
_PRODUCTS = {"mm": 0, "addmm": 1, "addmv": 1, "mv": 0, "convolution": 0, "_convolution": 0}
# Calls that ask a simulator for its next state.
_SIMULATOR = re.compile(SIMULATORS + r"\.(step|reset)$")
_Replaced = dict[int, tuple[Event, ...]]

# From this number of iterations, different sizes mean samples of different lengths; below it,
# levels of a feature pyramid.
_MIN_RAGGED = 8


@rule("LOOP001", "PER_SAMPLE_LOOP")
def loops_over_samples(case: RuleInput) -> Matches:
    covered: set[int] = set()
    for loop, flow in worthwhile(case):
        if flow.state is not None or covered.intersection(loop.longest_run[0]):
            continue
        if _is_over_samples(case, loop, flow):
            covered.update(loop.events)
            yield match_of(
                case.trace,
                loop,
                what=f"a loop of {loop.num_iterations} iterations",
                fix="batch the iterations: batched operators, torch.where, vmap",
                evidence="and no iteration needs the result of another",
                edit=batched(case.trace, loop),
            )


def _is_over_samples(case: RuleInput, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether independent iterations could be one batch."""
    # Iterations that pass a batch to a whole model are evaluation, or several views.
    batches = {
        call.first_event
        for call in case.facts.model_calls
        if call.num_samples > 1 and (not loop.backward or _keeps_samples(case.trace, call))
    }
    holding = sum(not batches.isdisjoint(own) for own in loop.longest_run)
    if 2 * holding > len(loop.longest_run):
        return False

    def shapes(iteration: list[int]) -> list[object]:
        ops = ops_at(case.trace, iteration)
        return [(op.name, *(tensor.shape for tensor in op.inputs)) for op in ops]

    # Code after a comprehension on its line counts towards the last iteration.
    typical = shapes(typical_iteration(case.trace, loop.longest_run))
    num_typical = sum(shapes(own) == typical for own in loop.longest_run)
    is_uniform = 2 * num_typical > loop.num_iterations
    if flow.own_parameters:
        # Equal modules with the same input are heads, or members of an ensemble.
        return is_uniform and flow.has_shared_input
    return is_uniform or loop.num_iterations >= _MIN_RAGGED


def _keeps_samples(trace: StepTrace, call: ModelCall) -> bool:
    """Return whether the leading dimension of a call's input counts samples up to its output.

    It may instead count features, or the nodes of one graph.
    """
    indices = range(call.first_event, call.first_event + call.num_events)
    ops = [op for op in ops_at(trace, indices) if is_launch(op) and op.outputs]
    ends = [op.outputs[0].shape[:1] for op in (*ops[:1], *ops[-1:])]
    return ends == 2 * [(call.num_samples,)]


@rule("LOOP002", "TIME_LOOP")
def recurrences(case: RuleInput) -> Matches:
    trace = case.trace
    for loop, flow in worthwhile(case):
        if is_over_time(trace, loop, flow):
            yield match_of(
                trace,
                loop,
                what=f"a recurrence of {loop.num_iterations} time steps",
                fix="nn.LSTM, nn.GRU or nn.RNN over the whole sequence; for a custom "
                "cell, move the products with the input out of the loop and compile the rest",
                evidence="each with the state of the one before",
                edit=fused(trace, loop, flow) or batched(trace, loop),
            )


@once
def worthwhile(case: RuleInput) -> list[tuple[RepeatedLoop, LoopFlow]]:
    """Return the loops that issue enough of the step, without host work in between."""
    least = _MIN_ISSUED_FRACTION * sum(map(_is_issued, case.trace.events))
    found: list[tuple[RepeatedLoop, LoopFlow]] = []
    for loop in find_loops(case):
        num_issued = sum(_is_issued(case.trace.events[index]) for index in loop.events)
        is_large = num_issued >= max(least, loop.num_iterations)
        if is_large and not _works_with_the_host(case, loop):
            found.append((loop, flow_of(case.trace, loop)))
    return found


def _is_issued(event: Event) -> bool:
    """Return whether the host issues an event to the device: a view takes host time too."""
    return isinstance(event, Copy | Sync) or (isinstance(event, Op) and not event.is_on_host)


def _works_with_the_host(case: RuleInput, loop: RepeatedLoop) -> bool:
    """Return whether iterations wait for a simulator, or feed one: a rollout, not a batch."""
    if any(_SIMULATOR.search(dotted_name(call.func)) for call in nodes_in(loop.node, ast.Call)):
        return True
    iterations = [[case.trace.events[index] for index in own] for own in loop.longest_run]
    events = [event for own in iterations for event in own]
    paused_ns = sum(event.duration_ns for event in events if isinstance(event, HostWork))
    operators_ns = sum(event.host_ns for event in events if isinstance(event, Op))
    num_pausing = sum(any(isinstance(one, HostWork) for one in own) for own in iterations)
    if 2 * num_pausing >= len(iterations) and paused_ns > operators_ns:
        return True
    # The iteration uploads the network's input, then reads its output. A loss with matching on the
    # host reads first.
    typical = [case.trace.events[i] for i in typical_iteration(case.trace, loop.longest_run)]
    transfers = (event for event in typical if isinstance(event, Copy | Sync))
    kinds = [isinstance(event, Copy) and event.is_to_device for event in transfers]
    return True in kinds and False in kinds[kinds.index(True) :]


def match_of(
    trace: StepTrace, loop: RepeatedLoop, *, what: str, fix: str, evidence: str, edit: Edit
) -> Match:
    """Return the match of a rule for a loop.

    Args:
        trace: The step.
        loop: The loop.
        what: The source of the operators, and its number of iterations.
        fix: The change to make.
        evidence: Facts about its iterations.
        edit: The step after the fix.
    """
    typical = typical_iteration(trace, loop.longest_run)
    per_iteration = sum(isinstance(trace.events[index], Op) for index in typical)
    num_issued = sum(_is_issued(trace.events[index]) for index in loop.events)
    return Match(
        title=f"{what} issues {num_issued} small operators in every step",
        fix=fix,
        evidence=f"the same {per_iteration} operators are issued {loop.num_iterations} times in a "
        f"row from within this loop, {evidence}",
        location=loop.location,
        events=loop.events,
        edit=edit,
    )


def batched(trace: StepTrace, loop: RepeatedLoop) -> Edit:
    """Return the step with the loop as one pass over operators of the combined size."""
    return Edit(replaced=_at_once(trace, loop) | _backward_at_once(trace, loop, loop.backward))


def fused(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> Edit | None:
    """Return the step with the loop as a fused recurrent layer; None if it cannot be one.

    Work independent of the previous time step, such as an output layer, is done for all time steps
    at once.
    """
    typical = typical_iteration(trace, loop.longest_run)
    counts = Counter(bare_name(op) for op in ops_at(trace, typical))
    num_sigmoids, num_others = counts["sigmoid"], counts["tanh"] + counts["relu"]
    has_product = any(counts[name] for name in ("mm", "addmm", "bmm", "mv", "addmv"))
    state = flow.state
    if state is None or not state.shape or not has_product:
        return None
    # cuDNN's mode number, the number of gates, and the number of visible layers.
    if not num_sigmoids:
        mode, num_gates, num_layers = 1, 1, num_others
    elif 3 * num_others >= 2 * num_sigmoids:
        mode, num_gates, num_layers = 2, 4, max(1, num_sigmoids // 3)
    else:
        mode, num_gates, num_layers = 3, 3, max(1, num_sigmoids // 2)
    if not num_layers:
        return None
    width = state.shape[-1]

    def layer(index: int, run: list[list[int]], *, is_backward: bool) -> Op:
        """Return the layer that replaces an event: T steps, B sequences, H and I numbers."""
        rows, given = max(1, state.numel // width), flow.sequence_width or width
        read = width if is_backward else given
        sizes = ((len(run), rows, read), (num_layers, rows, width), (num_gates * width, given),
                 (num_gates * width, width), (len(run), rows, width))  # fmt: skip
        made = [replace(state, shape=shape, storage=-1, layout="contiguous") for shape in sizes]
        return replace(
            op_at(trace, index),
            name=f"aten._cudnn_rnn{'_backward' if is_backward else ''}.default",
            inputs=tuple(made[:4]), outputs=(made[4], made[1]),
            attributes={"mode": mode, "hidden_size": width, "num_layers": num_layers,
                        "batch_first": False, "bidirectional": False},
        )  # fmt: skip

    replaced = {
        index: () if trace.events[index].stack in flow.recurrent else new
        for index, new in _at_once(trace, loop).items()
        if isinstance(trace.events[index], Op)
    }
    for run in loop.runs:
        first = next(index for index in run[0] if isinstance(trace.events[index], Op))
        replaced[first] = (layer(first, run, is_backward=False), *replaced[first])
    recurrent = [index for index in loop.backward if trace.events[index].stack in flow.recurrent]
    others = [index for index in loop.backward if trace.events[index].stack not in flow.recurrent]
    replaced |= dict.fromkeys(recurrent, ())
    if recurrent:
        replaced[recurrent[0]] = tuple(
            layer(recurrent[0], run, is_backward=True) for run in loop.runs
        )
    return Edit(replaced=replaced | _backward_at_once(trace, loop, others))


def _at_once(trace: StepTrace, loop: RepeatedLoop) -> _Replaced:
    """Return the replacements of the loop's events: one iteration's events, enlarged."""
    parameters, replaced = parameters_of(trace), _Replaced()
    for run in loop.runs:
        kept = typical_iteration(trace, run)
        for index in (index for iteration in run for index in iteration):
            event = trace.events[index]
            # Keep the host's own work: it is not the loop's.
            if not isinstance(event, HostWork) or event.kind != "script":
                replaced[index] = (_larger(event, len(run), parameters),) if index in kept else ()
    return replaced


def _backward_at_once(trace: StepTrace, loop: RepeatedLoop, backward: list[int]) -> _Replaced:
    """Return the loop's backward operators, each kind once per run, enlarged."""
    parameters, total = parameters_of(trace), sum(map(len, loop.runs))
    groups: dict[tuple[object, ...], list[int]] = {}
    for index in backward:
        event = trace.events[index]
        if isinstance(event, Op):
            shapes = tuple(len(tensor.shape) for tensor in event.inputs)
            groups.setdefault((event.name, event.stack, shapes), []).append(index)
    replaced: _Replaced = {}
    for own in groups.values():
        num_kept = max(1, round(len(own) * len(loop.runs) / total))
        # Shared gradients are summed over iterations, with one addition fewer than iterations.
        num_kept = 0 if len(own) == total - len(loop.runs) else num_kept
        if num_kept < len(own):
            factor = round(len(own) / max(1, num_kept))
            replaced |= dict.fromkeys(own, ())
            for index in own[:num_kept]:
                replaced[index] = (_larger(trace.events[index], factor, parameters),)
    return replaced


def _larger(event: Event, factor: int, parameters: frozenset[int]) -> Event:
    """Return an event that does the work of ``factor`` such events at once."""
    if isinstance(event, Copy):
        return replace(event, num_bytes=event.num_bytes * factor)
    if not isinstance(event, Op):
        return event

    def grown(tensor: TensorSpec, dimension: int = 0) -> TensorSpec:
        shape = list(tensor.shape) or [1]
        shape[dimension] *= factor
        is_fixed = tensor.storage in parameters
        return tensor if is_fixed else replace(tensor, shape=tuple(shape))

    inputs, position = event.inputs, _PRODUCTS.get(bare_name(event))
    is_gradient = event.phase is Phase.BACKWARD and parameters.isdisjoint(read_by([event]))
    if position is not None and is_gradient and {len(one.shape) for one in inputs[-2:]} == {2}:
        # For a weight gradient, the inner dimension grows but the result does not.
        first, second = grown(inputs[-2], 1), grown(inputs[-1])
        return replace(event, inputs=(*inputs[:-2], first, second))
    return replace(
        event,
        inputs=tuple(grown(one) if position in (None, n) else one for n, one in enumerate(inputs)),
        outputs=tuple(map(grown, event.outputs)),
    )
