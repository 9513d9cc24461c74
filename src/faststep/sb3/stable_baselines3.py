"""`fast_sb3`: agents of Stable-Baselines3 that train by whole steps.

This module does not import Stable-Baselines3; it inspects the agent's class.
"""

from __future__ import annotations

import hashlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from faststep.engines import Engine
from faststep.errors import FastStepError
from faststep.sb3.off_policy import DqnTraining, SacTraining, Td3Training
from faststep.sb3.on_policy import A2cTraining, PpoTraining
from faststep.updates import find_rule

Agent = TypeVar("Agent")


# The replacement of each algorithm's ``train``, and the digest of the original: another version
# may compute something else. The digests are those of Stable-Baselines3 2.7 to 2.9.
_KNOWN: dict[str, tuple[Callable[[Any, Engine], Any], str]] = {
    "PPO": (PpoTraining, "d83f46cebc255752"),
    "A2C": (A2cTraining, "7c0c35694562ba21"),
    "DQN": (DqnTraining, "3e298c5e2f7a31ed"),
    "SAC": (SacTraining, "44f3f37232059523"),
    "TD3": (Td3Training, "b051fbc29eaa0783"),  # also DDPG, a subclass
}
_trainings: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def fast_sb3(model: Agent, *, engine: Engine = "auto") -> Agent:
    """Make an agent of Stable-Baselines3 train by whole steps; return the agent.

    Each minibatch of ``train`` is one call of a `fast_step`, with the batches, random
    numbers and logged values of the stock algorithm. ``learn``, callbacks and ``save`` do not
    change; ``load`` returns a stock agent.

    Args:
        model: A ``PPO``, ``A2C``, ``DQN``, ``SAC``, ``TD3`` or ``DDPG``.
        engine: As for ``fast_step``.

    Raises:
        FastStepError: The algorithm, its ``train``, the version of Stable-Baselines3, an option or
            the optimizer is not supported.
    """
    given: Any = model
    stock = type(given)
    if getattr(stock, "trains_by_whole_steps", False):
        return model
    library = [one for one in stock.__mro__ if one.__module__.startswith("stable_baselines3.")]
    kind = next((one for one in library if one.__name__ in _KNOWN), None)
    if kind is None:
        raise FastStepError(
            f"fast_sb3 cannot train {stock.__name__}",
            hint=f"It knows {', '.join(_KNOWN)} of stable_baselines3.",
        )
    if stock.train is not kind.train:
        raise FastStepError(
            f"{stock.__name__} overrides train(), which fast_sb3 does not support",
            hint=f"It knows that of stable_baselines3's {kind.__name__}.",
        )
    make_training, digest = _KNOWN[kind.__name__]
    if _digest(kind.train) != digest:
        raise FastStepError(
            f"fast_sb3 does not know {kind.__name__}.train() of this Stable-Baselines3 version",
            hint="fast_sb3 knows versions 2.7 to 2.9.",
        )

    for module in given.policy.modules():
        optimizer = getattr(module, "optimizer", None)
        if optimizer is not None:
            find_rule(optimizer)
    _trainings[given] = make_training(given, engine)

    def train(self: Any, *args: Any, **kwargs: Any) -> None:
        # A copy of the agent has other networks: give it a training.
        training = _trainings.get(self)
        if training is None:
            training = _trainings[self] = make_training(self, engine)
        training.train(self, *args, **kwargs)

    # Replace the class, not an attribute: ``save`` would store an attribute.
    members = {"train": train, "trains_by_whole_steps": True, "__module__": stock.__module__}
    given.__class__ = type(stock.__name__, (stock,), members)
    return model


def _digest(function: Any) -> str:
    """Return a digest of a function's source without comments and indentation."""
    lines = [line.split("  #")[0].strip() for line in inspect.getsource(function).splitlines()]
    text = "".join(line for line in lines if not line.startswith("#"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
