"""A GPU that was measured itself is predicted from its own file, and no other GPU is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from breakeven.cost import (
    Family,
    Kernel,
    MeasuredCopy,
    MeasuredLaunch,
    StepCosts,
    StepEffect,
    host_with_steps,
    load_efficiencies,
    load_step_effects,
    read_calibration,
    read_calibrations_again,
    shipped_costs,
)
from breakeven.device import (
    FOLDER_VARIABLE,
    HERE,
    Precision,
    calibration_files,
    find_device,
    generation_of,
    load_catalogue,
)
from breakeven.errors import BreakevenError
from breakeven.simulate import predict_steps
from breakeven.trace import Op, StepTrace, TensorSpec
from breakeven.verdict import device_result
from factories.calibrations import calibrated, reached
from factories.hosts import HOST

T4, L4 = find_device("t4"), find_device("l4")
NUM_DATASHEETS = len(load_catalogue())


def costs(*calibrations) -> StepCosts:
    return StepCosts(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        calibrations={one.device: one for one in calibrations},
    )


def gemm(size: int = 4096, precision: Precision = Precision.FP32) -> Kernel:
    return Kernel(
        family=Family.GEMM,
        flop=2.0 * size**3,
        read_bytes=8.0 * size**2,
        write_bytes=4.0 * size**2,
        precision=precision,
        m=size,
        n=size,
        k=size,
    )


def stream(num_bytes: float = 2.0**28) -> Kernel:
    return Kernel(
        family=Family.ELEMENTWISE, flop=1.0, read_bytes=num_bytes / 2, write_bytes=num_bytes / 2
    )


def trace(*events: Op) -> StepTrace:
    return StepTrace(events=events, num_parameters=1, peak_memory_bytes=1 << 20)


def product_op(size: int) -> Op:
    square = TensorSpec(shape=(size, size), dtype="float32", device="cuda:0")
    return Op(name="aten.mm.default", inputs=(square, square), outputs=(square,))


def step_ns(costs: StepCosts) -> float:
    (prediction,) = predict_steps(trace(*[product_op(4096)] * 20), [T4], HOST, costs=costs)
    return prediction.estimate.value_ns


def test_a_gpu_twice_as_slow_in_products_takes_twice_as_long_for_a_step_of_products() -> None:
    fast, slow = costs(calibrated(reached(0.8))), costs(calibrated(reached(0.4)))
    assert step_ns(slow) / step_ns(fast) == pytest.approx(2, rel=0.02)
    # Streams do not wait for the units that multiply.
    assert slow.kernel_times([stream()], [T4]).time_ns == pytest.approx(
        fast.kernel_times([stream()], [T4]).time_ns
    )


def test_other_gpus_are_predicted_as_before() -> None:
    usual, own = costs(), costs(calibrated(reached(0.2)))
    kernels = [gemm(), stream(), gemm(512)]
    both = own.kernel_times(kernels, [L4, T4])
    before = usual.kernel_times(kernels, [L4, T4])
    np.testing.assert_array_equal(both.time_ns[:, 0], before.time_ns[:, 0])
    assert (both.time_ns[:, 1] != before.time_ns[:, 1]).any()


def test_what_was_measured_of_launches_says_nothing_of_graphs() -> None:
    launch = MeasuredLaunch(queued_ns=5e3, waited_ns=20e3, sync_ns=4e3, period_ns=9e3)
    usual, own = costs(), costs(calibrated(launch=launch))
    kernels = [gemm(), stream()]
    before, after = (each.kernel_times(kernels, [T4]) for each in (usual, own))
    np.testing.assert_array_equal(after.replay_ns, before.replay_ns)
    assert (after.floor_ns > before.floor_ns).all()


def test_each_precision_has_its_own_efficiency_where_it_was_measured() -> None:
    half = {"arithmetic": "tensor", "precision": Precision.FP16}
    own = costs(calibrated(reached(0.8, **half), reached(0.8)))
    slower = costs(calibrated(reached(0.4, **half), reached(0.8)))
    kernels = [gemm(), gemm(precision=Precision.FP16)]
    ratio = slower.kernel_times(kernels, [T4]).time_ns / own.kernel_times(kernels, [T4]).time_ns
    assert ratio[:, 0] == pytest.approx([1, 2], rel=0.02)


def test_effects_of_its_own_steps_scale_its_kernels() -> None:
    plain = calibrated(reached(0.8))
    effect = StepEffect(kind="gpu", of=(), log_factor=float(np.log(1.5)))
    stepped = msgspec.structs.replace(plain, effects=(effect,))
    ratio = (
        costs(stepped).kernel_times([gemm()], [T4]).time_ns
        / costs(plain).kernel_times([gemm()], [T4]).time_ns
    )
    assert ratio[0, 0] == pytest.approx(1.5, rel=0.01)


def test_launches_and_copies_are_those_that_were_measured() -> None:
    launch = MeasuredLaunch(queued_ns=5e3, waited_ns=20e3, sync_ns=4e3, period_ns=3e3)
    copies = (MeasuredCopy(is_pinned=True, least_ns=9e3, fixed_ns=8e3, bytes_per_s=10e9),)
    own = costs(calibrated(launch=launch, copies=copies))
    found = own.launch_costs(T4)
    generation = generation_of(T4)
    floor_ns = 3e3 * generation.floor_ns / (generation.floor_ns + generation.gap_ns)
    assert found.sync_ns == 4e3
    assert found.gap_ns == pytest.approx(3e3 - floor_ns)
    # A waited operator: queued, started, run, waited for.
    assert found.latency_ns == pytest.approx(20e3 - 5e3 - 4e3 - floor_ns)
    assert own.copy_ns(1e9, device=T4, is_pinned=True) == pytest.approx(100e6 + 8e3)
    assert own.copy_ns(1, device=T4, is_pinned=True) == 9e3
    usual = costs()
    assert own.copy_ns(1e9, device=T4, is_pinned=False) == usual.copy_ns(
        1e9, device=T4, is_pinned=False
    )
    assert own.launch_costs(L4) == usual.launch_costs(L4)


def test_a_prediction_says_when_its_gpu_was_measured() -> None:
    steps = trace(product_op(64))
    predicted = predict_steps(steps, [T4, L4], HOST, costs=costs(calibrated()))
    assert [device_result(one).calibrated_on for one in predicted] == ["2026-11-25", ""]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    read_calibrations_again()
    yield tmp_path
    monkeypatch.undo()
    read_calibrations_again()


def test_files_of_the_user_are_used(folder: Path) -> None:
    (folder / "t4.json").write_bytes(msgspec.json.encode(calibrated(reached(0.3))))
    found = shipped_costs().calibration(T4)
    assert found is not None
    assert found.families[0].compute_fraction == 0.3
    assert shipped_costs().calibration(L4) is None


def test_a_gpu_without_a_datasheet_is_in_the_catalogue(folder: Path) -> None:
    spec = msgspec.structs.replace(T4, id="made-up-gpu", name="Made-up GPU", aliases=())
    own = calibrated(device="made-up-gpu", spec=spec)
    (folder / "made-up-gpu.json").write_bytes(msgspec.json.encode(own))
    assert spec in load_catalogue()
    assert find_device("made up gpu") == spec


def test_a_gpu_that_got_a_datasheet_since_or_has_two_spellings_is_in_the_catalogue_once(
    folder: Path,
) -> None:
    for device, name in (
        ("nvidia-tesla-t4", "NVIDIA Tesla T4"),
        ("radeon-made-up", "Radeon Made-up"),
        ("amd-radeon-made-up", "AMD Radeon Made-up"),
    ):
        spec = msgspec.structs.replace(T4, id=device, name=name, aliases=())
        own = calibrated(device=device, spec=spec)
        (folder / f"{device}.json").write_bytes(msgspec.json.encode(own))
    assert find_device("NVIDIA Tesla T4") == T4
    assert find_device("radeon made-up").id == "amd-radeon-made-up"
    assert len(load_catalogue()) == NUM_DATASHEETS + 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"{}", "is no calibration of a GPU"),
        (b"not JSON", "is no calibration of a GPU"),
        (msgspec.json.encode(calibrated(version=99)), "has version 99"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, document: bytes, message: str) -> None:
    (folder / "t4.json").write_bytes(document)
    with pytest.raises(BreakevenError, match=r"t4\.json.*" + message) as found:
        shipped_costs()
    assert "breakeven calibrate --force" in (found.value.hint or "")


def test_files_that_ship_are_sound() -> None:
    catalogue = {device.id for device in load_catalogue()}
    for name, document in calibration_files():
        calibration = read_calibration(document, name)
        assert name == f"{calibration.device}.json"
        assert calibration.spec is not None or calibration.device in catalogue
        assert all(entry.median_error_fraction < 0.5 for entry in calibration.families)


def test_host_of_a_calibrated_gpu_works_as_its_steps_showed() -> None:
    own = msgspec.structs.replace(
        calibrated(),
        effects=(
            StepEffect(kind="own host", of=(), log_factor=math.log(2.0)),
            StepEffect(kind="own host class", of=("other",), log_factor=math.log(1.5)),
            StepEffect(kind="own host class", of=("update",), log_factor=math.log(0.5)),
            StepEffect(kind="own backward call", of=(), log_factor=math.log(5.0)),
        ),
    )
    host = msgspec.structs.replace(HOST, id=HERE)
    found = host_with_steps(host, own)
    assert found.forward_factor == pytest.approx(3.0 * host.forward_factor)
    assert found.backward_factor == pytest.approx(3.0 * host.backward_factor)
    assert found.optimizer_factor == pytest.approx(1.0 * host.optimizer_factor)
    # What is not told apart is scaled as all work is.
    assert found.backward_factor * found.seen_work.convolution_factor == pytest.approx(
        2.0 * host.backward_factor
    )
    called_ns = found.backward_factor * (found.backward_call_ns + found.seen_work.handoff_ns)
    assert called_ns == pytest.approx(10.0 * host.backward_factor * host.backward_call_ns)
