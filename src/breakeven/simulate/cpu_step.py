"""A recorded step on the CPU that recorded it, and the work of that host for a GPU.

An operator's recorded time contains its arithmetic, and is the best estimate of it. The work around
it, Python, autograd and the loops of the CPU's optimizers, is estimated from this host's costs of
such calls.

With negligible arithmetic, a step takes the host of a GPU as long as on the CPU, and longer:
Python, dispatcher and autograd are the same. So the best estimate of that work is the measured
step, less the arithmetic and the CPU path's own work, plus the device path's own work. If
arithmetic is most of the step, the rest is uncertain, and the usual factors decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from breakeven.cost import Lowering, is_in_place, num_list_tensors, starts_backward
from breakeven.device import HostSpec
from breakeven.simulate.program import Z_90, Program
from breakeven.trace import Op, Phase

# Fitted to the phases of the thirty small networks of `benchmarks/small_steps.py` on one machine
# (AMD EPYC, torch 2.13, Python 3.11, 2026-11), in calls of an operator or of a module there.
#
# Python of a forward pass for each call of a module.
_MODULE_CALLS = 2.34
# Fixed cost of a backward pass, and cost of each gradient that it hands over.
_BACKWARD_OPS = 18.5
_GRADIENT_OPS = 0.8
# An operator that writes to its inputs cannot be timed twice, so its time includes cold caches from
# the recorder: this fraction of its time, up to this many operators per tensor.
_COLD_FRACTION = 0.38
_MOST_COLD_OPS = 6.0
# Setting gradients to None: fixed cost, and cost per gradient.
_ZERO_GRAD_OPS = 6.8
_ZERO_GRAD_TENSOR_OPS = 0.33
# The call of an optimizer; each operator on lists in it; and that operator per tensor, since the
# CPU's optimizers loop over tensors, while a GPU's take lists.
_UPDATE_OPS = 7.4
_LIST_OPS = 4.2
_LOOPED_OPS = 1.77


class CpuStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step on the CPU by phase, in nanoseconds.

    Args:
        zero_grad_ns: Gradients set to None; 0 without an optimizer.
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
        """Return the time of the whole step."""
        return self.zero_grad_ns + self.forward_ns + self.backward_ns + self.optimizer_ns


@dataclass(frozen=True, slots=True)
class IssuedOp:
    """An operator and its kernels on a device; None if the CPU runs it on any machine."""

    op: Op
    lowering: Lowering | None

    @property
    def is_view(self) -> bool:
        """Return whether it is a view, which computes nothing."""
        return self.lowering is not None and not self.lowering.kernels

    @property
    def is_on_lists(self) -> bool:
        """Return whether it processes lists of tensors."""
        return self.op.name.startswith("aten._foreach_")


def issued_ops(program: Program) -> dict[Phase, list[IssuedOp]]:
    """Return the issued operators by phase; a backward pass begins with the loss's gradient."""
    phases: dict[Phase, list[IssuedOp]] = {phase: [] for phase in Phase}
    for event, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if isinstance(event, Op) and not event.is_replayed:
            phase = Phase.BACKWARD if starts_backward(event) else event.phase
            phases[phase].append(IssuedOp(event, lowering))
    return phases


def predict_cpu_step(program: Program, host: HostSpec) -> CpuStep:
    """Return the step on the CPU that recorded it.

    Args:
        program: The recorded step, as a GPU would run it.
        host: That machine, with its costs measured.
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
        optimizer_ns=_UPDATE_OPS * len(optimizers) * cpu_op_ns(host) + update_ns,
    )


def cpu_op_ns(host: HostSpec) -> float:
    """Return the cost of an operator of the CPU."""
    return host.op_ns - host.device_ns


def native_ns(issued: IssuedOp, host: HostSpec) -> float:
    """Return an operator's time without recording; 0 for a view, which counts as Python."""
    if issued.is_view:
        return 0.0
    op, time_ns = issued.op, issued.op.host_ns
    if not (is_in_place(op.name) or issued.is_on_lists):
        return time_ns
    num_calls = num_list_tensors(op) if issued.is_on_lists else 1
    return time_ns - min(_COLD_FRACTION * time_ns, _MOST_COLD_OPS * num_calls * cpu_op_ns(host))


def looped_ns(issued: IssuedOp, program: Program, host: HostSpec) -> float:
    """Return the time of the CPU's loop over an operator's lists; 0 if it does not loop."""
    optimizers = program.trace.facts.optimizers
    takes_lists = any(optimizer.foreach or optimizer.fused for optimizer in optimizers)
    if not issued.is_on_lists or issued.lowering is None or takes_lists:
        return 0.0
    return _LOOPED_OPS * num_list_tensors(issued.op) * cpu_op_ns(host)


def _update_op_ns(issued: IssuedOp, program: Program, host: HostSpec) -> float:
    """Return the time of an operator between the backward pass and the end of the update."""
    if not issued.is_on_lists or issued.lowering is None:
        return native_ns(issued, host)
    # A recorded list is looped over in C++: its time beyond the CPU's own loop is arithmetic.
    own_ns = max(looped_ns(issued, program, host), native_ns(issued, host))
    return _LIST_OPS * cpu_op_ns(host) + own_ns


