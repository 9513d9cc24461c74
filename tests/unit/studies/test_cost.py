"""The cost of stored runs: machines, limits, parts of a batch, order."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.cost import reference_host
from breakeven.errors import BreakevenError, StoredDataError, UsageError
from breakeven.money import Interval, Machine, PriceFile, PriceSource
from breakeven.report import CostReport, CostRow, record, to_json
from breakeven.simulate import CpuCosts, CpuRates
from breakeven.studies import SETUP_S, CostRequest, TrainingLength, cost_run
from breakeven.timing import CounterPower, MachinePower, Source
from breakeven.trace import Op, Phase, ProcessGroup, StepTrace, TensorSpec
from breakeven.units import NS_PER_S
from breakeven.verdict import BetweenTime, DeviceKind, ProgramSummary
from factories.reports import cpu, cpu_wins
from factories.steps import at

WEIGHT = TensorSpec(shape=(1024, 1024), dtype="float32", device="cuda:0", storage=2)
CLOUD = PriceSource(
    id="aws", name="AWS", date="2026-07-20", source="a list", billing_s=1, least_billed_s=60
)
JOBS = PriceSource(
    id="hf", name="HF Jobs", date="", source="a page", billing_s=60, least_billed_s=60
)


def machine(name: str, usd: float, **changes: Any) -> Machine:
    return Machine(
        provider=changes.pop("provider", "aws"),
        name=name,
        num_vcpus=changes.pop("num_vcpus", 4),
        memory_bytes=16 * 2**30,
        usd_per_hour=usd,
        **changes,
    )


T4 = machine("t4.small", 0.5, gpu="t4", num_gpus=1, region="us-east-1")
BIG_T4 = machine("t4.large", 0.9, gpu="t4", num_gpus=1, num_vcpus=32)
H100 = machine("h100.huge", 30.0, gpu="h100-sxm5-80gb", num_gpus=8, num_vcpus=96)
CPU = machine("cpu.small", 0.1, cpu="Xeon Platinum 8375C")
SLOW_CPU = machine("cpu.dear", 0.2, cpu="Xeon Platinum 8375C", num_vcpus=2)
JOB = machine("CPU Upgrade", 0.03, provider="hf", num_vcpus=8)
PRICES = PriceFile(
    schema_version=1,
    sources=(CLOUD, JOBS),
    machines=(T4, BIG_T4, H100, CPU, SLOW_CPU, JOB),
)


def trace(batch_size: int = 64, peak_bytes: int = 10_000_000) -> StepTrace:
    def rows(storage: int) -> TensorSpec:
        return replace(WEIGHT, shape=(batch_size, 1024), storage=storage)

    product = Op(
        name="aten.mm.default", inputs=(rows(1), WEIGHT), outputs=(rows(3),), location=at(4)
    )
    update = Op(
        name="aten.add_.Tensor",
        inputs=(WEIGHT, WEIGHT),
        outputs=(WEIGHT,),
        location=at(5),
        phase=Phase.OPTIMIZER,
    )
    return StepTrace(
        events=(product, replace(product, phase=Phase.BACKWARD), update),
        batch_size=batch_size,
        num_parameters=1024 * 1024,
        peak_memory_bytes=peak_bytes,
    )


def stored(
    folder: Path,
    *,
    peaks: tuple[int, int] = (10_000_000, 20_000_000),
    here: bool = True,
    step_s: float = 1.0,
    **changes: Any,
) -> Path:
    """Write a run whose step takes this CPU ``step_s`` seconds."""
    host = reference_host()
    costs = CpuCosts(host=host, core=CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=1e10))
    recording = record(
        trace(64, peaks[0]),
        host,
        other_size=trace(128, peaks[1]),
        here=costs if here else None,
    )
    step_ns = step_s * NS_PER_S
    own = cpu(step_ns, 0.95 * step_ns, 1.05 * step_ns)
    own = replace(own, precision="fp32", num_threads=4)
    assert own.source is Source.MEASURED
    report = replace(cpu_wins(), results=(own,), recording=recording, program=None, **changes)
    path = folder / "run.json"
    path.write_bytes(to_json(report, with_recording=True))
    return path


def request(steps: int | None = 10_000, **changes: Any) -> CostRequest:
    return CostRequest(length=TrainingLength(num_steps=steps), prices=PRICES, **changes)


def row(report: CostReport, machine: str) -> CostRow:
    return next(one for one in report.rows if one.machine == machine)


def names(report: CostReport) -> list[str]:
    return [one.machine for one in report.rows]


def test_this_machine_is_free_and_has_no_setup(tmp_path: Path) -> None:
    here = row(cost_run(stored(tmp_path), request()), "this machine")

    assert here.usd.value == 0
    assert here.is_here
    assert here.time_ns.value == pytest.approx(1e4 * NS_PER_S, rel=1e-3)


def test_this_machine_costs_its_electricity(tmp_path: Path) -> None:
    here = row(cost_run(stored(tmp_path), request(power_usd_per_kwh=0.4)), "this machine")

    assert here.usd.value == pytest.approx(0.4 * here.energy_kwh.value)
    assert here.usd.value > 0


def test_a_rented_machine_pays_for_its_setup_and_as_a_whole(tmp_path: Path) -> None:
    setup = Interval(value=600.0, low=300.0, high=900.0)
    path = stored(tmp_path)
    without = row(cost_run(path, request(setup_s=setup.map(lambda _: 0.0))), "h100.huge")
    with_setup = row(cost_run(path, request(setup_s=setup)), "h100.huge")

    assert with_setup.time_ns.value - without.time_ns.value == pytest.approx(600 * NS_PER_S)
    seconds = with_setup.time_ns.value / NS_PER_S
    assert with_setup.usd.value == pytest.approx(30.0 * math.ceil(seconds) / 3600)
    assert with_setup.usd.low < with_setup.usd.value < with_setup.usd.high


def test_of_machines_with_one_gpu_the_cheapest_is_kept_unless_named(tmp_path: Path) -> None:
    path = stored(tmp_path)

    assert "t4.large" not in names(cost_run(path, request()))
    assert "t4.large" not in names(cost_run(path, request(machines=("t4",))))
    assert "t4.large" in names(cost_run(path, request(machines=("T4.large", "t4"))))


def test_a_dearer_slower_cpu_machine_is_left_out(tmp_path: Path) -> None:
    found = names(cost_run(stored(tmp_path), request()))

    assert "cpu.small" in found
    assert "cpu.dear" not in found


def test_a_cpu_that_the_provider_does_not_publish_is_assumed(tmp_path: Path) -> None:
    job = row(cost_run(stored(tmp_path), request()), "CPU Upgrade")

    assert {caveat.code for caveat in job.caveats} >= {"assumed-cpu", "absent-cpu"}
    assert job.co2_kg is None


def test_a_run_without_the_rates_of_its_cpu_says_so(tmp_path: Path) -> None:
    report = cost_run(stored(tmp_path, here=False), request())

    assert "cpu.small" not in names(report)
    assert "no-cpu-machines" in {caveat.code for caveat in report.caveats}


def test_limits_hold_with_the_upper_end_of_the_interval(tmp_path: Path) -> None:
    path = stored(tmp_path)
    t4 = row(cost_run(path, request()), "t4.small")
    late, in_time = (
        row(cost_run(path, request(deadline_s=share * t4.time_ns.high / NS_PER_S)), "t4.small")
        for share in (0.99, 1.01)
    )
    dear, in_budget = (
        row(cost_run(path, request(budget_usd=share * t4.usd.high)), "t4.small")
        for share in (0.99, 1.01)
    )

    assert not late.meets_limits
    assert in_time.meets_limits
    assert not dear.meets_limits
    assert in_budget.meets_limits


def test_machines_within_the_limits_come_first_then_cheaper_ones(tmp_path: Path) -> None:
    report = cost_run(stored(tmp_path), request(deadline_s=3600.0))
    keys = [(not one.meets_limits, one.usd.value) for one in report.rows]

    assert keys == sorted(keys)
    assert not report.rows[-1].meets_limits
    assert report.rows[0].meets_limits


def test_no_machine_on_the_front_is_beaten_in_time_and_money(tmp_path: Path) -> None:
    rows = cost_run(stored(tmp_path), request()).rows

    for one in rows:
        beaten = any(
            other.time_ns.value < one.time_ns.value and other.usd.value < one.usd.value
            for other in rows
        )
        assert not (one.is_on_front and beaten)
    assert any(one.is_on_front for one in rows)


def test_a_batch_that_does_not_fit_is_split_into_parts(tmp_path: Path) -> None:
    # 12 GB at half of the batch, 24 GB at the whole batch, against 16 GB.
    path = stored(tmp_path, peaks=(24 * 10**9, 48 * 10**9))
    report = cost_run(path, request())
    t4, h100 = row(report, "t4.small"), row(report, "h100.huge")

    assert t4.num_parts == 2
    assert t4.fits
    assert t4.largest_batch is not None
    assert 32 <= t4.largest_batch < 64
    assert "accumulated" in {caveat.code for caveat in t4.caveats}
    assert h100.num_parts == 1


def test_a_step_that_never_fits_comes_last(tmp_path: Path) -> None:
    # The weights alone take 200 GB.
    report = cost_run(stored(tmp_path, peaks=(2 * 10**11, 2 * 10**11 + 10**6)), request())
    t4 = row(report, "t4.small")

    assert t4.fits is False
    assert not t4.meets_limits
    assert t4.largest_batch == 0
    assert not t4.is_on_front


def test_work_between_steps_counts_on_gpus_that_were_not_recorded(tmp_path: Path) -> None:
    between = BetweenTime(device="L4", time_ns=5e9, low_ns=4e9, high_ns=6e9)
    program = ProgramSummary(
        startup_ns=0.0, data_ns=0.0, other_ns=1e9, other_low_ns=9e8, other_high_ns=1.1e9,
        step_fraction=0.5, parts=(), unevenness=1.0, speedup=1.0, low=0.9, high=1.1,
        between=(between,),
    )  # fmt: skip
    path = stored(tmp_path)
    alone = row(cost_run(path, request()), "t4.small")
    report = replace(_read(path), program=program)
    path.write_bytes(to_json(report, with_recording=True))
    with_work = row(cost_run(path, request()), "t4.small")

    added_s = (with_work.time_ns.value - alone.time_ns.value) / NS_PER_S
    assert added_s == pytest.approx(5e4, rel=0.01)


def program_of(**changes: Any) -> ProgramSummary:
    return ProgramSummary(
        startup_ns=0.0, data_ns=0.0, other_ns=1e9, other_low_ns=9e8, other_high_ns=1.1e9,
        step_fraction=0.5, parts=(), unevenness=1.0, speedup=1.0, low=0.9, high=1.1, **changes,
    )  # fmt: skip


def with_program(path: Path, program: ProgramSummary) -> Path:
    path.write_bytes(to_json(replace(_read(path), program=program), with_recording=True))
    return path


def test_another_batch_size_scales_the_step_its_memory_and_this_machine(tmp_path: Path) -> None:
    path = stored(tmp_path, curves=())
    once, larger = cost_run(path, request()), cost_run(path, request(batch_size=256))
    assert (once.batch_size, larger.batch_size) == (64, 256)
    assert once.num_steps == larger.num_steps == 10_000
    # 10 MB at 64 samples, 20 MB at 128: 40 MB at 256.
    small, large = row(once, "t4.small"), row(larger, "t4.small")
    assert small.peak_memory_bytes is not None
    assert large.peak_memory_bytes == small.peak_memory_bytes + 30_000_000
    assert small.step_ns < large.step_ns < 4 * small.step_ns
    assert large.largest_batch == small.largest_batch
    here = row(larger, "this machine")
    assert here.source is Source.PREDICTED
    assert 1 < here.step_ns / row(once, "this machine").step_ns <= 4
    assert {one.code for one in larger.caveats} - {one.code for one in once.caveats} == {
        "batch-size-predicted"
    }


@pytest.mark.parametrize(("memory_bytes", "fits"), [(30_000_000, False), (10**12, True), (0, None)])
def test_another_batch_size_must_fit_this_machine(
    tmp_path: Path, memory_bytes: int, fits: bool | None
) -> None:
    path = stored(tmp_path)
    stored_run = _read(path)
    results = tuple(replace(one, peak_memory_bytes=20_000_000) for one in stored_run.results)
    other = record(
        trace(64, 10_000_000), reference_host(), other_size=trace(128, 20_000_000),
        memory_bytes=memory_bytes,
    )  # fmt: skip
    run = replace(stored_run, recording=other, results=results)
    here = row(cost_run(run, request(batch_size=256)), "this machine")
    assert (here.fits, here.peak_memory_bytes) == (fits, 50_000_000)
    assert here.meets_limits == (fits is not False)


def test_a_size_that_this_machine_measured_is_measured(tmp_path: Path) -> None:
    size = 256
    here = row(cost_run(stored(tmp_path), request(batch_size=size)), "this machine")
    (curve, *_) = cpu_wins().curves
    measured = next(point for point in curve.points if point.size == size)
    assert (here.step_ns, here.source) == (measured.step_ns, Source.MEASURED)


def test_the_recorded_batch_size_changes_nothing(tmp_path: Path) -> None:
    path = stored(tmp_path)
    assert cost_run(path, request(batch_size=64)) == cost_run(path, request())


def test_another_batch_size_is_that_of_a_run_recorded_at_it(tmp_path: Path) -> None:
    at_64 = cost_run(stored(tmp_path), request(batch_size=128, clouds=("aws",)))
    other = record(trace(128, 20_000_000), reference_host(), other_size=trace(64, 10_000_000))
    path = tmp_path / "run.json"
    path.write_bytes(to_json(replace(_read(path), recording=other), with_recording=True))
    at_128 = cost_run(path, request(clouds=("aws",)))
    for name in ("t4.small", "h100.huge"):
        assert row(at_64, name).time_ns == row(at_128, name).time_ns
        assert row(at_64, name).energy_kwh == row(at_128, name).energy_kwh


def test_epochs_keep_their_samples_at_another_batch_size(tmp_path: Path) -> None:
    path = with_program(stored(tmp_path), program_of(steps_per_epoch=1000.0))
    epochs = TrainingLength(num_epochs=3)
    asked = replace_length(request(), epochs)
    once, larger = cost_run(path, asked), cost_run(path, dataclasses.replace(asked, batch_size=256))
    assert (once.num_steps, larger.num_steps) == (3000, 750)
    # The work between steps belongs to the samples: 1 s for each 64 of them.
    for report in (once, larger):
        here = row(report, "this machine")
        between_ns = here.time_ns.value - (report.num_steps - 1) * here.step_ns
        assert between_ns == pytest.approx(3000 * NS_PER_S, rel=2e-3)


def replace_length(asked: CostRequest, length: TrainingLength) -> CostRequest:
    return dataclasses.replace(asked, length=length)


def test_a_stored_length_is_none_at_another_batch_size(tmp_path: Path) -> None:
    path = with_program(stored(tmp_path), program_of(num_steps=500))
    assert cost_run(path, request(None)).num_steps == 500
    with pytest.raises(UsageError, match="length of the training is unknown"):
        cost_run(path, request(None, batch_size=256))


def test_a_step_without_a_batch_dimension_has_no_other_size(tmp_path: Path) -> None:
    path = stored(tmp_path)
    single = record(trace(1), reference_host())
    path.write_bytes(to_json(replace(_read(path), recording=single), with_recording=True))
    with pytest.raises(BreakevenError, match="cannot price batch size 256: a batch of one sample"):
        cost_run(path, request(batch_size=256))


def _read(path: Path) -> Any:
    from breakeven.report import read_document

    return read_document(path)


def test_the_length_comes_from_the_options_or_the_run(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with pytest.raises(UsageError, match="length of the training is unknown"):
        cost_run(path, request(None))
    epochs = CostRequest(length=TrainingLength(num_epochs=2), prices=PRICES)
    with pytest.raises(UsageError, match="length of an epoch is unknown"):
        cost_run(path, epochs)
    program = ProgramSummary(
        startup_ns=0.0, data_ns=0.0, other_ns=None, other_low_ns=0.0, other_high_ns=0.0,
        step_fraction=1.0, parts=(), unevenness=1.0, speedup=1.0, low=0.9, high=1.1,
        num_steps=70, steps_per_epoch=12.5,
    )  # fmt: skip
    path.write_bytes(to_json(replace(_read(path), program=program), with_recording=True))
    assert cost_run(path, epochs).num_steps == 25
    assert cost_run(path, request(None)).num_steps == 70
    assert cost_run(path, request(3)).num_steps == 3


def test_wrong_questions_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with pytest.raises(UsageError, match="gpu9000"):
        cost_run(path, request(machines=("gpu9000",)))
    with pytest.raises(UsageError, match="ibm"):
        cost_run(path, request(clouds=("ibm",)))
    with pytest.raises(StoredDataError, match="cannot read"):
        cost_run(tmp_path / "missing.json", request())


def test_the_answer_names_the_cheapest_faster_machine_and_this_one(tmp_path: Path) -> None:
    slow = cost_run(stored(tmp_path), request())
    assert slow.answer.startswith(f"{slow.rows[1].device} on ")
    assert "this CPU: 2 h 47 min, free" in slow.answer
    quick = cost_run(stored(tmp_path, step_s=1e-5), request())
    assert quick.answer.startswith("This CPU: ")
    assert "no listed machine is clearly faster" in quick.answer
    none = cost_run(stored(tmp_path), request(deadline_s=10.0))
    assert none.answer.startswith("No machine surely meets the limits. The fastest, H100 SXM5")
    dear = cost_run(stored(tmp_path), request(budget_usd=1e-6))
    assert "no listed machine within the limits is clearly faster" in dear.answer


def test_gpus_of_other_kinds_of_machines_have_their_own_hosts(tmp_path: Path) -> None:
    job = machine("T4 small", 0.4, provider="hf", gpu="t4", num_gpus=1)
    prices = replace(PRICES, machines=(T4, job))
    found = cost_run(
        stored(tmp_path), CostRequest(length=TrainingLength(num_steps=100), prices=prices)
    )
    # A hosted container takes longer to issue a step than a virtual machine.
    assert row(found, "T4 small").step_ns > row(found, "t4.small").step_ns
    assert row(found, "T4 small").kind is DeviceKind.GPU


def test_several_gpus_divide_the_batch_or_the_steps(tmp_path: Path) -> None:
    path = stored(tmp_path)
    numbers = (1, 4, 8)
    shared = cost_run(path, request(machines=("h100.huge",), num_gpus=numbers))
    each = cost_run(
        path, request(machines=("h100.huge",), num_gpus=numbers, keeps_global_batch=False)
    )
    counts = [row.num_gpus for row in shared.rows if not row.is_here]

    assert sorted(counts) == [1, 4, 8]
    steps = {
        (row.num_gpus, name): row for name, r in (("s", shared), ("e", each)) for row in r.rows
    }
    assert steps[8, "e"].step_ns > steps[8, "s"].step_ns
    setup_ns = SETUP_S.value * NS_PER_S
    one, eight = (steps[n, "e"].time_ns.value - setup_ns for n in (1, 8))
    assert eight < one
    # Idle boards draw power too.
    assert steps[1, "s"].energy_kwh.value > 0


def test_a_batch_that_cannot_be_divided_leaves_that_number_out(tmp_path: Path) -> None:
    prices = replace(PRICES, machines=(replace(H100, num_gpus=128),))
    question = CostRequest(length=TrainingLength(num_steps=9), prices=prices, num_gpus=(128,))
    report = cost_run(stored(tmp_path), question)
    assert names(report) == ["this machine"]
    (caveat,) = (one for one in report.caveats if one.code == "batch-not-divided")
    assert "among 128 GPUs: it has 64 samples; try --batch-per-gpu" in caveat.message


def test_no_machine_with_enough_gpus_is_refused(tmp_path: Path) -> None:
    for numbers in ((8,), (1, 8)):
        with pytest.raises(UsageError, match="no chosen machine has 8 GPUs"):
            cost_run(stored(tmp_path), request(num_gpus=numbers, machines=("t4.small",)))


def summary(**changes: Any) -> ProgramSummary:
    values = {
        "startup_ns": 0.0, "data_ns": 0.0, "other_ns": 0.0, "other_low_ns": 0.0,
        "other_high_ns": 0.0, "step_fraction": 1.0, "parts": (), "unevenness": 1.0,
        "speedup": 1.0, "low": 0.9, "high": 1.1, **changes,
    }  # fmt: skip
    return ProgramSummary(**values)


def changed(path: Path, **changes: Any) -> Path:
    path.write_bytes(to_json(replace(_read(path), **changes), with_recording=True))
    return path


def test_work_between_steps_takes_another_cpu_as_much_longer_as_a_step(tmp_path: Path) -> None:
    no_setup = Interval(value=0.0, low=0.0, high=0.0)
    program = summary(other_ns=1e9, other_low_ns=9e8, other_high_ns=1.1e9)
    path = stored(tmp_path)
    plain = row(cost_run(path, request(setup_s=no_setup)), "cpu.small")
    busy = row(cost_run(changed(path, program=program), request(setup_s=no_setup)), "cpu.small")

    # A step takes this CPU as long as the work between two of them.
    assert busy.time_ns.value == pytest.approx(2 * plain.time_ns.value, rel=1e-3)
    assert busy.time_ns.high > 1.05 * busy.time_ns.value


def test_unknown_work_between_steps_is_told(tmp_path: Path) -> None:
    path = stored(tmp_path)
    known = cost_run(changed(path, program=summary()), request())
    unknown = cost_run(changed(path, program=summary(other_ns=None)), request())

    assert "between-unknown" not in {caveat.code for caveat in known.caveats}
    assert "between-unknown" in {caveat.code for caveat in unknown.caveats}


def test_fewer_steps_do_not_shrink_the_work_between_them(tmp_path: Path) -> None:
    program = summary(other_ns=1e9, other_low_ns=1e9, other_high_ns=1e9)
    path = changed(stored(tmp_path), program=program)
    report = cost_run(
        path, request(num_gpus=(8,), machines=("h100.huge",), keeps_global_batch=False)
    )
    # Ten thousand times one second.
    assert row(report, "h100.huge").time_ns.value > 1e4 * NS_PER_S


def test_a_process_of_several_does_its_part_of_the_work(tmp_path: Path) -> None:
    path = stored(tmp_path)
    question = request(machines=("h100.huge",), num_gpus=(1, 4))
    alone = cost_run(path, question)
    recording = _read(path).recording
    shared = replace(recording.trace, group=ProcessGroup(num_processes=4))
    again = record(
        shared,
        recording.host,
        other_size=replace(recording.other_size, group=ProcessGroup(num_processes=4)),
        here=recording.here,
    )
    group = cost_run(changed(path, recording=again), question)

    def times(report: CostReport) -> dict[int, float]:
        return {one.num_gpus: one.time_ns.value for one in report.rows}

    # This CPU trains the parts of the four processes one after the other.
    assert times(group)[0] == pytest.approx(4 * times(alone)[0], rel=1e-3)
    # One GPU gets the whole batch: four times that of the recorded process.
    assert row_of(group, 1).step_ns > row_of(alone, 1).step_ns
    # Four GPUs get a batch of the recorded size each.
    weak = cost_run(path, dataclasses.replace(question, keeps_global_batch=False))
    assert row_of(group, 4).step_ns == pytest.approx(row_of(weak, 4).step_ns)
    assert row_of(group, 4).time_ns.value == pytest.approx(row_of(weak, 4).time_ns.value)


def row_of(report: CostReport, num_gpus: int) -> CostRow:
    return next(one for one in report.rows if one.num_gpus == num_gpus)


def test_a_machine_with_too_little_memory_is_no_choice(tmp_path: Path) -> None:
    path = stored(tmp_path)
    own = replace(_read(path).results[0], peak_memory_bytes=20 * 2**30)
    report = cost_run(changed(path, results=(own,)), request())
    assert row(report, "cpu.small").fits is False
    assert not row(report, "cpu.small").meets_limits


def test_energy_counts_idle_boards_and_parts_of_gpus(tmp_path: Path) -> None:
    part = machine("eighth", 0.2, gpu="l4", num_gpus=1, gpu_fraction=1 / 8)
    whole = machine("whole", 0.8, gpu="l4", num_gpus=1)
    four = machine("four", 3.0, gpu="l4", num_gpus=4)
    prices = replace(PRICES, machines=(part, whole, four))
    found = cost_run(
        stored(tmp_path),
        CostRequest(
            length=TrainingLength(num_steps=100),
            prices=prices,
            machines=("whole", "four", "eighth"),
        ),
    )
    watts = {one.machine: one.energy_kwh.value / one.time_ns.value for one in found.rows}
    assert watts["eighth"] < watts["whole"] < watts["four"] < 4 * watts["whole"]


RAPL = tuple(
    CounterPower(counter=f"RAPL package-{n}", watts=30.0, low_watts=29.0, high_watts=31.0)
    for n in (0, 1)
)
NVML = CounterPower(counter="NVML", watts=200.0, low_watts=180.0, high_watts=220.0)


def measured(
    folder: Path, power: MachinePower, on_gpu: MachinePower | None = None, gpu: str = "Tesla T4"
) -> Path:
    """Write a run with the power of this machine; with ``on_gpu``, its GPU takes 0.1 s a step."""
    path = stored(folder)
    own = replace(_read(path).results[0], power=power)
    on_t4 = replace(
        own, device=gpu, kind=DeviceKind.GPU, step_ns=1e8, low_ns=1e8, high_ns=1e8, power=on_gpu
    )
    return changed(path, results=(own, on_t4) if on_gpu else (own,))


def test_the_counters_of_all_sockets_give_the_energy_of_this_machine(tmp_path: Path) -> None:
    path = measured(tmp_path, MachinePower(parts=RAPL))
    here = row(cost_run(path, request(power_usd_per_kwh=0.5)), "this machine")

    # 60 W for 10,000 s.
    assert here.energy_kwh.value == pytest.approx(6e5 / 3.6e6, rel=1e-3)
    assert here.energy_kwh.low == pytest.approx(5.8e5 * 0.95 / 3.6e6, rel=1e-3)
    assert here.energy_kwh.high == pytest.approx(6.2e5 * 1.05 / 3.6e6, rel=1e-3)
    assert here.usd.value == pytest.approx(0.5 * here.energy_kwh.value)
    assert here.energy_counters == ("RAPL package-0", "RAPL package-1")
    assert not any(one.energy_counters for one in cost_run(path, request()).rows if one.provider)


def test_the_gpu_of_this_machine_draws_what_its_counters_show(tmp_path: Path) -> None:
    def gpu_kwh(*parts: CounterPower, gpu: str = "Tesla T4") -> Interval:
        path = measured(tmp_path, MachinePower(), MachinePower(parts=parts), gpu)
        rows = cost_run(path, request()).rows
        (found,) = (one for one in rows if one.is_here and one.kind is DeviceKind.GPU)
        assert found.energy_counters == tuple(part.counter for part in parts)
        watts = found.energy_kwh.times(3.6e6 * NS_PER_S / found.time_ns.value)
        codes = {caveat.code for caveat in found.caveats}
        assert ("unknown-board" in codes) == (gpu == "unheard of" and NVML not in parts)
        return watts

    both, none = gpu_kwh(*RAPL, NVML), gpu_kwh()
    # The board has 200 W, both packages 60 W.
    assert both.value == pytest.approx(260.0)
    assert gpu_kwh(NVML).value == pytest.approx(none.value - gpu_kwh(*RAPL).value + both.value)
    assert gpu_kwh(*RAPL, NVML, gpu="unheard of").value == pytest.approx(260.0)
    assert gpu_kwh(*RAPL, gpu="unheard of").value == pytest.approx(60.0)


def test_counters_that_show_nothing_leave_the_prediction_and_say_why(tmp_path: Path) -> None:
    predicted = row(cost_run(stored(tmp_path), request()), "this machine")
    path = measured(tmp_path, MachinePower(unread=("only root may read it",)))
    here = row(cost_run(path, request()), "this machine")

    assert here.energy_kwh == predicted.energy_kwh
    assert here.energy_counters == ()
    (why,) = (one.message for one in here.caveats if one.code == "energy-not-measured")
    assert why.endswith(": only root may read it")
