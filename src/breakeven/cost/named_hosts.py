"""Hosts: costs of torch calls on a CPU, the reference host, and hosts by single-thread speed."""

from __future__ import annotations

import math

import msgspec
from msgspec import UNSET, UnsetType

from breakeven.cost.step_effects import Era
from breakeven.device import HostCalibration, HostCpu, HostSpec, find_host_cpu
from breakeven.errors import BreakevenError, Caveat
from breakeven.units import format_digits

# Extra host cost of a device's operator over the same operator on the CPU, launch excluded, in
# operators of the CPU: the device's guard and stream, its allocator, checks of its errors. Queued
# on a GPU an elementwise operator takes 4.4 µs (RTX 3090 Ti, 2022; mli/transformers-benchmarks)
# to 8 µs (A100, 2026; Torch-FL PR 27), of which the launch is 1.7-2.3 µs; on the CPU 2.0 µs
# (pytorch issue 41383, 2020) at about the same speed: 0.3 to 1.9 more. If the machine has a device,
# a measurement replaces this figure.
DEVICE_OPS = 1.0
# Python around an operator and around a view, in calls of an empty module: of modules and of
# wrappers in torch.nn.functional, attribute look-ups, all with colder caches than a loop's. Forward
# passes over tensors of a few elements took per kernel, beyond the operators themselves, 0 such
# calls (products and tanh in a loop; linear and ReLU), 0.3 (ReLU modules), 1 (linear, ReLU, layer
# norm, dropout), 1.5 (convolution, batch norm, ReLU), 2.9 (batch norm, ReLU), 5.2 (GPT-2) and 5.9
# (BERT), which have 0, 0.5, 0, 0.3, 0.2, 0.3, 1.0 and 1.5 views per kernel (AMD EPYC, 2026-11,
# torch 2.13, Python 3.11; least squares gives 0 and 3.6).
MODULE_CALLS = 0.5
VIEW_MODULE_CALLS = 2.5
# On the CPU a foreach operator is a loop over tensors, each of which costs an operator. On a device
# each tensor only costs the packing of its pointers: a tenth of that. Judgement.
_PACKING_SHARE = 0.1
# Host work of a phase within a step, over the sum of its calls' costs: the medians of the thirty
# networks of `benchmarks/small_steps.py`.
_FORWARD_FACTOR = 1.15
_BACKWARD_FACTOR = 0.94
_OPTIMIZER_FACTOR = 1.45


class HostMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a CPU for calls on tensors of one element, in nanoseconds each.

    Args:
        op_ns: An operator.
        autograd_ns: Extra time of recording it for backward.
        module_ns: A call of an empty module.
        view_ns: A view.
        backward_ns: An operator that the autograd engine runs.
        backward_call_ns: Fixed cost of a backward pass.
        foreach_ns: An operator on a list of one tensor.
        foreach_tensor_ns: Extra time of it per further tensor.
    """

    op_ns: float
    autograd_ns: float
    module_ns: float
    view_ns: float
    backward_ns: float
    backward_call_ns: float
    foreach_ns: float
    foreach_tensor_ns: float

    def times(self, factor: float) -> HostMeasures:
        """Return the measures of a CPU that takes ``factor`` times as long."""
        return HostMeasures(
            **{name: time_ns * factor for name, time_ns in msgspec.structs.asdict(self).items()}
        )


def host_of(
    measures: HostMeasures,
    *,
    host_id: str,
    name: str,
    source: str,
    log_sigma: float,
    device_ns: float | None = None,
    assumption: str | UnsetType = UNSET,
) -> HostSpec:
    """Return a CPU as the host of a device.

    Args:
        measures: Its times for calls of its own operators.
        host_id: Its id.
        name: Its name.
        source: Source of the measures.
        log_sigma: Standard deviation of the logarithm of a step's host time.
        device_ns: Measured extra time of a device's operator over one of the CPU.
        assumption: Source of that extra time.
    """
    more_ns = DEVICE_OPS * measures.op_ns if device_ns is None else device_ns
    return HostSpec(
        id=host_id,
        name=name,
        op_ns=measures.op_ns + more_ns,
        python_ns=MODULE_CALLS * measures.module_ns,
        view_python_ns=VIEW_MODULE_CALLS * measures.module_ns,
        autograd_ns=measures.autograd_ns,
        backward_ns=measures.backward_ns + more_ns,
        backward_call_ns=measures.backward_call_ns,
        foreach_ns=measures.foreach_ns + more_ns,
        foreach_tensor_ns=_PACKING_SHARE * measures.foreach_tensor_ns,
        view_ns=measures.view_ns,
        device_ns=more_ns,
        module_ns=measures.module_ns,
        forward_factor=_FORWARD_FACTOR,
        backward_factor=_BACKWARD_FACTOR,
        optimizer_factor=_OPTIMIZER_FACTOR,
        source=source,
        assumption=assumption,
        log_sigma=log_sigma,
    )


# Spread of hosts with one CPU (driver, Python, memory, power settings), and of the reference from
# the hosts that it replaces. Judgement: hosts of one GPU differ by 2x either way.
_REFERENCE_LOG_SIGMA = 0.35
# Error of boost clock times instructions per clock as a host's speed: other busy cores keep a
# server below its boost clock, and caches scale with neither. If a hypervisor hides the model, the
# clock is also a guess. Both are judgement.
_SPEED_LOG_SIGMA = 0.12
_VIRTUAL_SPEED_LOG_SIGMA = 0.20

# Times of an AMD EPYC of 2024 (Zen 5, 4.5 GHz), measured by `breakeven calibrate` in 2026-11 under
# torch 2.13 and Python 3.11, and the single-thread speed of its core from the table of CPUs.
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
        era: Software; if unknown, assume one before torch 2, as in most tables.
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


# An elementwise operator then takes 8 µs with its launch in a loop, and 20 µs in a forward pass.
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
    """Return the host that a table's ``host`` column names.

    Args:
        name: A CPU, as a system names it; empty if the table does not say.
        era: Software.

    Returns:
        The reference host if the name is empty; the same with a caveat if it is unknown.
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

    It is the geometric mean of the speeds of Python, the dispatcher and autograd.
    """
    logs = [
        math.log(reference_ns / max(calibration.figure(name.removesuffix("_ns")).median_ns, 1.0))
        for name, reference_ns in msgspec.structs.asdict(_REFERENCE).items()
    ]
    return math.exp(sum(logs) / len(logs))
