"""The cost of a training on each machine: time, money and energy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Unpack

from msgspec.structs import replace

from breakeven.device import HostCpu, find_device, find_host_cpu, known_device
from breakeven.errors import BreakevenError, Caveat, UsageError
from breakeven.money import (
    Interval,
    Machine,
    PriceFile,
    billed_usd,
    board_watts,
    co2_kg,
    counted_watts,
    energy_kwh,
    kernel_work,
    known_prices,
    price_caveats,
    select_machines,
)
from breakeven.report import CheckReport, ExplainReport, RecordedStep, cost_answer, pareto_front
from breakeven.report.cost_report import COST_SCHEMA_VERSION, CostReport, CostRow
from breakeven.simulate import Program, build_program
from breakeven.studies.check import check_target
from breakeven.studies.comparison import predict_absent_cpus
from breakeven.studies.measured_step import UNKNOWN_LENGTH, TrainingLength
from breakeven.studies.rented_gpus import rented_steps, scaled_recording
from breakeven.studies.study import StoredRun, StudyOptions, read_recorded
from breakeven.timing import MachinePower, Source
from breakeven.trace import ScalingError
from breakeven.units import NS_PER_S
from breakeven.verdict import (
    BetweenTime,
    DeviceKind,
    DeviceResult,
    ProgramFacts,
    SizeCurve,
    device_result,
    estimate_of,
    facts_of,
    training_time,
)

# To start a machine, pull an image with torch (some 4 GB) and copy the data.
# Judgement, from 1 to 2 minutes for a virtual machine and 10 to 100 MB/s for the rest.
SETUP_S = Interval(value=240.0, low=90.0, high=600.0)
# HF Jobs does not publish its CPUs: a server's core of 2021.
_ASSUMED_CPU = "Xeon Platinum 8375C"
_HERE = "this machine"
_CPU_ASSUMED = Caveat(
    code="assumed-cpu",
    message=f"the provider does not publish the CPU; assumed is a {_ASSUMED_CPU}",
)
_UNKNOWN_BOARD = Caveat(
    code="unknown-board",
    message="the table lacks this machine's GPU: its power is not in the energy",
)
_BETWEEN_UNKNOWN = Caveat(
    code="between-unknown",
    message="the work between steps, such as validation, is unknown: the times do not include it",
)
_NO_RATES = Caveat(
    code="no-cpu-machines",
    message="machines without a GPU are not predicted: the stored run lacks the rates of its CPU; "
    "write it again with `breakeven check -o`",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRequest:
    """The question: which training, on which machines, within which limits.

    Args:
        length: Length of the training; by default that of the stored run.
        machines: Names of machines, of GPUs, or ``cpu``; all by default.
        clouds: Ids of providers; all by default.
        usd_per_hour: Own prices by name of machine.
        prices: The machines with prices.
        deadline_s: Latest end, in seconds from now.
        budget_usd: Most money.
        power_usd_per_kwh: Price of electricity for this machine.
        setup_s: Seconds to start a rented machine, load the software and copy the data.
        grid_kg_per_kwh: CO2 per kWh of electricity; None for that of each region.
        num_gpus: Numbers of GPUs to train on, by ``DistributedDataParallel``.
        keeps_global_batch: Whether several GPUs divide the batch of the script; otherwise each has
            a batch of that size, and the training has fewer steps.
        batch_size: Samples per step; None for those of the recorded step. Its length must be given.
    """

    length: TrainingLength
    machines: tuple[str, ...] = ()
    clouds: tuple[str, ...] = ()
    usd_per_hour: Mapping[str, float] = field(default_factory=dict[str, float])
    prices: PriceFile = field(default_factory=known_prices)
    deadline_s: float | None = None
    budget_usd: float | None = None
    power_usd_per_kwh: float = 0.0
    setup_s: Interval = SETUP_S
    grid_kg_per_kwh: float | None = None
    num_gpus: tuple[int, ...] = (1,)
    keeps_global_batch: bool = True
    batch_size: int | None = None

    def chosen(self) -> tuple[Machine, ...]:
        """Return the machines to compare.

        Raises:
            UsageError: If a name, provider or price is wrong, or no machine has enough GPUs.
        """
        machines = select_machines(self.prices, self.machines, self.clouds, self.usd_per_hour)
        most = max((machine.num_gpus for machine in machines), default=0)
        if max(self.num_gpus) > max(most, 1):
            raise UsageError(
                f"no chosen machine has {max(self.num_gpus)} GPUs",
                hint="choose from breakeven prices",
            )
        return machines


def cost_target(target: str, request: CostRequest, **options: Unpack[StudyOptions]) -> CostReport:
    """Return the cost of training ``target``, which runs for some steps on this machine.

    Args:
        target: ``train.py``, ``train.py:function``, or a module's name with ``is_module``.
        request: The question.
        **options: Of the runs; see `StudyOptions`.

    Raises:
        BreakevenError: If the target gives no answer, or its length is unknown.
    """
    gpus = sorted({machine.gpu for machine in request.chosen() if machine.gpu})
    if request.length == UNKNOWN_LENGTH:
        raise UsageError(
            "the length of the training is unknown", hint="pass --steps N or --epochs N"
        )
    report = check_target(
        target,
        devices=tuple(find_device(gpu).name for gpu in gpus),
        length=request.length,
        tries_generated=False,
        knows_other_cpus=True,
        **options,
    )
    recording = report.recording
    assert recording is not None, "a check of a script records its step"
    return _cost(report, recording, build_program(recording.trace), request)


def cost_run(run: StoredRun, request: CostRequest) -> CostReport:
    """Return the cost of the training of a run that ``breakeven check -o`` stored.

    Args:
        run: The file, or the report itself.
        request: The question.

    Raises:
        StoredDataError: If the file holds no recorded step.
        BreakevenError: If the length of the training is unknown.
    """
    return _cost(*read_recorded(run, "cost"), request)


def _cost(
    report: CheckReport | ExplainReport,
    recording: RecordedStep,
    program: Program,
    request: CostRequest,
) -> CostReport:
    machines, own, growth = request.chosen(), _measured(report), 1.0
    facts = facts_of(report.program) if report.program else ProgramFacts()
    caveats: list[Caveat] = []
    base, size = recording.trace.batch_size, request.batch_size
    if size is not None and size != base:
        own, recording = _at_batch_size(report, recording, size)
        program, growth = build_program(recording.trace), size / (base or size)
        message = f"the step was recorded at batch size {base}; at {size} it is scaled"
        caveats.append(Caveat(code="batch-size-predicted", message=message))
    num_steps = _num_steps(report, request.length, growth)
    training = _Training(
        facts=facts,
        num_steps=num_steps,
        num_processes=recording.trace.num_processes,
        own=own[0],
        request=request,
        growth=growth,
    )
    gpus, undivided = _gpu_rows(training, program, recording, machines)
    cpus, unpredicted = _cpu_rows(training, program, recording, machines)
    named = {name.casefold() for name in request.machines}
    own_rows = _own_rows(training, program, report.host.name, own)
    rows = _in_order([*own_rows, *gpus, *cpus], named=named)
    used = request.prices.with_machines(machines).sources
    caveats += [*price_caveats(used, datetime.now(UTC).date()), *undivided, *unpredicted]
    if facts.other_ns is None:
        caveats.append(_BETWEEN_UNKNOWN)
    return CostReport(
        schema_version=COST_SCHEMA_VERSION,
        target=report.target,
        host=report.host,
        num_steps=num_steps,
        batch_size=recording.trace.batch_size,
        setup_s=request.setup_s,
        deadline_s=request.deadline_s,
        budget_usd=request.budget_usd,
        power_usd_per_kwh=request.power_usd_per_kwh,
        prices=used,
        rows=rows,
        answer=cost_answer(rows, used),
        caveats=tuple(dict.fromkeys((*caveats, *report.caveats))),
    )


def _at_batch_size(
    report: CheckReport | ExplainReport, recording: RecordedStep, size: int
) -> tuple[tuple[DeviceResult, ...], RecordedStep]:
    """Return the results of this machine and the recorded step, predicted at another batch size.

    Raises:
        BreakevenError: The step cannot be scaled.
    """
    try:
        scaled = scaled_recording(recording)
    except ScalingError as error:
        hint = "run the script at that size"
        raise BreakevenError(
            f"cannot price batch size {size}: {error.message}", hint=hint
        ) from error
    first, trace = scaled.first, scaled.at(size)
    assert first.batch_size is not None, "a step is scaled from its batch size"
    curves = report.curves if isinstance(report, CheckReport) else ()
    measured = {
        curve.device: {p.size: p.estimate for p in curve.points if p.source is Source.MEASURED}
        for curve in curves
    }
    results: list[DeviceResult] = []
    for result in _measured(report):
        times = {first.batch_size: estimate_of(result)} | measured.get(result.device, {})
        time, peak_bytes = SizeCurve(times).at(size), result.peak_memory_bytes
        memory_bytes = recording.memory_bytes
        if result.kind is DeviceKind.GPU:
            memory_bytes = find_device(result.device).memory_bytes
        if peak_bytes:
            peak_bytes += trace.peak_memory_bytes - first.peak_memory_bytes
        resized = replace(
            result,
            step_ns=time.value_ns,
            low_ns=time.low_ns,
            high_ns=time.high_ns,
            source=time.source,
            peak_memory_bytes=peak_bytes,
            fits=peak_bytes <= memory_bytes if peak_bytes and memory_bytes else None,
            power=None,
        )
        results.append(resized)
    return tuple(results), replace(recording, trace=trace, other_size=first)


def _measured(report: CheckReport | ExplainReport) -> tuple[DeviceResult, ...]:
    return tuple(result for result in report.results if result.source is Source.MEASURED)


def _num_steps(report: CheckReport | ExplainReport, length: TrainingLength, growth: float) -> int:
    """Return the number of steps, as asked for or else as stored.

    Args:
        report: The stored run.
        length: The length that the user asked for.
        growth: Samples of a step over those of the recorded step; an epoch keeps its samples.

    Raises:
        UsageError: If it is unknown.
    """
    stored = report.program
    per_epoch = stored and stored.steps_per_epoch
    num_steps = length.steps(per_epoch and per_epoch / growth)
    if num_steps is not None:
        return max(1, num_steps)
    if length.num_epochs is not None:
        raise UsageError(
            "the length of an epoch is unknown: no DataLoader of known length feeds the steps",
            hint="pass --steps N; in Python, num_steps=N",
        )
    if stored is not None and stored.num_steps and growth == 1:
        return stored.num_steps
    raise UsageError(
        "the length of the training is unknown", hint="pass --steps N; in Python, num_steps=N"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """A training of a known length, to be priced on a machine.

    Args:
        facts: The work outside of its steps.
        num_steps: Steps of the script.
        num_processes: Processes that share each step; the recorded one is one of them.
        own: The step on this CPU.
        request: The question.
        growth: Samples of a step over those of the recorded step.
    """

    facts: ProgramFacts
    num_steps: int
    num_processes: int
    own: DeviceResult
    request: CostRequest
    growth: float

    def row(
        self,
        result: DeviceResult,
        machine: Machine,
        *,
        boards: Interval | None = None,
        num_gpus: int = 0,
        num_parts: int = 1,
        largest: int | None = None,
        caveats: Sequence[Caveat] = (),
    ) -> CostRow:
        """Return the training on a machine.

        Args:
            result: The step on its device.
            machine: The machine; without a provider, this one.
            boards: Power of all its GPUs together, in watts; None without one.
            num_gpus: GPUs that share the training; 0 for a CPU, and for this machine.
            num_parts: Parts of each batch.
            largest: The largest batch that fits.
            caveats: More reasons to trust the figures less.
        """
        request, power = self.request, result.power or MachinePower()
        # One device alone takes the processes' parts of a batch one after the other.
        factor = 1.0
        if num_gpus == 0:
            factor = float(self.num_processes)
        elif not request.keeps_global_batch:
            factor = self.num_processes / num_gpus
        num_steps = math.ceil(self.num_steps * factor)
        # The work between steps keeps its time per sample.
        time = training_time(result, self._facts_on(result, factor / self.growth), num_steps)
        time_ns = Interval(value=time.total_ns, low=time.low_ns, high=time.high_ns)
        if machine.provider:
            time_ns = time_ns.plus(request.setup_s.times(NS_PER_S))
        energy = energy_kwh(time_ns, machine, boards, counted_watts(power, "RAPL"))
        usd = energy.times(request.power_usd_per_kwh)
        if machine.provider:
            source = request.prices.source_of(machine)
            usd = time_ns.map(lambda ns: billed_usd(machine, source, ns / NS_PER_S))
        return CostRow(
            provider=machine.cloud,
            machine=machine.name,
            device=result.device,
            kind=result.kind,
            source=result.source,
            num_gpus=max(num_gpus, 1) if result.kind is DeviceKind.GPU else 0,
            num_parts=num_parts,
            region=machine.region,
            usd_per_hour=machine.usd_per_hour,
            step_ns=result.step_ns,
            time_ns=time_ns,
            usd=usd,
            energy_kwh=energy,
            co2_kg=co2_kg(energy, machine, request.grid_kg_per_kwh),
            bound=result.bound,
            fits=result.fits,
            peak_memory_bytes=result.peak_memory_bytes,
            largest_batch=largest,
            # The upper end of a 90 % interval holds with 95 %.
            meets_limits=result.fits is not False
            and time_ns.high <= NS_PER_S * (request.deadline_s or math.inf)
            and usd.high <= (math.inf if request.budget_usd is None else request.budget_usd),
            energy_counters=tuple(part.counter for part in power.parts),
            caveats=(*result.caveats, *caveats),
        )

    def _facts_on(self, result: DeviceResult, factor: float) -> ProgramFacts:
        """Return the work outside of steps on a device.

        A GPU that was not among the recorded ones takes the range of those: the host limits most of
        that work. Another CPU takes as many times longer as it does for a step.

        Args:
            result: The step on the device.
            factor: Steps there over those of the script; the work between them stays the same.
        """
        facts, between = self.facts, self.facts.between
        known = [one for one in between if one.device == result.device] or between
        if result.source is Source.PREDICTED and (known or result.kind is DeviceKind.CPU):
            step = Interval(value=result.step_ns, low=result.low_ns, high=result.high_ns)
            there = step.times((facts.other_ns or 0.0) / self.own.step_ns)
            if result.kind is DeviceKind.GPU:
                there = Interval(
                    value=statistics.median(one.time_ns for one in known),
                    low=min(one.low_ns for one in known),
                    high=max(one.high_ns for one in known),
                )
            low_ns, time_ns, high_ns = (ns / factor for ns in (there.low, there.value, there.high))
            between = (
                BetweenTime(device=result.device, time_ns=time_ns, low_ns=low_ns, high_ns=high_ns),
            )
        return replace(
            facts,
            other_ns=facts.other_ns and facts.other_ns / factor,
            other_low_ns=facts.other_low_ns / factor,
            other_high_ns=facts.other_high_ns / factor,
            between=between,
        )


def _own_rows(
    training: _Training, program: Program, processor: str, own: Sequence[DeviceResult]
) -> Iterator[CostRow]:
    """Yield the training on this machine's CPU, with the best number of threads, and its GPU."""
    for kind in DeviceKind:
        same = (result for result in own if result.kind is kind)
        best = min(same, key=lambda result: result.step_ns, default=None)
        if best is None:
            continue
        machine = Machine(
            provider="",
            name=_HERE,
            num_vcpus=max(1, program.trace.facts.num_cores),
            memory_bytes=0,
            usd_per_hour=0.0,
            num_gpus=int(kind is DeviceKind.GPU),
            cpu=processor,
        )
        power, caveats = best.power or MachinePower(), list[Caveat]()
        boards = counted_watts(power, "NVML")
        if kind is DeviceKind.GPU and boards is None:
            gpu = known_device(best.device)
            boards = gpu and board_watts(gpu, kernel_work(program, [gpu])[0].during(best.step_ns))
            caveats += [] if gpu else [_UNKNOWN_BOARD]
        for why in power.unread:
            message = f"a part of this machine's energy is not measured: {why}"
            caveats.append(Caveat(code="energy-not-measured", message=message))
        yield training.row(best, machine, boards=boards, caveats=caveats)


