"""One step on every device: results, the verdict, and other predictions that reports show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.calibrate import named_host
from breakeven.device import DeviceSpec, HostCpu, HostSpec
from breakeven.errors import Caveat, has_caveat
from breakeven.simulate import (
    Bound,
    CompileMode,
    CpuCosts,
    Edit,
    Program,
    StepPrediction,
    captured_step,
    compile_mode_of,
    compiled_step,
    issuing_of,
    predict_absent_cpu,
    predict_steps,
    rates_of,
)
from breakeven.timing import EMULATED_ON_CPU
from breakeven.trace import StepTrace
from breakeven.verdict import (
    CapturedStep,
    CompiledSteps,
    DeviceResult,
    StepSummary,
    Verdict,
    compiled_steps,
    cpu_on_cores,
    cpu_result,
    decide,
    device_result,
    estimate_of,
)

# Vendors on whose GPUs torch captures graphs.
_WITH_GRAPHS = ("nvidia", "amd")
_WITHOUT_TRITON = ("kepler", "maxwell", "pascal")
# A graph that leaves more than this share of the step saves too little for a row.
_LEAST_SPED_UP = 0.9
# CPU rates are specified in fp32; in fp64 every CPU has half of them.
_PRECISIONS = ("fp32", "tf32", "fp64")
_ABSENT = Caveat(
    code="absent-cpu",
    message="scaled from this CPU by cores, vector width, clock and memory bandwidth; the interval "
    "was validated only for inference of image models on one 14-core CPU",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A step on every device; made by `compare_devices`.

    Args:
        program: The step as a GPU would run it, with its kernels.
        devices: The predicted GPUs.
        host: The host that issues the work.
        predictions: The step on each of these GPUs.
        results: The measured results, followed by the predicted ones.
        verdict: The device to train on.
        best: The predicted GPU of the verdict, or else the fastest.
    """

    program: Program
    devices: tuple[DeviceSpec, ...]
    host: HostSpec
    predictions: tuple[StepPrediction, ...]
    results: tuple[DeviceResult, ...]
    verdict: Verdict
    best: StepPrediction

    @property
    def trace(self) -> StepTrace:
        """Return the step without its kernels."""
        return self.program.trace

    @property
    def measured(self) -> tuple[DeviceResult, ...]:
        """Return the results of this machine's devices."""
        return self.results[: len(self.results) - len(self.predictions)]

    def prediction_on(self, device: DeviceSpec) -> StepPrediction:
        """Return the step on one of the predicted devices."""
        return self.predictions[self.devices.index(device)]


def compare_devices(
    program: Program,
    devices: Sequence[DeviceSpec],
    host: HostSpec,
    measured: Sequence[DeviceResult],
    *,
    is_captured: bool = False,
) -> Comparison:
    """Predict a step on GPUs, and decide which device to train on.

    Args:
        program: The step as a GPU would run it, with its kernels.
        devices: GPUs to predict.
        host: The host that issues the work.
        measured: Results of this machine's devices, the CPU first.
        is_captured: Whether all launches are replayed from one CUDA graph.
    """
    predictions = predict_steps(program, devices, host, is_captured=is_captured)
    results = (*measured, *map(device_result, predictions))
    verdict = decide(results, predictions=predictions)
    fastest = min(predictions, key=lambda found: found.estimate.value_ns)
    named = (found for found in predictions if found.device.name in verdict.pair)
    return Comparison(
        program=program,
        devices=tuple(devices),
        host=host,
        predictions=predictions,
        results=results,
        verdict=verdict,
        best=next(named, fastest),
    )


def step_summary(compared: Comparison, device: DeviceSpec) -> StepSummary:
    """Return the figures of the step on one of the devices."""
    prediction, trace = compared.prediction_on(device), compared.trace
    return StepSummary(
        num_ops=len(trace.ops),
        num_kernels=prediction.num_kernels,
        num_syncs=len(trace.syncs),
        h2d_bytes=trace.h2d_bytes,
        d2h_bytes=trace.d2h_bytes,
        batch_size=trace.batch_size,
        num_parameters=trace.num_parameters,
        host_ns=prediction.host_ns,
    )


