"""The host's work on a GPU, from the same step as it was measured on the CPU.

A step whose arithmetic is negligible takes the host on a GPU what it takes it on the CPU, and
more: Python, dispatcher and autograd are the same. So the measured step, less the arithmetic and
what only the CPU's path does, plus what only a device's does, is the best that is known of that
work. Where arithmetic is most of the step, its rest says little, and what is usual decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from breakeven.device import HostSpec
from breakeven.simulate.cpu_step import (
    UPDATE_OPS,
    IssuedOp,
    cpu_op_ns,
    issued_ops,
    looped_ns,
    native_ns,
    predict_cpu_step,
)
from breakeven.simulate.program import Z_90, Program
from breakeven.trace import Phase

# What an operator takes the CPU besides its arithmetic, within a step and so with colder caches
# than in a loop of its own: at least so many operators there, and so many times its calls there.
_LEAST_DISPATCH_OPS = 3.0
_COLD_DISPATCH = 1.5
# How far off each part of the evidence is: the measured time at least, the arithmetic of what was
# recorded, what a device's operators add.
_TIME_ERROR = 0.05
_ARITHMETIC_ERROR = 0.12
_DEVICE_ERROR = 0.5
# If backward pass and update took more than so many times what recording and calibration say, other
# work held up the whole step.
_HELD_UP = 3.0
# Of a phase, the host's work is this part at least.
_LEAST_SHARE = 0.05
_LEAST_LOG_SIGMA = 0.1


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was timed on the CPU, in nanoseconds.

    Args:
        forward_ns: All but the phases below, the DataLoader and other work of the script.
        backward_ns: Backward passes.
        optimizer_ns: From the end of the last backward pass to the end of the update.
        spread: Upper over lower end of the step's 90 % interval.
    """

    forward_ns: float
    backward_ns: float
    optimizer_ns: float
    spread: float = 1.0