def _gpu_rows(
    training: _Training, program: Program, recording: RecordedStep, machines: Sequence[Machine]
) -> tuple[list[CostRow], list[Caveat]]:
    """Return the training on the machines with GPUs, and why some numbers of GPUs are left out."""
    request, rented = training.request, [machine for machine in machines if machine.gpu]
    steps, undivided = rented_steps(
        program,
        recording,
        rented,
        request.num_gpus,
        keeps_global_batch=request.keeps_global_batch,
    )
    rows = [
        training.row(
            device_result(one.step),
            machine,
            boards=one.boards_watts(machine),
            num_gpus=one.num_gpus,
            num_parts=one.num_parts,
            largest=one.largest_batch,
            caveats=one.caveats,
        )
        for one in steps
        for machine in one.machines
    ]
    return rows, undivided


def _cpu_rows(
    training: _Training, program: Program, recording: RecordedStep, machines: Sequence[Machine]
) -> tuple[list[CostRow], tuple[Caveat, ...]]:
    """Return the training on the machines without a GPU, or why it cannot be predicted."""
    rented = [machine for machine in machines if not machine.gpu]
    if not rented:
        return [], ()
    if recording.here is None:
        return [], (_NO_RATES,)
    groups: dict[HostCpu, list[Machine]] = {}
    for machine in rented:
        cpu = find_host_cpu(machine.cpu or _ASSUMED_CPU)
        groups.setdefault(replace(cpu, num_cores=machine.num_cores), []).append(machine)
    results, unpredicted = predict_absent_cpus(program, training.own, recording.here, list(groups))
    peak_bytes = training.own.peak_memory_bytes
    rows: list[CostRow] = []
    for some, result in zip(groups.values(), results, strict=False):
        for machine in some:
            fits = peak_bytes is None or peak_bytes <= machine.memory_bytes
            result = replace(result, fits=fits, peak_memory_bytes=peak_bytes)
            caveats = () if machine.cpu else (_CPU_ASSUMED,)
            rows.append(training.row(result, machine, caveats=caveats))
    return rows, unpredicted


def _in_order(rows: Sequence[CostRow], *, named: set[str]) -> tuple[CostRow, ...]:
    """Return the rows in order, without machines that a cheaper one of the provider matches.

    Machines with the same GPU differ in what surrounds it, which changes no figure but the price.

    Args:
        rows: All machines.
        named: Names of machines to keep in any case, in lower case.
    """
    ordered = sorted(
        rows,
        key=lambda row: (not row.meets_limits, row.fits is False, row.usd.value, row.time_ns.value),
    )
    seen: set[tuple[str, str, int]] = set()
    kept: list[CostRow] = []
    for row in ordered:
        key = (row.provider, row.device, row.num_gpus)
        alike = [one for one in kept if (one.provider, one.kind) == (row.provider, row.kind)]
        is_faster = all(row.time_ns.value < one.time_ns.value for one in alike)
        is_new = key not in seen if row.kind is DeviceKind.GPU else is_faster
        if is_new or row.is_here or row.machine.casefold() in named:
            kept.append(row)
        seen.add(key)
    front = pareto_front([row for row in kept if row.fits is not False])
    return tuple(replace(row, is_on_front=row in front) for row in kept)
