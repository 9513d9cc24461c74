"""Steps that several devices share, with costs and models of which the result is known."""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.cost import PeerLink, PeerPath, reference_host
from breakeven.device import DeviceSpec, HostSpec, find_device
from breakeven.errors import BreakevenError
from breakeven.simulate import (
    Bound,
    DataParallelCosts,
    DdpCosts,
    HeldOutFactor,
    ModelSize,
    MultiGpuSetup,
    MultiGpuTable,
    PhaseTimes,
    Strategy,
    build_program,
    load_multi_gpu_table,
    model_size,
    phase_times,
    predict_multi_gpu,
    predict_on_gpus,
    predict_steps,
    setup_of,
    shared_step_ns,
    shared_times,
)
from breakeven.simulate.multi_gpu import MultiGpuPrediction
from breakeven.simulate.shared_step import strategy_of
from breakeven.trace import Collective, Copy, Phase, ProcessGroup, ScaledTrace, StepTrace
from factories.steps import GPU, HOST, MadeUpCosts, op, tensor
from lab.multi_gpu import (
    MultiGpuRow,
    factor_log_ratios,
    fit_multi_gpu,
    matched_to_single,
    predicted_ns,
)

LINK = PeerLink(
    path=PeerPath.PCIE,
    reduce_bytes_per_s=1e9,
    broadcast_bytes_per_s=1e9,
    fixed_ns=0,
    hop_ns=0,
)
TABLE = MultiGpuTable(
    version=1,
    provenance="made up",
    data_parallel=DataParallelCosts(
        step_dispatches=100,
        replica_dispatches=50,
        tensor_dispatches=2,
        replica_tensor_dispatches=1,
        issue_fraction=0.5,
        slowest_fraction=0.0,
    ),
    ddp=DdpCosts(exposed_fraction=0.25, local_ns_per_byte=0.0),
    held_out=tuple(
        HeldOutFactor(
            strategy=strategy,
            left_out="family",
            num_groups=2,
            num_rows=10,
            median_error_fraction=0.1,
            p90_error_fraction=0.2,
            log_sigma=0.1,
        )
        for strategy in Strategy
    ),
)
DISPATCH_NS = 10.0
# 10 parameters, 4 of them bytes each; nothing to exchange worth speaking of.
SMALL = ModelSize(
    parameter_bytes=40, num_parameter_tensors=10, gradient_bytes=40, num_buffer_tensors=2
)
LARGE = ModelSize(parameter_bytes=1e6, num_parameter_tensors=10, gradient_bytes=1e6)


def times(**changed: float) -> PhaseTimes:
    lone = PhaseTimes(
        forward_host_ns=1_000,
        backward_host_ns=2_000,
        other_host_ns=500,
        forward_device_ns=100,
        backward_device_ns=200,
        other_device_ns=50,
        copy_ns=300,
    )
    return msgspec.structs.replace(lone, **changed)


def setup(strategy: Strategy, num_devices: int = 2) -> MultiGpuSetup:
    return MultiGpuSetup(strategy=strategy, num_devices=num_devices)


def test_data_parallel_of_a_launch_bound_step() -> None:
    shared = shared_times(
        times(), SMALL, setup(Strategy.DATA_PARALLEL, 3), LINK, DISPATCH_NS, TABLE
    )
    # 100 + 3 × 50 + 12 tensors × (2 + 3 × 1) = 310 dispatches of 10 ns.
    replicate_ns = 3_100
    forward_ns = 1_000 * (1 + 0.5 * 2)
    assert shared.host_ns == pytest.approx(replicate_ns + forward_ns + 2_000 + 500)
    assert shared.is_host_bound
    # Three batches are copied first, and 40 bytes of gradients summed last.
    assert shared.step_ns == pytest.approx(3 * 300 + shared.host_ns + 40)
    assert shared.communication_ns == pytest.approx(80)


def test_data_parallel_of_a_large_model_waits_for_the_exchange() -> None:
    kernels = times(forward_device_ns=400_000, backward_device_ns=800_000)
    shared = shared_times(kernels, LARGE, setup(Strategy.DATA_PARALLEL), LINK, DISPATCH_NS, TABLE)
    # 1 MB at 1 GB/s is 1 ms to each device, before the first kernel, and 1 ms back.
    assert not shared.is_host_bound
    assert shared.step_ns == pytest.approx(600 + 1_000_000 + 1_200_050 + 1_000_000)


