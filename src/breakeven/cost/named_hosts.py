"""Hosts that are not here: a typical one, and others by their CPU's single-thread speed.

Under the software of today they are the CPU that was measured at another speed: the same model as
that of a host that is measured. Older software took longer for the same work, and by how much
differs between the kinds of work, so that what was published of it is the base of its own.
"""

from __future__ import annotations

import math

import msgspec

from breakeven.cost.era import Era
from breakeven.cost.host_measures import HostMeasures, host_of
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

# What an AMD EPYC of 2024 (Zen 5, 4.5 GHz) took by the measurement of `breakeven calibrate` in
# 2026-11 under torch 2.13 and Python 3.11, and the single-thread speed of its core by the table of
# CPUs.
_MEASURED = HostMeasures(
    op_ns=990.0,
    autograd_ns=425.0,
    module_ns=630.0,
    view_ns=775.0,
    backward_ns=1_650.0,
    backward_call_ns=32_500.0,
    foreach_ns=2_080.0,
    foreach_tensor_ns=1_300.0,
)
_MEASURED_SPEED = 2.06
_REFERENCE = _MEASURED.times(_MEASURED_SPEED)

_REFERENCE_ID = "reference"
_REFERENCE_NAME = "Server CPU, early 2020s"


def reference_host(era: Era = Era.TORCH_2) -> HostSpec:
    """Return a typical server CPU of the early 2020s under eager PyTorch.

    Hosts differ by 2x either way.

    Args:
        era: Software; where it is not known it is taken for one of before torch 2, as most tables'.
    """
    if era is not Era.TORCH_2:
        return _BEFORE_TORCH_2
    return host_of(
        _REFERENCE,
        host_id=_REFERENCE_ID,
        name=_REFERENCE_NAME,
        log_sigma=_REFERENCE_LOG_SIGMA,
        source=(
            f"an AMD EPYC of 2024, measured in 2026-11 under torch 2.13 and Python 3.11, × "
            f"{_MEASURED_SPEED:g} for its single-thread speed"
        ),
    )


# An elementwise operator in a loop of its own then takes 8 µs with its launch, in a forward pass
# 20 µs.
_BEFORE_TORCH_2 = HostSpec(
    id=_REFERENCE_ID,
    name=_REFERENCE_NAME,
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


def host_spec(cpu: HostCpu, era: Era = Era.TORCH_2) -> HostSpec:
    """Return the reference host with the single-thread speed of ``cpu``.

    Args:
        cpu: The CPU.
        era: Software.
    """
    reference = reference_host(era)
    slowdown = 1 / cpu.single_thread_speed
    sigma = _VIRTUAL_SPEED_LOG_SIGMA if cpu.is_virtual else _SPEED_LOG_SIGMA
    times = msgspec.structs.asdict(reference).items()
    return msgspec.structs.replace(
        reference,
        **{name: value * slowdown for name, value in times if name.endswith("_ns")},
        id=cpu.id,
        name=cpu.name,
        log_sigma=math.hypot(reference.log_sigma, sigma),
        source=(
            f"reference host × {slowdown:.2f}: {cpu.core} at {format_digits(cpu.boost_hz / 1e9)} "
            "GHz against Zen 2 at 3.4"
        ),
    )


def host_for(name: str, era: Era) -> tuple[HostSpec, Caveat | None]:
    """Return the host that a table's ``host`` column means.

    Args:
        name: A CPU, as a system calls it; empty where the table does not say.
        era: Software.

    Returns:
        The reference host where the name is empty, and with a caveat where it is not known.
    """
    if not name.strip():
        return reference_host(era), None
    try:
        return host_spec(find_host_cpu(name), era), None
    except BreakevenError as error:
        return reference_host(era), Caveat(
            code="unknown-host",
            message=f"{error.message}; the reference host stands in for it",
        )


def measured_speed(calibration: HostCalibration) -> float:
    """Return the single-thread speed of a measured host; 1 is the reference host.

    The geometric mean over what Python, the dispatcher and autograd took.
    """
    logs = [
        math.log(reference_ns / max(calibration.figure(name.removesuffix("_ns")).median_ns, 1.0))
        for name, reference_ns in msgspec.structs.asdict(_REFERENCE).items()
    ]
    return math.exp(sum(logs) / len(logs))
