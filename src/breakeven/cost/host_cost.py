"""The host time to issue an operator, without the launches of its kernels."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from breakeven.cost.kernel import Family, Lowering
from breakeven.cost.lower_compiled import CALL, FUSED, called_name, is_compiled
from breakeven.cost.rules import base_name, is_in_place
from breakeven.device import HostSpec
from breakeven.trace import Op, Phase, Sync

# Host time of an operator's library calls, in dispatches of an elementwise operator. GEMM: eager
# a@b of 128 x 128 takes 10.4 µs (fp16) to 16.8 µs (TF32) on a machine where an elementwise
# operator takes 4.4 µs, launches of 1.7 µs included (mli/transformers-benchmarks, RTX 3090 Ti);
# a small nn.Linear takes 27 µs more than an addition on an idle GPU, module included, a small bmm
# 5 µs more (NeuSight tables, three hosts). A convolution passes four levels of dispatch, looks up
# its algorithm by a hash of all its parameters, describes four tensors and allocates a workspace;
# a batch norm passes three levels, and allocates what it saves. A recurrent layer describes its
# weights, states and dropout on every call: training LSTMs of 64 and 128 units, in a kernel or two,
# took the host of an H200 0.7 ms more than an MLP, while an operator took it 11 µs within steps
# (`benchmarks/data`). No table isolates convolutions, norms, or the families that are not mentioned
# here: their factors are judgement.
_CALL_FACTOR = {
    Family.GEMM: 4.0,
    Family.BATCHED_GEMM: 2.0,
    Family.CONVOLUTION: 8.0,
    Family.ATTENTION: 4.0,
    Family.RECURRENT: 40.0,
    Family.NORMALIZATION: 3.0,
    Family.LINALG: 5.0,
    Family.SORT: 3.0,
}
_BATCH_NORM_FACTOR = 4.0

# The backward pass runs without Python. It parses no arguments, which are half of the time of a
# small operator (pytorch issue 41383). Its measured cost per operator reflects that already.
_VIEW_IN_BACKWARD_FRACTION = 0.5

# Cost of entering a compiled graph, in operators of a device: guards and the wrapper; with a
# backward pass also autograd's function around forward and backward. Compiled chains of linear and
# ReLU on tensors of a few elements, 1 to 64 layers, extrapolated to zero layers: 22 µs, and 110 µs
# for forward and backward beyond `sum` and `backward()`, assuming 2.0 µs for a device's operator
# (AMD EPYC, 2026-11-25, torch 2.13, Python 3.11, inductor for the CPU).
_COMPILED_CALL_OPS = 11.0
_COMPILED_TRAINING_CALL_OPS = 28.0
# Cost of a generated kernel beyond the driver's launch: its launcher, 3.8 to 6.1 µs (GB200,
# 2026-04; meta-pytorch/tritonbench PR 1017) if an operator takes about 4, and the wrapper's work
# around it: buffers, views of them, checks of sizes. Issuing sixteen steps without recurrent layers
# took the host of an H200 2.7 times the launcher alone, at the factors of its eager steps (torch
# 2.11, `benchmarks/data`).
_COMPILED_KERNEL_OPS = 3.4

# Bytes of a number of the widest dtype except complex128.
VALUE_BYTES = 8

_GRAD_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})


class HostPart(StrEnum):
    """A kind of host work; the times of one kind have a common error.

    ``dispatch_*`` is an operator called from Python, ``backward_*`` one called by the autograd
    engine. ``python`` is the Python of script and modules around the operators of a forward pass,
    ``view_python`` that around its views, ``autograd`` the cost of recording there.
    """

    PYTHON = "python"
    VIEW_PYTHON = "view_python"
    AUTOGRAD = "autograd"
    DISPATCH_POINTWISE = "dispatch_pointwise"
    DISPATCH_GEMM = "dispatch_gemm"
    DISPATCH_CONVOLUTION = "dispatch_convolution"
    DISPATCH_BATCH_NORM = "dispatch_batch_norm"
    DISPATCH_OTHER_NORM = "dispatch_other_norm"
    DISPATCH_LIBRARY = "dispatch_library"
    BACKWARD_CALL = "backward_call"
    BACKWARD_POINTWISE = "backward_pointwise"
    BACKWARD_GEMM = "backward_gemm"
    BACKWARD_CONVOLUTION = "backward_convolution"
    BACKWARD_BATCH_NORM = "backward_batch_norm"
    BACKWARD_OTHER_NORM = "backward_other_norm"
    BACKWARD_LIBRARY = "backward_library"
    ACCUMULATE_GRAD = "accumulate_grad"
    IN_PLACE_ZERO = "in_place_zero"
    VIEW = "view"
    BACKWARD_VIEW = "backward_view"
    FOREACH = "foreach"
    FOREACH_TENSORS = "foreach_tensors"
    COMPILED_CALL = "compiled_call"
    COMPILED_KERNEL = "compiled_kernel"


# Work with its own factor on a host: `DeviceWork.convolution_factor`.
CONVOLUTION_PARTS = frozenset({
    HostPart.DISPATCH_CONVOLUTION, HostPart.BACKWARD_CONVOLUTION,
    HostPart.DISPATCH_BATCH_NORM, HostPart.BACKWARD_BATCH_NORM,
})  # fmt: skip
_POINTWISE = (HostPart.DISPATCH_POINTWISE, HostPart.BACKWARD_POINTWISE)
_LIBRARY = (HostPart.DISPATCH_LIBRARY, HostPart.BACKWARD_LIBRARY)
_KINDS = {
    Family.GEMM: (HostPart.DISPATCH_GEMM, HostPart.BACKWARD_GEMM),
    Family.BATCHED_GEMM: (HostPart.DISPATCH_GEMM, HostPart.BACKWARD_GEMM),
    Family.CONVOLUTION: (HostPart.DISPATCH_CONVOLUTION, HostPart.BACKWARD_CONVOLUTION),
    Family.NORMALIZATION: (HostPart.DISPATCH_OTHER_NORM, HostPart.BACKWARD_OTHER_NORM),
    Family.ATTENTION: _LIBRARY,
    Family.RECURRENT: _LIBRARY,
    Family.LINALG: _LIBRARY,
    Family.SORT: _LIBRARY,
}


def host_op_parts(op: Op, lowering: Lowering, host: HostSpec) -> tuple[tuple[HostPart, float], ...]:
    """Return the host time to issue ``op`` by kind of work, without its kernel launches.

    Args:
        op: The operator; its phase shows whether autograd records or runs it.
        lowering: Its kernels; for the host, an operator without kernels is a view.
        host: Costs per operator.

    Returns:
        Kinds of host work and their nanoseconds.
    """
    factor = _factor(Phase.BACKWARD if starts_backward(op) else op.phase, host)
    of_convolutions = factor * host.seen_work.convolution_factor
    # Use a list: a tuple of a generator is slower, and steps have thousands of operators.
    parts = [
        (part, time_ns * (of_convolutions if part in CONVOLUTION_PARTS else factor))
        for part, time_ns in _parts(op, lowering, host)
    ]
    return tuple(parts)


def host_read_ns(sync: Sync, host: HostSpec) -> float:
    """Return the host time of the call that reads a sync's value; 0 if the sync only waits.

    Reading a number costs as much as a view: it has no result for autograd or the allocator. On an
    idle H200 `item()` took 3.5 µs more than a sync, and a view 3.2
    (`benchmarks/data/pairs_h200_2026-11-28.csv`).

    Args:
        sync: The sync.
        host: Costs per operator.
    """
    if not sync.num_bytes:
        return 0.0
    is_number = sync.num_bytes <= VALUE_BYTES
    return _factor(sync.phase, host) * (host.view_ns if is_number else host.op_ns)


def _factor(phase: Phase, host: HostSpec) -> float:
    if phase is Phase.BACKWARD:
        return host.backward_factor
    return host.optimizer_factor if phase is Phase.OPTIMIZER else host.forward_factor


def _parts(op: Op, lowering: Lowering, host: HostSpec) -> tuple[tuple[HostPart, float], ...]:
    # Compiled code: no modules, no autograd for each operator.
    if op.name == CALL:
        is_training = bool(op.attributes.get("is_training", False))
        num_ops = _COMPILED_TRAINING_CALL_OPS if is_training else _COMPILED_CALL_OPS
        return ((HostPart.COMPILED_CALL, num_ops * host.op_ns),)
    if op.name == FUSED:
        return ((HostPart.COMPILED_KERNEL, _COMPILED_KERNEL_OPS * host.op_ns),)
    if is_compiled(op.name):
        part, _, extra = _call(msgspec.structs.replace(op, name=called_name(op.name)), lowering)
        return ((part, host.op_ns * (1.0 + extra)),)
    if not lowering.kernels:
        if op.name == "aten.detach.default":
            # Autograd detaches each tensor that it saves for backward, and again on use. Only a
            # trace makes that an operator; otherwise it is a shallow copy. A script's own are rare.
            return ()
        if op.phase is Phase.BACKWARD:
            return ((HostPart.BACKWARD_VIEW, _VIEW_IN_BACKWARD_FRACTION * host.view_ns),)
        view = (HostPart.VIEW, host.view_ns)
        is_forward = op.phase is Phase.FORWARD
        return ((HostPart.VIEW_PYTHON, host.view_python_ns), view) if is_forward else (view,)
    if op.name.startswith(("aten._foreach_", "aten._fused_", "aten._amp_foreach_")):
        return (
            (HostPart.FOREACH, host.foreach_ns),
            (HostPart.FOREACH_TENSORS, len(op.inputs) * host.foreach_tensor_ns),
        )
    if starts_backward(op):
        return ((HostPart.BACKWARD_CALL, host.backward_call_ns + host.seen_work.handoff_ns),)
    forward, backward, extra = _call(op, lowering)
    calls_ns = host.op_ns * extra
    if op.phase is Phase.BACKWARD:
        return ((backward, host.backward_ns + calls_ns),)
    own = (forward, host.op_ns + calls_ns)
    if op.phase is not Phase.FORWARD:
        return (own,)
    python = (HostPart.PYTHON, host.python_ns)
    if any(tensor.dtype in _GRAD_DTYPES for tensor in op.outputs):
        return (python, own, (HostPart.AUTOGRAD, host.autograd_ns))
    return (python, own)


def starts_backward(op: Op) -> bool:
    """Return whether ``op`` makes the loss's own gradient, a one, of a ``backward()`` call."""
    return op.name == "aten.ones_like.default" and all(spec.numel == 1 for spec in op.outputs)