def test_kernels_of_the_forward_pass_wait_for_the_replicas() -> None:
    kernels = times(forward_device_ns=50_000, backward_device_ns=80_000)
    shared = shared_times(kernels, SMALL, setup(Strategy.DATA_PARALLEL), LINK, DISPATCH_NS, TABLE)
    # 100 + 2 × 50 + 12 × (2 + 2) = 248 dispatches before the first launch.
    assert shared.step_ns == pytest.approx(600 + 2_480 + 130_050 + 40)


def test_inference_sums_no_gradients() -> None:
    size = msgspec.structs.replace(LARGE, gradient_bytes=0.0)
    shared = shared_times(times(), size, setup(Strategy.DATA_PARALLEL), LINK, DISPATCH_NS, TABLE)
    assert shared.communication_ns == pytest.approx(1_000_000)


def test_ddp_hides_most_of_the_exchange() -> None:
    kernels = times(forward_device_ns=4e6, backward_device_ns=8e6)
    shared = shared_times(kernels, LARGE, setup(Strategy.DDP, 4), LINK, DISPATCH_NS, TABLE)
    # Each of four devices sends 1.5 MB: 1.5 ms, of which a quarter shows.
    assert shared.communication_ns == pytest.approx(1_500_000)
    assert shared.step_ns == pytest.approx(300 + 12_000_050 + 375_000)


def test_ddp_cannot_hide_more_than_the_backward_pass_lasts() -> None:
    shared = shared_times(times(), LARGE, setup(Strategy.DDP, 4), LINK, DISPATCH_NS, TABLE)
    # 1.5 ms beside 200 ns of kernels, which begin when the forward pass is issued.
    assert shared.step_ns == pytest.approx(300 + 1_000 + 200 + (1_500_000 - 200) + 50)
    assert not shared.is_host_bound


def test_ddp_of_a_launch_bound_step_scales_perfectly() -> None:
    shared = shared_times(times(), SMALL, setup(Strategy.DDP, 8), LINK, DISPATCH_NS, TABLE)
    assert shared.is_host_bound
    assert shared.step_ns == pytest.approx(300 + 3_500)


def test_waits_of_the_lone_step_are_kept() -> None:
    shared = shared_times(times(), SMALL, setup(Strategy.DDP), LINK, DISPATCH_NS, TABLE)
    # The lone step takes 300 + 3,500 without waits; 700 more were predicted.
    assert shared_step_ns(shared, times(), 4_500) == pytest.approx(shared.step_ns + 700)
    assert shared_step_ns(shared, times(), 3_000) == pytest.approx(shared.step_ns)


WEIGHT = tensor(10, 10, storage=1, device="cuda:0")
MEAN = tensor(4, storage=2, device="cuda:0")
VARIANCE = tensor(4, storage=3, device="cuda:0")
BIAS = tensor(10, storage=4, device="cuda:0")
HIDDEN = tensor(5, 10, storage=5, device="cuda:0")
GRADIENT = tensor(10, 10, storage=6, device="cuda:0")
BATCH = tensor(5, 10, storage=7, device="cuda:0")


def traced() -> StepTrace:
    return StepTrace(
        events=(
            Copy(source="cpu", destination="cuda:0", num_bytes=200, storage=7),
            op(10, host_ns=100, name="aten.zero_.default", inputs=(GRADIENT,), outputs=(GRADIENT,)),
            op(40, host_ns=200, inputs=(BATCH, WEIGHT), outputs=(HIDDEN,)),
            op(
                50,
                host_ns=300,
                name="aten.native_batch_norm.default",
                inputs=(HIDDEN, WEIGHT, BIAS, MEAN, VARIANCE),
                outputs=(HIDDEN,),
            ),
            op(90, host_ns=400, phase=Phase.BACKWARD, inputs=(HIDDEN, GRADIENT)),
            op(70, host_ns=500, phase=Phase.OPTIMIZER, inputs=(WEIGHT, GRADIENT)),
        ),
        batch_size=5,
        num_parameters=110,
    )


def test_model_size_from_what_the_forward_pass_reads() -> None:
    size = model_size(traced())
    assert size == ModelSize(
        parameter_bytes=440,
        num_parameter_tensors=2,
        gradient_bytes=440,
        # Mean and variance, and the counter beside them.
        buffer_bytes=32,
        num_buffer_tensors=3,
    )


def test_batch_that_is_on_the_device_already_looks_like_a_parameter() -> None:
    trace = traced()
    resident = msgspec.structs.replace(trace, events=trace.events[1:])
    assert model_size(resident).num_parameter_tensors == 3


