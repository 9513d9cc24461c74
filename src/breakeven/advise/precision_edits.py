"""What-ifs of precision: the same step in float32, and with autocast."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from breakeven.advise.events import bare_name, with_tensors
from breakeven.simulate import Edit
from breakeven.trace import Copy, Event, Op, Phase, StepTrace, TensorSpec

_DOUBLES: Final = {"float64": "float32", "complex128": "complex64"}
_FLOATS: Final = ("float32", "float16", "bfloat16")

# What autocast runs in half precision on CUDA.
# Source: aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP.
_PRODUCTS = frozenset(
    ("_convolution", "_cudnn_rnn", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addbmm",
     "addmm", "addmv", "baddbmm", "bmm", "convolution", "convolution_backward",
     "cudnn_convolution", "cudnn_convolution_transpose", "linear", "matmul", "mm", "mv", "prelu")
)  # fmt: skip
_ATTENTION = ("_scaled_dot_product_", "scaled_dot_product_")
# What it runs in float32, each with its gradient, by the names below autograd.
# Source: as above, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE.
_FULL = (
    "_log_softmax", "_softmax", "native_layer_norm", "native_group_norm", "nll_loss", "mse_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "l1_loss", "kl_div", "exp", "expm1",
    "log", "pow", "rsqrt", "reciprocal", "softplus", "cumsum", "cumprod", "prod", "sum",
    "linalg_vector_norm", "logsumexp", "acos", "asin", "sinh", "cosh", "tan",
)  # fmt: skip
# Results of one dimension are statistics, which stay in float32 whatever is normalized.
_BATCH_NORM = "batch_norm"


def doubles_as_floats(trace: StepTrace) -> Edit:
    """Return the step with float32 in the place of float64."""
    replaced: dict[int, tuple[Event, ...]] = {}
    for index, event in enumerate(trace.events):
        if isinstance(event, Copy) and (narrow := _DOUBLES.get(event.dtype)):
            replaced[index] = (replace(event, dtype=narrow, num_bytes=event.num_bytes // 2),)
        elif isinstance(event, Op):
            recast = with_tensors(event, lambda spec: _as(spec, _DOUBLES.get(spec.dtype, "")))
            # A cast may have nothing left to do.
            before, after = (
                [(spec.dtype, spec.device, spec.layout) for spec in specs]
                for specs in (recast.inputs, recast.outputs)
            )
            is_useless = bare_name(event) == "_to_copy" and before == after
            if recast != event:
                replaced[index] = () if is_useless else (recast,)
    return Edit(replaced=replaced)


def with_autocast(trace: StepTrace, dtype: str) -> Edit:
    """Return the step as autocast would run it.

    Args:
        trace: A step in float32.
        dtype: ``float16`` or ``bfloat16``.
    """
    autocast, replaced = _Autocast(dtype), dict[int, tuple[Event, ...]]()
    for index, event in enumerate(trace.events):
        if isinstance(event, Op) and not event.is_on_host:
            changed = autocast.run(event)
            if changed != (event,):
                replaced[index] = changed
    return Edit(replaced=replaced)


def _as(spec: TensorSpec, dtype: str) -> TensorSpec:
    return spec if dtype in ("", spec.dtype) else replace(spec, dtype=dtype)


class _Autocast:
    """Follows the dtype of each memory block through the step."""

    def __init__(self, dtype: str) -> None:
        self._half = dtype
        self._halves: set[int] = set()
        # Blocks that the step computes; all others are parameters and batches, whose casts
        # autocast keeps, as it does for parameters.
        self._computed: set[int] = set()
        self._kept: set[int] = set()

    def run(self, op: Op) -> tuple[Event, ...]:
        inputs = tuple(map(self._current, op.inputs))
        name = bare_name(op)
        casts: list[Event] = []
        if name in _PRODUCTS or name.startswith(_ATTENTION):
            inputs = tuple(self._cast(op, spec, self._half, casts) for spec in inputs)
            is_half = any(spec.dtype == self._half for spec in inputs)
        elif op.phase is Phase.OPTIMIZER or name.startswith(_FULL):
            inputs = tuple(self._cast(op, spec, "float32", casts) for spec in inputs)
            is_half = False
        else:
            followed = inputs[:1] if _BATCH_NORM in name else inputs
            floats = [spec.dtype for spec in followed if _is_float(spec)]
            is_half = bool(floats) and all(dtype == self._half for dtype in floats)
        outputs = tuple(self._result(op, spec, is_half=is_half) for spec in op.outputs)
        return (*casts, replace(op, inputs=inputs, outputs=outputs))

    def _current(self, spec: TensorSpec) -> TensorSpec:
        return _as(spec, self._half) if self._is_half(spec) else spec

    def _is_half(self, spec: TensorSpec) -> bool:
        return spec.dtype == "float32" and spec.storage in self._halves

    def _cast(self, op: Op, spec: TensorSpec, dtype: str, casts: list[Event]) -> TensorSpec:
        if not _is_float(spec) or spec.dtype == dtype:
            return spec
        result = _as(spec, dtype)
        is_parameter = spec.storage >= 0 and spec.storage not in self._computed
        if spec.storage not in self._kept:
            cast = replace(
                op, name="aten._to_copy.default", inputs=(spec,), outputs=(result,), attributes={}
            )
            casts.append(cast)
        if is_parameter:
            self._kept.add(spec.storage)
        return result

    def _result(self, op: Op, spec: TensorSpec, *, is_half: bool) -> TensorSpec:
        is_written_in_place = any(spec.storage == given.storage for given in op.inputs)
        if spec.storage >= 0 and is_written_in_place:
            return self._current(spec)
        is_statistic = _BATCH_NORM in op.name and len(spec.shape) == 1
        if spec.storage >= 0:
            self._computed.add(spec.storage)
        if not is_half or is_statistic or spec.dtype != "float32":
            return spec
        if spec.storage >= 0:
            self._halves.add(spec.storage)
        return _as(spec, self._half)


def _is_float(spec: TensorSpec) -> bool:
    """Return whether autocast may cast it: scalars are left alone."""
    return bool(spec.shape) and spec.dtype in _FLOATS
