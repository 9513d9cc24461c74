"""Steps on GPUs of rented machines: on a part of a GPU, on several, with a batch in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from breakeven.calibrate import host_called, in_measured_machines
from breakeven.device import (
    DeviceSpec,
    FeedingHost,
    HostSpec,
    find_device,
    find_host_kind,
    find_kind,
)
from breakeven.errors import BreakevenError, Caveat
from breakeven.money import Activity, Interval, Machine, board_watts, kernel_work
from breakeven.report import RecordedStep
from breakeven.simulate import (
    Edit,
    Program,
    StepPrediction,
    build_program,
    largest_batch,
    predict_on_gpus,
    predict_steps,
)
from breakeven.studies.host_work import with_factors_of
from breakeven.timing import Estimate
from breakeven.trace import Phase, ScaledTrace, ScalingError, scaled_from_one

_PARTS_TRIED = (2, 4, 8, 16, 32, 64)
_PARTS = Caveat(
    code="accumulated",
    message="the batch does not fit: it is split into parts whose gradients accumulate, which "
    "changes batch normalization",
)
_PART_OF_GPU = Caveat(
    code="part-of-gpu",
    message="the machine has a part of the GPU; its share of memory and rates is assumed",
)

# Catalogue id of a GPU, and the fraction of it that a machine has.
_Part = tuple[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedStep:
    """A step on the GPUs of machines that differ in nothing that changes it.

    Args:
        step: The step.
        machines: The machines.
        num_gpus: GPUs that share it.
        num_parts: Parts of the batch that follow one another, since the whole does not fit.
        largest_batch: The largest batch that fits; None if unknown.
        busy_watts: Power of a GPU's board during the step.
    """

    step: StepPrediction
    machines: Sequence[Machine]
    num_gpus: int
    num_parts: int
    largest_batch: int | None
    busy_watts: Interval

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Return reasons to trust it less, beyond those of the step."""
        parts = (_PARTS,) if self.num_parts > 1 else ()
        return (_PART_OF_GPU, *parts) if self.machines[0].gpu_fraction < 1 else parts

    def boards_watts(self, machine: Machine) -> Interval:
        """Return the power of all boards of one of the machines, also of idle ones."""
        idle = board_watts(self.step.device, Activity(working_fraction=0.0))
        return self.busy_watts.times(self.num_gpus).plus(
            idle.times(machine.num_gpus - self.num_gpus)
        )


def rented_steps(
    program: Program,
    recording: RecordedStep,
    machines: Sequence[Machine],
    numbers: Sequence[int],
    *,
    keeps_global_batch: bool,
) -> tuple[list[RentedStep], list[Caveat]]:
    """Predict a step on each machine and number of its GPUs; return also why some are left out.

    Args:
        program: The recorded step, with its kernels.
        recording: The recording.
        machines: Machines with GPUs.
        numbers: Numbers of GPUs.
        keeps_global_batch: Whether several GPUs divide the batch of the script.
    """
    scaled, num_processes = _scaled(recording), program.trace.num_processes
    devices = {(m.gpu, m.gpu_fraction): _part_of(m.gpu, m.gpu_fraction) for m in machines}
    works = dict(zip(devices, kernel_work(program, list(devices.values())), strict=True))
    steps: list[RentedStep] = []
    undivided: list[Caveat] = []
    for kind_id, groups in _grouped(machines, numbers).items():
        host = _rented_host(kind_id, recording.host)
        for num_gpus, by_part in groups.items():
            kinds = [devices[part] for part in by_part]
            try:
                if num_gpus == num_processes == 1:
                    alone = predict_steps(program, kinds, host)
                    fitted = [_fitting(step, program, scaled, host) for step in alone]
                else:
                    shared = predict_on_gpus(
                        scaled or program.trace,
                        kinds,
                        host,
                        num_gpus,
                        keeps_global_batch=keeps_global_batch,
                    )
                    fitted = [(prediction.step, 1) for prediction in shared]
            except BreakevenError as error:
                message = f"{error.message}; try --batch-per-gpu"
                undivided.append(Caveat(code="batch-not-divided", message=message))
                continue
            # The kernels are those of the recorded process, which has its part of the batch.
            share = num_gpus / num_processes if keeps_global_batch else 1.0
            for (part, some), (step, num_parts) in zip(by_part.items(), fitted, strict=True):
                device = devices[part]
                largest = largest_batch(scaled, device)
                work = works[part].during(share * step.estimate.value_ns)
                found = RentedStep(
                    step=step,
                    machines=some,
                    num_gpus=num_gpus,
                    num_parts=num_parts,
                    largest_batch=largest and largest * (num_gpus if keeps_global_batch else 1),
                    busy_watts=board_watts(device, work),
                )
                steps.append(found)
    return steps, undivided


