"""Candidates: when each applies, what it changes, and in which order they are tried."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from breakeven.settings import SETTINGS, Candidate, StepFacts, all_candidates
from breakeven.trace import Configuration, Settings
from breakeven.verdict import Numerics
from factories import steps_facts as steps
from factories.steps_facts import convnet, mlp

CPU, CUDA = {"is_on_cuda": False}, {"is_on_cuda": True}
NOTHING = Configuration()
COMPILED = Configuration(compile_mode="default")
SUBNORMAL = {"subnormal_fraction": 0.05}
TF32 = Settings(allow_tf32_matmul=True)
SEARCHED = Settings(cudnn_benchmark=True)
AUTOCAST = Settings(autocast_dtype="bfloat16")

# What each candidate changes where nothing is changed yet, and facts under which it may be tried.
APPLICABLE: dict[str, tuple[StepFacts, Configuration, dict[str, Any]]] = {
    "fast-step": (mlp(no_fast_step=""), NOTHING, {"fast_step": True}),
    "data-on-device": (
        mlp(**CUDA),
        NOTHING,
        {"gathers_batches": True, "keeps_data_on_device": True},
    ),
    "gather-batches": (mlp(), NOTHING, {"gathers_batches": True}),
    "fused-optimizer": (mlp(), NOTHING, {"optimizer": "fused"}),
    "threads=1": (mlp(), NOTHING, {"num_threads": 1}),
    "threads=2": (mlp(), NOTHING, {"num_threads": 2}),
    "threads=4": (mlp(num_threads=1), NOTHING, {"num_threads": 4}),
    "channels-last": (convnet(), NOTHING, {"channels_last": True}),
    "workers=1": (mlp(), NOTHING, {"num_workers": 1}),
    "workers=4": (mlp(), NOTHING, {"num_workers": 4}),
    "compile": (mlp(), NOTHING, {"compile_mode": "default"}),
    "keep-memory": (convnet(), NOTHING, {"keeps_freed_memory": True}),
    "no-profiler-ranges": (mlp(), NOTHING, {"skips_profiler_ranges": True}),
    "flush-denormal": (mlp(**SUBNORMAL), NOTHING, {"flushes_denormals": True}),
    "autocast=bfloat16": (convnet(), NOTHING, {"autocast": "bfloat16"}),
    "autocast=float16": (convnet(**CUDA), NOTHING, {"autocast": "float16"}),
    "tf32": (mlp(**CUDA), NOTHING, {"allows_tf32": True}),
    "cudnn-benchmark": (convnet(**CUDA), NOTHING, {"benchmarks_cudnn": True}),
    "pin-memory": (mlp(**CUDA), NOTHING, {"pins_memory": True}),
    "compile=reduce-overhead": (mlp(**CUDA), NOTHING, {"compile_mode": "reduce-overhead"}),
    "compile=max-autotune": (mlp(**CUDA), NOTHING, {"compile_mode": "max-autotune"}),
    "compile=max-autotune-no-cudagraphs": (
        mlp(**CUDA),
        NOTHING,
        {"compile_mode": "max-autotune-no-cudagraphs"},
    ),
    **{
        f"batch={size}": (mlp(), NOTHING, {"loader_batch_size": 32, "new_batch_size": size})
        for size in (64, 128, 256, 512, 1024)
    },
}

# Each reason that a candidate gives, with facts and settings under which it gives it.
REASONS: list[tuple[str, StepFacts, Configuration, str]] = [
    ("fast-step", mlp(), NOTHING, "only the loop of a script"),
    ("data-on-device", mlp(), NOTHING, "on the CPU"),
    ("data-on-device", mlp(**CUDA, loaders=()), NOTHING, "no DataLoader"),
    ("data-on-device", mlp(**CUDA, loader={"dataset": "Images"}), NOTHING, "a Images, not a"),
    ("data-on-device", mlp(**CUDA, loader={"data_bytes": 3 << 30}), NOTHING, "data set has 3"),
    ("gather-batches", mlp(loaders=()), NOTHING, "no DataLoader"),
    ("gather-batches", mlp(loader={"has_tensor_rows": False}), NOTHING, "not just rows of"),
    ("gather-batches", mlp(loader={"has_batched_fetch": True}), NOTHING, "whole already"),
    *(
        ("fused-optimizer", facts, NOTHING, reason)
        for facts, reason in (
            (mlp(optimizers=()), "no optimizer of torch"),
            (mlp(optimizer={"is_from_torch": False}), "no optimizer of torch"),
            (mlp(optimizer={"fused": False}), "chooses the implementation itself"),
            (mlp(optimizer={"foreach": True}), "chooses the implementation itself"),
        )
    ),
    ("threads=1", mlp(**CUDA), NOTHING, "on a GPU"),
    ("threads=1", mlp(calls=["torch.set_num_threads"]), NOTHING, "sets its threads itself"),
    ("threads=1", mlp(num_threads=1), NOTHING, "already uses"),
    ("threads=1", mlp(generates_steps=True), Configuration(fast_step=True), "one core"),
    ("threads=1", mlp(), Configuration(num_threads=1), "already uses"),
    ("channels-last", mlp(), NOTHING, "no two-dimensional convolution"),
    ("workers=1", mlp(loaders=()), NOTHING, "no DataLoader"),
    ("workers=1", mlp(), Configuration(gathers_batches=True), "whole batches are taken"),
    ("workers=1", mlp(loader={"num_workers": 1}), NOTHING, "already uses"),
    ("workers=1", mlp(loader={"fetch_ns": 6_000}), NOTHING, "fetching takes"),
    ("compile", mlp(is_compiled=True), NOTHING, "calls torch.compile itself"),
    ("compile", mlp(has_compiler=False), NOTHING, "no C\\+\\+ compiler"),
    ("compile", mlp(model_calls=()), NOTHING, "calls no model"),
    ("compile=reduce-overhead", mlp(), NOTHING, "need a GPU"),
    ("compile=max-autotune", mlp(), NOTHING, "need a GPU"),
    ("keep-memory", mlp(page_faults=0.5), NOTHING, "pages from the system: too few"),
    ("no-profiler-ranges", mlp(step_ns=60e6), NOTHING, "would save"),
    ("flush-denormal", mlp(**CUDA, **SUBNORMAL), NOTHING, "on a GPU"),
    ("flush-denormal", mlp(), NOTHING, "no subnormal numbers"),
    (
        "flush-denormal",
        mlp(**SUBNORMAL, calls=["torch.set_flush_denormal"]),
        NOTHING,
        "sets it itself",
    ),
    ("channels-last", mlp(**CUDA), NOTHING, "no two-dimensional convolution"),
    *(
        (f"autocast={dtype}", facts, NOTHING, reason)
        for dtype, on_device in (("bfloat16", CPU), ("float16", CUDA))
        for facts, reason in (
            (convnet(**on_device, settings=AUTOCAST), "autocast region itself"),
            (convnet(**on_device, calls=["torch.autocast"]), "autocast region itself"),
            (convnet(**on_device, default_dtype="float64"), "float64"),
            (convnet(**on_device, model_calls=()), "calls no model"),
            (convnet(**on_device, events=(steps.ACTIVATION,)), "no matrix product"),
            (convnet(**on_device, events=(steps.DOUBLE_PRODUCT,)), "in float32"),
            (mlp(**on_device), "would cost more than it saves"),
        )
    ),
    ("autocast=bfloat16", convnet(has_bf16=False), NOTHING, "no instructions for bfloat16"),
    ("autocast=float16", convnet(), NOTHING, "no fast float16"),
    ("tf32", mlp(), NOTHING, "on the CPU"),
    ("tf32", mlp(**CUDA, settings=TF32), NOTHING, "allows TF32 already"),
    ("tf32", mlp(**CUDA, events=(steps.ACTIVATION,)), NOTHING, "no matrix product"),
    ("tf32", mlp(**CUDA, events=(steps.DOUBLE_PRODUCT,)), NOTHING, "in float32"),
    ("cudnn-benchmark", convnet(), NOTHING, "on the CPU"),
    ("cudnn-benchmark", convnet(**CUDA, settings=SEARCHED), NOTHING, "on already"),
    ("cudnn-benchmark", mlp(**CUDA), NOTHING, "no convolution"),
    ("cudnn-benchmark", convnet(**CUDA, num_convolution_shapes=2), NOTHING, "shapes change"),
    ("pin-memory", mlp(), NOTHING, "on the CPU"),
    ("pin-memory", mlp(**CUDA, loaders=()), NOTHING, "no DataLoader"),
    ("pin-memory", mlp(**CUDA, loader={"pin_memory": True}), NOTHING, "already"),
    ("pin-memory", mlp(**CUDA), Configuration(keeps_data_on_device=True), "on the GPU"),
    ("fast-step", mlp(no_fast_step="", is_compiled=True), NOTHING, "calls torch.compile itself"),
    ("fast-step", mlp(no_fast_step="", has_compiler=False), NOTHING, "no C\\+\\+ compiler"),
    *(
        (name, facts, NOTHING, reason)
        for name in ("compile", "compile=max-autotune-no-cudagraphs")
        for facts, reason in (
            (mlp(**CUDA, is_compiled=True), "calls torch.compile itself"),
            (mlp(**CUDA, model_calls=()), "calls no model"),
        )
    ),
    ("batch=64", mlp(loader={"num_samples": 127}), NOTHING, "127 samples"),
]


def named(name: str, facts: StepFacts | None = None) -> Candidate:
    """Return a candidate by its name; a loader of 32 samples and 4 cores make all of them."""
    (found,) = (
        each for each in all_candidates(facts or mlp(), tries_batch_size=True) if each.name == name
    )
    return found


@pytest.mark.parametrize("name", APPLICABLE)
def test_candidate_applies_and_changes_its_own_settings_alone(name: str) -> None:
    facts, current, changes = APPLICABLE[name]
    candidate = named(name)
    assert candidate.why_not(facts, current) is None
    applied = candidate.apply(current)
    assert applied != current
    assert applied.changes == changes
    # What is kept already stays as it is, but for what a whole step as one call does without.
    other = replace(current, num_threads=3, pins_memory=True)
    if name != "fast-step":
        other = replace(other, channels_last=True, compile_mode="default")
    both = candidate.apply(other)
    untouched = set(other.changes) - (set(applied.changes) - set(current.changes))
    assert {key: both.changes[key] for key in untouched} == {
        key: other.changes[key] for key in untouched
    }


def test_a_step_as_one_call_does_without_what_changes_the_loop() -> None:
    of_loop = Configuration(
        optimizer="fused", channels_last=True, autocast="bfloat16", compile_mode="default"
    )
    kept = replace(of_loop, num_threads=1, gathers_batches=True)
    applied = named("fast-step").apply(kept)
    assert applied == Configuration(fast_step=True, num_threads=1, gathers_batches=True)
    names = {name for name, setting in SETTINGS.items() if setting.is_for_loop}
    assert names == set(of_loop.changes)
    for name in ("fused-optimizer", "compile", "autocast=bfloat16"):
        assert "one compiled call" in str(named(name).why_not(mlp(**CUDA), applied))


def test_what_one_call_saves_is_told_from_the_shortest_step_that_was_seen() -> None:
    step = named("fast-step")
    slow = mlp(step_ns=10e6)
    gain = step.expected_gain(slow)
    assert 0.0 < gain < 0.1
    assert step.expected_gain(mlp(step_ns=10e6, steps_ns={1: 2e6})) == pytest.approx(5 * gain)
    assert step.expected_gain(mlp(step_ns=10e6, steps_ns={1: 1e3})) == pytest.approx(0.9)


def test_generated_code_compiles_sooner_than_inductor() -> None:
    step = named("fast-step")
    generated_s = step.expected_cost_s(mlp(generates_steps=True))
    assert 1.0 < generated_s < 3.0 < step.expected_cost_s(mlp())


def test_applicability_is_tested_of_every_candidate() -> None:
    assert set(APPLICABLE) == {each.name for each in all_candidates(mlp(), tries_batch_size=True)}


@pytest.mark.parametrize(
    ("name", "facts", "current", "reason"),
    REASONS,
    ids=[f"{name}: {reason}" for name, _, _, reason in REASONS],
)
def test_candidate_says_why_it_does_not_apply(
    name: str, facts: StepFacts, current: Configuration, reason: str
) -> None:
    said = named(name).why_not(facts, current)
    assert said is not None
    assert re.search(reason, said)
    # It stands after a name in a table, and is part of a sentence.
    assert not said.endswith(".")


def test_every_setting_of_a_configuration_is_set_by_a_candidate() -> None:
    set_by_some = {name for _, _, changes in APPLICABLE.values() for name in changes}
    assert set_by_some == set(Configuration.__struct_fields__)


@pytest.mark.parametrize("num_cores", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("loader", [{}, {"batch_size": 0}])
def test_names_are_unique_and_the_same_each_time(num_cores: int, loader: dict[str, int]) -> None:
    facts = mlp(num_cores=num_cores, loader=loader)
    names = [each.name for each in all_candidates(facts, tries_batch_size=True)]
    assert len(names) == len(set(names))
    assert names == [each.name for each in all_candidates(facts, tries_batch_size=True)]
    assert all(re.fullmatch(r"[a-z0-9=,-]+", name) for name in names)


def test_larger_batches_are_tried_on_demand_alone() -> None:
    families = {each.family for each in all_candidates(mlp())}
    assert "batch" not in families
    numerics = {each.numerics for each in all_candidates(mlp())}
    assert Numerics.TRAINING not in numerics


@pytest.mark.parametrize("facts", [mlp(loaders=()), mlp(loader={"batch_size": 0})])
def test_a_batch_size_that_cannot_be_changed_is_said_once(facts: StepFacts) -> None:
    (candidate,) = (
        each for each in all_candidates(facts, tries_batch_size=True) if each.family == "batch"
    )
    assert candidate.name == "larger-batch"
    assert "no DataLoader has a batch size" in str(candidate.why_not(facts, NOTHING))


def test_families_hold_the_alternatives_of_one_choice() -> None:
    families: dict[str, set[str]] = {}
    for each in all_candidates(mlp(), tries_batch_size=True):
        families.setdefault(each.family, set()).add(each.name)
    several = {family for family, names in families.items() if len(names) > 1}
    assert several == {"threads", "autocast", "workers", "compile", "batch"}
    assert families["autocast"] == {"autocast=bfloat16", "autocast=float16"}


def test_every_candidate_is_in_the_documentation(pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / "docs" / "tune.md").read_text()
    for each in all_candidates(mlp(), tries_batch_size=True):
        setting, _, value = each.name.partition("=")
        forms = {each.name, f"{setting}=N", f"{setting}=MODE"} if value else {each.name}
        assert any(f"`{form}`" in text for form in forms), each.name


def test_class_of_numerics_is_what_the_setting_may_do() -> None:
    numerics = {each.name: each.numerics for each in all_candidates(mlp(), tries_batch_size=True)}
    of_class = {kind: {name for name in numerics if numerics[name] is kind} for kind in Numerics}
    assert of_class[Numerics.EXACT] == {
        "data-on-device",
        "gather-batches",
        "keep-memory",
        "no-profiler-ranges",
        "workers=1",
        "workers=4",
        "pin-memory",
    }
    assert of_class[Numerics.LOWER_PRECISION] == {"autocast=bfloat16", "autocast=float16", "tf32"}
    assert of_class[Numerics.TRAINING] == {f"batch={32 * 2**n}" for n in range(1, 6)}


@pytest.mark.parametrize("facts", [mlp(), mlp(loaders=()), convnet(), mlp(step_ns=1.0)])
@pytest.mark.parametrize("on_device", [CPU, CUDA])
def test_predictions_are_shares_and_seconds(facts: StepFacts, on_device: dict[str, bool]) -> None:
    facts = StepFacts(**{**vars_of(facts), **on_device})
    for each in all_candidates(facts, tries_batch_size=True):
        assert 0.0 <= each.expected_gain(facts) <= 1.0, each.name
        assert 0.0 <= each.expected_cost_s(facts) < 600.0, each.name


def vars_of(facts: StepFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in StepFacts.__dataclass_fields__}


def gains(facts: StepFacts, *names: str) -> list[float]:
    return [named(name).expected_gain(facts) for name in names]


def test_cheap_and_large_gains_of_a_launch_bound_step_come_first() -> None:
    facts = mlp()

    def per_s(name: str) -> float:
        candidate = named(name)
        # Some runs of a second are made of each.
        return candidate.expected_gain(facts) / (5.0 + candidate.expected_cost_s(facts))

    order = ("gather-batches", "fused-optimizer")
    assert [*sorted(order, key=per_s, reverse=True)] == [*order]
    assert per_s("fused-optimizer") > per_s("compile")
    assert per_s("gather-batches") > per_s("workers=1")


def test_gains_follow_what_the_step_spends_its_time_on() -> None:
    launch_bound, compute_bound = mlp(), convnet()
    for name in ("fused-optimizer", "compile", "gather-batches", "no-profiler-ranges"):
        assert gains(launch_bound, name) > gains(compute_bound, name), name
    assert gains(compute_bound, "keep-memory") > gains(launch_bound, "keep-memory")
    # One thread for short operators, all of them for long ones.
    short, long = gains(launch_bound, "threads=1"), gains(compute_bound, "threads=1")
    assert short > long
    more = named("threads=4")
    assert more.expected_gain(mlp(num_threads=1)) < more.expected_gain(convnet(num_threads=1))
    assert gains(mlp(subnormal_fraction=0.05), "flush-denormal") > gains(
        mlp(subnormal_fraction=0.01), "flush-denormal"
    )


def test_trying_more_kernels_and_larger_steps_cost_longer_compiling() -> None:
    default, autotuned = named("compile"), named("compile=max-autotune-no-cudagraphs")
    small, large = mlp(), mlp(events=(steps.PRODUCT,) * 500)
    assert autotuned.expected_cost_s(small) > default.expected_cost_s(small) > 0.0
    assert default.expected_cost_s(large) > default.expected_cost_s(small)


def test_every_field_has_a_setting_that_is_offered_in_its_order() -> None:
    """A setting without a value to try would never be tried; one is set along with another."""
    assert list(SETTINGS) == list(Configuration.__struct_fields__)
    offered = [each.setting.name for each in all_candidates(mlp(), tries_batch_size=True)]
    untried = [name for name in SETTINGS if name not in offered]
    assert untried == ["loader_batch_size"]
    assert offered == sorted(offered, key=list(SETTINGS).index)


def test_threads_that_were_tried_promise_what_they_brought() -> None:
    tried = mlp(step_ns=20e6, steps_ns={1: 1e6, 4: 30e6})
    assert gains(tried, "threads=1") == [0.95]
    assert gains(tried, "threads=4") == [0.0]
