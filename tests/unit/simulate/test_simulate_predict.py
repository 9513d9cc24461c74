from __future__ import annotations

import math

import msgspec
import pytest

import breakeven.cost
from breakeven.device import Precision
from breakeven.simulate import (
    Bound,
    Edit,
    StepPrediction,
    build_program,
    predict_steps,
)
from breakeven.timing import Source
from breakeven.trace import Copy, Event, HostWork, Op, Phase, StepTrace, Sync
from factories.steps import GPU, HOST, MadeUpCosts, made_up_device, op, tensor


def predict(*events: Event, costs: MadeUpCosts | None = None) -> StepPrediction:
    trace = StepTrace(events=events, batch_size=4, peak_memory_bytes=1_000)
    (prediction,) = predict_steps(trace, (GPU,), HOST, costs=costs or MadeUpCosts())
    return prediction


@pytest.mark.parametrize(
    ("bound", "events"),
    [
        (Bound.LAUNCH, (op(10, host_ns=100),)),
        (Bound.COMPUTE, (op(100, host_ns=10),)),
        (Bound.MEMORY, (op(100, host_ns=10, is_memory_bound=True), op(50))),
        (Bound.LATENCY, (op(100, host_ns=10, is_latency_bound=True), op(50))),
        (
            Bound.TRANSFER,
            (Copy(source="cpu", destination="cuda:0", num_bytes=500), op(100, host_ns=100)),
        ),
        (Bound.HOST_DATA, (HostWork(kind="data", duration_ns=500), op(100, host_ns=100))),
        (Bound.HOST_DATA, (HostWork(kind="script", duration_ns=500), op(100, host_ns=100))),
        (
            Bound.HOST_DATA,
            (HostWork(kind="data", duration_ns=900, num_workers=2), op(100, host_ns=100)),
        ),
        (
            Bound.HOST_OPTIMIZER,
            (op(100, host_ns=100), op(host_ns=500, device="cpu", phase=Phase.OPTIMIZER)),
        ),
    ],
)
def test_bound_is_what_shortens_the_step_most(bound: Bound, events: tuple[Event, ...]) -> None:
    assert predict(*events).bound is bound


def test_waiting_bounds_a_step_whose_sides_take_turns() -> None:
    events = (op(60, host_ns=50), Sync(kind="item"), op(40, host_ns=50), Sync(kind="item"))
    assert predict(*events, costs=MadeUpCosts(sync_ns=30)).bound is Bound.SYNC


def test_balanced_resources_are_told_by_their_work() -> None:
    # Host and device both take 100: removing one alone gains nothing.
    prediction = predict(op(100, host_ns=60), op(host_ns=40))
    assert prediction.estimate.value_ns == 100
    assert prediction.bound in (Bound.LAUNCH, Bound.COMPUTE)


def test_figures_of_a_prediction() -> None:
    prediction = predict(
        op(30, 20, host_ns=10),
        op(40, host_ns=10, launches=4),
        HostWork(kind="script", duration_ns=7),
        costs=MadeUpCosts(launch_ns=5),
    )

    assert prediction.device is GPU
    assert prediction.batch_size == 4
    assert prediction.num_kernels == 6
    assert prediction.launch_ns == 20 + 6 * 5
    assert prediction.host_ns == 57
    assert prediction.device_busy_ns == 90
    assert prediction.peak_memory_bytes == 500_001_000
    assert prediction.fits
    assert prediction.estimate.source is Source.PREDICTED


def test_interval_of_a_step_bound_by_its_kernels() -> None:
    estimate = predict(op(1000, sigma=0.2), op(1000, sigma=0.2)).estimate

    # Kernels of equal sizes err alike, so two are not more certain than one.
    assert estimate.low_ns == pytest.approx(2000 * math.exp(-1.6449 * 0.2))
    assert estimate.value_ns == 2000
    assert estimate.high_ns == pytest.approx(2000 * math.exp(1.6449 * 0.2))


def test_interval_of_a_step_bound_by_its_host_is_that_of_hosts() -> None:
    estimate = predict(op(1, host_ns=1000)).estimate

    assert estimate.high_ns / estimate.low_ns == pytest.approx(
        math.exp(2 * 1.6449 * HOST.log_sigma), rel=0.01
    )