def _num_module_calls(issued: Sequence[IssuedOp]) -> int:
    """Return the number of modules that are entered from one operator to the next."""
    number, before = 0, ""
    for each in issued:
        if each.op.module != before:
            path, known = each.op.module.split("."), before.split(".")
            number += sum(own != old for own, old in zip(path, known, strict=False))
            number += max(0, len(path) - len(known)) + (not before)
            before = each.op.module
    return number


# Cost of an operator on the CPU besides its arithmetic. Within a step, caches are colder than in a
# loop: it is at least this many operators of a loop, and this multiple of its calls in a loop.
_LEAST_DISPATCH_OPS = 3.0
_COLD_DISPATCH = 1.5
# Relative errors: of the measured time, at least; of the recorded arithmetic; and of the extra cost
# of a device's operators.
_TIME_ERROR = 0.05
_ARITHMETIC_ERROR = 0.12
_DEVICE_ERROR = 0.5
# If backward pass and update both took more than this multiple of the prediction, other work
# delayed the whole step.
_HELD_UP = 3.0
# Least fraction of a phase that is host work.
_LEAST_SHARE = 0.05
_LEAST_LOG_SIGMA = 0.1


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The measured times of a step on the CPU, in nanoseconds.

    Args:
        forward_ns: All but the phases below, the DataLoader and the script's other work.
        backward_ns: Backward passes.
        optimizer_ns: From the end of the last backward pass to the end of the update.
        spread: Upper over lower end of the step's 90 % interval.
    """

    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    spread: float = 1.0


# Usual errors of a host's factors, from the thirty networks of `benchmarks/small_steps.py`, with
# the step itself as the evidence.
_USUAL_LOG_SIGMA = {Phase.FORWARD: 0.2, Phase.BACKWARD: 0.2, Phase.OPTIMIZER: 0.3}


def anchored_host(program: Program, host: HostSpec, measured: MeasuredStep) -> HostSpec:
    """Return the host with its factors of each phase fitted to a measured step.

    Args:
        program: The recorded step, as a GPU would run it.
        host: The machine on which it was recorded and measured, with its own costs measured.
        measured: The step on its CPU.
    """
    predicted = predict_cpu_step(program, host)
    # A script's own functions may run Python in the backward pass, but rarely in the update too.
    least_slowness = min(
        _slowness(measured.backward_ns, predicted.backward_ns),
        _slowness(measured.optimizer_ns, predicted.optimizer_ns),
    )
    held_up = max(1.0, least_slowness / _HELD_UP)
    forward_ns, backward_ns, optimizer_ns = (
        time_ns / held_up
        for time_ns in (measured.forward_ns, measured.backward_ns, measured.optimizer_ns)
    )
    bare = replace(host, forward_factor=1.0, backward_factor=1.0, optimizer_factor=1.0)
    issued = {
        phase: _issued(ops, program, bare)
        for phase, ops in issued_ops(program).items()
        if phase in _USUAL_LOG_SIGMA
    }
    arithmetic_ns = sum(each.arithmetic_ns for each in issued.values())
    measured_ns = forward_ns + backward_ns + optimizer_ns
    # Arithmetic slows the CPU's Python by cold caches; on a GPU it does not.
    cold = min(1.0, arithmetic_ns / measured_ns) if measured_ns else 1.0
    updates_ns = _UPDATE_OPS * len(program.trace.facts.optimizers) * cpu_op_ns(host)
    slowness = _slowness(optimizer_ns, predicted.optimizer_ns) ** (1 - cold)
    # CPU time of each phase without the work outside of its operators; and its usual factor.
    phases = {
        Phase.FORWARD: (forward_ns - predicted.zero_grad_ns, host.forward_factor),
        Phase.BACKWARD: (backward_ns, host.backward_factor),
        Phase.OPTIMIZER: (optimizer_ns - slowness * updates_ns, host.optimizer_factor),
    }
    time_error = max(_TIME_ERROR, math.log(measured.spread) / (2 * Z_90))
    factors: dict[Phase, float] = {}
    total_ns, errors_ns = 0.0, [_DEVICE_ERROR * sum(each.device_ns for each in issued.values())]
    for phase, (time_ns, usual_factor) in phases.items():
        own = issued[phase]
        if phase is Phase.OPTIMIZER:
            own = own._replace(looping_ns=slowness * own.looping_ns)
        work_ns, error_ns = _work_ns(
            own,
            max(time_ns, 0.0),
            usual_ns=usual_factor * own.modelled_ns,
            usual_log_sigma=_USUAL_LOG_SIGMA[phase],
            cold=cold,
            time_error=time_error,
        )
        factors[phase] = work_ns / own.modelled_ns if own.modelled_ns else 1.0
        total_ns += work_ns
        errors_ns.append(error_ns)
    log_sigma = host.log_sigma
    if total_ns > 0:
        error = max(_LEAST_LOG_SIGMA, math.hypot(*errors_ns) / total_ns)
        log_sigma = math.hypot(math.log(held_up), error)
    return replace(
        host,
        step_ns=predicted.zero_grad_ns + slowness * updates_ns,
        forward_factor=factors[Phase.FORWARD],
        backward_factor=factors[Phase.BACKWARD],
        optimizer_factor=factors[Phase.OPTIMIZER],
        log_sigma=log_sigma,
    )


def scaled_host(host: HostSpec, here: HostSpec, anchored: HostSpec) -> HostSpec:
    """Return another host with the factors of each phase of a step that was measured here.

    A script's work beyond the usual is the same on any CPU; the other one's speed stays as
    uncertain as before.

    Args:
        host: The other one.
        here: This one.
        anchored: This one, fitted to the measured step.
    """
    return replace(
        host,
        step_ns=anchored.step_ns * cpu_op_ns(host) / cpu_op_ns(here),
        forward_factor=anchored.forward_factor,
        backward_factor=anchored.backward_factor,
        optimizer_factor=anchored.optimizer_factor,
    )


class _Issued(NamedTuple):
    """The host's work in one phase, in nanoseconds.

    Args:
        modelled_ns: Time by the costs per operator alone.
        device_ns: The part of it that only a device's operators have.
        arithmetic_ns: Time of its operators on the CPU beyond their calls.
        looping_ns: Time of the CPU's loops over lists.
    """

    modelled_ns: float
    device_ns: float
    arithmetic_ns: float
    looping_ns: float


def _issued(ops: Sequence[IssuedOp], program: Program, host: HostSpec) -> _Issued:
    """Return the predicted work of a phase.

    Args:
        ops: Its operators.
        program: The step.
        host: The host without factors on its phases.
    """
    # The costs of the CPU's own operators.
    cpu = replace(
        host,
        op_ns=host.op_ns - host.device_ns,
        backward_ns=host.backward_ns - host.device_ns,
        foreach_ns=host.foreach_ns - host.device_ns,
        device_ns=0.0,
        device_work=UNSET,
    )
    modelled_ns = called_ns = arithmetic_ns = looping_ns = 0.0
    for each in ops:
        call_ns = loop_ns = 0.0
        if each.lowering is not None:
            call_ns = program.costs.host_op_ns(each.op, each.lowering, cpu)
            modelled_ns += program.costs.host_op_ns(each.op, each.lowering, host)
            loop_ns = looped_ns(each, program, host)
        called_ns += call_ns
        looping_ns += loop_ns
        if not each.is_view:
            least_ns = max(_LEAST_DISPATCH_OPS * cpu.op_ns, _COLD_DISPATCH * call_ns)
            arithmetic_ns += max(0.0, native_ns(each, host) - least_ns - loop_ns)
    return _Issued(modelled_ns, modelled_ns - called_ns, arithmetic_ns, looping_ns)


def _work_ns(
    issued: _Issued,
    time_ns: float,
    *,
    usual_ns: float,
    usual_log_sigma: float,
    cold: float,
    time_error: float,
) -> tuple[float, float]:
    """Return the host's work in a phase, and its standard deviation.

    Args:
        issued: Its predicted work.
        time_ns: Its measured time on the CPU.
        usual_ns: Its usual work.
        usual_log_sigma: Standard deviation of the logarithm of the usual work.
        cold: Fraction of the step that is arithmetic.
        time_error: Relative error of a measured time.
    """
    if not issued.modelled_ns or not time_ns:
        return usual_ns, usual_log_sigma * usual_ns
    seen_ns = time_ns - issued.arithmetic_ns - issued.looping_ns + issued.device_ns
    seen_error_ns = math.hypot(
        time_error * time_ns,
        _ARITHMETIC_ERROR * issued.arithmetic_ns,
        2 * time_error * issued.looping_ns,
        cold * (time_ns - issued.arithmetic_ns),
    )
    seen_ns = max(seen_ns, _LEAST_SHARE * time_ns)
    seen_log_sigma = seen_error_ns / seen_ns
    # A script may do anything: do not pull a value that is surely unusual towards the usual one.
    low_ns, high_ns = seen_ns - 2 * seen_error_ns, seen_ns + 2 * seen_error_ns
    surely_off = math.log(max(low_ns / usual_ns, usual_ns / high_ns, 1.0))
    usual_log_sigma = math.hypot(usual_log_sigma, surely_off)
    weight = usual_log_sigma**2 / (usual_log_sigma**2 + seen_log_sigma**2)
    work_ns = usual_ns * (seen_ns / usual_ns) ** weight
    return work_ns, work_ns * math.sqrt(weight) * seen_log_sigma


def _slowness(measured_ns: float, predicted_ns: float) -> float:
    """Return the ratio of a measured to a predicted time; 1 if either is not positive."""
    return measured_ns / predicted_ns if measured_ns > 0 and predicted_ns > 0 else 1.0
