from __future__ import annotations

import math

import msgspec
import pytest

from breakeven.simulate import Bound, StepPrediction, predict_steps
from breakeven.timing import Source
from breakeven.trace import Copy, Event, HostWork, Phase, StepTrace, Sync
from breakeven.verdict import Choice, DeviceKind, DeviceResult, decide, device_result
from factories.steps import HOST, MadeUpCosts, made_up_device, op

MS = 1e6


def result(
    device: str,
    step_ms: float,
    spread: float = 1.0,
    kind: DeviceKind = DeviceKind.GPU,
    fits: bool | None = True,
) -> DeviceResult:
    """Return a result whose interval reaches a factor of ``spread`` to either side."""
    return DeviceResult(
        device=device,
        kind=kind,
        source=Source.PREDICTED if kind is DeviceKind.GPU else Source.MEASURED,
        precision="fp32",
        step_ns=step_ms * MS,
        low_ns=step_ms * MS / spread,
        high_ns=step_ms * MS * spread,
        bound=None,
        peak_memory_bytes=20_000_000_000 if fits is not None else None,
        fits=fits,
    )


def cpu(step_ms: float, spread: float = 1.0, device: str = "CPU") -> DeviceResult:
    return result(device, step_ms, spread, DeviceKind.CPU, None)


def test_gpu_wins_beyond_its_interval() -> None:
    verdict = decide([result("T4", 2, 1.2), result("A100", 1, 1.5), cpu(8)])

    assert (verdict.choice, verdict.device, verdict.over) == (Choice.GPU, "A100", "CPU")
    assert verdict.speedup == pytest.approx(8)
    assert verdict.low == pytest.approx(8 / 1.5)
    assert verdict.high == pytest.approx(8 * 1.5)
    assert verdict.because == "A step takes 1 ms on A100 and 8 ms on CPU."


def test_cpu_wins_and_the_speedup_is_its_own() -> None:
    verdict = decide([result("A100", 4, 1.5), cpu(1, 1.1), cpu(3, device="Old CPU")])

    assert (verdict.choice, verdict.device, verdict.over) == (Choice.CPU, "CPU", "A100")
    assert verdict.speedup == pytest.approx(4)
    spread = math.exp(math.hypot(math.log(1.5), math.log(1.1)))
    assert verdict.low == pytest.approx(4 / spread)
    assert verdict.high == pytest.approx(4 * spread)


@pytest.mark.parametrize("gpu_ms", [1.3, 1.0, 0.8])
def test_within_the_interval_it_is_too_close(gpu_ms: float) -> None:
    verdict = decide([result("A100", gpu_ms, 1.5), cpu(1, 1.1)])

    assert (verdict.choice, verdict.device, verdict.over) == (Choice.TOO_CLOSE, "A100", "CPU")
    assert verdict.speedup == pytest.approx(1 / gpu_ms)
    assert verdict.low < 1 < verdict.high
    assert "measure" in verdict.because


def test_an_exact_tie_is_too_close() -> None:
    assert decide([result("A100", 1), cpu(1)]).choice is Choice.TOO_CLOSE


def test_an_interval_that_ends_at_one_is_too_close() -> None:
    assert decide([result("A100", 1, 2), cpu(2)]).choice is Choice.TOO_CLOSE
    assert decide([result("A100", 1, 1.99), cpu(2)]).choice is Choice.GPU


def test_a_gpu_too_small_for_the_step_is_passed_over() -> None:
    verdict = decide([result("Small", 1, fits=False), result("Large", 2), cpu(8)])
    assert verdict.device == "Large"


def test_without_a_gpu_that_fits_the_cpu_is_chosen() -> None:
    verdict = decide([result("Small", 1, fits=False), cpu(8)])

    assert (verdict.choice, verdict.device) == (Choice.CPU, "CPU")
    assert verdict.speedup == pytest.approx(1 / 8)
    assert verdict.because == (
        "The step needs 20 GB of memory, more than any of the GPUs compared has."
    )


def disturbed(low_ms: float, step_ms: float) -> DeviceResult:
    return msgspec.structs.replace(cpu(step_ms), low_ns=low_ms * MS, is_disturbed=True)


def test_a_bound_of_the_cpu_leaves_it_undecided_or_settles_it() -> None:
    # It may be as fast as the GPU, or surely is not.
    verdict = decide([result("A100", 1), disturbed(0.5, 4)])
    assert (verdict.choice, verdict.device, verdict.over) == (Choice.UNDECIDED, "A100", "CPU")
    assert "between 500 µs and 4 ms" in verdict.because
    assert decide([result("A100", 1), disturbed(1.5, 4)]).choice is Choice.GPU
    assert decide([result("A100", 9, 1.5), disturbed(0.5, 4)]).choice is Choice.CPU


def test_an_interval_wider_than_ten_times_that_reaches_the_gpu_leaves_it_undecided() -> None:
    assert decide([result("A100", 1), cpu(3, 3.3)]).choice is Choice.UNDECIDED
    assert decide([result("A100", 1), cpu(2, 3)]).choice is Choice.TOO_CLOSE
    assert decide([result("A100", 1), cpu(100, 3.3)]).choice is Choice.GPU


