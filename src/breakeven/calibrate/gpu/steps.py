"""Time whole training steps on a GPU, and fit their effects beyond single kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from breakeven.calibrate.step_fit import StepPart, StepSample, fit_step_effects
from breakeven.cost import (
    CalibrationStep,
    EffectKey,
    GpuCalibration,
    StepCosts,
    StepEffect,
    load_efficiencies,
    load_step_effects,
    own_effect_keys,
    own_host_keys,
    without_overlap_loss,
)
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import BreakevenError
from breakeven.measure import DeviceTimer
from breakeven.simulate import Program, build_program, simulate
from breakeven.trace import NumberFormat, Op, StepCase, Sync, TimedPhase
from breakeven.workloads import step_on_device, trace_cases

EAGER = "none"
# Seconds for one step, without warm-up.
_BUDGET_S = 1.5
# Run steps back to back for this long, as a training loop does. In longer steps, the host is far
# ahead of the GPU within each step.
_BLOCK_NS = 20_000_000
_MOST_S = 5.0
# If issuing took less than this share of the step, then the host did not wait for a full queue, and
# the time is its work alone, unless an event in the step waits for the GPU.
_FREE_HOST_FRACTION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStep:
    """A step to time.

    Args:
        workload: Its spec.
        batch_size: Samples per step.
        precision: Number format for storage and products.
        optimizer: Name of the optimizer.
        compile: Mode of ``torch.compile``, or ``none``.
        is_quick: Whether it is on the short list.
        about_s: Estimated seconds in total, mostly for compilation.
    """

    workload: str
    batch_size: int
    precision: NumberFormat
    optimizer: str
    compile: str = EAGER
    is_quick: bool = False
    about_s: float = 5.0

    @property
    def name(self) -> str:
        """Return a unique name."""
        mode = "" if self.compile == EAGER else f" compiled ({self.compile})"
        return f"{self.workload} b{self.batch_size} {self.precision} {self.optimizer}{mode}"


_GPT = "llm:gpt2?d_model=768&n_heads=12&n_layers=12&vocab=50257&seq=512&drop=0"
_SMALL_GPT = "llm:gpt2?d_model=256&n_heads=4&n_layers=4&vocab=8192&seq=128&drop=0"
_F = NumberFormat
_EAGER: tuple[tuple[str, int, NumberFormat, str, bool], ...] = (
    ("breakeven:mlp?width=128", 64, _F.FP32, "adam", True),
    ("breakeven:resnet?depth=50", 32, _F.AMP_BF16, "sgd", True),
    (_GPT, 4, _F.AMP_BF16, "adamw", True),
    ("breakeven:lstm?hidden=64&seq=50&input=8", 32, _F.FP32, "adam", True),
    ("breakeven:resnet?depth=18", 64, _F.TF32, "sgd", False),
    (_GPT, 4, _F.TF32, "adamw", False),
    ("breakeven:mlp?width=4096&depth=5", 4096, _F.AMP_FP16, "sgd", False),
    (_SMALL_GPT, 8, _F.FP32, "adamw", False),
    ("breakeven:resnet?depth=18", 8, _F.FP32, "sgd", False),
    ("breakeven:mlp?width=1024", 1024, _F.FP32, "adam", False),
    ("breakeven:lstm?hidden=512&layers=2&seq=100&input=64", 64, _F.AMP_FP16, "adam", False),
    ("breakeven:resnet?depth=50", 64, _F.AMP_FP16, "sgd", False),
)
# Indices into the list above, with estimated seconds. Compiling takes longest, so these come last,
# with one of each kind first.
_COMPILED = ((0, 25.0), (4, 45.0), (7, 40.0), (2, 75.0), (1, 90.0), (9, 20.0))
_TINY: tuple[tuple[str, int, NumberFormat, str, bool], ...] = (
    ("breakeven:mlp?width=16&input=8", 4, _F.FP32, "adam", True),
    ("breakeven:resnet?depth=18&image=32&classes=4", 2, _F.AMP_BF16, "sgd", True),
)


def all_steps(*, is_tiny: bool = False) -> tuple[WantedStep, ...]:
    """Return every step, the most informative first, compiled ones last.

    Args:
        is_tiny: Use steps that a CPU computes instantly, for tests; none is compiled.
    """
    eager = [
        WantedStep(workload=w, batch_size=b, precision=p, optimizer=o, is_quick=is_quick)
        for w, b, p, o, is_quick in (_TINY if is_tiny else _EAGER)
    ]
    if is_tiny:
        return tuple(eager)
    compiled = [
        replace(eager[i], compile="default", is_quick=False, about_s=about_s)
        for i, about_s in _COMPILED
    ]
    return (*eager, *compiled)


def time_step(step: WantedStep, timer: DeviceTimer) -> CalibrationStep:
    """Time a step.

    Raises:
        RuntimeError: If the device lacks the memory, or the compiler fails.
        BreakevenError: If the step takes longer than five seconds.
    """
    try:
        case, device = case_of(step), timer.device
        call = step_on_device(case, step.batch_size, device, compile_mode=step.compile)
        found = timer.time_call(
            call, budget_s=_BUDGET_S, fills_queue=False, block_ns=_BLOCK_NS, most_s=_MOST_S
        )
        del call
    finally:
        if step.compile != EAGER:
            torch.compiler.reset()
        if timer.device.type != "cpu":
            # Free memory for other processes and the next step.
            torch.get_device_module(timer.device).empty_cache()
    return CalibrationStep(
        workload=step.workload,
        batch_size=step.batch_size,
        precision=step.precision.value,
        optimizer=step.optimizer,
        compile=step.compile,
        time_ns=found.time_ns,
        issue_ns=found.issue_ns,
        spread=round(found.spread, 3),
        num_steps=found.num_calls,
    )


def case_of(step: WantedStep | CalibrationStep) -> StepCase:
    """Return the case of a step, without batch size and compile mode."""
    return StepCase(
        workload=step.workload,
        phase=TimedPhase.TRAIN,
        number_format=NumberFormat(step.precision),
        optimizer=step.optimizer,
    )


def fit_steps(
    measured: Iterable[CalibrationStep],
    calibration: GpuCalibration,
    device: DeviceSpec,
    host: HostSpec,
) -> tuple[StepEffect, ...]:
    """Fit the time of eager steps beyond that of their kernels and host work.

    Args:
        measured: Measured steps.
        calibration: The GPU's calibration so far.
        device: The GPU.
        host: Its machine, measured.
    """
    samples = list(_samples(list(measured), calibration, device, host))
    if not samples:
        return ()
    effects = load_step_effects()
    fitted = fit_step_effects(samples, provenance="measured here", spread=effects.spread)
    return tuple(effect for effect in fitted.effects if effect.kind != "own overlap")


def _samples(
    measured: Sequence[CalibrationStep],
    calibration: GpuCalibration,
    device: DeviceSpec,
    host: HostSpec,
) -> Iterator[StepSample]:
    costs = StepCosts(
        efficiencies=load_efficiencies(),
        effects=without_overlap_loss(load_step_effects()),
        calibrations={device.id: calibration},
    )
    eager = [step for step in measured if step.compile == EAGER]
    cases = {index: case_of(step) for index, step in enumerate(eager)}
    traces = trace_cases(cases.values())
    for index, case in cases.items():
        trace, step = traces[case], eager[index]
        if isinstance(trace, BreakevenError):
            continue
        program = build_program(trace.at(step.batch_size), costs=costs)
        times = costs.kernel_times(program.kernels, [device]).time_ns[:, 0].tolist()
        parts: defaultdict[tuple[EffectKey, ...], float] = defaultdict(float)
        for kernel, time_ns in zip(program.kernels, times, strict=True):
            parts[own_effect_keys(kernel, device)] += time_ns
        simulated = simulate([program], [device], host)
        busy_ns = float(simulated.host_busy_ns[0, 0, 0])
        whole = StepSample(
            measured_ns=step.time_ns,
            simulated_ns=float(simulated.step_ns[0, 0, 0]),
            waiting_ns=0.0,
            device_parts=tuple(StepPart(time_ns=t, keys=keys) for keys, t in parts.items()),
            host_parts=tuple(_host_parts(program, host, busy_ns)),
            overlap_keys=(("own overlap",),),
        )
        yield whole
        waits = any(isinstance(event, Sync) for event in program.trace.events)
        if not waits and step.issue_ns < _FREE_HOST_FRACTION * step.time_ns:
            yield replace(
                whole,
                measured_ns=step.issue_ns,
                simulated_ns=busy_ns,
                device_parts=(),
            )


def _host_parts(program: Program, host: HostSpec, busy_ns: float) -> Iterator[StepPart]:
    """Yield the host's work in a step, grouped by effects; none scales launches and copies."""
    parts: defaultdict[tuple[EffectKey, ...], float] = defaultdict(float)
    for event, lowering in zip(program.trace.events, program.lowerings, strict=True):
        if isinstance(event, Op) and lowering is not None:
            for part, time_ns in program.costs.host_op_parts(event, lowering, host):
                parts[own_host_keys(part)] += time_ns
    parts[()] = max(0.0, busy_ns - sum(parts.values()))
    yield from (StepPart(time_ns=time_ns, keys=keys) for keys, time_ns in parts.items())