def test_model_without_a_backward_pass_exchanges_no_gradients() -> None:
    trace = traced()
    forward = msgspec.structs.replace(trace, events=trace.events[:4])
    assert model_size(forward).gradient_bytes == 0


def test_phase_times_split_what_happens_once_from_what_every_device_does() -> None:
    (lone,) = phase_times(build_program(traced(), costs=MadeUpCosts()), [GPU], HOST)
    assert lone.forward_host_ns == pytest.approx(500)
    assert lone.backward_host_ns == pytest.approx(400)
    # Setting gradients to zero, and the optimizer.
    assert lone.other_host_ns == pytest.approx(600)
    assert lone.forward_device_ns == pytest.approx(90)
    assert lone.backward_device_ns == pytest.approx(90)
    assert lone.other_device_ns == pytest.approx(80)
    assert lone.copy_ns == pytest.approx(200)


def shared_by(
    devices: MultiGpuSetup, host: HostSpec = HOST, table: MultiGpuTable | None = None
) -> MultiGpuPrediction:
    """Return the prediction of the traced step on several GPUs."""
    costs = MadeUpCosts()
    program = build_program(traced(), costs=costs)
    (single,), (times,) = predict_steps(program, [GPU], host), phase_times(program, [GPU], host)
    size = model_size(program.trace)
    return predict_multi_gpu(single, times, size, host, devices, costs=costs, table=table)


def test_prediction_has_a_wider_interval_and_says_what_it_assumed() -> None:
    slow = msgspec.structs.replace(HOST, op_ns=1_000.0)
    predicted = shared_by(setup(Strategy.DATA_PARALLEL, 4), slow, table=TABLE)
    single = predicted.single.estimate
    shared = predicted.step.estimate
    assert predicted.factor > 1
    assert predicted.step.bound is Bound.LAUNCH
    assert shared.low_ns < shared.value_ns < shared.high_ns
    assert shared.high_ns / shared.low_ns >= single.high_ns / single.low_ns
    # 90 % of the error of the factor alone, at least: exp(2 × 1.645 × 0.1).
    assert shared.high_ns / shared.low_ns >= np.exp(2 * 1.6449 * 0.1)
    assert [caveat.code for caveat in predicted.step.caveats] == ["assumed-peer-path"]
    assert predicted.step.peak_memory_bytes == predicted.single.peak_memory_bytes + 440


def test_known_peer_access_needs_no_caveat() -> None:
    known = MultiGpuSetup(strategy=Strategy.DDP, num_devices=2, has_peer_access=True)
    predicted = shared_by(known, table=TABLE)
    assert predicted.step.caveats == ()


def test_more_devices_never_make_a_step_shorter() -> None:
    for strategy in Strategy:
        steps = [
            shared_by(setup(strategy, num_devices)).step.estimate.value_ns
            for num_devices in (2, 3, 4, 8)
        ]
        assert steps == sorted(steps)


def test_recorded_exchanges_replace_ddps_defaults() -> None:
    kernels = times(forward_device_ns=4e6, backward_device_ns=8e6)
    exchanges = (
        *(Collective(kind="all_reduce", num_bytes=250_000, is_bucket=True) for _ in range(4)),
        Collective(kind="broadcast", num_bytes=100_000),
        Collective(kind="all_gather", num_bytes=25_000),
        Collective(kind="reduce_scatter", num_bytes=100_000),
        Collective(kind="all_reduce", num_bytes=100_000),
    )
    size = msgspec.structs.replace(LARGE, exchanges=exchanges)
    shared = shared_times(kernels, size, setup(Strategy.DDP, 4), LINK, DISPATCH_NS, TABLE)
    # The buckets are 1 MB, as by default. The others wait: 0.1 MB in one direction, three quarters
    # of 0.1 MB twice in halves of an all-reduce, and one and a half of it in a whole one.
    others_ns = 100_000 + 75_000 + 75_000 + 150_000
    assert shared.communication_ns == pytest.approx(1_500_000 + others_ns)
    assert shared.step_ns == pytest.approx(300 + 12_000_050 + 375_000 + others_ns)


def test_script_that_joins_a_group_and_exchanges_nothing_scales_perfectly() -> None:
    group = ProcessGroup(num_processes=4)
    size = model_size(msgspec.structs.replace(traced(), group=group))
    shared = shared_times(times(), size, setup(Strategy.DDP, 4), LINK, DISPATCH_NS, TABLE)
    assert shared.communication_ns == 0
    assert model_size(traced()).exchanges is None