# How far off a host's factors are as a rule, from the thirty networks of
# `benchmarks/small_steps.py`, where the step itself is the evidence.
_USUAL_LOG_SIGMA = {Phase.FORWARD: 0.2, Phase.BACKWARD: 0.2, Phase.OPTIMIZER: 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """What the host issues in one phase, in nanoseconds.

    Args:
        usual_ns: By the costs per operator, and what is usual for such a phase.
        usual_log_sigma: How far off that is as a rule.
        modelled_ns: By the costs per operator alone.
        device_ns: The part of that which only a device's operators take.
        arithmetic_ns: What its operators take the CPU beyond being called.
        looping_ns: What the CPU's loops over lists take.
    """

    usual_ns: float
    usual_log_sigma: float
    modelled_ns: float
    device_ns: float
    arithmetic_ns: float
    looping_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The host's work in one phase, in nanoseconds.

    Args:
        modelled_ns: By the costs per operator.
        device_ns: The part of that which only a device's operators take.
        time_ns: Its estimate.
        error_ns: A standard deviation of the estimate.
    """

    modelled_ns: float
    device_ns: float
    time_ns: float
    error_ns: float

    @property
    def factor(self) -> float:
        """Return what the estimate is of the model's."""
        return self.time_ns / self.modelled_ns if self.modelled_ns else 1.0


def anchored_host(program: Program, host: HostSpec, measured: MeasuredStep) -> HostSpec:
    """Return the host with its work in each phase as a measured step tells it.

    Args:
        program: The recorded step, as a GPU would run it.
        host: The machine on which it was recorded and measured, with its own costs measured.
        measured: The step on its CPU.
    """
    predicted = predict_cpu_step(program, host)
    # A script's own functions may run Python in the backward pass, but hardly in the update too.
    least_slowness = min(
        _slowness(measured.backward_ns, predicted.backward_ns),
        _slowness(measured.optimizer_ns, predicted.optimizer_ns),
    )
    held_up = max(1.0, least_slowness / _HELD_UP)
    measured = replace(
        measured,
        forward_ns=measured.forward_ns / held_up,
        backward_ns=measured.backward_ns / held_up,
        optimizer_ns=measured.optimizer_ns / held_up,
    )
    issued, usual = issued_ops(program), _usual_factors(host)
    bare = replace(host, forward_factor=1.0, backward_factor=1.0, optimizer_factor=1.0)
    phases = {phase: _phase(phase, issued[phase], program, bare, usual[phase]) for phase in usual}
    arithmetic_ns = sum(phase.arithmetic_ns for phase in phases.values())
    measured_ns = measured.forward_ns + measured.backward_ns + measured.optimizer_ns
    # Arithmetic leaves cold caches to the CPU's Python, which a GPU does not.
    cold = min(1.0, arithmetic_ns / measured_ns) if measured_ns else 1.0
    updates_ns = UPDATE_OPS * len(program.trace.facts.optimizers) * cpu_op_ns(host)
    slowness = _slowness(measured.optimizer_ns, predicted.optimizer_ns) ** (1 - cold)
    # What each phase took on the CPU, but for what is not of its operators.
    times_ns = {
        Phase.FORWARD: measured.forward_ns - predicted.zero_grad_ns,
        Phase.BACKWARD: measured.backward_ns,
        Phase.OPTIMIZER: measured.optimizer_ns - slowness * updates_ns,
    }
    works = {
        phase: _work(
            phases[phase], time_ns=max(time_ns, 0.0), cold=cold,
            slowness=slowness if phase is Phase.OPTIMIZER else 1.0,
            time_error=max(_TIME_ERROR, math.log(measured.spread) / (2 * Z_90)),
        )
        for phase, time_ns in times_ns.items()
    }  # fmt: skip
    total_ns = sum(work.time_ns for work in works.values())
    error_ns = math.hypot(
        *(work.error_ns for work in works.values()),
        _DEVICE_ERROR * sum(work.device_ns for work in works.values()),
    )
    return replace(
        host,
        step_ns=predicted.zero_grad_ns + slowness * updates_ns,
        forward_factor=works[Phase.FORWARD].factor,
        backward_factor=works[Phase.BACKWARD].factor,
        optimizer_factor=works[Phase.OPTIMIZER].factor,
        log_sigma=math.hypot(math.log(held_up), max(_LEAST_LOG_SIGMA, error_ns / total_ns))
        if total_ns > 0
        else host.log_sigma,
    )


def scaled_host(host: HostSpec, here: HostSpec, anchored: HostSpec) -> HostSpec:
    """Return another host with its work in each phase as a step that was measured here tells it.

    What a script takes beyond what is usual it takes on any CPU; how fast another one is stays as
    uncertain as it was.

    Args:
        host: The other one.
        here: This one.
        anchored: What the measured step made of this one.
    """
    return replace(
        host,
        step_ns=anchored.step_ns * cpu_op_ns(host) / cpu_op_ns(here),
        forward_factor=anchored.forward_factor,
        backward_factor=anchored.backward_factor,
        optimizer_factor=anchored.optimizer_factor,
    )


def _usual_factors(host: HostSpec) -> dict[Phase, float]:
    return {
        Phase.FORWARD: host.forward_factor,
        Phase.BACKWARD: host.backward_factor,
        Phase.OPTIMIZER: host.optimizer_factor,
    }


def _phase(
    phase: Phase, issued: Sequence[IssuedOp], program: Program, host: HostSpec, usual_factor: float
) -> _Phase:
    """Return what is known of a phase before it is measured.

    Args:
        phase: Which one.
        issued: Its operators.
        program: The step.
        host: The host without any factor on its phases.
        usual_factor: Its usual factor on this phase.
    """
    cpu = _without_device(host)
    modelled_ns = cpu_issue_ns = arithmetic_ns = looping_ns = 0.0
    for each in issued:
        called_ns = _issue_ns(each, program, cpu)
        looped = looped_ns(each, program, host)
        modelled_ns += _issue_ns(each, program, host)
        cpu_issue_ns += called_ns
        looping_ns += looped
        if not each.is_view:
            least_ns = max(_LEAST_DISPATCH_OPS * cpu.op_ns, _COLD_DISPATCH * called_ns)
            arithmetic_ns += max(0.0, native_ns(each, host) - least_ns - looped)
    return _Phase(
        usual_ns=usual_factor * modelled_ns,
        usual_log_sigma=_USUAL_LOG_SIGMA[phase],
        modelled_ns=modelled_ns,
        device_ns=modelled_ns - cpu_issue_ns,
        arithmetic_ns=arithmetic_ns,
        looping_ns=looping_ns,
    )


def _work(
    phase: _Phase, *, time_ns: float, cold: float, slowness: float, time_error: float
) -> _Work:
    """Return the host's work in a phase.

    Args:
        phase: What is known of it.
        time_ns: What it took on the CPU.
        cold: Share of the step that is arithmetic.
        slowness: Of the update, what it took over what was expected of it.
        time_error: How far off a measured time is, as a share of it.
    """
    modelled_ns, device_ns = phase.modelled_ns, phase.device_ns
    arithmetic_ns, looping_ns = phase.arithmetic_ns, slowness * phase.looping_ns
    usual_ns = phase.usual_ns
    if not modelled_ns or not time_ns:
        error_ns = phase.usual_log_sigma * usual_ns
        return _Work(
            modelled_ns=modelled_ns, device_ns=device_ns, time_ns=usual_ns, error_ns=error_ns
        )
    seen_ns = time_ns - arithmetic_ns - looping_ns + device_ns
    seen_error_ns = math.hypot(
        time_error * time_ns,
        _ARITHMETIC_ERROR * arithmetic_ns,
        2 * time_error * looping_ns,
        cold * (time_ns - arithmetic_ns),
    )
    seen_ns = max(seen_ns, _LEAST_SHARE * time_ns)
    seen_log_sigma = seen_error_ns / seen_ns
    # A script may do anything: what is surely far from usual is not to be drawn there.
    low_ns, high_ns = seen_ns - 2 * seen_error_ns, seen_ns + 2 * seen_error_ns
    surely_off = math.log(max(low_ns / usual_ns, usual_ns / high_ns, 1.0))
    usual_log_sigma = math.hypot(phase.usual_log_sigma, surely_off)
    weight = usual_log_sigma**2 / (usual_log_sigma**2 + seen_log_sigma**2)
    host_ns = usual_ns * (seen_ns / usual_ns) ** weight
    return _Work(
        modelled_ns=modelled_ns,
        device_ns=device_ns,
        time_ns=host_ns,
        error_ns=host_ns * math.sqrt(weight) * seen_log_sigma,
    )


def _slowness(measured_ns: float, predicted_ns: float) -> float:
    """Return what an update took over what was expected of it."""
    return measured_ns / predicted_ns if measured_ns > 0 and predicted_ns > 0 else 1.0


def _issue_ns(issued: IssuedOp, program: Program, host: HostSpec) -> float:
    if issued.lowering is None:
        return 0.0
    return program.costs.host_op_ns(issued.op, issued.lowering, host)


def _without_device(host: HostSpec) -> HostSpec:
    """Return the host's costs of the CPU's own operators."""
    return replace(
        host,
        op_ns=host.op_ns - host.device_ns,
        backward_ns=host.backward_ns - host.device_ns,
        foreach_ns=host.foreach_ns - host.device_ns,
        device_ns=0.0,
        device_work=UNSET,
    )
