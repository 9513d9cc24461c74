"""Effects fitted to steps that were made with known ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from breakeven.calibrate import (
    PlacedStep,
    StepPart,
    StepSample,
    StepTiming,
    fit_own_effects,
    fit_step_effects,
)
from breakeven.cost import (
    EffectKey,
    Era,
    StepEffects,
    load_efficiencies,
    no_step_effects,
    reference_host,
)
from breakeven.device import find_device, generation_of
from breakeven.simulate import build_program
from breakeven.trace import Copy, Op, StepTrace
from factories.steps import GPU, tensor

HOST = reference_host()
MS = 1e6


def sample(
    measured_ns: float,
    device: Mapping[tuple[EffectKey, ...], float],
    host: Mapping[tuple[EffectKey, ...], float],
    *,
    machine: str = "lab",
) -> StepSample:
    """Return a step of which either the host or the device takes next to no time."""
    return StepSample(
        step=StepTiming(
            device=GPU, host=HOST, era=Era.TORCH_2, machine=machine, measured_ns=measured_ns
        ),
        simulated_ns=max(sum(device.values()), sum(host.values())),
        waiting_ns=0.0,
        device_parts=tuple(StepPart(time_ns=ns, keys=keys) for keys, ns in device.items()),
        host_parts=tuple(StepPart(time_ns=ns, keys=keys) for keys, ns in host.items()),
        overlap_keys=(("overlap",),),
    )


def fitted(samples: list[StepSample]) -> StepEffects:
    return fit_step_effects(samples, provenance="made up", spread=no_step_effects().spread)


def kernels(group: str, device: str) -> tuple[EffectKey, ...]:
    return (("units", group, "vector fp32"), ("chip", device), ("device", device))


def device_bound(
    *, convolution: float, memory: float, slow: float, odd: Callable[[int], float] = lambda _: 1.0
) -> list[StepSample]:
    """Return steps on ten GPUs, of which the first is ``slow`` times as slow as the others."""
    rng = np.random.default_rng(1)
    samples: list[StepSample] = []
    for index in range(80):
        device = f"gpu {index % 10}"
        share = rng.uniform(0.1, 0.9)
        parts = {
            kernels("convolution", device): share * 50 * MS,
            kernels("memory", device): (1 - share) * 50 * MS,
        }
        factor = slow if index % 10 == 0 else 1.0
        measured = (share * convolution + (1 - share) * memory) * 50 * MS * factor * odd(index)
        samples.append(sample(measured, parts, {(("host",),): 1.0}))
    return samples


def test_planted_effects_are_found() -> None:
    effects = fitted(device_bound(convolution=1.4, memory=0.8, slow=1.25))
    factors = {
        group: math.exp(effects.log_factor(kernels(group, "gpu 5")))
        for group in ("convolution", "memory")
    }
    assert factors["convolution"] == pytest.approx(1.4, rel=0.04)
    assert factors["memory"] == pytest.approx(0.8, rel=0.04)
    slow = effects.log_factor([("chip", "gpu 0"), ("device", "gpu 0")])
    other = effects.log_factor([("chip", "gpu 5"), ("device", "gpu 5")])
    assert math.exp(slow - other) == pytest.approx(1.25, rel=0.06)


def test_steps_of_one_gpu_alone_teach_what_is_its_own() -> None:
    samples = device_bound(convolution=1.4, memory=0.8, slow=1.25)
    general = fitted(samples)
    keys = (*kernels("convolution", "new"), ("machine", "lab"))
    own = [
        sample(1.4 * 0.7 * size * MS, {keys: size * MS}, {(("host",),): 1.0})
        for size in range(10, 40)
    ]
    effects = fit_own_effects([*samples, *own], general)
    assert math.exp(effects.log_factor(keys)) == pytest.approx(1.4 * 0.7, rel=0.02)
    # A machine may differ by more than its GPU: it takes most of what is new.
    assert effects.log_factor([("machine", "lab")]) < effects.log_factor([("device", "new")]) < 0
    for group in ("convolution", "memory"):
        units = ("units", group, "vector fp32")
        assert effects.log_factor([units]) == general.log_factor([units])
        for gpu in ("gpu 0", "gpu 5"):
            assert effects.log_factor(kernels(group, gpu)) == pytest.approx(
                general.log_factor(kernels(group, gpu)), abs=0.01
            )


def test_a_host_is_found_where_it_sets_the_steps() -> None:
    samples = [
        sample(
            (2.0 if machine == "slow" else 1.0) * size * MS,
            {(("floor",),): 1.0},
            {(("host",), ("host machine", machine)): size * MS},
            machine=machine,
        )
        for machine in ("slow", "one", "two", "three")
        for size in (5, 10, 20, 40)
    ]
    effects = fitted(samples)
    slow = math.exp(effects.log_factor([("host",), ("host machine", "slow")]))
    assert slow == pytest.approx(2.0, rel=0.04)
    assert math.exp(effects.log_factor([("host",), ("host machine", "one")])) == pytest.approx(
        1.0, rel=0.04
    )
    # What the kernels would take nothing here can tell.
    assert effects.log_factor([("floor",)]) == 0.0


def test_what_no_step_depends_on_stays_at_none() -> None:
    samples = [
        sample(
            30 * MS,
            {kernels("convolution", "gpu"): 20 * MS, (("class", "softmax", "32 bit"),): 5.0},
            {(("host",),): 1.0},
        )
        for _ in range(10)
    ]
    effects = fitted(samples)
    assert effects.log_factor([("class", "softmax", "32 bit")]) == 0.0
    assert math.exp(effects.log_factor(kernels("convolution", "gpu"))) == pytest.approx(1.5, 0.05)


def test_steps_as_predicted_teach_no_effect() -> None:
    effects = fitted(device_bound(convolution=1.0, memory=1.0, slow=1.0))
    assert {effect.kind for effect in effects.effects} <= {"device"}
    assert all(abs(effect.log_factor) < 0.01 for effect in effects.effects)
    # That steps of a GPU were seen is kept although they taught nothing.
    assert effects.has(("device", "gpu 3"))


def test_an_odd_row_does_not_decide() -> None:
    plain = fitted(device_bound(convolution=1.4, memory=0.8, slow=1.0))
    odd = fitted(
        device_bound(
            convolution=1.4, memory=0.8, slow=1.0, odd=lambda index: 5.0 if index == 7 else 1.0
        )
    )
    for device in ("gpu 5", "gpu 7"):
        for group in ("convolution", "memory"):
            keys = kernels(group, device)
            assert odd.log_factor(keys) == pytest.approx(plain.log_factor(keys), abs=0.1)


def test_the_order_of_the_rows_does_not_matter() -> None:
    samples = device_bound(convolution=1.4, memory=0.8, slow=1.25)
    forward, backward = fitted(samples), fitted(samples[::-1])
    keys = {(effect.kind, *effect.of) for effect in (*forward.effects, *backward.effects)}
    for key in keys:
        assert forward.log_factor([key]) == pytest.approx(backward.log_factor([key]), abs=2e-4)


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
    assert [part.step.machine for part in samples] == ["one", "two", "three"]
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


def test_steps_with_and_without_effects_of_their_machine_are_fitted_together() -> None:
    names = ["lab", "", "lab", "other", ""]
    samples = [
        replace(
            sample(20 * MS, {kernels("memory", "gpu 0"): 10 * MS}, {(("host",),): 10 * MS}),
            overlap_keys=(("overlap",), ("overlap machine", name)) if name else (("overlap",),),
        )
        for name in names
    ]
    effects = fitted(samples)
    assert effects.log_factor([("overlap",)]) > 0
    assert effects.log_factor([("overlap machine", "lab")]) > 0
