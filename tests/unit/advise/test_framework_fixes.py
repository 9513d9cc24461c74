"""Fixes of findings in steps that a framework runs: arguments that the framework has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from breakeven.advise import Finding, all_rules, diagnose
from breakeven.advise.framework import load_frameworks
from breakeven.trace import (
    Event,
    HostWork,
    OptimizerFacts,
    Phase,
    RunFacts,
    Sync,
)
from factories.cases import findings_of, made_up_case
from factories.steps import at, loader_facts, op, tensor

FIT, OWN = 7, 2
PACKAGES = {
    "transformers": "transformers.trainer:Trainer.train",
    "lightning": "lightning.pytorch.trainer.trainer:Trainer.fit",
    "stable_baselines3": "stable_baselines3.ppo.ppo:PPO.learn",
    "accelerate": "accelerate.accelerator:Accelerator.backward",
}
CODES = {rule.code for rule in all_rules()}


def findings(
    framework: str | None, *events: Event, source: str = "", facts: RunFacts | None = None,
    frames: tuple[str, ...] = (),
) -> dict[str, Finding]:  # fmt: skip
    """Return what is found by code; events of line 7 lie below it, in functions of a framework."""
    below = (PACKAGES[framework], *frames) if framework is not None else ()
    placed = tuple(
        msgspec.structs.replace(
            event, stack=0 if event.location is not None and event.location.line == FIT else 1
        )
        for event in events
    )
    case = made_up_case(
        *placed, source=source, stacks=((at(FIT),), (at(OWN),)), facts=facts,
        frames=(below, ()) if below else None,
    )  # fmt: skip
    return {one.finding.code: one.finding for one in diagnose(case)}


def read(line: int) -> Sync:
    return Sync(kind="item", num_bytes=4, location=at(line))


KERNEL = op(1_000_000, host_ns=10, line=FIT)


def test_a_wait_below_a_trainers_line_is_fixed_by_its_arguments() -> None:
    inside = ("transformers.trainer:Trainer._maybe_log_save_evaluate",)
    found = findings("transformers", KERNEL, read(FIT), frames=inside)["SYNC001"]
    assert found.fix == "TrainingArguments(logging_steps=500, logging_nan_inf_filter=False)"
    # The line stays the user's, what is below it comes beside.
    assert (found.file, found.line) == ("train.py", FIT)
    assert found.frames == (PACKAGES["transformers"], *inside)


def test_a_line_of_ones_own_is_fixed_there() -> None:
    found = findings("lightning", KERNEL, read(OWN))["SYNC001"]
    assert found.line == OWN
    assert found.frames == ()
    assert found.fix.startswith("keep the value on the GPU")


def test_without_a_framework_nothing_is_said_of_one() -> None:
    found = findings(None, KERNEL, read(FIT))["SYNC001"]
    assert found.frames == ()
    assert found.fix.startswith("keep the value on the GPU")


def test_a_library_that_runs_no_step_is_no_framework() -> None:
    generate = "transformers.generation.utils:GenerationMixin.generate"
    below = msgspec.structs.replace(read(FIT), stack=0)
    case = made_up_case(KERNEL, below, stacks=((at(FIT),),), frames=((generate,),))
    assert "TrainingArguments" not in " ".join(one.finding.fix for one in diagnose(case))


@pytest.mark.parametrize(
    ("framework", "fix"),
    [
        (
            "transformers",
            "TrainingArguments(per_device_train_batch_size=...) larger, or "
            'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")',
        ),
        (
            "lightning",
            "DataLoader(..., batch_size=...) larger, or "
            'trainer.fit(torch.compile(model, mode="reduce-overhead"), ...)',
        ),
        (
            "stable_baselines3",
            "PPO(..., batch_size=...) larger; no argument compiles the policy",
        ),
        (
            "accelerate",
            'a larger batch, or torch.compile(mode="reduce-overhead"), as by '
            'Accelerator(dynamo_backend="cudagraphs")',
        ),
        (None, 'a larger batch, or torch.compile(mode="reduce-overhead")'),
    ],
)
def test_a_fault_of_the_whole_step_is_fixed_by_arguments(framework: str | None, fix: str) -> None:
    small = [op(10, host_ns=1_000, line=FIT) for _ in range(20)]
    found = findings(framework, *small)
    assert found["LAUNCH001"].fix == fix
    assert found["LAUNCH001"].frames == ()


def test_what_is_no_argument_is_said_to_be_none() -> None:
    masked = Sync(kind="nonzero", num_bytes=8, location=at(FIT))
    inside = ("transformers.trainer:Trainer.training_step", "transformers.trainer:Trainer.loss")
    found = findings("transformers", KERNEL, masked, frames=inside)["SYNC003"]
    assert found.fix.startswith("inside transformers: not an argument; keep ")


def test_the_class_that_learns_is_named() -> None:
    found = findings(
        "stable_baselines3", KERNEL, read(FIT), frames=("stable_baselines3.ppo.ppo:PPO.x",)
    )["SYNC001"]
    assert found.fix == (
        "inside stable_baselines3: not an argument; PPO(..., batch_size=...) larger reads less "
        'often, PPO(..., device="cpu") waits for nothing'
    )


@pytest.mark.parametrize(
    ("algorithm", "fix"),
    [
        ("a2c.a2c:A2C", "A2C(..., n_steps=...) larger; no argument compiles the policy"),
        ("dqn.dqn:DQN", "DQN(..., batch_size=...) larger; no argument compiles the policy"),
    ],
)
def test_each_algorithm_has_an_argument_of_its_own_for_the_size_of_a_step(
    algorithm: str, fix: str
) -> None:
    small = tuple(
        msgspec.structs.replace(op(10, host_ns=1_000, line=FIT), stack=0) for _ in range(20)
    )
    learn = f"stable_baselines3.{algorithm}.learn"
    case = made_up_case(*small, stacks=((at(FIT),),), frames=((learn,),))
    assert fix in [one.finding.fix for one in diagnose(case)]


ADAM = "optimizer = torch.optim.Adam(model.parameters())"


@pytest.mark.parametrize(
    ("framework", "source", "fix"),
    [
        ("transformers", "", 'TrainingArguments(optim="adamw_torch_fused")'),
        # Made by the user, and handed to the Trainer.
        ("transformers", ADAM, "Adam(..., fused=True)"),
        ("lightning", ADAM, "Adam(..., fused=True), in configure_optimizers"),
        # What the policy sets where it is given no settings has to be said again.
        (
            "stable_baselines3",
            "",
            "PPO(..., policy_kwargs=dict(optimizer_kwargs=dict(fused=True, eps=1e-5)))",
        ),
        (None, ADAM, "Adam(..., fused=True)"),
    ],
)
def test_an_unfused_optimizer_is_fixed_where_it_is_made(
    framework: str | None, source: str, fix: str
) -> None:
    parameters = tuple(tensor(1000, storage=number, device="cuda:0") for number in range(20))
    update = [
        op(
            20_000, host_ns=10_000, name="aten._foreach_add_.List", phase=Phase.OPTIMIZER,
            line=FIT, inputs=parameters, outputs=parameters,
        )
        for _ in range(6)
    ]  # fmt: skip
    facts = RunFacts(
        optimizers=(
            OptimizerFacts(name="Adam", location=at(OWN if source else FIT), num_tensors=20),
        )
    )
    found = findings(framework, *update, facts=facts, source="\n" * (OWN - 1) + source)
    assert found["OPT002"].fix == fix


def test_the_loader_of_a_trainer_is_set_by_its_arguments() -> None:
    loader = loader_facts(
        location=at(FIT), num_workers=64, pin_memory=True, persistent_workers=True
    )
    loading = HostWork(kind="data", duration_ns=5_000, num_workers=64, location=at(FIT))
    facts = RunFacts(loaders=(loader,), num_cores=4)
    found = findings("transformers", loading, KERNEL, facts=facts)
    assert found["LOAD004"].fix == (
        "TrainingArguments(dataloader_num_workers=min(8, os.cpu_count() or 1))"
    )
    own = findings("lightning", loading, KERNEL, facts=facts)
    assert own["LOAD004"].fix == "DataLoader(..., num_workers=min(8, os.cpu_count() or 1))"


def test_frames_are_those_that_all_events_share() -> None:
    case = made_up_case(
        KERNEL,
        *(msgspec.structs.replace(read(FIT), stack=stack) for stack in (0, 1)),
        stacks=((at(FIT),), (at(FIT),)),
        frames=(("a:T.fit", "a:T.log", "a:T.mean"), ("a:T.fit", "a:T.log", "a:T.sum")),
    )
    assert findings_of(case)["SYNC001", FIT].frames == ("a:T.fit", "a:T.log")


# Where the classes that fixes name come from.
HOLDERS: dict[str, dict[str, str]] = {
    "transformers": {"TrainingArguments": "transformers"},
    "lightning": {
        "Trainer": "lightning.pytorch",
        "ModelCheckpoint": "lightning.pytorch.callbacks",
        "DataLoader": "torch.utils.data",
        "BatchSampler": "torch.utils.data",
        "RandomSampler": "torch.utils.data",
    },
    "stable_baselines3": {"PPO": "stable_baselines3"},
    "accelerate": {
        "Accelerator": "accelerate",
        "DataLoaderConfiguration": "accelerate.utils",
        "DataLoader": "torch.utils.data",
    },
}
ALL_FIXES = [
    (framework, code, text)
    for framework, known in load_frameworks().items()
    for code, text in known.fixes.items()
]


@pytest.mark.parametrize(("framework", "code", "text"), ALL_FIXES)
def test_each_fix_is_of_a_rule_and_names_known_classes(
    framework: str, code: str, text: str
) -> None:
    assert code in CODES
    for call in _calls(text):
        assert ast.unparse(call.func) in KNOWN_ELSEWHERE | HOLDERS[framework].keys()


# Importing a framework takes seconds.
@pytest.mark.slow
@pytest.mark.parametrize(("framework", "code", "text"), ALL_FIXES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_each_argument_exists(framework: str, code: str, text: str) -> None:
    for call in _calls(text):
        module = HOLDERS[framework].get(name := ast.unparse(call.func))
        if module is None:
            continue
        pytest.importorskip(module.partition(".")[0])
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        for keyword in call.keywords:
            assert keyword.arg in parameters, f"{code}: {text}"
            check_value(framework, str(keyword.arg), keyword.value)


# Not of a framework: torch and Python.
KNOWN_ELSEWHERE = {
    "dict", "min", "os.cpu_count", "trainer.fit", "torch.compile", "self.log",
    "torch.set_float32_matmul_precision",
    "torch.distributions.Distribution.set_default_validate_args",
}  # fmt: skip


def _calls(text: str) -> Iterator[ast.Call]:
    """Yield the calls that a fix holds, those within others too."""
    for word, meant in {
        "{algorithm}": "PPO",
        "{size}": "batch_size",
        "{eps}": ", eps=1e-5",
    }.items():
        text = text.replace(word, meant)
    for start in re.finditer(r"[A-Za-z_][\w.]*\(", text):
        for end in range(start.end(), len(text) + 1):
            try:
                found = ast.parse(text[start.start() : end], mode="eval").body
            except SyntaxError:
                continue
            assert isinstance(found, ast.Call)
            yield found
            break
        else:
            pytest.fail(f"no call at {text[start.start() :]!r}")


def check_value(framework: str, name: str, value: ast.expr) -> None:
    """Check that a framework knows the word that an argument is given."""
    allowed = ALLOWED.get((framework, name))
    if allowed is not None and isinstance(value, ast.Constant) and value.value is not ...:
        assert value.value in allowed()


def _of_transformers(name: str) -> Callable[[], list[str]]:
    return lambda: [
        member.value
        for member in getattr(importlib.import_module("transformers.training_args"), name)
    ]


def _lightning_precisions() -> list[Any]:
    from typing import get_args

    from lightning.fabric.plugins.precision import precision

    return [word for part in get_args(precision._PRECISION_INPUT) for word in get_args(part)]


def _accelerate_words(name: str) -> Callable[[], list[str]]:
    def words() -> list[str]:
        from accelerate import utils

        return [str(word).lower() for word in getattr(utils, name).list()]

    return words


ALLOWED: Mapping[tuple[str, str], Callable[[], list[Any]]] = {
    ("transformers", "optim"): _of_transformers("OptimizerNames"),
    ("transformers", "eval_strategy"): _of_transformers("IntervalStrategy"),
    ("transformers", "save_strategy"): _of_transformers("SaveStrategy"),
    ("lightning", "precision"): _lightning_precisions,
    ("accelerate", "mixed_precision"): _accelerate_words("PrecisionType"),
    ("accelerate", "dynamo_backend"): _accelerate_words("DynamoBackend"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_lightnings_log_takes_the_arguments_named() -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    parameters = inspect.signature(lightning.LightningModule.log).parameters
    (call,) = _calls(load_frameworks()["lightning"].fixes["SYNC001"].partition(", or")[0])
    assert {keyword.arg for keyword in call.keywords} <= set(parameters)


@pytest.mark.slow
def test_policies_of_stable_baselines_take_settings_of_the_optimizer() -> None:
    pytest.importorskip("gymnasium")
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.policies import ActorCriticPolicy

    assert "optimizer_kwargs" in inspect.signature(ActorCriticPolicy).parameters
