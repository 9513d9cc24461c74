"""One step on every device: predicted where absent, measured where present, compared."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

import msgspec
from msgspec import structs

from breakeven.advise import Diagnosis, RuleInput, diagnose
from breakeven.capture import Gap, LoaderUse, PlainRun, TracedRun
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import Caveat
from breakeven.session.between import RecordedGap
from breakeven.session.measured_step import DevicePath
from breakeven.simulate import (
    Bound,
    CompileMode,
    Edit,
    Program,
    StepPrediction,
    WhatIf,
    captured_step,
    compile_mode_of,
    compiled_step,
    optimizer_compile_mode_of,
    predict_steps,
)
from breakeven.source import Sources
from breakeven.timing import BUSY_FRACTION, CpuFacts
from breakeven.trace import ScaledTrace, SourceText, StepTrace
from breakeven.units import format_percent
from breakeven.verdict import (
    CapturedStep,
    CompiledSteps,
    DeviceResult,
    HostSummary,
    ProgramFacts,
    ProgramPart,
    ProgramSummary,
    RecordedStep,
    StepSummary,
    Verdict,
    compiled_steps,
    decide,
    device_result,
    host_summary,
    program_of,
    record,
)

# Vendors whose GPUs torch captures graphs for.
_WITH_GRAPHS = ("nvidia", "amd")
_WITHOUT_TRITON = ("kepler", "maxwell", "pascal")
# A graph that leaves more of the step than this changes nothing that is worth a row.
_LEAST_SPED_UP = 0.9


@dataclass(frozen=True, kw_only=True)
class ComparedStep:
    """A step on every device: predicted and decided once, when that is asked for.

    Args:
        program: The step as a GPU would run it, with its kernels.
        devices: GPUs to predict.
        host: What issues the work.
        measured: Results of the devices that are here, this CPU first.
        sources: The user's files.
        is_captured: All launches are replayed from one CUDA graph.
    """

    program: Program
    devices: tuple[DeviceSpec, ...]
    host: HostSpec
    measured: tuple[DeviceResult, ...]
    sources: tuple[SourceText, ...] = ()
    is_captured: bool = False

    @property
    def trace(self) -> StepTrace:
        """Return the step without its kernels."""
        return self.program.trace

    @cached_property
    def predictions(self) -> tuple[StepPrediction, ...]:
        """Return the step on each of the devices."""
        return predict_steps(self.program, self.devices, self.host, is_captured=self.is_captured)

    @cached_property
    def results(self) -> tuple[DeviceResult, ...]:
        """Return what was measured, and then what is predicted."""
        return (*self.measured, *map(device_result, self.predictions))

    @cached_property
    def verdict(self) -> Verdict:
        """Return where to train."""
        return decide(self.results, predictions=self.predictions)

    @property
    def best(self) -> StepPrediction:
        """Return the predicted GPU that the verdict is about, or else the fastest."""
        return next(
            (found for found in self.predictions if found.device.name in self.verdict.pair),
            min(self.predictions, key=lambda found: found.estimate.value_ns),
        )

    def compiled(self, mode: CompileMode | None) -> CompiledSteps | None:
        """Return the step as ``torch.compile`` would make it.

        Args:
            mode: Its mode; None for the script's own, where it compiles its model, its optimizer's
                step, or both.
        """
        own = compile_mode_of(self.trace)
        if not (mode or own or optimizer_compile_mode_of(self.trace)):
            return None
        is_asked_for = own is not None or mode is None
        mode = mode or own
        step = compiled_step(self.program, mode)
        predictions = predict_steps(self.program.edited(step.edit), self.devices, self.host)
        return compiled_steps(
            step, self.predictions, predictions, is_asked_for_by_script=is_asked_for
        )

    def captured(self, fused: Edit | None, mode: CompileMode | None = None) -> CapturedStep | None:
        """Return the fastest GPU's step as one CUDA graph; None where the host does not decide.

        Args:
            fused: The update as one fused kernel, where that is possible.
            mode: In which the step is shown compiled; None for none, or for the script's own.
        """
        devices = [each for each in self.devices if each.vendor in _WITH_GRAPHS]
        is_of_host = self.best.bound in (Bound.LAUNCH, Bound.SYNC)
        if not is_of_host or self.trace.launches_graph or not devices:
            return None
        edit, because, setting = captured_step(self.trace, fused), "", "CUDA graph"
        if isinstance(edit, str):
            # Triton needs compute capability 7.0. What compiles in that way has a row for it.
            devices = [each for each in devices if each.launch_generation not in _WITHOUT_TRITON]
            has_row = CompileMode.REDUCE_OVERHEAD in (mode, compile_mode_of(self.trace))
            if self.trace.facts.num_shapes > 1 or has_row or not devices:
                return CapturedStep(because=edit)
            compiled = compiled_step(self.program, CompileMode.REDUCE_OVERHEAD)
            if compiled.breaks:
                return CapturedStep(because=edit)
            edit, because, setting = compiled.edit, edit, "reduce-overhead"
        predictions = predict_steps(
            self.program.edited(edit), devices, self.host, is_captured=not because
        )
        fastest = min(predictions, key=lambda found: (not found.fits, found.estimate.value_ns))
        is_slow = fastest.estimate.value_ns > _LEAST_SPED_UP * self.best.estimate.value_ns
        if is_slow or not fastest.fits:
            return CapturedStep(because=because) if because else None
        result = structs.replace(device_result(fastest), setting=setting)
        return CapturedStep(result=result, because=because)

    def prediction_on(self, device: DeviceSpec) -> StepPrediction:
        """Return the step on one of the devices."""
        return self.predictions[self.devices.index(device)]

    def summary_on(self, device: DeviceSpec) -> StepSummary:
        """Return the step in numbers, as one of the devices runs it."""
        prediction = self.prediction_on(device)
        return StepSummary(
            num_ops=len(self.trace.ops),
            num_kernels=prediction.num_kernels,
            num_syncs=len(self.trace.syncs),
            h2d_bytes=self.trace.h2d_bytes,
            d2h_bytes=self.trace.d2h_bytes,
            batch_size=self.trace.batch_size,
            num_parameters=self.trace.num_parameters,
            host_ns=prediction.host_ns,
        )

    @cached_property
    def _parsed(self) -> Sources:
        return Sources.of(self.sources)

    def diagnosed_on(
        self,
        device: DeviceSpec,
        *,
        scaled: ScaledTrace | None = None,
        cpu: CpuFacts | None = None,
        what_if: WhatIf | None = None,
    ) -> tuple[Diagnosis, ...]:
        """Return what slows the step down on one of the devices, and on this CPU.

        Args:
            device: The GPU.
            scaled: The step at other batch sizes, where it was recorded at two.
            cpu: What was measured of the step on the CPU.
            what_if: The step on that device, where it is there already.
        """
        case = RuleInput(
            trace=self.trace,
            program=self.program,
            prediction=self.prediction_on(device),
            device=device,
            host=self.host.for_device(device),
            sources=self._parsed,
            scaled=scaled,
            cpu=cpu,
        )
        return diagnose(case, what_if=what_if)

    def changed(
        self, program: Program, measured: tuple[DeviceResult, ...], *, is_captured: bool
    ) -> ComparedStep:
        """Return another step on the same devices.

        Args:
            program: The step after a change.
            measured: What it takes on those that are here.
            is_captured: As of the step.
        """
        return replace(self, program=program, measured=measured, is_captured=is_captured)

    def diagnosed_again(
        self, program: Program, device: DeviceSpec, codes: Set[str]
    ) -> tuple[Diagnosis, ...]:
        """Return what slows a changed step down on a GPU, as some of the rules see it."""
        return diagnose(RuleInput.of(program, device, self.host, sources=self._parsed), codes)


class TrainingLength(msgspec.Struct, frozen=True, kw_only=True):
    """How long a training is, as the user states it; by default it is not known.

    Args:
        num_steps: Steps.
        num_epochs: Passes over the data set, where steps are not given.
    """

    num_steps: int | None = None
    num_epochs: int | None = None

    def steps(self, loader: LoaderUse | None) -> int | None:
        """Return the number of steps; None where it is not known.

        Args:
            loader: The DataLoader that feeds the steps.
        """
        if self.num_epochs is None or loader is None or not loader.batches_per_epoch:
            return self.num_steps
        batches_per_step = loader.batches_per_step * loader.fetching_fraction
        return round(self.num_epochs * loader.batches_per_epoch / batches_per_step)

    def caveats(self, loader: LoaderUse | None) -> tuple[Caveat, ...]:
        """Return why steps cannot be counted from epochs, where they cannot.

        Args:
            loader: The DataLoader that feeds the steps.
        """
        if self.num_epochs is None or self.steps(loader) is not None:
            return ()
        message = (
            "no DataLoader of a known length feeds the steps, so that epochs do not tell how many "
            "there are: say it by --steps"
        )
        return (Caveat(code="epochs-unknown", message=message),)


UNKNOWN_LENGTH = TrainingLength()


def program_facts(as_set: PlainRun, best: PlainRun) -> ProgramFacts:
    """Return what is known of the script besides its steps.

    Args:
        as_set: A run of the script as it is.
        best: A run on the number of threads that suits it: for a short time, which hardly sees what
            comes rarely.
    """
    is_measured = as_set.other is not None and (as_set.gap is not None or best.gap is None)
    run = as_set if is_measured else best
    step_ns = run.measurement.estimate.value_ns
    facts = ProgramFacts(
        startup_ns=as_set.startup_ns,
        data_ns=min(as_set.loader.wait_ns, step_ns) if as_set.loader else 0.0,
        unevenness=max(1.0, run.measurement.mean_ns / step_ns),
    )
    if run.other is None:
        return facts
    return structs.replace(
        facts,
        other_ns=run.other.value_ns,
        other_low_ns=run.other.low_ns,
        other_high_ns=run.other.high_ns,
        parts=tuple(
            ProgramPart(
                file=work.location.file,
                line=work.location.line,
                function=work.location.function,
                time_ns=work.share * run.other.value_ns,
            )
            for work in run.other_work
        ),
    )


@dataclass(frozen=True, kw_only=True)
class LiveStep:
    """A step that was recorded and timed on this machine.

    Args:
        traced: The recorded step.
        plain: The same step, timed on this CPU.
        as_set: The same with as many threads as the script has, where that was another run.
        devices: GPUs to predict.
        host: What issues the work.
        here: This machine's costs.
        measured: Results of the devices that are here, this CPU first.
        torch_version: torch that ran the script.
        gap: What lies between two steps; None where that takes little.
        recorded_gap: Its recording; None where there is none.
        told: What to say of speeds that were measured elsewhere.
    """

    traced: TracedRun
    plain: PlainRun
    as_set: PlainRun
    devices: tuple[DeviceSpec, ...]
    host: HostSpec
    here: HostSpec
    measured: tuple[DeviceResult, ...]
    torch_version: str
    gap: Gap | None = None
    recorded_gap: TracedRun | None = None
    told: tuple[Caveat, ...] = ()

    @cached_property
    def path(self) -> DevicePath:
        """Return what prepares traces of the script for prediction."""
        return DevicePath(self.traced, self.plain)

    @cached_property
    def compared(self) -> ComparedStep:
        """Return the step on every device, fed by the host as the measured step shows it."""
        return ComparedStep(
            program=self.path.program,
            devices=self.devices,
            host=self.path.host_for_prediction(self.host, self.here),
            measured=self.measured,
            sources=tuple(self.traced.sources),
        )

    @property
    def host_summary(self) -> HostSummary:
        """Return the machine that feeds the devices."""
        return host_summary(
            self.compared.host,
            num_threads=self.plain.num_threads,
            torch_version=self.torch_version,
            python_version=platform.python_version(),
        )

    def caveats(self, more: Sequence[Caveat]) -> tuple[Caveat, ...]:
        """Return what holds for all figures, each once."""
        own = (*self.compared.trace.caveats, *self.plain.caveats, *self._own_caveats())
        return tuple({caveat.message: caveat for caveat in (*own, *more)}.values())

    @cached_property
    def program_facts(self) -> ProgramFacts:
        """Return what is known of the script besides its steps, on this CPU and on GPUs."""
        facts = program_facts(self.as_set, self.plain)
        if self.gap is None or self.recorded_gap is None:
            return facts
        recorded = RecordedGap(
            gap=self.gap, traced=self.recorded_gap, step=self.traced.trace, plain=self.plain
        )
        if facts.other_ns is None:
            # The longer steps pass the same lines as the others: what they do is in the recording.
            if not recorded.is_seen(self.here):
                return facts
            run = structs.replace(self.plain, other=self.gap.other, other_work=recorded.work())
            facts = program_facts(run, run)
        other_ns = facts.other_ns or 0.0
        times = recorded.times(other_ns, self.devices, self.host, self.here)
        return structs.replace(facts, between=tuple(times))

    def program(
        self,
        length: TrainingLength = UNKNOWN_LENGTH,
        absent_cpus: Sequence[DeviceResult] = (),
    ) -> ProgramSummary:
        """Return what becomes of the whole training.

        Args:
            length: How long it is, where that is known.
            absent_cpus: The step on CPUs that are not here.
        """
        return program_of(
            self.compared.verdict,
            (*self.compared.results, *absent_cpus),
            self.program_facts,
            length.steps(self.as_set.loader),
        )

    def recorded(
        self, *, scaled: ScaledTrace | None = None, cpu: CpuFacts | None = None
    ) -> RecordedStep:
        """Return what it takes to explain the step again."""
        return record(
            self.compared.trace,
            self.compared.host,
            other_size=scaled.second if scaled else None,
            sources=self.compared.sources,
            cpu=cpu,
        )

    def _own_caveats(self) -> Iterator[Caveat]:
        yield from self.told
        if self.program_facts.other_ns is None and self.as_set.other_work:
            work = self.as_set.other_work[0].location
            yield Caveat(
                code="between-not-counted",
                message=f"{PurePath(work.file).name}:{work.line} ({work.function}) works in each "
                "pass of a loop around the steps; how many steps a pass has is not known, so that "
                "this is not counted",
            )
        if self.gap is not None and not self.program_facts.between:
            yield Caveat(
                code="between-not-recorded",
                message="what the script does between some of its steps could not be recorded; "
                "where it is counted, it is taken to stay on the CPU",
            )
        load_fraction = self.compared.host.load_fraction
        if load_fraction > BUSY_FRACTION:
            yield Caveat(
                code="busy-host",
                message=f"other processes used {format_percent(load_fraction)} of this machine "
                "while its costs per operator were measured; predicted steps of GPUs are less "
                "certain",
            )
        if self.path.is_other_path(self.here):
            yield Caveat(
                code="other-path",
                message="the step that was recorded for a GPU would take this CPU far longer than "
                "the one that was timed: the script does more on a GPU, and what that takes the "
                "host is less certain",
            )
