"""A step carried over to another CPU, by hand."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from breakeven.cost import reference_host
from breakeven.device import find_host_cpu, load_host_cpus
from breakeven.errors import BreakevenError
from breakeven.simulate import CpuRates, build_program, issuing_of, predict_absent_cpu, rates_of
from breakeven.simulate.absent_cpu import CORES_POWER, LOG_SIGMA, Issuing
from breakeven.timing import Estimate, Source
from breakeven.trace import HostWork, Op, Phase, StepTrace, TensorSpec

HERE = CpuRates(num_cores=1, flop_per_s=1e11, bytes_per_s=2e10)
MEASURED = Estimate(value_ns=1e6, low_ns=1e6, high_ns=1e6, source=Source.MEASURED)
NONE_ISSUED = Issuing(here_ns=1e-3, there_ns=1e-3, log_sigma=0.0)


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0")


def program(*events: Op | HostWork):
    return build_program(StepTrace(events=events))


def add(size: int) -> Op:
    inputs = (tensor(size), tensor(size))
    return Op(name="aten.add.Tensor", inputs=inputs, outputs=(tensor(size),))


# A product of large matrices is limited by arithmetic, a sum by memory.
PRODUCT = Op(
    name="aten.mm.default",
    inputs=(tensor(512, 512), tensor(512, 512)),
    outputs=(tensor(512, 512),),
)
SUM = add(2048 * 2048)


def predicted(
    op: Op, there: CpuRates, *, measured: Estimate = MEASURED, issuing: Issuing = NONE_ISSUED
) -> Estimate:
    return predict_absent_cpu(program(op), measured, HERE, there, issuing)


def test_the_same_cpu_takes_as_long() -> None:
    assert predicted(PRODUCT, HERE).value_ns == pytest.approx(MEASURED.value_ns)


def test_an_operator_goes_by_what_limits_it() -> None:
    computes = CpuRates(num_cores=1, flop_per_s=4e11, bytes_per_s=2e10)
    assert predicted(SUM, computes).value_ns == pytest.approx(1e6)
    # 2 · 512³ FLOP on 4e11 a second still take longer than 3 MiB.
    assert predicted(PRODUCT, computes).value_ns == pytest.approx(0.25e6)


def test_more_cores_help_less_than_their_number() -> None:
    many = CpuRates(num_cores=16, flop_per_s=1e11, bytes_per_s=1e12)
    for op in (PRODUCT, SUM):
        assert predicted(op, many).value_ns == pytest.approx(1e6 / 16**CORES_POWER)


def test_no_more_comes_from_memory_than_all_channels_deliver() -> None:
    many = CpuRates(num_cores=16, flop_per_s=1e11, bytes_per_s=4e10)
    assert predicted(SUM, many).value_ns == pytest.approx(0.5e6)
    assert predicted(PRODUCT, many).value_ns == pytest.approx(1e6 / 16**CORES_POWER)


def test_what_is_small_is_not_shared_out() -> None:
    many = CpuRates(num_cores=16, flop_per_s=1e11, bytes_per_s=1e12)
    assert predicted(add(1024), many).value_ns == pytest.approx(1e6)


def test_issuing_goes_by_the_speed_of_one_core() -> None:
    many = CpuRates(num_cores=16, flop_per_s=1e11, bytes_per_s=1e12)
    half = Issuing(here_ns=0.5e6, there_ns=1e6, log_sigma=0.1)
    value_ns = predicted(PRODUCT, many, issuing=half).value_ns
    assert value_ns == pytest.approx(1e6 + 0.5e6 / 16**CORES_POWER)
    # It cannot take more of the step than there is.
    beyond = Issuing(here_ns=5e6, there_ns=10e6, log_sigma=0.1)
    assert predicted(PRODUCT, many, issuing=beyond).value_ns == pytest.approx(2e6)


def test_issuing_has_no_arithmetic_in_it() -> None:
    host = replace(reference_host(), device_ns=0.0)
    short, long = (
        issuing_of(program(replace(PRODUCT, host_ns=host_ns)), host, host)
        for host_ns in (10_000, 10_000_000)
    )
    assert short == long
    # One operator of a forward pass, as autograd records it.
    assert short.here_ns == pytest.approx(host.op_ns + host.autograd_ns, abs=1.0)


def test_a_slower_core_issues_more_slowly_and_so_does_the_script() -> None:
    here = reference_host()
    there = replace(here, op_ns=2 * here.op_ns, device_ns=2 * here.device_ns)
    work = HostWork(kind="script", duration_ns=40_000, phase=Phase.FORWARD)
    issuing = issuing_of(program(PRODUCT, work), here, there)
    assert issuing.there_ns == pytest.approx(2 * issuing.here_ns)
    assert issuing.here_ns > 40_000
    assert issuing.log_sigma == there.log_sigma


def test_the_interval_has_the_width_of_both() -> None:
    there = predicted(PRODUCT, HERE)
    assert there.source is Source.PREDICTED
    assert math.log(there.high_ns / there.value_ns) == pytest.approx(1.645 * LOG_SIGMA, rel=0.01)
    noisy = Estimate(value_ns=1e6, low_ns=0.5e6, high_ns=2e6, source=Source.MEASURED)
    wider = predicted(PRODUCT, HERE, measured=noisy)
    assert wider.high_ns > there.high_ns
    assert wider.low_ns < there.low_ns


def test_what_issuing_is_sure_of_narrows_the_interval() -> None:
    half = Issuing(here_ns=0.5e6, there_ns=0.5e6, log_sigma=0.0)
    sure, unsure = predicted(PRODUCT, HERE, issuing=half), predicted(PRODUCT, HERE)
    assert unsure.low_ns < sure.low_ns < sure.value_ns < sure.high_ns < unsure.high_ns


def test_a_step_without_operators_is_refused() -> None:
    with pytest.raises(ValueError, match="without operators"):
        predict_absent_cpu(program(), MEASURED, HERE, HERE, NONE_ISSUED)


def test_rates_of_a_datasheet() -> None:
    rates = rates_of(find_host_cpu("CPU Core i9-10940X"))
    assert rates.num_cores == 14
    assert rates.flop_per_s == 64 * 3.3e9
    assert rates.bytes_per_s == pytest.approx(4 * 8 * 2933e6, rel=0.01)


def test_a_cpu_without_figures_is_refused_with_one_that_has_them() -> None:
    with pytest.raises(BreakevenError, match="cannot predict a step for the CPU Core i7-12700K"):
        rates_of(find_host_cpu("i7-12700K"))
    with pytest.raises(BreakevenError) as caught:
        rates_of(find_host_cpu("EPYC 7313"))
    assert "EPYC 7R13" in (caught.value.hint or "")


def test_figures_of_a_cpu_come_together() -> None:
    for cpu in load_host_cpus():
        figures = (cpu.vector_flop_per_clock, cpu.sustained_hz, cpu.memory_bytes_per_s)
        assert len({figure is None for figure in figures}) == 1, cpu.name
        assert (cpu.sustained_hz or 0) <= cpu.boost_hz
        if cpu.vector_flop_per_clock is not None:
            assert "-bit units a core" in cpu.source, cpu.name
            assert "channels of DDR" in cpu.source, cpu.name


def test_bandwidth_is_what_the_source_says_of_the_channels() -> None:
    words = {"two": 2, "four": 4, "six": 6, "eight": 8, "twelve": 12}
    for cpu in load_host_cpus():
        if cpu.memory_bytes_per_s is None:
            continue
        told = cpu.source.partition("; ")[0].rpartition(", ")[2]  # eight channels of DDR4-3200
        number, rate = words[told.split()[0]], float(told.rpartition("-")[2])
        assert cpu.memory_bytes_per_s == pytest.approx(number * 8 * rate * 1e6, rel=0.01), cpu.name
        units = 512 if "512-bit" in cpu.source else 256
        assert cpu.vector_flop_per_clock == 2 * 2 * units / 32, cpu.name
