"""What the host spends to issue an operator, before the launches of its kernels."""

from __future__ import annotations

from breakeven.cost._kernel import Family, Lowering
from breakeven.cost._op_name import base_name
from breakeven.device import HostSpec
from breakeven.trace import Op, Phase

# Host time of an operator's library calls, in dispatches of an elementwise operator. GEMM: eager
# a@b of 128 x 128 takes 10.4 µs (fp16) to 16.8 µs (TF32) on a machine where an elementwise
# operator takes 4.4 µs, launches of 1.7 µs included (mli/transformers-benchmarks, RTX 3090 Ti);
# a small nn.Linear takes 27 µs more than an addition on an idle GPU, module included, a small bmm
# 5 µs more (NeuSight tables, three hosts). A convolution passes four levels of dispatch, looks up
# its algorithm by a hash of all its parameters, describes four tensors and allocates a workspace;
# a batch norm passes three levels, and allocates what it saves. No table isolates these two, nor
# the families below of which nothing is said here: their factors are judgement.
_CALL_FACTOR = {
    Family.GEMM: 4.0,
    Family.BATCHED_GEMM: 2.0,
    Family.CONVOLUTION: 8.0,
    Family.ATTENTION: 4.0,
    Family.RECURRENT: 10.0,
    Family.NORMALIZATION: 3.0,
    Family.LINALG: 5.0,
    Family.SORT: 3.0,
}
_BATCH_NORM_FACTOR = 4.0

# Python between two operators of a forward pass, in dispatches of an operator: calls of modules
# and of wrappers in torch.nn.functional, attribute look-ups, all with colder caches than those of
# a loop over one operator. Measured on an AMD EPYC, 2026-11, torch 2.13, Python 3.11: forward
# passes over tensors of a few elements took 0.1 (a chain of ReLU modules), 1.4 (linear, ReLU,
# layer norm, dropout), 2.5-2.9 (convolution, batch norm, ReLU), 3.7 (GPT-2) and 4.2 (BERT)
# dispatches per kernel more than the operators' own. Which of them a script is like is not known.
_PYTHON_FACTOR = 2.0
# The backward pass runs without Python: nothing parses arguments there, which is half of a small
# operator (pytorch issue 41383). Its measured cost per operator contains that already.
_VIEW_IN_BACKWARD_FRACTION = 0.5

_GRAD_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})


def host_op_ns(op: Op, lowering: Lowering, host: HostSpec) -> float:
    """Return the host's time to issue ``op``, in nanoseconds, its kernel launches excluded.

    Args:
        op: The operator; its phase tells whether autograd records or runs it.
        lowering: Its kernels; an operator without any is a view to the host.
        host: Costs per operator.
    """
    if not lowering.kernels:
        return _view_ns(op, host)
    if op.name.startswith(("aten._foreach_", "aten._fused_", "aten._amp_foreach_")):
        return host.foreach_ns + len(op.inputs) * host.foreach_tensor_ns
    calls_ns = host.op_ns * _extra_dispatches(op, lowering)
    if op.phase is Phase.BACKWARD:
        return host.backward_ns + calls_ns
    own_ns = host.op_ns + calls_ns
    if op.phase is not Phase.FORWARD:
        return own_ns
    is_recorded = any(tensor.dtype in _GRAD_DTYPES for tensor in op.outputs)
    recording_ns = host.autograd_ns if is_recorded else 0.0
    return own_ns + recording_ns + _PYTHON_FACTOR * host.op_ns


def _view_ns(op: Op, host: HostSpec) -> float:
    if op.name == "aten.detach.default":
        # Autograd detaches what it saves for backward, and again when it uses it. Only a trace
        # sees that as an operator; without one it is a shallow copy. A script's own are rare.
        return 0.0
    if op.phase is Phase.BACKWARD:
        return _VIEW_IN_BACKWARD_FRACTION * host.view_ns
    return host.view_ns


def _extra_dispatches(op: Op, lowering: Lowering) -> float:
    """Return what the library calls of ``op`` cost beyond one plain operator, in dispatches.

    Each call describes its operands anew: the gradient of a convolution makes two.
    """
    extra = sum(_CALL_FACTOR.get(kernel.family, 1.0) - 1.0 for kernel in lowering.kernels)
    if "batch_norm" in base_name(op.name):
        # In evaluation its kernel is an elementwise one, but the call is the same.
        return max(extra, _BATCH_NORM_FACTOR - 1.0)
    return extra


def reference_host() -> HostSpec:
    """Return a typical server CPU of the early 2020s under eager PyTorch.

    An elementwise operator in a loop of its own then takes 8 µs with its launch, in a forward
    pass 20 µs. Hosts differ by 2x either way.
    """
    return HostSpec(
        id="reference",
        name="Server CPU, early 2020s",
        op_ns=5_500.0,
        autograd_ns=1_800.0,
        backward_ns=13_500.0,
        foreach_ns=12_000.0,
        foreach_tensor_ns=500.0,
        view_ns=3_000.0,
        log_sigma=0.35,
        source=(
            "op: eager add queued on an A100 8 µs (Torch-FL PR 27, 2026), less the launch; "
            "autograd: 6.8 against 5.0 µs (pytorch issue 41383, 2020); view: 2.7-4.7 µs with an "
            "event pair (NeuSight traces); backward: 2.5 times op, as measured on an AMD EPYC in "
            "2026; foreach: likewise, from op. Together they make the forward pass "
            "of an efficientnet_b5 of batch 1 on an A100 20 ms, which took 17.8 ms, all of it "
            "dispatch (pytorch issue 82793, 2022)"
        ),
    )
