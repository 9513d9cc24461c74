"""LOOP: loops in Python that a step repeats, and the step without them."""

from __future__ import annotations

from breakeven.doctor.repeated_loops import (
    LoopFlow,
    RepeatedLoop,
    batched,
    fused,
    is_launch,
    is_over_time,
    match_of,
    ops_at,
    typical_iteration,
    worthwhile,
)
from breakeven.doctor.rule import Matches, RuleInput, rule
from breakeven.trace import ModelCall, StepTrace

# Iterations of different sizes are samples of different lengths if there are as many as this, and
# levels of a feature pyramid if there are fewer.
_MIN_RAGGED = 8


@rule("LOOP001", "PER_SAMPLE_LOOP")
def loops_over_samples(case: RuleInput) -> Matches:
    covered: set[int] = set()
    for loop, flow in case.once(worthwhile):
        if flow.state is not None or covered.intersection(loop.longest_run[0]):
            continue
        if _is_over_samples(case, loop, flow):
            covered.update(loop.events)
            yield match_of(
                case.trace,
                loop,
                what=f"a loop of {loop.num_iterations} iterations",
                fix="write it for all of them at once: batched operators, torch.where, vmap",
                evidence="and none of them needs the result of another",
                edit=batched(case.trace, loop),
            )


def _is_over_samples(case: RuleInput, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether independent iterations could be one batch."""
    if _calls_model_on_batches(case, loop):
        return False
    # What follows a comprehension on its line counts to the last iteration.
    shapes = [_shapes(case.trace, own) for own in loop.longest_run]
    typical = _shapes(case.trace, typical_iteration(case.trace, loop.longest_run))
    is_uniform = 2 * shapes.count(typical) > len(shapes)
    if flow.own_parameters:
        # Equal modules with the same input are heads, or members of an ensemble.
        return is_uniform and flow.has_shared_input
    return is_uniform or loop.num_iterations >= _MIN_RAGGED


def _shapes(trace: StepTrace, iteration: list[int]) -> tuple[object, ...]:
    return tuple(
        (op.name, *(tensor.shape for tensor in op.inputs)) for op in ops_at(trace, iteration)
    )


def _calls_model_on_batches(case: RuleInput, loop: RepeatedLoop) -> bool:
    """Return whether most iterations give a batch to a whole model: evaluation, several views."""
    batches = {
        call.first_event
        for call in case.facts.model_calls
        if call.num_samples > 1 and (not loop.backward or _keeps_samples(case.trace, call))
    }
    holding = sum(not batches.isdisjoint(own) for own in loop.longest_run)
    return 2 * holding > len(loop.longest_run)


def _keeps_samples(trace: StepTrace, call: ModelCall) -> bool:
    """Return whether the leading dimension of a call's input is one of samples to the end.

    It may be one of features, or of the nodes of one graph.
    """
    indices = range(call.first_event, call.first_event + call.num_events)
    ops = [op for op in ops_at(trace, indices) if is_launch(op) and op.outputs]
    return bool(ops) and all(
        op.outputs[0].shape[:1] == (call.num_samples,) for op in (ops[0], ops[-1])
    )


@rule("LOOP002", "TIME_LOOP")
def recurrences(case: RuleInput) -> Matches:
    trace = case.trace
    for loop, flow in case.once(worthwhile):
        if is_over_time(trace, loop, flow):
            yield match_of(
                trace,
                loop,
                what=f"a recurrence of {loop.num_iterations} time steps",
                fix="nn.LSTM, nn.GRU or nn.RNN over the whole sequence; for a cell of your own "
                "take the products with the input out of the loop and compile the rest",
                evidence="each with the state of the one before",
                edit=fused(trace, loop, flow) or batched(trace, loop),
            )
