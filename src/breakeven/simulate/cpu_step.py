"""A recorded step as the CPU of the machine that recorded it runs it, by phase.

What an operator took while it was recorded contains its arithmetic, and is the best that is known
of it. What lies around it, Python, autograd, the loops of the CPU's optimizers, comes from what
this host takes for calls of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from breakeven.cost import Lowering, is_in_place, num_list_tensors, starts_backward
from breakeven.device import HostSpec
from breakeven.simulate.program import Program
from breakeven.trace import Op, Phase

# Fitted to the phases of the thirty small networks of `benchmarks/small_steps.py` on one machine
# (AMD EPYC, torch 2.13, Python 3.11, 2026-11), in calls of an operator or of a module there.
#
# Python of a forward pass for each module that is called.
_MODULE_CALLS = 2.34
# A backward pass by itself, and each gradient that it hands over.
_BACKWARD_OPS = 18.5
_GRADIENT_OPS = 0.8
# What cannot be timed again at once, since it writes where it reads, has the cold caches that the
# recorder leaves: a part of its time, up to so many operators for each tensor.
_COLD_FRACTION = 0.38
_MOST_COLD_OPS = 6.0
# Setting gradients to None: by itself, and for each.
_ZERO_GRAD_OPS = 6.8
_ZERO_GRAD_TENSOR_OPS = 0.33
# The call of an optimizer; each operator on lists in it; and that operator for each tensor, since
# the CPU's optimizers loop over tensors where a GPU's take lists.
UPDATE_OPS = 7.4
_LIST_OPS = 4.2
_LOOPED_OPS = 1.77


class CpuStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step on the CPU by phase, in nanoseconds.

    Args:
        zero_grad_ns: Gradients set to None, where there is an optimizer.
        forward_ns: Forward pass and loss.
        backward_ns: Backward pass.
        optimizer_ns: From the end of the backward pass to the end of the update.
    """

    zero_grad_ns: float
    forward_ns: float
    backward_ns: float
    optimizer_ns: float

    @property
    def step_ns(self) -> float:
        """Return the whole step."""
        return self.zero_grad_ns + self.forward_ns + self.backward_ns + self.optimizer_ns


@dataclass(frozen=True, slots=True)
class IssuedOp:
    """An operator, and what a device runs for it; None where the CPU runs it on any machine."""

    op: Op
    lowering: Lowering | None

    @property
    def is_view(self) -> bool:
        """Return whether it computes nothing."""
        return self.lowering is not None and not self.lowering.kernels

    @property
    def is_on_lists(self) -> bool:
        """Return whether it works through lists of tensors."""
        return self.op.name.startswith("aten._foreach_")


def issued_ops(program: Program) -> dict[Phase, list[IssuedOp]]:
    """Return what the host issues, by phase; a backward pass begins with the loss's gradient."""
    phases: dict[Phase, list[IssuedOp]] = {phase: [] for phase in Phase}
    for event, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if isinstance(event, Op) and not event.is_replayed:
            phase = Phase.BACKWARD if starts_backward(event) else event.phase
            phases[phase].append(IssuedOp(event, lowering))
    return phases


def predict_cpu_step(program: Program, host: HostSpec) -> CpuStep:
    """Return the step on the CPU of the machine that recorded it.

    Args:
        program: The recorded step, as a GPU would run it.
        host: That machine, measured.
    """
    phases, optimizers = issued_ops(program), program.trace.facts.optimizers
    forward, backward = phases[Phase.FORWARD], phases[Phase.BACKWARD]
    num_tensors = sum(optimizer.num_tensors for optimizer in optimizers)
    zero_grad_ops = _ZERO_GRAD_OPS * len(optimizers) + _ZERO_GRAD_TENSOR_OPS * num_tensors
    backward_ops = _BACKWARD_OPS * sum(starts_backward(issued.op) for issued in backward)
    gradient_ops = _GRADIENT_OPS * sum("detach" in issued.op.name for issued in backward)
    update_ns = sum(_update_op_ns(issued, program, host) for issued in phases[Phase.OPTIMIZER])
    return CpuStep(
        zero_grad_ns=zero_grad_ops * cpu_op_ns(host),
        forward_ns=sum(native_ns(issued, host) for issued in forward)
        + _MODULE_CALLS * host.module_ns * _num_module_calls(forward),
        backward_ns=sum(native_ns(issued, host) for issued in backward)
        + (backward_ops + gradient_ops) * cpu_op_ns(host),
        optimizer_ns=UPDATE_OPS * len(optimizers) * cpu_op_ns(host) + update_ns,
    )


def cpu_op_ns(host: HostSpec) -> float:
    """Return what an operator of the CPU takes."""
    return host.op_ns - host.device_ns


def native_ns(issued: IssuedOp, host: HostSpec) -> float:
    """Return what an operator takes where nobody records it; a view is part of what is around."""
    if issued.is_view:
        return 0.0
    op, time_ns = issued.op, issued.op.host_ns
    if not (is_in_place(op.name) or issued.is_on_lists):
        return time_ns
    num_calls = num_list_tensors(op) if issued.is_on_lists else 1
    return time_ns - min(_COLD_FRACTION * time_ns, _MOST_COLD_OPS * num_calls * cpu_op_ns(host))


def looped_ns(issued: IssuedOp, program: Program, host: HostSpec) -> float:
    """Return what an operator on lists takes the CPU where it loops over tensors; 0 elsewhere."""
    optimizers = program.trace.facts.optimizers
    takes_lists = any(optimizer.foreach or optimizer.fused for optimizer in optimizers)
    if not issued.is_on_lists or issued.lowering is None or takes_lists:
        return 0.0
    return _LOOPED_OPS * num_list_tensors(issued.op) * cpu_op_ns(host)


def _update_op_ns(issued: IssuedOp, program: Program, host: HostSpec) -> float:
    """Return what an operator between the backward pass and the end of the update takes."""
    if not issued.is_on_lists or issued.lowering is None:
        return native_ns(issued, host)
    # Recorded, lists are looped over in C++: what is beyond the CPU's own loop is arithmetic.
    own_ns = max(looped_ns(issued, program, host), native_ns(issued, host))
    return _LIST_OPS * cpu_op_ns(host) + own_ns


def _num_module_calls(issued: Sequence[IssuedOp]) -> int:
    """Return how many modules are entered from one operator to the next."""
    number, before = 0, ""
    for each in issued:
        if each.op.module != before:
            path, known = each.op.module.split("."), before.split(".")
            number += sum(own != old for own, old in zip(path, known, strict=False))
            number += max(0, len(path) - len(known)) + (not before)
            before = each.op.module
    return number