def test_step_that_does_not_fit() -> None:
    small = made_up_device("Small", memory_bytes=1e9)
    trace = StepTrace(events=(op(10),), peak_memory_bytes=600_000_000)
    fits = [p.fits for p in predict_steps(trace, (small, GPU), HOST, costs=MadeUpCosts())]

    assert fits == [False, True]


def test_traces_come_before_devices() -> None:
    devices = (made_up_device("A"), made_up_device("B"))
    traces = [StepTrace(events=(op(b),), batch_size=b) for b in (1, 2)]
    predictions = predict_steps(traces, devices, HOST, costs=MadeUpCosts())

    found = [(p.batch_size, p.device.name, p.estimate.value_ns) for p in predictions]
    assert found == [(1, "A", 1), (1, "B", 1), (2, "A", 2), (2, "B", 2)]


def test_nothing_to_predict() -> None:
    assert predict_steps((), (GPU,), HOST) == ()
    assert predict_steps(StepTrace(events=()), (), HOST) == ()


def test_caveats_are_told_once_each() -> None:
    odd = op(1, name="aten.odd.default")
    other = op(1, name="aten.odder.default")
    caveats = predict(odd, odd, other).caveats

    assert [caveat.message for caveat in caveats] == ["aten.odd.default", "aten.odder.default"]


def test_tf32_is_fp32_on_a_device_without_it_and_bf16_is_emulated() -> None:
    def matmul(dtype: str, settings_tf32: bool) -> StepPrediction:
        operands = (tensor(64, 64, dtype=dtype), tensor(64, 64, dtype=dtype))
        event = Op(name="aten.mm.default", inputs=operands, outputs=operands[:1])
        trace = StepTrace(events=(event,))
        settings = msgspec.structs.replace(trace.settings, allow_tf32_matmul=settings_tf32)
        trace = msgspec.structs.replace(trace, settings=settings)
        volta = msgspec.structs.replace(
            GPU, peak_flop_per_s={Precision.FP32: 1e13, Precision.FP16: 1e14}
        )
        (prediction,) = predict_steps(trace, (volta,), breakeven.cost.reference_host())
        return prediction

    assert matmul("float32", settings_tf32=True).precision is Precision.FP32
    assert matmul("float32", settings_tf32=True).caveats == ()
    assert matmul("bfloat16", settings_tf32=False).precision is Precision.BF16
    assert [c.code for c in matmul("bfloat16", settings_tf32=False).caveats] == [
        "emulated-precision"
    ]


def test_edits_remove_and_replace_events_by_position() -> None:
    trace = StepTrace(events=(op(10), Sync(kind="item"), op(20), Sync(kind="print")))
    program = build_program(trace, costs=MadeUpCosts())

    edit = Edit(replaced={1: ()})
    assert edit.apply(trace).events == (trace.events[0], trace.events[2], trace.events[3])
    assert program.edited(edit).lowerings == (*program.lowerings[::2], None)

    longer = Edit(replaced={2: (op(500),)})
    assert [k.flop for k in program.edited(longer).kernels] == [10, 500]


def test_40_devices_at_20_sizes_take_one_pass_over_the_events() -> None:
    """The cost model is asked for all kernels and devices at once, however many there are."""
    calls: list[tuple[int, int]] = []

    class Counting(MadeUpCosts):
        def kernel_times(self, kernels, devices):
            calls.append((len(kernels), len(devices)))
            return super().kernel_times(kernels, devices)

    traces = [StepTrace(events=tuple(op(b, host_ns=1) for _ in range(30))) for b in range(20)]
    devices = [made_up_device(f"Device {i}") for i in range(40)]
    predict_steps(traces, devices, HOST, costs=Counting())

    assert calls == [(20, 40)]


def test_a_step_of_what_nobody_timed_says_so() -> None:
    small, large = tensor(300, 300), tensor(8192, 8192)

    def codes(*events: Op) -> tuple[str, ...]:
        (prediction,) = predict_steps(
            StepTrace(events=events), (GPU,), breakeven.cost.reference_host()
        )
        return tuple(f"{caveat.code}: {caveat.message}" for caveat in prediction.caveats)

    factorized = Op(name="aten.linalg_cholesky_ex.default", inputs=(small,), outputs=(small,))
    product = Op(name="aten.mm.default", inputs=(large, large), outputs=(large,))
    (said,) = codes(factorized)
    assert said.startswith("untimed-kernels: ")
    assert "factorizations and solves" in said
    assert codes(product, factorized) == ()
