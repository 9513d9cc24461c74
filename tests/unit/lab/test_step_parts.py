"""Measured steps are taken apart into what effects scale."""

from __future__ import annotations

import pytest

from breakeven.cost import (
    Era,
    load_efficiencies,
    reference_host,
)
from breakeven.device import find_device, generation_of
from breakeven.simulate import build_program
from breakeven.trace import Copy, Op, StepTrace
from factories.steps import tensor
from lab.step_parts import PlacedStep, StepTiming

HOST = reference_host()
MS = 1e6


def test_a_step_is_taken_apart_into_what_effects_scale() -> None:
    square = tensor(512, 512, device="cuda:0")
    trace = StepTrace(
        events=(
            Copy(source="cpu", destination="cuda:0", num_bytes=10**6),
            Op(name="aten.mm.default", inputs=(square, square), outputs=(square,)),
            Op(name="aten.add.Tensor", inputs=(square, square), outputs=(square,)),
        ),
        batch_size=512,
    )
    t4, v100 = find_device("T4"), find_device("V100 SXM2 16GB")
    steps = [
        StepTiming(device=device, host=HOST, era=Era.TORCH_2, machine=name, measured_ns=1.0)
        for device, name in ((t4, "one"), (v100, "two"), (t4, "three"))
    ]
    samples = PlacedStep(build_program(trace), steps).samples(load_efficiencies())
    first, second, third = samples
    assert first.simulated_ns == third.simulated_ns != second.simulated_ns
    assert 0 < first.waiting_ns < first.simulated_ns
    floors = {part.keys: part.time_ns for part in first.device_parts if ("floor",) in part.keys}
    num_launches = sum(kernel.launches for kernel in build_program(trace).kernels)
    assert sum(floors.values()) == pytest.approx(num_launches * generation_of(t4).floor_ns)
    assert any(("host machine", "three") in part.keys for part in third.host_parts)
    assert not any(("host machine", "three") in part.keys for part in first.host_parts)
    assert all(part.time_ns > 0 for part in (*first.device_parts, *first.host_parts))


def test_a_step_is_taken_apart_by_the_software_of_each_place() -> None:
    image = tensor(12, 64, 56, 56, device="cuda:0", dtype="float64")
    weight = tensor(64, 64, 3, 3, device="cuda:0", dtype="float64")
    given = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    convolution = Op(
        name="aten.convolution.default",
        inputs=(image, weight),
        outputs=(image,),
        attributes={**given, "transposed": False},
    )
    program = build_program(StepTrace(events=(convolution,), batch_size=12))
    places = [
        StepTiming(device=find_device("TITAN V"), host=HOST, era=era, machine="", measured_ns=1.0)
        for era in (Era.TORCH_0, Era.TORCH_1, Era.TORCH_1_EARLY)
    ]
    old, new, also_old = PlacedStep(program, places).samples(load_efficiencies())
    assert old.simulated_ns == also_old.simulated_ns > 2 * new.simulated_ns
    of_kernels = [sum(p.time_ns for p in s.device_parts) for s in (old, new, also_old)]
    assert of_kernels[0] == of_kernels[2] > 2 * of_kernels[1]


def test_software_before_cudnn_8_2_launches_every_time_step() -> None:
    source, weight = tensor(50, 32, 64, device="cuda:0"), tensor(256, 64, device="cuda:0")
    layer = Op(
        name="aten._cudnn_rnn.default",
        inputs=(source, weight, weight),
        outputs=(source,),
        attributes={"mode": 2, "hidden_size": 64, "num_layers": 1},
    )
    device = find_device("RTX 3090")
    places = [
        StepTiming(device=device, host=HOST, era=era, machine="", measured_ns=1.0)
        for era in (Era.TORCH_1_EARLY, Era.TORCH_2)
    ]
    program = build_program(StepTrace(events=(layer,), batch_size=32))
    floor = ("floor+family", "recurrent")
    floors, groups = [], []
    for sample in PlacedStep(program, places).samples(load_efficiencies()):
        floors.append(sum(part.time_ns for part in sample.device_parts if floor in part.keys))
        keys = {key for part in sample.device_parts for key in part.keys}
        groups.append({key[1] for key in keys if key[0] == "units"})
    assert floors[0] == pytest.approx(50 * floors[1])
    assert floors[1] == pytest.approx(generation_of(device).floor_ns)
    assert groups == [{"gemm", "recurrent"}, {"gemm", "small recurrent"}]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_in_fp64_teach_nothing_of_what_their_machine_loses(dtype: str) -> None:
    square = tensor(512, 512, device="cuda:0", dtype=dtype)
    product = Op(name="aten.mm.default", inputs=(square, square), outputs=(square,))
    place = StepTiming(
        device=find_device("T4"), host=HOST, era=Era.TORCH_2, machine="lab", measured_ns=1.0
    )
    placed = PlacedStep(build_program(StepTrace(events=(product,), batch_size=512)), [place])
    (found,) = placed.samples(load_efficiencies())
    assert (("overlap machine", "lab") in found.overlap_keys) == (dtype == "float32")
