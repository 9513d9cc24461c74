"""LOOP001: a Python loop handles samples, pairs, classes or heads one after the other.

What it does:
    Finds ``for`` and ``while`` loops and comprehensions of the script, within forward passes
    and losses, that repeat the same operators at least four times a step and whose iterations
    do not need each other's results.

Why it costs time:
    Each iteration issues its own small kernels, forward and backward. A GPU runs the whole
    batch in about the time of one of them.

Evidence:
    In public reports a speaker verification loss went from 20.3 to 0.4 ms, other sections
    became 10 times faster, and a whole training 2.2 times.

Fix:
    Write it for the whole batch, with ``torch.where`` or a mask instead of ``if`` and padding
    instead of different lengths; or let ``torch.vmap`` do so.

    ```python
    loss = 0
    for i in range(x.size(0)):
        loss = loss + (x[i] - centers[labels[i]]).pow(2).sum()
    ```

    ```python
    loss = (x - centers[labels]).pow(2).sum()
    ```

Known limits:
    The gain shown is that of one pass over operators of as many times the size; padding adds
    some work to that. Loops over layers, parameters, micro-batches and batches are left out,
    and so are those that work with another program or with the host in each iteration.
"""

from __future__ import annotations

from breakeven.doctor.repeated_loops import (
    LoopFlow,
    RepeatedLoop,
    batched,
    is_launch,
    occurrence_of,
    ops_at,
    typical_iteration,
    worthwhile,
)
from breakeven.doctor.rule import Case, Found
from breakeven.trace import ModelCall, StepTrace

CAUSE = "PER_SAMPLE_LOOP"

# Iterations of different sizes are samples of different lengths if there are as many as this, and
# levels of a feature pyramid if there are fewer.
_MIN_RAGGED = 8


def detect(case: Case) -> Found:
    covered: set[int] = set()
    for loop, flow in case.once(worthwhile):
        if flow.state is not None or covered.intersection(loop.longest_run[0]):
            continue
        if _is_over_samples(case, loop, flow):
            covered.update(loop.events)
            yield occurrence_of(
                case.trace,
                loop,
                what=f"a loop of {loop.num_iterations} iterations",
                fix="write it for all of them at once: batched operators, torch.where, vmap",
                evidence="and none of them needs the result of another",
                edit=batched(case.trace, loop),
            )


def _is_over_samples(case: Case, loop: RepeatedLoop, flow: LoopFlow) -> bool:
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


def _calls_model_on_batches(case: Case, loop: RepeatedLoop) -> bool:
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