def _grouped(
    machines: Sequence[Machine], numbers: Sequence[int]
) -> Mapping[str, Mapping[int, Mapping[_Part, list[Machine]]]]:
    """Return the machines by the id of their kind, the number to use, and their part of a GPU."""
    found: dict[str, dict[int, dict[_Part, list[Machine]]]] = {}
    for machine in machines:
        kind = find_host_kind(machine.cloud) or find_kind("cloud")
        part = machine.gpu, machine.gpu_fraction
        for number in numbers:
            if number <= machine.num_gpus:
                groups = found.setdefault(kind.id, {}).setdefault(number, {})
                groups.setdefault(part, []).append(machine)
    return found


def _rented_host(kind_id: str, recorded: FeedingHost) -> FeedingHost:
    """Return the host of GPUs in a kind of machine, with the factors that the step showed."""
    rented = recorded.data_center
    seen = rented if isinstance(rented, FeedingHost) else recorded
    host = in_measured_machines(host_called(kind_id, recorded))
    assert isinstance(host, FeedingHost), "a kind gives a feeding host"
    return with_factors_of(seen, host)


def _part_of(gpu: str, fraction: float) -> DeviceSpec:
    """Return a GPU, or a part of it with that share of its memory and rates."""
    device = find_device(gpu)
    if fraction == 1:
        return device
    peaks = {name: rate * fraction for name, rate in device.peak_flop_per_s.items()}
    return replace(
        device,
        name=f"1/{round(1 / fraction)} {device.name}",
        num_sms=max(1, round(device.num_sms * fraction)),
        memory_bytes=round(device.memory_bytes * fraction),
        memory_bytes_per_s=device.memory_bytes_per_s * fraction,
        peak_flop_per_s=peaks,
        tdp_watts=device.tdp_watts * fraction,
    )


def _scaled(recording: RecordedStep) -> ScaledTrace | None:
    """Return the step at every batch size; None if it is known at one only."""
    try:
        if recording.other_size is not None:
            return ScaledTrace(recording.trace, recording.other_size)
        return scaled_from_one(recording.trace)
    except ScalingError:
        return None


def _fitting(
    step: StepPrediction, program: Program, scaled: ScaledTrace | None, host: HostSpec
) -> tuple[StepPrediction, int]:
    """Return the step, in as many parts of the batch as its memory needs, and their number.

    All parts but one have no update: their gradients accumulate.
    """
    size = program.trace.batch_size
    if step.fits or scaled is None or size is None:
        return step, 1
    most = largest_batch(scaled, step.device)
    num_parts = next((n for n in _PARTS_TRIED if most and size % n == 0 and size // n <= most), 0)
    if not num_parts:
        return step, 1
    part = build_program(scaled.at(size // num_parts))
    events = enumerate(part.trace.events)
    updates = {i: () for i, event in events if getattr(event, "phase", None) is Phase.OPTIMIZER}
    whole, bare = (
        predict_steps(each, [step.device], host)[0]
        for each in (part, part.edited(Edit(replaced=updates)))
    )
    ratio = 1 + (num_parts - 1) * bare.estimate.value_ns / whole.estimate.value_ns
    one = whole.estimate
    return replace(
        whole,
        batch_size=size,
        estimate=Estimate.predicted(
            *(ratio * ns for ns in (one.value_ns, one.low_ns, one.high_ns))
        ),
        device_busy_ns=whole.device_busy_ns + (num_parts - 1) * bare.device_busy_ns,
    ), num_parts
