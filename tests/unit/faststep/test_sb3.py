"""Agents of Stable-Baselines3 that train by whole steps do what the stock ones do."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import breakeven
from factories.sampled import sampled
from faststep import FastStepError
from faststep.sb3 import stable_baselines3 as adapter

# Where samples are left over, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")


def made_up(name: str, **members: Any) -> Any:
    """Return an agent of a class that says it is one of Stable-Baselines3."""
    module = f"stable_baselines3.{name.lower()}.{name.lower()}"
    return type(name, (), {"__module__": module, "train": lambda self: None, **members})()


def test_what_is_no_agent_that_is_known_is_refused() -> None:
    with pytest.raises(FastStepError, match="cannot train object"):
        breakeven.fast_sb3(object())
    with pytest.raises(FastStepError, match="cannot train HER"):
        breakeven.fast_sb3(made_up("HER"))


def test_a_version_whose_training_is_not_known_is_refused() -> None:
    with pytest.raises(FastStepError, match=r"PPO\.train\(\) of this Stable") as caught:
        breakeven.fast_sb3(made_up("PPO"))
    assert "2.7" in (caught.value.hint or "")


def test_an_agent_with_a_training_of_its_own_is_refused() -> None:
    kind = type(made_up("PPO"))
    own = type("MyPPO", (kind,), {"train": lambda self: None})
    with pytest.raises(FastStepError, match="MyPPO overrides train"):
        breakeven.fast_sb3(own())


def agent(name: str, *, is_fast: bool, env: str = "CartPole-v1", **options: Any) -> Any:
    library = pytest.importorskip("stable_baselines3")
    pytest.importorskip("gymnasium")
    made = getattr(library, name)("MlpPolicy", env, seed=1, device="cpu", **options)
    return breakeven.fast_sb3(made, engine="generated") if is_fast else made


def trained(name: str, num_samples: int, **options: Any) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return the stock agent and the fast one, each with what it logged of its trainings."""
    found = []
    for is_fast in (False, True):
        one = agent(name, is_fast=is_fast, **options)
        logged: list[dict[str, Any]] = []
        train = type(one).train

        def watched(*args: Any, one: Any = one, train: Any = train, logged: Any = logged) -> None:
            train(one, *args)
            values = one.logger.name_to_value.items()
            logged.append({key: value for key, value in values if key.startswith("train/")})

        # As off-policy agents call it: with their numbers by name.
        one.train = lambda watched=watched, **named: watched(*named.values())
        one.learn(num_samples)
        found.append((one, logged))
    return found


SMALL = {"policy_kwargs": {"net_arch": [16, 16]}, "batch_size": 32}
CASES = [
    ("PPO", {"n_steps": 80, "n_epochs": 3}),  # 64 samples, and 16 that are left over
    (
        "PPO",
        {
            "env": "Pendulum-v1",
            "n_steps": 128,
            "n_epochs": 2,
            "clip_range": lambda left: 0.3 * left,
            "clip_range_vf": 0.5,
            "learning_rate": lambda left: 1e-3 * left,
            "ent_coef": 0.01,
            "normalize_advantage": False,
        },
    ),
    ("PPO", {"n_steps": 128, "target_kl": 1e-3, "learning_rate": 1e-3}),
    ("A2C", {"normalize_advantage": True}),
    ("A2C", {"env": "Pendulum-v1", "use_rms_prop": False}),
    ("DQN", {"learning_starts": 50, "gradient_steps": 2, "target_update_interval": 40}),
    ("DQN", {"learning_starts": 50, "n_steps": 3}),
    *[
        (name, {"env": "Pendulum-v1", "learning_starts": 300, **SMALL, **options})
        for name, options in (
            ("TD3", {}),
            ("DDPG", {"train_freq": 4, "gradient_steps": 4, "tau": 0.05}),
            ("SAC", {}),
            ("SAC", {"ent_coef": 0.1, "target_update_interval": 2, "gradient_steps": 2}),
        )
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), sampled(CASES, "PPO", "DDPG"))
def test_a_fast_agent_learns_and_logs_as_the_stock_one(name: str, options: dict[str, Any]) -> None:
    (stock, wanted), (fast, logged) = trained(name, 400, **options)
    assert fast.num_timesteps == stock.num_timesteps
    assert len(logged) == len(wanted) > 0
    for one, other in zip(wanted, logged, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            assert other[key] == pytest.approx(value, rel=1e-3, abs=1e-4), key
    for key, value in stock.policy.state_dict().items():
        torch.testing.assert_close(fast.policy.state_dict()[key], value, rtol=1e-3, atol=1e-4)
    steps = [
        one.step.engine for one in vars(adapter._trainings[fast]).values() if one.step is not None
    ]
    assert steps
    assert set(steps) == {"generated C"}


@pytest.mark.slow
def test_early_stopping_takes_the_last_update_back() -> None:
    """Of ten epochs, the first batch beyond the limit ends them, and trains nothing."""
    (stock, wanted), (fast, logged) = trained("PPO", 256, **CASES[2][1])
    assert wanted[0]["train/n_updates"] < 10
    assert [one["train/n_updates"] for one in logged] == [one["train/n_updates"] for one in wanted]
    steps = [
        next(iter(one.policy.optimizer.state.values()))["step"].item() for one in (stock, fast)
    ]
    assert steps[0] == steps[1]


def test_options_that_are_not_known_are_refused_at_once() -> None:
    noisy = agent("SAC", is_fast=False, env="Pendulum-v1", use_sde=True, **SMALL)
    with pytest.raises(FastStepError, match="use_sde"):
        breakeven.fast_sb3(noisy)
    module = "stable_baselines3.common.sb2_compat.rmsprop_tf_like"
    kind = pytest.importorskip(module).RMSpropTFLike
    other = agent("A2C", is_fast=False, policy_kwargs={"optimizer_class": kind})
    with pytest.raises(FastStepError, match="RMSpropTFLike"):
        breakeven.fast_sb3(other)
    assert not hasattr(other, "trains_by_whole_steps")


def test_a_copy_of_an_agent_trains_networks_of_its_own() -> None:
    fast = agent("DQN", is_fast=True, learning_starts=5)
    fast.learn(20)
    other = copy.deepcopy(fast)
    before = copy.deepcopy(fast.policy.state_dict())
    other.train(4, 8)
    for key, value in before.items():
        assert torch.equal(fast.policy.state_dict()[key], value)
    assert not torch.equal(other.q_net.q_net[0].weight, fast.q_net.q_net[0].weight)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_a_fast_agent_is_saved_and_loaded_as_a_stock_one(tmp_path: Path) -> None:
    fast = agent("PPO", is_fast=True, n_steps=64)
    kind = type(fast).__mro__[1]
    assert isinstance(fast, kind)
    assert breakeven.fast_sb3(fast) is fast
    fast.learn(192)
    fast.save(tmp_path / "agent")
    loaded = kind.load(tmp_path / "agent", device="cpu")
    assert type(loaded) is kind
    for key, value in fast.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[key], value)
    # Other networks in the same agent: what was compiled for the old ones is not used.
    fast.set_parameters(tmp_path / "agent.zip", device="cpu")
    fast.learn(64)
    loaded.set_env(fast.get_env())
    assert breakeven.fast_sb3(loaded).learn(64).num_timesteps == 64
