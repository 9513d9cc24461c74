"""The compiled step of a Stable-Baselines3 agent, kept from one ``train`` to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.engines import Engine
from faststep.fast import FastStep, fast_step
from faststep.recipe import as_output


class AgentLoss(nn.Module):
    """The loss of an agent and its logged values, from a batch of its buffer.

    Args:
        policy: The agent's networks.
        num_numbers: Number of the loss's coefficients that may change between two steps.
    """

    numbers: Tensor

    def __init__(self, policy: nn.Module, num_numbers: int) -> None:
        super().__init__()
        self.policy: Any = policy
        param = next(policy.parameters())
        numbers = torch.zeros(num_numbers, dtype=param.dtype, device=param.device)
        self.register_buffer("numbers", numbers)
        self._given: list[float] = []

    def set_numbers(self, *numbers: float) -> None:
        """Set the coefficients for the next steps."""
        given = [float(number) for number in numbers]
        if given != self._given:
            self.numbers.copy_(torch.tensor(given))
            self._given = given


@contextlib.contextmanager
def as_it_was(distribution: Any) -> Iterator[None]:
    """Restore a distribution's attributes at the end: traced tensors have no values."""
    before = dict(vars(distribution))
    try:
        yield
    finally:
        vars(distribution).clear()
        vars(distribution).update(before)


def unpack_replay(data: Any) -> tuple[Any, ...]:
    """Return a batch of a replay buffer in the order of the losses' arguments."""
    given = data.observations, data.actions, data.next_observations
    return *given, data.dones, data.rewards, data.discounts


class AgentStep:
    """A compiled step of an agent; builds a new one if networks, optimizer or options change.

    It holds networks, not the agent: the agent can be freed.

    Args:
        engine: As for ``fast_step``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine = engine
        self._made_for: Sequence[Any] = ()
        self.loss: Any = None
        self.step: Any = None

    def prepare(
        self,
        make_loss: Callable[[], nn.Module],
        policy: nn.Module,
        optimizer: Optimizer,
        max_grad_norm: float | None = None,
        *options: Any,
    ) -> FastStep:
        """Return the step for these networks; reuse the last one if nothing has changed.

        Args:
            make_loss: Returns the loss for these networks.
            policy: The agent's networks.
            optimizer: The optimizer that updates them.
            max_grad_norm: As for ``fast_step``.
            options: Options that the loss reads in Python.
        """
        made_for = (policy, optimizer, max_grad_norm, *options)
        if made_for != self._made_for:
            self.loss = make_loss()
            self.step = fast_step(
                self.loss,
                as_output,
                optimizer,
                max_grad_norm=max_grad_norm,
                engine=self._engine,
                has_aux=True,
            )
            self._made_for = made_for
        return self.step
