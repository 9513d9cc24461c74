"""Steps of workloads, recorded on a fake GPU or run on a real device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from msgspec.structs import replace
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from breakeven.capture import FakeSession
from breakeven.errors import BreakevenError, WorkloadError
from breakeven.trace import (
    Attention,
    Event,
    NumberFormat,
    ScaledTrace,
    Settings,
    StepCase,
    StepTrace,
)
from breakeven.workloads.language_models import prepare_language_model
from breakeven.workloads.libraries import prepare_timm, prepare_torchvision, prepare_transformers
from breakeven.workloads.own import prepare_own
from breakeven.workloads.spec import WorkloadKind, WorkloadSpec, as_asked, base_case, parse_workload
from breakeven.workloads.timed_step import (
    AUTOCAST_DTYPES,
    PARAMETER_DTYPES,
    BuiltStep,
    StepFactory,
    TimedStep,
)
from breakeven.workloads.user_file import prepare_user_function


def attention_as(attention: Attention) -> AbstractContextManager[object]:
    """Compute attention operator by operator if a case asks for it.

    All calls of torch's function then run the operators by which models computed attention before
    torch had such a function.
    """
    if attention is not Attention.EAGER:
        return nullcontext()
    return patch.object(F, "scaled_dot_product_attention", _attend)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Replace torch's function: take its arguments and compute its definition."""
    if enable_gqa:
        num_shared = query.size(-3) // key.size(-3)
        key, value = (part.repeat_interleave(num_shared, -3) for part in (key, value))
    factor = query.size(-1) ** -0.5 if scale is None else scale
    scores: Any
    if is_causal:
        # Language models scale the scores, which are larger; others scale the queries before.
        scores = query @ key.transpose(-2, -1) * factor
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    else:
        scores = (query * factor) @ key.transpose(-2, -1)
    if attn_mask is not None:
        is_bool = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
    weights = scores.softmax(dim=-1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights @ value


# Every dimension is affine in the batch size. Leave out 1, which PyTorch treats differently (batch
# statistics, contiguity).
_BATCH_SIZES = (2, 3)

_VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
_VALUES_HINT = "what the step does must not depend on the values of tensors: here they have none"


def trace_case(case: StepCase) -> ScaledTrace:
    """Return one steady-state step of ``case`` as CUDA would run it.

    Models are built and run on fake tensors: no memory, no data, no download.

    Args:
        case: The workload, and the part of its step to time.

    Raises:
        WorkloadError: If the workload cannot be built or run; the message says why.
    """
    return as_asked(trace_base(base_case(case)), case)


def trace_base(case: StepCase) -> tuple[StepTrace, StepTrace]:
    """Return the steps of a base case at two batch sizes.

    Raises:
        WorkloadError: As for `trace_case`.
    """
    spec = parse_workload(case.workload)
    try:
        with FakeSession() as session, attention_as(case.attention):
            return _trace(case, spec, session)
    except BreakevenError:
        raise
    except Exception as error:  # builders and models are foreign code and may raise anything
        first_line = str(error).strip().partition("\n")[0]
        raise WorkloadError(
            f"{spec.text!r} cannot be traced: {type(error).__name__}: {first_line}",
            hint=_VALUES_HINT if isinstance(error, _VALUE_ERRORS) else None,
        ) from error


def _trace(case: StepCase, spec: WorkloadSpec, session: FakeSession) -> tuple[StepTrace, StepTrace]:
    make_step = prepare_case(spec, case)
    autocast = AUTOCAST_DTYPES.get(case.number_format)
    settings = Settings(
        allow_tf32_matmul=False,
        allow_tf32_convolution=False,
        cudnn_benchmark=True,
        autocast_dtype="" if autocast is None else str(autocast).removeprefix("torch."),
    )
    own_file = Path(spec.path).resolve() if spec.path else None

    def with_own_line(event: Event) -> Event:
        # For a library's model, the recorder names the line that asked for the trace.
        location = event.location
        if location is None or Path(location.file).resolve() == own_file:
            return event
        return replace(event, location=None)

    timed: TimedStep | None = None
    traces: list[StepTrace] = []
    for batch_size in _BATCH_SIZES:
        built = make_step(batch_size)
        if timed is None or timed.model is not built.model:
            session.place((*built.model.parameters(), *built.model.buffers()))
            timed = TimedStep(case, built.model, session)
            if timed.needs_warm_up:
                session.record(partial(timed.run, built))
        step = session.record(partial(timed.run, built))
        traces.append(
            StepTrace(
                events=tuple(map(with_own_line, step.events)),
                batch_size=batch_size,
                num_parameters=sum(value.numel() for value in built.model.parameters()),
                peak_memory_bytes=step.peak_memory_bytes,
                settings=settings,
                torch_version=str(torch.__version__),
            )
        )
    first, second = traces
    return first, second


def prepare_case(spec: WorkloadSpec, case: StepCase) -> StepFactory:
    """Build the model of a case, and return a factory of its steps.

    Raises:
        WorkloadError: If it cannot be built.
    """
    dtype = PARAMETER_DTYPES.get(case.number_format, torch.float32)
    match spec.kind:
        case WorkloadKind.TORCHVISION:
            return prepare_torchvision(spec, dtype, channels_last=case.channels_last)
        case WorkloadKind.TIMM:
            return prepare_timm(spec, dtype, channels_last=case.channels_last)
        case _ if case.channels_last:
            raise WorkloadError(
                f"{spec.text!r} is not traced in channels-last memory",
                hint="torchvision:NAME and timm:NAME are",
            )
        case WorkloadKind.TRANSFORMERS:
            return prepare_transformers(spec, dtype, case)
        case WorkloadKind.LLM:
            return prepare_language_model(spec, dtype, case.phase)
        case WorkloadKind.BREAKEVEN:
            return prepare_own(spec, dtype)
        case WorkloadKind.FILE:
            return prepare_user_function(spec, dtype)


def step_on_device(
    case: StepCase, batch_size: int, device: torch.device, *, compile_mode: str = "none"
) -> Callable[[], object]:
    """Return a function that runs one step on random data.

    Args:
        case: The case to time; copies of the batch are left out.
        batch_size: Samples per step.
        device: The device to run on.
        compile_mode: Mode of ``torch.compile`` for the model, or ``none``.

    Raises:
        WorkloadError: If the workload cannot be built.
    """
    spec = parse_workload(case.workload)
    torch.manual_seed(0)
    with torch.device(device):
        built = prepare_case(spec, case)(batch_size)
    fill(built)
    if compile_mode != "none":
        built.model.compile(mode=None if compile_mode == "default" else compile_mode)
    step = TimedStep(case, built.model, device=device)

    def run() -> None:
        with products_in_tf32(is_allowed=case.number_format is NumberFormat.TF32):
            step.run(built)

    return run


@contextmanager
def products_in_tf32(*, is_allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 for products and convolutions of fp32 inside.

    cuDNN benchmarks its algorithms inside. MIOpen does not: it would try every algorithm, which
    takes minutes per shape (pytorch/pytorch#145294).
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = is_allowed
    cudnn.benchmark = torch.version.hip is None
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def fill(built: BuiltStep) -> None:
    """Fill the batch with random numbers: zeros draw less power, and one token is one address."""
    tokens = [m.num_embeddings for m in built.model.modules() if isinstance(m, nn.Embedding)]
    with torch.no_grad():
        for tensor in (*built.inputs, *built.targets):
            if tensor.is_floating_point():
                tensor.normal_()
            elif tokens:
                tensor.random_(0, min(tokens))
