"""The generated code of a recorded step, once it has done what the step did."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functionalize

from faststep.codegen.generated import Generated, Plan
from faststep.codegen.program import UnsupportedError
from faststep.compiling import explained
from faststep.errors import FastStepError
from faststep.step_difference import Change, Other, find_difference
from faststep.step_recorder import StepRecorder, copy_of
from faststep.tolerance import step_tolerance


class GeneratedCode(NamedTuple):
    """The generated code of a recorded step.

    Args:
        run: Does the step once, on copies: what is to be timed. Draws its random numbers too.
        compile_ns: Tracing and compiling.
        memory: What it reads and writes, which must outlive all calls.
    """

    run: Callable[[], None]
    compile_ns: int
    memory: tuple[object, ...]


def generate_recorded(
    recorder: StepRecorder, state_names: Mapping[int, str] | None = None
) -> GeneratedCode:
    """Generate a recorded step, and hold its numbers against those of the step.

    Args:
        recorder: Has seen a whole step; what it holds is as the step left it.
        state_names: What tensors of an optimizer's state are, by their ids: values of one name are
            held against the largest of it.

    Raises:
        FastStepError: No code can be generated, or it computes something else; says what.
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

    return GeneratedCode(call, compile_ns, (addresses, plan, copies, loss, generated))


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
    tolerance = step_tolerance(dtypes)
    difference = find_difference((recorder.loss, loss), [changes], others, tolerance)
    if difference is not None:
        raise FastStepError(f"the generated code computes something else: {difference}")