def test_the_fastest_cpu_is_compared_whether_disturbed_or_not() -> None:
    one_thread = cpu(4, device="CPU, 1 thread")
    verdict = decide([result("A100", 1), disturbed(2, 3), one_thread])
    assert (verdict.choice, verdict.over) == (Choice.GPU, "CPU")
    assert verdict.speedup == pytest.approx(3)
    # On more threads it may be faster than the GPU where they are left alone.
    open_end = decide([result("A100", 1), disturbed(0.5, 9), one_thread])
    assert (open_end.choice, open_end.over) == (Choice.UNDECIDED, "CPU, 1 thread")
    assert decide([result("A100", 9), disturbed(0.5, 9), one_thread]).choice is Choice.CPU
    # Of a disturbed step that may be long, one that was left alone bounds it.
    long = msgspec.structs.replace(disturbed(2, 3), high_ns=90 * MS)
    assert decide([result("A100", 9), long]).choice is Choice.UNDECIDED
    assert decide([result("A100", 9), long, one_thread]).choice is Choice.CPU


@pytest.mark.parametrize("results", [[], [cpu(1)], [result("A100", 1)]])
def test_both_kinds_are_needed(results: list[DeviceResult]) -> None:
    with pytest.raises(ValueError, match="CPU"):
        decide(results)


def test_times_must_be_positive_and_in_their_interval() -> None:
    broken = msgspec.structs.replace(result("A100", 1), low_ns=2 * MS)
    with pytest.raises(ValueError, match="interval"):
        decide([broken, cpu(1)])
    with pytest.raises(ValueError, match="interval"):
        decide([result("A100", 0), cpu(1)])


def predicted(*events: Event, costs: MadeUpCosts | None = None) -> StepPrediction:
    (prediction,) = predict_steps(
        StepTrace(events=events), (made_up_device("A100"),), HOST, costs=costs or MadeUpCosts()
    )
    return prediction


LAUNCH_BOUND = tuple(op(10_000, host_ns=1_000_000) for _ in range(4))


@pytest.mark.parametrize(
    ("events", "bound", "sentence"),
    [
        (
            LAUNCH_BOUND,
            Bound.LAUNCH,
            "Launching 4 kernels takes 4 ms, the arithmetic 40 µs: no GPU can go below that "
            "without a CUDA graph, and "
            "CPU is done in 100 µs.",
        ),
        (
            (op(3 * MS),),
            Bound.COMPUTE,
            "The work of a step keeps A100 busy for 3 ms; CPU is done in 100 µs.",
        ),
        (
            (Copy(source="cpu", destination="cuda:0", num_bytes=2_000_000),),
            Bound.TRANSFER,
            "Copies between host and GPU make a step take 2 ms on A100, for 2 ms of work there; "
            "CPU is done in 100 µs.",
        ),
        (
            (HostWork(kind="script", duration_ns=2_000_000), op(10)),
            Bound.HOST_DATA,
            "The host's own work makes a step take 2 ms on A100, for 10 ns of work there; "
            "CPU is done in 100 µs.",
        ),
        (
            (op(host_ns=2 * MS, device="cpu", phase=Phase.OPTIMIZER), op(10)),
            Bound.HOST_OPTIMIZER,
            "The optimizer on the host makes a step take 2 ms on A100, for 10 ns of work there; "
            "CPU is done in 100 µs.",
        ),
        (
            (Sync(kind="item"),),
            Bound.SYNC,
            "Waiting for each other makes a step take 1 ms on A100, for 0 ns of work there; "
            "CPU is done in 100 µs.",
        ),
    ],
)
def test_why_the_cpu_wins(events: tuple[Event, ...], bound: Bound, sentence: str) -> None:
    prediction = predicted(*events, costs=MadeUpCosts(sync_ns=MS))
    assert prediction.bound is bound
    verdict = decide([device_result(prediction), cpu(0.1)], predictions=[prediction])

    assert verdict.choice is Choice.CPU
    assert verdict.because == sentence


def test_why_the_gpu_wins() -> None:
    prediction = predicted(*LAUNCH_BOUND)
    verdict = decide([device_result(prediction), cpu(100)], predictions=[prediction])

    assert verdict.choice is Choice.GPU
    assert verdict.because == (
        "The work of a step keeps A100 busy for 40 µs, and CPU for 100 ms; launching 4 kernels "
        "makes it 4 ms."
    )

    prediction = predicted(op(2 * MS))
    verdict = decide([device_result(prediction), cpu(100)], predictions=[prediction])
    assert verdict.because == ("The work of a step keeps A100 busy for 2 ms, and CPU for 100 ms.")


@pytest.mark.parametrize(
    ("cpu_ms", "sentence"),
    [
        (
            100,
            "The work of a step keeps A100 busy for 10 ns, and CPU for 100 ms; the workers of the "
            "DataLoader make it 2 ms.",
        ),
        (
            2,
            "The worker processes of the DataLoader take 2 ms for the data of a step, on "
            "any device. Make it faster before you pay for A100.",
        ),
        (
            0.1,
            "The worker processes of the DataLoader take 2 ms for the data of a step, on "
            "any device; CPU is done in 100 µs.",
        ),
    ],
)
def test_the_loader_is_named_where_it_decides(cpu_ms: float, sentence: str) -> None:
    data = HostWork(kind="data", duration_ns=4_000_000, num_workers=2)
    prediction = predicted(data, op(10))
    assert prediction.loader_ns == 2 * MS
    verdict = decide([device_result(prediction), cpu(cpu_ms)], predictions=[prediction])
    assert verdict.because == sentence


def test_a_prediction_becomes_a_result() -> None:
    prediction = predicted(op(2 * MS, host_ns=1))
    shown = device_result(prediction)

    assert (shown.device, shown.kind, shown.source) == ("A100", DeviceKind.GPU, Source.PREDICTED)
    assert shown.step_ns == 2 * MS
    assert shown.bound is Bound.COMPUTE
    assert shown.precision == "fp32"
    assert shown.fits
