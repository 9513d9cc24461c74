"""Hosts that are not here: a typical one, and others by their CPU's single-thread speed."""

from __future__ import annotations

import math

from breakeven.device import HostCalibration, HostCpu, HostSpec, find_host_cpu
from breakeven.errors import BreakevenError, Caveat
from breakeven.units import format_digits

# How far two hosts with one CPU lie apart (driver, Python, memory, power settings), and the
# reference from a host that it stands for. Judgement: hosts of one GPU differ by 2x either way.
_REFERENCE_LOG_SIGMA = 0.35
# Boost clock times instructions per clock, against what a host takes in truth: a server's other
# cores keep it below its boost clock, and caches scale with neither. Where a hypervisor hides the
# model, the clock is a guess too. Judgement, both.
_SPEED_LOG_SIGMA = 0.12
_VIRTUAL_SPEED_LOG_SIGMA = 0.20

# What the reference host would take by the measurement of `breakeven calibrate`, in nanoseconds:
# 2.06 times what an AMD EPYC of 2024 (Zen 5, 4.5 GHz) took in 2026-11 under torch 2.13 and Python
# 3.11, since its core has 2.06 times the single-thread speed by the table of CPUs.
_REFERENCE_MEASURES_NS = {
    "op": 1_880.0,
    "autograd": 890.0,
    "module": 1_240.0,
    "view": 1_550.0,
    "backward": 3_370.0,
}


def reference_host() -> HostSpec:
    """Return a typical server CPU of the early 2020s under eager PyTorch of its day.

    An elementwise operator in a loop of its own then takes 8 µs with its launch, in a forward
    pass 20 µs. Hosts differ by 2x either way.
    """
    return HostSpec(
        id="reference",
        name="Server CPU, early 2020s",
        op_ns=5_500.0,
        python_ns=9_850.0,
        view_python_ns=4_600.0,
        autograd_ns=1_800.0,
        backward_ns=13_500.0,
        backward_call_ns=60_000.0,
        foreach_ns=12_000.0,
        foreach_tensor_ns=500.0,
        view_ns=3_000.0,
        log_sigma=_REFERENCE_LOG_SIGMA,
        source=(
            "op: eager add queued on an A100 8 µs (Torch-FL PR 27, 2026), less the launch; "
            "autograd: 6.8 against 5.0 µs (pytorch issue 41383, 2020); view: 2.7-4.7 µs with an "
            "event pair (NeuSight traces); python of views: 1.5 µs on an AMD EPYC in 2026, at half "
            "its speed and with software 1.5 times as slow; python of operators: twice op, less "
            "what a convolutional network has of views; backward: 2.5 times op, as measured there; "
            "backward call: 28 µs there, at half its speed; foreach: from op. Together they make "
            "the forward pass of an efficientnet_b5 of batch 1 on an A100 20 ms, which took "
            "17.8 ms, all of it dispatch (pytorch issue 82793, 2022)"
        ),
    )


def host_spec(cpu: HostCpu) -> HostSpec:
    """Return the reference host with the single-thread speed of ``cpu``."""
    reference = reference_host()
    slowdown = 1 / cpu.single_thread_speed
    sigma = _VIRTUAL_SPEED_LOG_SIGMA if cpu.is_virtual else _SPEED_LOG_SIGMA
    return HostSpec(
        id=cpu.id,
        name=cpu.name,
        op_ns=reference.op_ns * slowdown,
        python_ns=reference.python_ns * slowdown,
        view_python_ns=reference.view_python_ns * slowdown,
        autograd_ns=reference.autograd_ns * slowdown,
        backward_ns=reference.backward_ns * slowdown,
        backward_call_ns=reference.backward_call_ns * slowdown,
        foreach_ns=reference.foreach_ns * slowdown,
        foreach_tensor_ns=reference.foreach_tensor_ns * slowdown,
        view_ns=reference.view_ns * slowdown,
        log_sigma=math.hypot(reference.log_sigma, sigma),
        source=(
            f"reference host × {slowdown:.2f}: {cpu.core} at {format_digits(cpu.boost_hz / 1e9)} "
            "GHz against Zen 2 at 3.4"
        ),
    )


def host_for(name: str) -> tuple[HostSpec, Caveat | None]:
    """Return the host that a table's ``host`` column means.

    Args:
        name: A CPU, as a system calls it; empty where the table does not say.

    Returns:
        The reference host where the name is empty, and with a caveat where it is not known.
    """
    if not name.strip():
        return reference_host(), None
    try:
        return host_spec(find_host_cpu(name)), None
    except BreakevenError as error:
        return reference_host(), Caveat(
            code="unknown-host",
            message=f"{error.message}; the reference host stands in for it",
        )


def measured_speed(calibration: HostCalibration) -> float:
    """Return the single-thread speed of a measured host; 1 is the reference host.

    The geometric mean over what Python, the dispatcher and autograd took.
    """
    logs = [
        math.log(reference_ns / max(calibration.figure(code).median_ns, 1.0))
        for code, reference_ns in _REFERENCE_MEASURES_NS.items()
    ]
    return math.exp(sum(logs) / len(logs))
