"""Costs of operators as whole steps correct them."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from breakeven.cost import (
    Era,
    Family,
    Kernel,
    KernelSpread,
    Spread,
    StepCosts,
    StepEffect,
    StepEffects,
    host_op_parts,
    kernel_times,
    load_efficiencies,
    lower,
    no_step_effects,
    reference_host,
)
from breakeven.device import Precision, find_device, generation_of
from breakeven.trace import Op, Phase, Settings
from factories.steps import tensor

T4, A100 = find_device("T4"), find_device("A100 SXM4 40GB")
SPREAD = Spread(
    calibrated=KernelSpread(compute=0.5, memory=0.6, fp64=0.7),
    unseen=KernelSpread(compute=2.0, memory=3.0, fp64=4.0),
    known_host_log_sigma=0.1,
    unknown_host_log_sigma=0.4,
)
POINTWISE = Kernel(family=Family.ELEMENTWISE, flop=1e6, read_bytes=4e8, write_bytes=4e8)
PRODUCT = Kernel(
    family=Family.GEMM, flop=2e9, read_bytes=8e6, write_bytes=4e6, m=1000, n=1000, k=1000,
    launches=2,
)  # fmt: skip
SMALL = msgspec.structs.replace(POINTWISE, read_bytes=4.0, write_bytes=4.0, launches=3)
KERNELS = (POINTWISE, PRODUCT, SMALL, POINTWISE)
HOST = reference_host(Era.TORCH_1_LATE)
HERE = msgspec.structs.replace(HOST, id="here", log_sigma=0.07)
ROW = tensor(4, 4, device="cuda:0")
ADD = Op(name="aten.add.Tensor", inputs=(ROW, ROW), outputs=(ROW,), phase=Phase.FORWARD)
MM = Op(name="aten.mm.default", inputs=(ROW, ROW), outputs=(ROW,), phase=Phase.FORWARD)


def effects(factors: dict[tuple[str, ...], float] | None = None) -> StepEffects:
    return StepEffects(
        version=1,
        provenance="made up",
        spread=SPREAD,
        effects=tuple(
            StepEffect(kind=kind, of=tuple(of), log_factor=math.log(factor))
            for (kind, *of), factor in (factors or {}).items()
        ),
    )


def costs(
    factors: dict[tuple[str, ...], float] | None = None,
    machine: str = "",
    era: Era = Era.TORCH_1_LATE,
) -> StepCosts:
    return StepCosts(
        efficiencies=load_efficiencies(),
        effects=effects(factors),
        era=era,
        machine=machine,
    )


def bare():
    return kernel_times(KERNELS, (T4, A100), efficiencies=load_efficiencies())


def test_without_effects_kernels_take_what_benchmarks_say() -> None:
    plain = StepCosts(efficiencies=load_efficiencies(), effects=no_step_effects())
    times, expected = plain.kernel_times(KERNELS, (T4, A100)), bare()
    np.testing.assert_allclose(times.time_ns, expected.time_ns, rtol=1e-12)
    np.testing.assert_array_equal(times.log_sigma, expected.log_sigma)
    np.testing.assert_array_equal(times.is_memory_bound, expected.is_memory_bound)
    assert plain.overlap_loss_fraction < 1e-9


def test_floor_and_rest_are_scaled_apart() -> None:
    times = costs({("floor",): 2.0, ("chip", "GA100"): 1.5}).kernel_times(KERNELS, (T4, A100))
    expected = bare().time_ns
    for column, (device, factor) in enumerate(((T4, 1.0), (A100, 1.5))):
        floors = generation_of(device).floor_ns * np.array([1, 2, 3, 1])
        np.testing.assert_allclose(
            times.time_ns[:, column], (expected[:, column] - floors) * factor + 2 * floors
        )


def test_an_effect_reaches_its_own_class_alone() -> None:
    factor = {("class", "gemm", "vector fp32"): 3.0}
    ratio = costs(factor).kernel_times(KERNELS, (T4, A100)).time_ns / bare().time_ns
    np.testing.assert_allclose(ratio[[0, 2, 3]], 1.0)
    assert (ratio[1] > 2).all()
    assert (ratio[1] < 3).all()  # its floor is not scaled


def test_no_kernels_take_no_time() -> None:
    assert costs().kernel_times((), (T4, A100)).time_ns.shape == (0, 2)


def test_uncertainty_depends_on_what_limits_a_kernel_and_whether_its_gpu_was_seen() -> None:
    times = costs({("device", "t4"): 1.0}).kernel_times(KERNELS, (T4, A100))
    expected = bare()
    assert expected.is_memory_bound[0].all()
    assert not expected.is_memory_bound[1].any()
    scales = np.where(expected.is_memory_bound, [[0.6, 3.0]], [[0.5, 2.0]])
    np.testing.assert_allclose(times.log_sigma, expected.log_sigma * scales)
    np.testing.assert_allclose(times.shared_log_sigma, expected.shared_log_sigma * scales)


@pytest.mark.parametrize(
    ("seen", "scale"), [("t4", 1.0), ("rx-7800-xt", 2.0), ("mi210", 1.0), ("rx-6800", 0.5)]
)
def test_other_vendors_are_as_uncertain_as_benchmarks_without_a_step_of_the_generation(
    seen: str, scale: float
) -> None:
    radeon = find_device("RX 6800")
    times = costs({("device", seen): 1.0}).kernel_times([PRODUCT], [radeon])
    expected = kernel_times([PRODUCT], [radeon])
    np.testing.assert_allclose(times.log_sigma, scale * expected.log_sigma)


def test_kernels_in_fp64_have_an_uncertainty_of_their_own() -> None:
    kernels = [
        msgspec.structs.replace(kernel, precision=Precision.FP64) for kernel in (POINTWISE, PRODUCT)
    ]
    times = costs({("device", "t4"): 1.0}).kernel_times(kernels, (T4, A100))
    expected = kernel_times(kernels, (T4, A100))
    np.testing.assert_allclose(times.log_sigma, expected.log_sigma * [0.7, 4.0])


def test_unknown_software_makes_all_less_sure_where_no_step_of_the_machine_was_seen() -> None:
    factors = {("device", "t4"): 1.0, ("host machine", "lab"): 1.0}
    told, untold, seen = (
        costs(factors, era=era, machine=machine)
        for era, machine in ((Era.TORCH_1, ""), (Era.UNKNOWN, ""), (Era.UNKNOWN, "lab"))
    )
    of_told, of_untold, of_seen = (
        model.kernel_times(KERNELS, (T4,)).shared_log_sigma for model in (told, untold, seen)
    )
    assert (of_untold > of_told).all()
    np.testing.assert_allclose(of_seen, of_told)
    assert untold.host_log_sigma(HOST) > told.host_log_sigma(HOST) == 0.4
    assert seen.host_log_sigma(HOST) == 0.1


def test_no_factor_takes_a_generated_kernel_past_the_bandwidth_of_its_device() -> None:
    kernels = [msgspec.structs.replace(POINTWISE, time_factor=factor) for factor in (1.0, 0.5, 0.1)]
    plain_ns, _, least_ns = costs().kernel_times(kernels, [A100]).time_ns[:, 0]
    moved_ns = 1e9 * (POINTWISE.num_bytes - A100.l2_bytes) / A100.memory_bytes_per_s

    assert moved_ns <= least_ns < plain_ns
    slower = msgspec.structs.replace(POINTWISE, time_factor=2.0)
    floor_ns = generation_of(A100).floor_ns
    slow_ns = costs().kernel_times([slower], [A100]).time_ns[0, 0]
    assert slow_ns - floor_ns == pytest.approx(2 * (plain_ns - floor_ns))


def test_a_datasheet_host_gets_all_its_effects() -> None:
    factors = {
        ("host",): 2.0,
        ("host class", "dispatch_gemm"): 1.5,
        ("host machine", "lab 1"): 3.0,
    }
    lowering = lower(MM, Settings())
    without = costs().host_op_ns(MM, lowering, HOST)
    call_ns = 4.0 * HOST.op_ns
    python_ns = HOST.python_ns + HOST.autograd_ns
    assert without == pytest.approx(call_ns + python_ns)
    known = costs(factors, machine="lab 1").host_op_ns(MM, lowering, HOST)
    assert known == pytest.approx(6 * (1.5 * call_ns + python_ns))
    elsewhere = costs(factors, machine="lab 2").host_op_ns(MM, lowering, HOST)
    assert elsewhere == pytest.approx(2 * (1.5 * call_ns + python_ns))


def test_a_measured_host_is_not_corrected() -> None:
    factors = {
        ("host",): 2.0,
        ("host era", "torch 1.13"): 2.0,
        ("host class", "python"): 2.0,
        ("host class", "dispatch_pointwise"): 2.0,
        ("host class", "dispatch_gemm"): 1.5,
    }
    here = costs(factors)
    add_ns = HERE.op_ns + HERE.python_ns + HERE.autograd_ns
    assert here.host_op_ns(ADD, lower(ADD, Settings()), HERE) == pytest.approx(add_ns)
    mm_ns = 4.0 * HERE.op_ns + HERE.python_ns + HERE.autograd_ns
    assert here.host_op_ns(MM, lower(MM, Settings()), HERE) == pytest.approx(mm_ns)
    assert here.dispatch_ns(HERE) == HERE.op_ns
    assert here.dispatch_ns(HOST) == pytest.approx(4 * HOST.op_ns)


def test_how_sure_a_host_is() -> None:
    known = {("host machine", "lab 1"): 1.0}
    assert costs(known, machine="lab 1").host_log_sigma(HOST) == 0.1
    assert costs(known, machine="lab 2").host_log_sigma(HOST) == 0.4
    assert costs(known).host_log_sigma(HOST) == 0.4
    assert costs(known, machine="lab 1").host_log_sigma(HERE) == 0.07


def test_no_more_than_all_overlapping_work_is_lost() -> None:
    typical = costs().overlap_loss_fraction
    assert 0 < typical < 1
    assert costs({("overlap",): 0.5}).overlap_loss_fraction == pytest.approx(typical / 2)
    lost = costs({("overlap machine", "lab 1"): 100.0}, machine="lab 1")
    assert lost.overlap_loss_fraction == 1.0


def test_convolutions_in_fp64_took_longer_before_cudnn_8() -> None:
    convolution = msgspec.structs.replace(
        PRODUCT, family=Family.CONVOLUTION, precision=Precision.FP64, flop=2e11, m=100_000
    )
    kernels = (
        convolution,
        msgspec.structs.replace(convolution, precision=Precision.FP32),
        msgspec.structs.replace(convolution, family=Family.GEMM),
    )
    devices = [find_device(name) for name in ("TITAN V", "GTX 1080 Ti", "Instinct MI100")]
    old, new = (costs(era=era).kernel_times(kernels, devices) for era in (Era.TORCH_0, Era.TORCH_1))
    slowdown = old.time_ns / new.time_ns
    # A TITAN V, with half the rate of fp32, loses more than boards with a thirty-second of it.
    assert slowdown[0, 0] > 3 > slowdown[0, 1] > 1.3
    assert slowdown[0, 2] == 1.0
    np.testing.assert_array_equal(slowdown[1:], 1.0)


def grouped(num_groups: int, *, direction: str = "", side: int = 28) -> Kernel:
    """Return a 3 x 3 convolution of 512 channels under autocast, in one of its directions."""
    image = tensor(256, 512, side, side, dtype="float16", device="cuda:0")
    weight = tensor(512, 512 // num_groups, 3, 3, dtype="float16", device="cuda:0")
    how = {"stride": [1, 1], "dilation": [1, 1], "groups": num_groups}
    if not direction:
        name, inputs, result = "convolution", (image, weight), image
    else:
        name, inputs = "convolution_backward", (image, image, weight)
        result = weight if direction == "weight" else image
        how["output_mask"] = [direction == "input", direction == "weight", False]
    op = Op(name=f"aten.{name}.default", inputs=inputs, outputs=(result,), attributes=how)
    (kernel,) = lower(op, Settings()).kernels
    return kernel


@pytest.mark.parametrize("direction", ["", "input", "weight"])
def test_groups_of_few_channels_share_tiles_under_libraries_of_today(direction: str) -> None:
    kernels = [grouped(count, direction=direction) for count in (64, 32)]
    device = find_device("RTX 4090")
    times = {
        era: StepCosts(efficiencies=load_efficiencies(), effects=no_step_effects(), era=era)
        .kernel_times(kernels, [device])
        .time_ns[:, 0]
        for era in (Era.TORCH_2, Era.TORCH_1, Era.UNKNOWN, Era.TORCH_1_EARLY)
    }
    today, early = times[Era.TORCH_2], times[Era.TORCH_1_EARLY]
    # What tells them apart is cuDNN 8, which comes with torch 1.7.
    for era in (Era.TORCH_1, Era.UNKNOWN):
        np.testing.assert_array_equal(times[era], today)
    # Eight channels per group fill as much of a tile as sixteen do.
    assert today[0] == pytest.approx(today[1], rel=0.1)
    assert today[0] < 0.6 * early[0]
    assert today[1] < 0.8 * early[1]


def test_groups_do_not_share_tiles_without_matrix_units() -> None:
    kernels = [grouped(64), grouped(32)]
    table, device = load_efficiencies(), find_device("GTX 1080 Ti")
    costs = StepCosts(efficiencies=table, effects=no_step_effects(), era=Era.TORCH_2)
    plain = kernel_times(kernels, [device], efficiencies=table)
    assert (costs.kernel_times(kernels, [device]).time_ns == plain.time_ns).all()


def test_equal_operators_share_their_kernels_and_others_do_not() -> None:
    costs = StepCosts(efficiencies=load_efficiencies(), effects=no_step_effects())
    elsewhere = tensor(4, 4, device="cuda:0", storage=7)
    again = Op(name=ADD.name, inputs=(elsewhere, ROW), outputs=(ROW,), phase=Phase.BACKWARD)
    wider = msgspec.structs.replace(ADD, inputs=(tensor(8, 4, device="cuda:0"), ROW))
    settings = Settings()
    lowering = costs.lower(ADD, settings)
    assert costs.lower(again, settings) is lowering
    assert costs.lower(wider, settings) == lower(wider, settings)
    assert costs.lower(MM, settings) == lower(MM, settings)
    # What the host takes depends on the phase, and on the host.
    for op in (ADD, again):
        for host in (HOST, HERE, msgspec.structs.replace(HERE, op_ns=2 * HERE.op_ns)):
            plain = sum(time_ns for _, time_ns in host_op_parts(op, lowering, host))
            assert costs.host_op_ns(op, lowering, host) == pytest.approx(plain)


def test_what_nobody_timed_may_take_three_times_as_long_or_short():
    costs = StepCosts(efficiencies=load_efficiencies(), effects=effects())
    solved = Kernel(family=Family.LINALG, flop=1e7, read_bytes=1e6, write_bytes=1e6, num_steps=50)
    scattered = msgspec.structs.replace(POINTWISE, family=Family.GATHER, variant="scatter")
    times = costs.kernel_times((solved, scattered, POINTWISE), (A100,))
    ninety = np.exp(1.645 * times.shared_log_sigma[:, 0])
    assert np.all(ninety[:2] >= 2.999)
    assert ninety[2] < 2.999


def test_a_small_factorization_takes_as_long_as_its_columns_wait():
    costs = StepCosts(efficiencies=load_efficiencies(), effects=effects())

    def time_ns(size: int) -> float:
        matrix = tensor(size, size, device="cuda:0")
        op = Op(name="aten.linalg_cholesky_ex.default", inputs=(matrix,), outputs=(matrix,))
        (kernel,) = costs.lower(op, Settings()).kernels
        return float(costs.kernel_times((kernel,), (A100,)).time_ns[0, 0])

    # Eight times the arithmetic of a matrix that keeps no GPU busy, for twice the time.
    assert 1.8 < time_ns(256) / time_ns(128) < 2.5
    assert time_ns(375) > 300_000
