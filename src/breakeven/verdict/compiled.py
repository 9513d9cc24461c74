"""The step under ``torch.compile``, or as one CUDA graph, predicted for GPUs."""

from __future__ import annotations

import math

import msgspec

from breakeven.simulate import Bound, CompiledStep, GraphBreak, StepPrediction
from breakeven.verdict.results import DeviceResult, Nanoseconds

# Smaller savings count as no gain: predictions differ by rounding alone.
_LEAST_SAVED = 1e-3


class CompiledResult(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's compiled step.

    Args:
        device: Name of the GPU, as among the results.
        step_ns: Time of one step.
        low_ns: Lower end of its 90 % interval.
        high_ns: Upper end.
        bound: The bottleneck of the step.
        speedup: Time of the eager step on this GPU, divided by this one.
        pays_after_steps: Steps after which compiling has paid off; null if it never does.
    """

    device: str
    step_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    bound: Bound
    speedup: float
    pays_after_steps: int | None


class CompiledSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The step compiled by ``torch.compile``.

    Args:
        mode: ``default``, ``reduce-overhead`` or ``max-autotune``.
        is_asked_for_by_script: Whether the script itself calls ``torch.compile``.
        num_graphs: Compiled graphs; forward and backward count separately.
        num_kernels: Kernels generated for these graphs.
        breaks: Lines inside the model that break the graph because the host needs a value.
        compile_ns: Extra time of the first steps, with an empty compile cache.
        results: The compiled step on each GPU.
    """

    mode: str
    is_asked_for_by_script: bool
    num_graphs: int
    num_kernels: int
    breaks: tuple[GraphBreak, ...]
    compile_ns: Nanoseconds
    results: tuple[CompiledResult, ...]


def compiled_steps(
    step: CompiledStep,
    eager: tuple[StepPrediction, ...],
    compiled: tuple[StepPrediction, ...],
    *,
    is_asked_for_by_script: bool,
) -> CompiledSteps:
    """Return the report section on the compiled step.

    Args:
        step: The compiled step.
        eager: The eager step, on each GPU.
        compiled: The compiled step, on the same GPUs.
        is_asked_for_by_script: Whether the script itself calls ``torch.compile``.
    """
    return CompiledSteps(
        mode=step.mode.value,
        is_asked_for_by_script=is_asked_for_by_script,
        num_graphs=step.num_graphs,
        num_kernels=step.num_kernels,
        breaks=step.breaks,
        compile_ns=step.compile_ns,
        results=tuple(
            _result(one, other, step.compile_ns) for one, other in zip(eager, compiled, strict=True)
        ),
    )


def _result(eager: StepPrediction, compiled: StepPrediction, compile_ns: float) -> CompiledResult:
    before, after = eager.estimate, compiled.estimate
    saved_ns = before.value_ns - after.value_ns
    is_paid_for = saved_ns > _LEAST_SAVED * before.value_ns
    return CompiledResult(
        device=compiled.device.name,
        step_ns=after.value_ns,
        low_ns=after.low_ns,
        high_ns=after.high_ns,
        bound=compiled.bound,
        speedup=before.value_ns / after.value_ns,
        pays_after_steps=math.ceil(compile_ns / saved_ns) if is_paid_for else None,
    )


class CapturedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A host-bound step, replayed as a CUDA graph on the GPU that is fastest at it.

    Args:
        result: The step, its update fused if OPT002 is found; null if no graph can replay it.
        because: Why one graph cannot replay the whole step; empty if it can. If ``result`` is set
            too, it has only the model compiled, in mode ``reduce-overhead``.
    """

    result: DeviceResult | None = None
    because: str = ""
