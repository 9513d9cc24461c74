"""Power of boards, electricity and CO2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.cost import Family, Kernel
from breakeven.device import DeviceSpec, find_device
from breakeven.money.energy import (
    GRID_KG_PER_KWH,
    Activity,
    PowerFit,
    board_watts,
    co2_kg,
    energy_kwh,
    kernel_work,
)
from breakeven.money.interval import Interval
from breakeven.money.machines import Machine, shipped_prices
from breakeven.simulate import Program, build_program
from breakeven.trace import StepTrace
from factories.steps import op, tensor

FIT = PowerFit(stacked_floor=0.1, floor=0.2, working=0.9, recurrent=0.5, log_low=-0.2, log_high=0.2)
HOUR = Interval(value=3.6e12, low=1.8e12, high=7.2e12)
FRACTION = st.floats(0, 1)


def machine(**changes: object) -> Machine:
    fields = {
        "provider": "aws", "name": "one", "num_vcpus": 10, "memory_bytes": 0, "usd_per_hour": 1.0
    } | changes  # fmt: skip
    return Machine(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "activity", "watts"),
    [
        # 250 W of TDP; V100s have HBM. Its units need 245 W at full clock.
        ("V100-PCIE", Activity(working_fraction=0.0), 25.0),
        ("V100-PCIE", Activity(working_fraction=1.0), 0.9 * 17.5e-12 * 14.1e12),
        ("A40", Activity(working_fraction=0.0), 60.0),
        ("A40", Activity(working_fraction=1.0), 270.0),
        ("A40", Activity(working_fraction=0.5), 165.0),
        ("A40", Activity(working_fraction=1.0, recurrent_fraction=0.5), 210.0),
    ],
)
def test_power_is_that_of_each_part_of_the_step(
    name: str, activity: Activity, watts: float
) -> None:
    assert board_watts(find_device(name), activity, FIT).value == pytest.approx(watts, rel=0.01)


@given(FRACTION, FRACTION, st.sampled_from(["A40", "P100", "H100", "T4", "RTX 4090", "MI300X"]))
def test_power_is_ordered_and_at_most_the_tdp(working: float, recurrent: float, name: str) -> None:
    device = find_device(name)

    watts = board_watts(device, Activity(working_fraction=working, recurrent_fraction=recurrent))

    assert 0 < watts.low < watts.value <= watts.high <= device.tdp_watts


@given(FRACTION, FRACTION)
def test_more_work_never_draws_less(one: float, other: float) -> None:
    low, high = (
        board_watts(find_device("A40"), Activity(working_fraction=each)).value
        for each in sorted((one, other))
    )
    assert low <= high


@pytest.mark.parametrize(
    ("device", "activity", "measured"),
    [
        # ml-energy/zeus, mean of an epoch: NCF, and BERT on SQuAD with 8 samples.
        ("A40", 0.1, 84.0),
        ("V100-PCIE", 0.1, 38.0),
        ("A40", 0.86, 262.8),
        ("V100-PCIE", 0.91, 224.8),
        ("P100", 0.94, 176.5),
    ],
)
def test_intervals_hold_measured_boards(device: str, activity: float, measured: float) -> None:
    watts = board_watts(find_device(device), Activity(working_fraction=activity))

    assert watts.low <= measured <= watts.high


def _program() -> Program:
    large = tensor(4096, 4096, device="cuda:0")
    event = op(0, name="aten.mm.default", inputs=(large, large), outputs=(large,))
    return build_program(StepTrace(events=(event,), batch_size=1))


def activity_of(program: Program, device: DeviceSpec, step_ns: float) -> Activity:
    (work,) = kernel_work(program, [device])
    return work.during(step_ns)


def test_activity_is_the_work_of_the_kernels_without_their_start() -> None:
    program, device = _program(), find_device("A40")
    times = program.costs.kernel_times(program.kernels, [device])
    work_ns = float((times.time_ns - times.floor_ns).sum())

    assert activity_of(program, device, 4 * work_ns) == Activity(
        working_fraction=pytest.approx(0.25)  # type: ignore[arg-type]
    )
    assert activity_of(program, device, work_ns / 2).working_fraction == 1.0


def test_recurrent_layers_are_the_recurrent_part() -> None:
    kernel = Kernel(
        family=Family.RECURRENT, flop=1e10, read_bytes=1e6, write_bytes=1e6, m=64, n=1024, k=256
    )
    program = _program()
    (lowering,) = program.lowerings
    assert lowering is not None
    lowering = type(lowering)(kernels=(kernel,))
    program = Program(trace=program.trace, lowerings=(lowering,), costs=program.costs)

    assert activity_of(program, find_device("A40"), 1e9).recurrent_fraction == 1.0


def test_a_step_without_kernels_does_nothing() -> None:
    program = build_program(StepTrace(events=()))

    assert activity_of(program, find_device("A40"), 1e6) == Activity(working_fraction=0.0)


def test_energy_of_a_cpu_machine() -> None:
    kwh = energy_kwh(HOUR, machine(cpu="EPYC 7763"))

    # Ten processors at 2.0 W for an hour, and the building.
    assert kwh.value == pytest.approx(0.020 * 1.135)
    assert kwh.low == pytest.approx(0.5 * 10 * 1.225e-3 * 1.05)
    assert kwh.high == pytest.approx(2 * 0.020 * 1.56)


def test_energy_of_boards_and_memory() -> None:
    boards = Interval(value=300.0, low=200.0, high=400.0)
    whole = machine(gpu="a40", num_gpus=2, memory_bytes=117_500_000_000, provider="gcp")

    kwh = energy_kwh(HOUR, whole, boards.times(2))

    # Half load of an unknown processor; 100 GB more than ten processors have.
    assert kwh.value == pytest.approx((10 * 2.325 + 100 * 0.392 + 600) / 1000 * 1.10)
    # The power of a part of a GPU is that of the part.
    half = machine(gpu="a40", num_gpus=2, memory_bytes=0, gpu_fraction=0.5, provider="gcp")
    assert energy_kwh(HOUR, half, boards.times(2)).value == pytest.approx(
        (23.25 + 600) / 1000 * 1.10
    )


def test_co2_follows_the_grid_if_it_is_known() -> None:
    kwh = Interval(value=2.0, low=1.0, high=4.0)

    assert co2_kg(kwh, machine(region="us-east4")) == kwh.map(lambda value: value * 0.383)
    assert co2_kg(kwh, machine(region="us-east4"), 0.1).value == pytest.approx(0.2)  # type: ignore
    assert co2_kg(kwh, machine()) is None
    assert co2_kg(kwh, machine(region="mars-1")) is None


def test_each_region_with_prices_has_a_grid() -> None:
    regions = {each.region for each in shipped_prices().machines if each.region}

    assert regions == GRID_KG_PER_KWH.keys()
