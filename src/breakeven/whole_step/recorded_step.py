"""How long the generated code of a recorded step takes, once it has done what the step did."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize

from breakeven.codegen import Generated, Plan, UnsupportedError
from breakeven.errors import BreakevenError
from breakeven.measure import measure_step
from breakeven.timing import Estimate, Source
from breakeven.verdict import Compared, Numerics, tolerance_of
from breakeven.whole_step.compiling import explained
from breakeven.whole_step.step_difference import Change, Other, find_difference
from breakeven.whole_step.step_recorder import StepRecorder, copy_of

# How long it is timed for. A sample is as many calls as take some time, since reading a clock takes
# as long as a short one.
_BUDGET_S = 0.2
_SAMPLE_NS = 200_000
_MOST_CALLS = 200


class GeneratedTime(NamedTuple):
    """The generated code of a recorded step.

    Args:
        code: What a call takes, the numbers that the step draws included.
        compile_ns: Tracing and compiling.
    """

    code: Estimate
    compile_ns: int


def time_generated(
    recorder: StepRecorder, state_names: Mapping[int, str] | None = None
) -> GeneratedTime:
    """Generate a recorded step, hold its numbers against those of the step, and time it.

    Args:
        recorder: Has seen a whole step; what it holds is as the step left it.
        state_names: What tensors of an optimizer's state are, by their ids: values of one name are
            held against the largest of it.

    Raises:
        BreakevenError: No code can be generated, or it computes something else; says what.
    """
    begun_ns = time.perf_counter_ns()
    graph, before = recorder.graph(), recorder.before
    try:
        with explained():
            generated = Generated(
                functionalize(lambda *given: graph(*given)), before, [], is_kept=False
            )
    except RecursionError as error:
        raise UnsupportedError("the step is too deep a graph") from error
    if generated.draws:
        raise UnsupportedError("the step draws random numbers that were not recorded")
    compile_ns = time.perf_counter_ns() - begun_ns
    copies = [copy_of(one) for one in before]
    (like,) = generated.results
    loss = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
    addresses = (ctypes.c_void_p * (len(copies) + 1))(*(t.data_ptr() for t in (*copies, loss)))
    plan = Plan(num_steps=1, loss=len(copies), **generated.team)
    at = ctypes.addressof(addresses), generated.workspace, ctypes.addressof(plan)
    if generated.run(*at) != 1:
        raise UnsupportedError("a class or another index in the batch is out of range")
    _check(recorder, copies, loss, state_names or {})
    run, draws = generated.run, recorder.draws

    def call() -> None:
        for draw in draws:
            draw()
        run(*at)

    once_ns = _time_of(call, 3)
    num_calls = int(min(max(1, _SAMPLE_NS // max(once_ns, 1)), _MOST_CALLS))

    def calls() -> None:
        for _ in range(num_calls):
            call()

    found = measure_step(calls, budget_s=_BUDGET_S).estimate
    times_ns = (ns / num_calls for ns in (found.value_ns, found.low_ns, found.high_ns))
    value_ns, low_ns, high_ns = times_ns
    code = Estimate(value_ns=value_ns, low_ns=low_ns, high_ns=high_ns, source=Source.MEASURED)
    return GeneratedTime(code, compile_ns)


def _time_of(call: Callable[[], object], times: int) -> float:
    begun_ns = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - begun_ns) / times


def _check(
    recorder: StepRecorder, copies: list[Tensor], loss: Tensor, state_names: Mapping[int, str]
) -> None:
    inputs = recorder.inputs
    changes: list[Change] = []
    others: list[Other] = []
    for number, (now, old, copy) in enumerate(zip(inputs, recorder.before, copies, strict=True)):
        value = now.detach()
        if not now.requires_grad:
            kind = state_names.get(id(now), f"value {number}")
            others.append(Other(kind, f"{kind} of {number}", value, copy))
            continue
        gradient = now.grad if now.grad is not None else torch.zeros_like(value)
        changes.append(
            Change(name=str(number), before=old, stock=value, compiled=copy, grad=gradient)
        )
    dtypes = {str(t.dtype).removeprefix("torch.") for t in inputs if t.is_floating_point()}
    tolerance = tolerance_of(Compared.STEP, Numerics.REORDERED, *(dtypes or {"float32"}))
    difference = find_difference((recorder.loss, loss), [changes], others, tolerance)
    if difference is not None:
        raise BreakevenError(f"the generated code computes something else: {difference}")
