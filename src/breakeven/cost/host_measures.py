"""What a CPU takes for calls of torch, and what that makes of it as the host of a device."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from breakeven.device import HostSpec

# What a device's operator costs the host beyond the same operator on the CPU, launch excluded, in
# operators of the CPU: the device's guard and stream, its allocator, checks of its errors. Queued
# on a GPU an elementwise operator takes 4.4 µs (RTX 3090 Ti, 2022; mli/transformers-benchmarks)
# to 8 µs (A100, 2026; Torch-FL PR 27), of which the launch is 1.7-2.3 µs; on the CPU 2.0 µs
# (pytorch issue 41383, 2020) at about the same speed: 0.3 to 1.9 more. Where there is a device it
# is measured instead.
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
# On the CPU a foreach operator is a loop over tensors: each costs an operator there, and only the
# packing of its pointers on a device, which a tenth of it stands for. Judgement.
_PACKING_SHARE = 0.1
# What the work of a phase takes within a step over what these calls make of it: the medians of the
# thirty networks of `benchmarks/small_steps.py`.
_FORWARD_FACTOR = 1.15
_BACKWARD_FACTOR = 0.94
_OPTIMIZER_FACTOR = 1.45


class HostMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What a CPU takes for calls on tensors of one element, in nanoseconds each.

    Args:
        op_ns: An operator.
        autograd_ns: What recording it for backward adds.
        module_ns: A call of a module that does nothing.
        view_ns: A view.
        backward_ns: An operator that the autograd engine runs.
        backward_call_ns: A backward pass by itself.
        foreach_ns: An operator on a list of one tensor.
        foreach_tensor_ns: What each further tensor adds to it.
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
        measures: What it takes for calls of its own operators.
        host_id: Its id.
        name: Its name.
        source: Where the measures are from.
        log_sigma: How far a step's work may be off.
        device_ns: What an operator of the device was measured to take it beyond one of its own.
        assumption: How that is known.
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