def predict_compiled(compared: Comparison, mode: CompileMode | None) -> CompiledSteps | None:
    """Predict the step as ``torch.compile`` would make it; None if not requested.

    Args:
        compared: The step.
        mode: The requested mode; None for the script's own.
    """
    own = compile_mode_of(compared.trace)
    used = mode or own
    if used is None:
        return None
    step = compiled_step(compared.program, used)
    edited = compared.program.edited(step.edit)
    return compiled_steps(
        step,
        compared.predictions,
        predict_steps(edited, compared.devices, compared.host),
        is_asked_for_by_script=own is not None,
    )


def predict_captured(
    compared: Comparison, fused: Edit | None, mode: CompileMode | None = None
) -> CapturedStep | None:
    """Predict the fastest GPU's step as one CUDA graph; None if the host does not limit it.

    Args:
        compared: The step.
        fused: The update as one fused kernel, if possible.
        mode: Requested mode of compilation; None for none, or for the script's own.
    """
    trace, best = compared.trace, compared.best
    devices = [each for each in compared.devices if each.vendor in _WITH_GRAPHS]
    is_of_host = best.bound in (Bound.LAUNCH, Bound.SYNC)
    if not is_of_host or trace.launches_graph or not devices:
        return None
    edit, because, setting = captured_step(trace, fused), "", "CUDA graph"
    if isinstance(edit, str):
        # Triton needs compute capability 7.0. A step compiled in this mode already has a row.
        devices = [each for each in devices if each.launch_generation not in _WITHOUT_TRITON]
        has_row = CompileMode.REDUCE_OVERHEAD in (mode, compile_mode_of(trace))
        if trace.facts.num_shapes > 1 or has_row or not devices:
            return CapturedStep(because=edit)
        compiled = compiled_step(compared.program, CompileMode.REDUCE_OVERHEAD)
        if compiled.breaks:
            return CapturedStep(because=edit)
        edit, because, setting = compiled.edit, edit, "reduce-overhead"
    predictions = predict_steps(
        compared.program.edited(edit), devices, compared.host, is_captured=not because
    )
    fastest = min(predictions, key=lambda found: (not found.fits, found.estimate.value_ns))
    is_slow = fastest.estimate.value_ns > _LEAST_SPED_UP * best.estimate.value_ns
    if is_slow or not fastest.fits:
        return CapturedStep(because=because) if because else None
    return CapturedStep(result=replace(device_result(fastest), setting=setting), because=because)


def check_absent_cpus(cpus: Iterable[HostCpu]) -> None:
    """Raise `BreakevenError` for a CPU without enough data."""
    for cpu in cpus:
        rates_of(cpu)


def predict_absent_cpus(
    program: Program, measured: DeviceResult, here: CpuCosts, cpus: Sequence[HostCpu]
) -> tuple[tuple[DeviceResult, ...], tuple[Caveat, ...]]:
    """Predict the step on all cores of other CPUs; if that is impossible, return why.

    Args:
        program: The step with its timed durations.
        measured: Its result on this CPU.
        here: This CPU.
        cpus: The other CPUs.
    """
    is_known = measured.precision in _PRECISIONS
    if not is_known or has_caveat(measured.caveats, EMULATED_ON_CPU):
        message = (
            "the step is not predicted for other CPUs: it computes in "
            f"{'a 16-bit format' if is_known else measured.precision}, and "
            "breakeven knows the speed of other CPUs only in fp32"
        )
        return (), (Caveat(code="absent-cpu-not-predicted", message=message),)
    rates, step = here.core.on_cores(measured.num_threads or 1), estimate_of(measured)
    # Machines of one processor differ only in their cores.
    issuing = {
        id: issuing_of(program, here.host, named_host(id)) for id in {cpu.id for cpu in cpus}
    }
    return tuple(
        cpu_result(
            cpu_on_cores(cpu.name, cpu.num_cores),
            predict_absent_cpu(program, step, rates, rates_of(cpu), issuing[cpu.id]),
            precision=measured.precision,
            fits=None,
            caveats=(_ABSENT,),
        )
        for cpu in cpus
    ), ()
