"""Rules about Python loops over what one operator can do at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, final

from breakeven.doctor.loop_edit import batched, fused
from breakeven.doctor.loop_flow import LoopFlow, flow_of
from breakeven.doctor.operators import base_name
from breakeven.doctor.repeated_loops import (
    RepeatedLoop,
    find_loops,
    is_launch,
    is_view,
    ops_at,
    typical_iteration,
)
from breakeven.doctor.rule import Case, Occurrence, Rule
from breakeven.doctor.source import dotted_name
from breakeven.doctor.sync_flow import SIMULATORS
from breakeven.trace import Copy, HostWork, ModelCall, Op, StepTrace, Sync

# A loop that issues less than this part of the step's operators is not worth a change.
_MIN_LAUNCH_FRACTION = 0.05
# Iterations of different sizes are samples of different lengths if there are as many as this, and
# levels of a feature pyramid if there are fewer.
_MIN_RAGGED = 8
# An LSTM has three sigmoids and two hyperbolic tangents, a GRU two and one.
_MIN_GATE_SIGMOIDS = 2
# What asks a simulator for its next state.
_SIMULATOR = re.compile(SIMULATORS + r"\.(step|reset)$")


@final
class SampleLoop:
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

    code: ClassVar[str] = "LOOP001"
    cause: ClassVar[str] = "PER_SAMPLE_LOOP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loop, at its ``for``."""
        found: list[Occurrence] = []
        covered: set[int] = set()
        for loop, flow in _worthwhile(case):
            if flow.is_chained or covered.intersection(loop.longest_run[0]):
                continue
            if not _is_over_samples(case, loop, flow):
                continue
            covered.update(loop.events)
            found.append(
                Occurrence(
                    title=f"a loop of {loop.num_iterations} iterations issues "
                    f"{_num_launches(case.trace, loop.events)} small operators in every step",
                    fix="write it for all of them at once: batched operators, torch.where, vmap",
                    evidence=_evidence(case.trace, loop)
                    + ", and none of them needs the result of another",
                    location=loop.location,
                    events=loop.events,
                    edit=batched(case.trace, loop),
                )
            )
        return tuple(found)


@final
class TimeLoop:
    """LOOP002: a Python loop runs a recurrence over time steps.

    What it does:
        Finds loops of the script that repeat the same operators at least four times a step, each
        iteration with the state of the one before and its own part of a sequence: ``LSTMCell``
        and ``GRUCell`` in a loop, hand-written cells, filters.

    Why it costs time:
        Some ten to thirty small kernels per time step, forward and backward, where cuDNN runs a
        whole layer of all time steps by a few launches.

    Evidence:
        6 to 10 times faster with fused layers in public reports; a hand-written RNN ran at 650
        iterations per second on a CPU and at 340 on a GPU.

    Fix:
        ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` over the whole sequence. Where the cell is one of your
        own, take what does not need the state out of the loop, the products with the input above
        all, and compile the rest.

        ```python
        h = x.new_zeros(x.size(0), hidden)
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)  # nn.GRUCell
        ```

        ```python
        _, h = self.gru(x)  # nn.GRU(features, hidden, batch_first=True)
        ```

    Known limits:
        The gain shown is that of cuDNN's layer with the same state, input and gates, which a cell
        of another kind does not reach; without a product of matrices in the loop it is that of
        one pass over operators of as many times the size, as a scan would be. Decoders that feed
        their output back cannot use a fused layer while they do.
    """

    code: ClassVar[str] = "LOOP002"
    cause: ClassVar[str] = "TIME_LOOP"

    def detect(self, case: Case) -> tuple[Occurrence, ...]:
        """Return one occurrence for each loop, at its ``for``."""
        trace = case.trace
        return tuple(
            Occurrence(
                title=f"a recurrence of {loop.num_iterations} time steps issues "
                f"{_num_launches(trace, loop.events)} small operators in every step",
                fix="nn.LSTM, nn.GRU or nn.RNN over the whole sequence; for a cell of your own "
                "take the products with the input out of the loop and compile the rest",
                evidence=_evidence(trace, loop) + ", each with the state of the one before",
                location=loop.location,
                events=loop.events,
                edit=fused(trace, loop, flow) or batched(trace, loop),
            )
            for loop, flow in _worthwhile(case)
            if is_over_time(trace, loop, flow)
        )


def is_over_time(trace: StepTrace, loop: RepeatedLoop, flow: LoopFlow) -> bool:
    """Return whether a loop is a recurrence over a sequence rather than a solver or layers."""
    if not flow.is_chained or flow.own_parameters:
        return False
    typical = typical_iteration(trace, loop.longest_run)
    names = [base_name(op) for op in ops_at(trace, typical)]
    is_gated = names.count("sigmoid") >= _MIN_GATE_SIGMOIDS and "tanh" in names
    return flow.reads_sequence or is_gated


def _worthwhile(case: Case) -> Iterator[tuple[RepeatedLoop, LoopFlow]]:
    """Yield the loops that issue enough of the step, and stay on the device while they do."""
    trace = case.trace
    total = sum(map(is_launch, trace.events))
    for loop in find_loops(trace, case.sources):
        launches = _num_launches(trace, loop.events)
        if launches < max(_MIN_LAUNCH_FRACTION * total, loop.num_iterations):
            continue
        if not _works_with_the_host(case, loop):
            yield loop, flow_of(trace, loop)


def _num_launches(trace: StepTrace, events: tuple[int, ...]) -> int:
    return sum(is_launch(trace.events[index]) for index in events)


def _works_with_the_host(case: Case, loop: RepeatedLoop) -> bool:
    """Return whether iterations wait for a simulator, or feed one: a rollout, not a batch."""
    calls = (node for node in ast.walk(loop.node) if isinstance(node, ast.Call))
    if any(_SIMULATOR.search(dotted_name(call.func)) for call in calls):
        return True
    events = [[case.trace.events[index] for index in own] for own in loop.longest_run]
    pausing = sum(any(isinstance(event, HostWork) for event in own) for own in events)
    if 2 * pausing >= len(events):
        return True
    # Uploads what the network sees, then reads what it answers. A loss that asks the host for a
    # matching reads first.
    typical = [
        case.trace.events[index] for index in typical_iteration(case.trace, loop.longest_run)
    ]
    crossings = [event for event in typical if isinstance(event, Copy | Sync)]
    kinds = [isinstance(event, Copy) and event.is_to_device for event in crossings]
    return True in kinds and False in kinds[kinds.index(True) :]


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


def _shapes(trace: StepTrace, iteration: tuple[int, ...]) -> tuple[object, ...]:
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
    ops = [op for op in ops_at(trace, indices) if not is_view(op) and op.outputs]
    return bool(ops) and all(
        op.outputs[0].shape[:1] == (call.num_samples,) for op in (ops[0], ops[-1])
    )


def _evidence(trace: StepTrace, loop: RepeatedLoop) -> str:
    typical = typical_iteration(trace, loop.longest_run)
    per_iteration = sum(isinstance(trace.events[index], Op) for index in typical)
    return (
        f"the same {per_iteration} operators are issued {loop.num_iterations} times in a row "
        f"from within this loop"
    )


LOOP_RULES: tuple[Rule, ...] = (SampleLoop(), TimeLoop())
