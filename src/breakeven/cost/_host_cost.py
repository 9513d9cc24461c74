"""What the host spends to issue an operator, before the launches of its kernels."""

from __future__ import annotations

from breakeven.cost._kernel import Family, Lowering
from breakeven.device import HostSpec
from breakeven.trace import Op, Phase

# Library calls choose an algorithm and build descriptors on every call. An eager matmul of
# 128 x 128 takes 10.4 µs (fp16) to 16.8 µs (TF32) of host time on a machine where an elementwise
# operator takes 4.4 µs (mli/transformers-benchmarks, RTX 3090 Ti). No table isolates the
# convolution; cuDNN's descriptors and heuristics are taken at twice a matmul.
_CALL_FACTOR = {
    Family.GEMM: 2.5,
    Family.BATCHED_GEMM: 2.5,
    Family.CONVOLUTION: 5.0,
    Family.ATTENTION: 4.0,
    Family.RECURRENT: 10.0,
    Family.NORMALIZATION: 2.0,
    Family.LINALG: 5.0,
    Family.SORT: 3.0,
}
_GRAD_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})


def host_op_ns(op: Op, lowering: Lowering, host: HostSpec) -> float:
    """Return the host's time to issue ``op``, in nanoseconds, its kernel launches excluded.

    Args:
        op: The operator; its phase tells whether autograd records or runs it.
        lowering: Its kernels; an operator without any is a view to the host.
        host: Costs per operator.
    """
    if not lowering.kernels:
        return host.view_ns
    if op.name.startswith(("aten._foreach_", "aten._fused_", "aten._amp_foreach_")):
        return host.foreach_ns + len(op.inputs) * host.foreach_tensor_ns
    factor = max(_CALL_FACTOR.get(kernel.family, 1.0) for kernel in lowering.kernels)
    if op.phase is Phase.BACKWARD:
        return host.backward_ns * factor
    is_recorded = op.phase is Phase.FORWARD and any(
        tensor.dtype in _GRAD_DTYPES for tensor in op.outputs
    )
    return host.op_ns * factor + (host.autograd_ns if is_recorded else 0.0)


def reference_host() -> HostSpec:
    """Return a typical server CPU of the early 2020s under eager PyTorch.

    An asynchronous elementwise operator then takes 5-6 µs with its launch and recording, a small
    matmul 11-12 µs: the middle of the figures cited in ``source``. Hosts differ by 2x.
    """
    return HostSpec(
        id="reference",
        name="Server CPU, early 2020s",
        op_ns=3_000.0,
        autograd_ns=1_500.0,
        backward_ns=3_500.0,
        foreach_ns=8_000.0,
        foreach_tensor_ns=150.0,
        view_ns=1_800.0,
        source=(
            "op: eager a*1.2 queued on an RTX 3090 Ti 4.4 µs (mli/transformers-benchmarks, 2022), "
            "add on an A100 8 µs (2026), less the launch; autograd: 6.8 against 5.0 µs "
            "(pytorch issue 41383, 2020); view: 2.7-4.7 µs with an event pair (NeuSight traces), "
            "scaled to the same op cost; backward and foreach: not measured, set beside op"
        ),
    )