def scaled_trace(*, group: ProcessGroup | msgspec.UnsetType = msgspec.UNSET) -> ScaledTrace:
    """Return a step whose kernels take 10 ns for each of its 60 samples."""

    def at(batch_size: int) -> StepTrace:
        batch = tensor(batch_size, 10, storage=7, device="cuda:0")
        hidden = tensor(batch_size, 10, storage=8, device="cuda:0")
        forward = op(10 * batch_size, inputs=(batch, WEIGHT), outputs=(hidden,))
        backward = op(20 * batch_size, phase=Phase.BACKWARD, inputs=(hidden, WEIGHT))
        events = (forward, backward)
        return StepTrace(events=events, batch_size=batch_size, num_parameters=100, group=group)

    return ScaledTrace(at(60), at(30))


def on_gpus(step: StepTrace | ScaledTrace, num_gpus: int, **changed: Any) -> MultiGpuPrediction:
    given: dict[str, Any] = {"keeps_global_batch": True, "costs": MadeUpCosts(), **changed}
    (prediction,) = predict_on_gpus(step, [GPU], HOST, num_gpus, **given)
    return prediction


def test_gpus_divide_the_batch_or_each_has_one() -> None:
    step = scaled_trace()
    assert [on_gpus(step, n).step.batch_size for n in (1, 2, 4)] == [60, 30, 15]
    each = [on_gpus(step, n, keeps_global_batch=False) for n in (1, 2, 4)]
    assert [prediction.step.batch_size for prediction in each] == [60, 60, 60]
    alone = each[0]
    assert alone.factor == 1
    assert alone.communication_ns == 0
    assert all(later.single.estimate == alone.single.estimate for later in each)
    # A plain trace is enough if no batch is divided.
    assert on_gpus(step.first, 4, keeps_global_batch=False).step == each[2].step


@pytest.mark.parametrize("num_gpus", [1, 4])
def test_devices_at_once_are_predicted_as_each_alone(num_gpus: int) -> None:
    devices = [find_device(name) for name in ("T4", "A100 SXM4 80GB", "H100 SXM5", "RTX 4090")]
    host = reference_host()

    def figures(some: list[DeviceSpec]) -> list[float]:
        predicted = predict_on_gpus(scaled_trace(), some, host, num_gpus, keeps_global_batch=True)
        times = phase_times(build_program(scaled_trace().first), some, host)
        ends = [(p.step.estimate.low_ns, p.factor, p.communication_ns) for p in predicted]
        return [*chain(*ends), *chain(*map(msgspec.structs.astuple, times))]

    alone = [figures([device]) for device in devices]
    at_once = figures(devices)
    assert sorted(at_once) == pytest.approx(sorted(chain(*alone)), rel=1e-12)
    assert at_once[:3] == pytest.approx(alone[0][:3], rel=1e-12)


def test_one_process_of_several_has_its_part_of_the_batch() -> None:
    step = scaled_trace(group=ProcessGroup(num_processes=2))
    # Two processes of 60 samples, by three GPUs and by two.
    assert on_gpus(step, 3).step.batch_size == 40
    assert on_gpus(step.first, 2).step.batch_size == 60


def test_uneven_parts_and_too_many_gpus_are_said() -> None:
    def codes(prediction: MultiGpuPrediction) -> list[str]:
        return [caveat.code for caveat in prediction.step.caveats]

    uneven = on_gpus(scaled_trace(), 7)
    assert uneven.step.batch_size == 9
    assert codes(uneven) == ["assumed-peer-path", "uneven-batch"]
    assert "assumed-one-machine" in codes(on_gpus(scaled_trace(), 20))
    with pytest.raises(BreakevenError, match=r"among 61 GPUs: it has 60 samples"):
        on_gpus(scaled_trace(), 61)
    with pytest.raises(BreakevenError, match="recorded at one size"):
        on_gpus(scaled_trace().first, 2)
    unknown = msgspec.structs.replace(traced(), batch_size=None)
    with pytest.raises(BreakevenError, match="its size is unknown"):
        on_gpus(unknown, 2)
    with pytest.raises(ValueError, match="at least 1"):
        on_gpus(unknown, 0)


