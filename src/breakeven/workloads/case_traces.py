"""One case of a table, traced at two batch sizes on tensors without memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from msgspec.structs import replace
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from breakeven.capture import FakeSession
from breakeven.errors import BreakevenError, WorkloadError
from breakeven.trace import Event, ScaledTrace, Settings, StepCase, StepTrace
from breakeven.workloads.attention import attention_as
from breakeven.workloads.case_variants import as_asked, base_case
from breakeven.workloads.image_models import prepare_timm, prepare_torchvision
from breakeven.workloads.language_models import prepare_language_model
from breakeven.workloads.libraries import prepare_transformers
from breakeven.workloads.own import prepare_own
from breakeven.workloads.spec import WorkloadKind, WorkloadSpec, parse_workload
from breakeven.workloads.timed_step import (
    AUTOCAST_DTYPES,
    PARAMETER_DTYPES,
    BuiltLoop,
    StepFactory,
    TimedStep,
)
from breakeven.workloads.user_file import prepare_user_function

# Every dimension is affine in the batch size; 1 is left out, for PyTorch treats it differently
# (batch statistics, what counts as contiguous).
_BATCH_SIZES = (2, 3)

_VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
_VALUES_HINT = "what the step does must not depend on the values of tensors: here they have none"


def trace_case(case: StepCase) -> ScaledTrace:
    """Return one steady-state step of ``case`` as CUDA would run it.

    Models are built and run on fake tensors: no memory, no data, no download.

    Args:
        case: What of which workload is timed.

    Raises:
        WorkloadError: The workload cannot be built or run; the message says why.
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
            make_step = prepare_case(spec, case)
            return _trace(case, spec, make_step, session)
    except BreakevenError:
        raise
    except Exception as error:  # Builders and models are others' code and raise what they like.
        first_line = str(error).strip().partition("\n")[0]
        raise WorkloadError(
            f"{spec.text!r} cannot be traced: {type(error).__name__}: {first_line}",
            hint=_VALUES_HINT if isinstance(error, _VALUE_ERRORS) else None,
        ) from error


def prepare_case(spec: WorkloadSpec, case: StepCase) -> StepFactory:
    """Build the model of a case, and return what makes steps of it.

    Raises:
        WorkloadError: It cannot be built.
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
            return prepare_user_function(spec, dtype, case)


def _trace(
    case: StepCase, spec: WorkloadSpec, make_step: StepFactory, session: FakeSession
) -> tuple[StepTrace, StepTrace]:
    timed: TimedStep | None = None
    traces: list[StepTrace] = []
    for batch_size in _BATCH_SIZES:
        built = make_step(batch_size)
        if isinstance(built, BuiltLoop):
            session.record(built.step)
            step = session.record(built.step)
            num_parameters = session.num_updated_parameters()
        else:
            if timed is None or timed.model is not built.model:
                session.place((*built.model.parameters(), *built.model.buffers()))
                timed = TimedStep(case, built.model, session)
                if timed.needs_warm_up:
                    session.record(partial(timed.run, built))
            step = session.record(partial(timed.run, built))
            num_parameters = sum(value.numel() for value in built.model.parameters())
        traces.append(
            StepTrace(
                events=tuple(_with_own_lines(event, spec) for event in step.events),
                batch_size=batch_size,
                num_parameters=num_parameters,
                peak_memory_bytes=step.peak_memory_bytes,
                settings=_settings(case),
                torch_version=str(torch.__version__),
            )
        )
    first, second = traces
    return first, second


def _with_own_lines(event: Event, spec: WorkloadSpec) -> Event:
    """Return the event with its line only where that is one of the workload's own file.

    For a model of a library the recorder names the line that asked for the trace.
    """
    location = event.location
    if location is None or (
        spec.path and Path(location.file).resolve() == Path(spec.path).resolve()
    ):
        return event
    return replace(event, location=None)


def _settings(case: StepCase) -> Settings:
    autocast = AUTOCAST_DTYPES.get(case.number_format)
    return Settings(
        allow_tf32_matmul=False,
        allow_tf32_convolution=False,
        cudnn_benchmark=True,
        autocast_dtype="" if autocast is None else str(autocast).removeprefix("torch."),
    )