def _call(op: Op, lowering: Lowering) -> tuple[HostPart, HostPart, float]:
    """Return the kind of ``op`` if called and if run by autograd, and its extra dispatches.

    Extra dispatches are library calls, in dispatches of a plain operator. Each call describes its
    operands again: the gradient of a convolution makes two calls.
    """
    name = base_name(op.name)
    extra = sum(_CALL_FACTOR.get(kernel.family, 1.0) - 1.0 for kernel in lowering.kernels)
    if "batch_norm" in name:
        # In evaluation it runs an elementwise kernel, but the call is the same.
        extra = max(extra, _BATCH_NORM_FACTOR - 1.0)
        return HostPart.DISPATCH_BATCH_NORM, HostPart.BACKWARD_BATCH_NORM, extra
    if name == "zero" and is_in_place(op.name):
        return HostPart.IN_PLACE_ZERO, HostPart.IN_PLACE_ZERO, extra
    if name == "add" and is_in_place(op.name):
        # In the backward pass, only the accumulation into an existing gradient adds in place.
        return HostPart.DISPATCH_POINTWISE, HostPart.ACCUMULATE_GRAD, extra
    families = [kernel.family for kernel in lowering.kernels]
    main = max(families, key=lambda family: _CALL_FACTOR.get(family, 1.0))
    called, run_backward = _KINDS.get(main, _POINTWISE)
    return called, run_backward, extra