@given(num_gpus=st.integers(1, 16), link=st.booleans())
def test_dividing_the_batch_never_takes_longer_than_a_batch_for_each(
    num_gpus: int, link: bool
) -> None:
    divided = on_gpus(scaled_trace(), num_gpus, has_peer_access=link)
    each = on_gpus(scaled_trace(), num_gpus, has_peer_access=link, keeps_global_batch=False)
    assert divided.step.estimate.value_ns <= each.step.estimate.value_ns
    assert divided.communication_ns == each.communication_ns


@pytest.mark.parametrize(
    ("note", "strategy"),
    [
        ("generation v0; DDP", Strategy.DDP),
        ("torch DistributedDataParallel", Strategy.DDP),
        ("cudnn.benchmark on; nn.DataParallel", Strategy.DATA_PARALLEL),
        ("DataParallel over 4 cards", Strategy.DATA_PARALLEL),
        ("input 3x224x224", None),
        ("", None),
    ],
)
def test_strategy_of_a_note(note: str, strategy: Strategy | None) -> None:
    assert strategy_of(note) is strategy


def test_note_that_says_nothing_is_an_assumption() -> None:
    assumed, caveats = setup_of("input 3x224x224", 4)
    assert assumed == setup(Strategy.DDP, 4)
    assert [caveat.code for caveat in caveats] == ["assumed-strategy"]


def test_note_says_that_peer_access_was_off() -> None:
    known, caveats = setup_of("DDP; NCCL P2P disabled", 8)
    assert known.has_peer_access is False
    assert caveats == ()


def test_shipped_table_has_the_errors_of_both_strategies() -> None:
    table = load_multi_gpu_table()
    for strategy in Strategy:
        assert 0.02 < table.log_sigma(strategy) < 0.4
    # One after another, and some for the turns that the threads take at the lock.
    assert table.data_parallel.issue_fraction <= 1.4


def made_up_rows(table: MultiGpuTable) -> list[MultiGpuRow]:
    """Return steps of four families, measured exactly as ``table`` has it."""
    rng = np.random.default_rng(0)
    rows: list[MultiGpuRow] = []
    for index in range(120):
        strategy = Strategy.DDP if index % 3 == 0 else Strategy.DATA_PARALLEL
        num_tensors = int(rng.integers(10, 400))
        lone = times(
            forward_host_ns=float(rng.uniform(1e6, 2e7)),
            backward_host_ns=float(rng.uniform(1e6, 2e7)),
            forward_device_ns=float(rng.uniform(1e5, 5e7)),
            backward_device_ns=float(rng.uniform(1e5, 9e7)),
        )
        row = MultiGpuRow(
            family="abcd"[index % 4],
            device=GPU,
            setup=setup(strategy, int(rng.integers(2, 5))),
            times=lone,
            size=ModelSize(
                parameter_bytes=float(rng.uniform(1e6, 1e8)),
                num_parameter_tensors=num_tensors,
                gradient_bytes=float(rng.uniform(1e6, 1e8)),
            ),
            dispatch_ns=5_000.0,
            single_ns=lone.copy_ns + max(lone.host_ns, lone.device_ns),
            measured_single_ns=lone.copy_ns + max(lone.host_ns, lone.device_ns),
            measured_ns=1.0,
        )
        rows.append(dataclasses.replace(row, measured_ns=predicted_ns(row, table)))
    return rows


def test_fit_finds_the_costs_that_made_the_rows() -> None:
    rows = made_up_rows(TABLE)
    fitted = fit_multi_gpu(rows, "made up")
    assert np.abs(factor_log_ratios(rows, fitted)).max() < 0.02
    assert fitted.data_parallel.issue_fraction == pytest.approx(0.5, abs=0.05)
    assert fitted.ddp.exposed_fraction == pytest.approx(0.25, abs=0.02)
    assert {(error.strategy, error.left_out) for error in fitted.held_out} == {
        (strategy, name) for strategy in Strategy for name in ("family", "device")
    }
    by_family = next(error for error in fitted.held_out if error.left_out == "family")
    assert by_family.num_groups == 4
    assert by_family.p90_error_fraction < 0.05


def test_machine_that_is_slower_throughout_teaches_the_same() -> None:
    row = made_up_rows(TABLE)[0]
    slower = dataclasses.replace(
        row,
        measured_single_ns=2 * row.single_ns,
    )
    (matched,) = matched_to_single([slower])
    assert matched.single_ns == pytest.approx(2 * row.single_ns)
    assert matched.times.host_ns == pytest.approx(2 * row.times.host_ns)
    assert matched.times.device_ns == pytest.approx(2 * row.times.device_ns)
    assert matched.dispatch_ns == pytest.approx(10_000)
