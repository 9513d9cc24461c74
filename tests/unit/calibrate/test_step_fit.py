"""Effects fitted to steps that were made with known ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from breakeven.calibrate.step_fit import StepPart, StepSample, fit_step_effects
from breakeven.cost import (
    EffectKey,
    StepEffects,
    no_step_effects,
    reference_host,
)

HOST = reference_host()
MS = 1e6


def sample(
    measured_ns: float,
    device: Mapping[tuple[EffectKey, ...], float],
    host: Mapping[tuple[EffectKey, ...], float],
) -> StepSample:
    """Return a step of which either the host or the device takes next to no time."""
    return StepSample(
        measured_ns=measured_ns,
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
    effects = fit_step_effects(
        [*samples, *own],
        provenance="made up",
        spread=general.spread,
        known=general,
        free_kinds={"chip", "device", "machine"},
    )
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
