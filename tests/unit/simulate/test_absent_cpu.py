"""A step carried over to another CPU, by hand."""

from __future__ import annotations

import math

import pytest

from breakeven.device import find_host_cpu, load_host_cpus
from breakeven.errors import BreakevenError
from breakeven.simulate import CpuRates, build_program, predict_absent_cpu, rates_of
from breakeven.simulate.absent_cpu import CORES_POWER, LOG_SIGMA
from breakeven.timing import Estimate, Source
from breakeven.trace import Op, StepTrace, TensorSpec

HERE = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=2e10)
MEASURED = Estimate(value_ns=1e6, low_ns=1e6, high_ns=1e6, source=Source.MEASURED)


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0")


def program(*ops: Op):
    return build_program(StepTrace(events=ops))


# A product of large matrices is limited by arithmetic, a sum by memory.
PRODUCT = Op(
    name="aten.mm.default",
    inputs=(tensor(512, 512), tensor(512, 512)),
    outputs=(tensor(512, 512),),
)
SUM = Op(
    name="aten.add.Tensor",
    inputs=(tensor(2048, 2048), tensor(2048, 2048)),
    outputs=(tensor(2048, 2048),),
)


def predicted(op: Op, there: CpuRates) -> Estimate:
    return predict_absent_cpu(program(op), MEASURED, HERE, there)


def test_the_same_cpu_takes_as_long():
    assert predicted(PRODUCT, HERE).value_ns == pytest.approx(MEASURED.value_ns)


def test_an_operator_goes_by_what_limits_it():
    computes = CpuRates(num_cores=1, flop_per_s=4e11, bytes_per_s=2e10)
    moves = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=8e10)
    assert predicted(SUM, computes).value_ns == pytest.approx(1e6)
    assert predicted(SUM, moves).value_ns == pytest.approx(0.25e6)
    assert predicted(PRODUCT, moves).value_ns == pytest.approx(1e6)
    # 2 · 512³ FLOP on 4e11 a second still take longer than 3 MiB.
    assert predicted(PRODUCT, computes).value_ns == pytest.approx(0.25e6)


def test_more_cores_help_less_than_their_number():
    many = CpuRates(num_cores=16, flop_per_s=1e11, bytes_per_s=16 * 2e10)
    for op in (PRODUCT, SUM):
        assert predicted(op, many).value_ns == pytest.approx(1e6 / 16**CORES_POWER)


def test_the_interval_has_the_width_of_both():
    there = predicted(PRODUCT, HERE)
    assert there.source is Source.PREDICTED
    assert math.log(there.high_ns / there.value_ns) == pytest.approx(1.645 * LOG_SIGMA)
    noisy = Estimate(value_ns=1e6, low_ns=0.5e6, high_ns=2e6, source=Source.MEASURED)
    wider = predict_absent_cpu(program(PRODUCT), noisy, HERE, HERE)
    assert wider.high_ns > there.high_ns
    assert wider.low_ns < there.low_ns


def test_a_step_without_operators_is_refused():
    with pytest.raises(ValueError, match="without operators"):
        predict_absent_cpu(program(), MEASURED, HERE, HERE)


def test_rates_of_a_datasheet():
    rates = rates_of(find_host_cpu("CPU Core i9-10940X"))
    assert rates.num_cores == 14
    assert rates.flop_per_s == 64 * 3.3e9
    assert rates.bytes_per_s == pytest.approx(4 * 8 * 2933e6, rel=0.01)


def test_a_cpu_without_figures_is_refused():
    with pytest.raises(BreakevenError, match="no vector width, base clock and memory bandwidth"):
        rates_of(find_host_cpu("Xeon E5-2630 v3"))


def test_figures_of_a_cpu_come_together():
    for cpu in load_host_cpus():
        figures = (cpu.vector_flop_per_clock, cpu.sustained_hz, cpu.memory_bytes_per_s)
        assert len({figure is None for figure in figures}) == 1, cpu.name
        assert (cpu.sustained_hz or 0) <= cpu.boost_hz
