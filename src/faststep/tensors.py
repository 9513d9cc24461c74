"""The tensors that a training step reads and writes: parameters, buffers, optimizer state."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from faststep.errors import FastStepError
from faststep.joint_optimizer import AnyOptimizer
from faststep.quick_call import Check, Guard
from faststep.update_numbers import NumbersOf, UpdateNumbers
from faststep.update_rules import UpdateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One parameter that the step updates.

    Args:
        name: Its first name in the model.
        param: The model's own.
        group: Number of its group in the optimizer.
        state: Its state tensors, in the order of the rule.
        counter: The optimizer's count of its steps, where it keeps one.
        num_steps: Updates that it has had.
    """

    name: str
    param: nn.Parameter
    group: int
    state: tuple[Tensor, ...]
    counter: Tensor | None
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """Everything that a step touches, and how to tell that it is still the same.

    Args:
        trained: Parameters that are updated.
        fixed_names: Names of the other parameters, and of the buffers, of model and loss.
        fixed: These tensors.
        num_loss_fixed: How many of the fixed ones, at their end, are the loss's.
        owner: The optimizer's ``state`` when this was read; it gets another one by loading.
        entries: Where the optimizer keeps each state tensor: its dict, the name, the tensor.
    """

    trained: tuple[Trained, ...]
    fixed_names: tuple[str, ...]
    fixed: tuple[Tensor, ...]
    num_loss_fixed: int
    owner: Any
    entries: tuple[tuple[dict[str, Any], str, Tensor], ...]

    @property
    def written(self) -> tuple[Tensor, ...]:
        """Return the tensors that a step reads and may write, in the order of a compiled step."""
        params = tuple(one.param.detach() for one in self.trained)
        states = tuple(state for one in self.trained for state in one.state)
        return (*params, *self.fixed, *states)

    @property
    def counters(self) -> tuple[Tensor, ...]:
        """Return the optimizer's counts of steps, which a compiled step does not touch."""
        return tuple(one.counter for one in self.trained if one.counter is not None)


def read_tensors(
    model: nn.Module, loss_fn: Any, optimizer: AnyOptimizer, rule: UpdateRule, names: frozenset[str]
) -> StepTensors | None:
    """Return the tensors of a step, or None while the optimizer has no state for them yet.

    Args:
        model: The model.
        loss_fn: The loss; its own parameters and buffers are read too, where it is a module.
        optimizer: The optimizer.
        rule: The optimizer's rule.
        names: Parameters that get gradients.
    """
    params = dict(model.named_parameters())
    groups = {
        id(param): number
        for number, group in enumerate(optimizer.param_groups)
        for param in group["params"]
    }
    trained: list[Trained] = []
    entries: list[tuple[dict[str, Any], str, Tensor]] = []
    for name, param in params.items():
        number = groups.get(id(param))
        if name not in names or number is None:
            continue
        wanted = rule.state_names(optimizer.param_groups[number])
        place = optimizer.state.get(param, {})
        if any(place.get(state) is None for state in wanted):
            return None
        counter = place.get("step")
        if counter is not None and not isinstance(counter, Tensor):
            raise FastStepError(f"the optimizer's step count of {name} is not a tensor")
        kept = tuple(place[state] for state in wanted)
        found = zip(wanted, kept, strict=True)
        entries.extend((place, state, tensor) for state, tensor in found)
        if counter is not None:
            entries.append((place, "step", counter))
        num_steps = 0 if counter is None else int(counter.item())
        trained.append(
            Trained(
                name=name,
                param=param,
                group=number,
                state=kept,
                counter=counter,
                num_steps=num_steps,
            )
        )
    updated = {one.name for one in trained}
    fixed = {name: param.detach() for name, param in params.items() if name not in updated}
    fixed |= dict(model.named_buffers())
    of_loss: dict[str, Tensor] = {}
    if isinstance(loss_fn, nn.Module):
        of_loss = {name: param.detach() for name, param in loss_fn.named_parameters()}
        of_loss |= dict(loss_fn.named_buffers())
    return StepTensors(
        trained=tuple(trained),
        fixed_names=(*fixed, *of_loss),
        fixed=(*fixed.values(), *of_loss.values()),
        num_loss_fixed=len(of_loss),
        owner=optimizer.state,
        entries=tuple(entries),
    )


def check_tensors(model: nn.Module, optimizer: AnyOptimizer) -> None:
    """Refuse what a compiled step would compute differently.

    Raises:
        FastStepError: Names what it is, and what to do.
    """
    own = {id(param) for param in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if id(param) not in own:
                raise FastStepError(
                    f"group {number} of the optimizer holds a parameter that is not the model's",
                    hint="Put everything that is trained into one nn.Module.",
                )
            if param.is_complex():
                raise FastStepError("fast_step cannot train complex parameters")
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise FastStepError(
                f"the gradients of {name} are sparse, and a compiled update needs dense ones",
                hint="Build the embedding with sparse=False.",
            )


def clone_all(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return copies that keep shapes and strides."""
    return tuple(tensor.detach().clone() for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Pack:
    """Parameters whose update uses the same numbers: of one group, after equally many steps."""

    group: int
    members: tuple[Trained, ...]


def make_packs(tensors: StepTensors) -> tuple[Pack, ...]:
    """Return the packs of all trained parameters."""

    def key(one: Trained) -> tuple[int, int, str, str]:
        return one.group, one.num_steps, str(one.param.dtype), str(one.param.device)

    ordered = sorted(tensors.trained, key=key)
    return tuple(Pack(key_[0], tuple(members)) for key_, members in groupby(ordered, key))


def _reader(counter: Tensor | None) -> Callable[[], float]:
    """Return what reads a count of steps; by its address where it can, which takes a tenth."""
    if counter is None:
        return lambda: 0
    if counter.device.type == "cpu" and counter.dtype == torch.float32:
        place = ctypes.c_float.from_address(counter.data_ptr())
        return lambda: place.value
    return counter.item


class BoundTensors:
    """The tensors of model and optimizer, as arguments of compiled steps.

    Args:
        tensors: What was read from model and optimizer.
        optimizer: The optimizer.
        rule: The optimizer's rule.
    """

    def __init__(self, tensors: StepTensors, optimizer: AnyOptimizer, rule: UpdateRule) -> None:
        self.tensors = tensors
        self.packs = make_packs(tensors)
        self.arguments = tensors.written
        self._optimizer = optimizer
        self._rule = rule
        owned = [one.param for one in tensors.trained]
        self._owned = [*owned, *tensors.fixed]
        self._places = [tensor.data_ptr() for tensor in self._owned]
        # Where the optimizer keeps its state: dicts and names; and the tensors that these held.
        self._entries = [entry[0] for entry in tensors.entries], [e[1] for e in tensors.entries]
        self._states = list(tensors.owner.values())
        self._kept = [entry[2] for entry in tensors.entries]
        self._counters = list(tensors.counters)
        # One counter of each pack: all of it has had as many steps.
        self._counts = [(pack.group, _reader(pack.members[0].counter)) for pack in self.packs]
        has_double = any(param.dtype == torch.float64 for param in owned)
        self.dtype = torch.float64 if has_double else torch.float32
        self._device = owned[0].device

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step depends on, of these tensors."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.arguments)
        packs = tuple((p.group, tuple(one.name for one in p.members)) for p in self.packs)
        return shapes, packs, self.tensors.fixed_names

    def is_current(self) -> bool:
        """Return whether model and optimizer still use these tensors."""
        return (
            list(map(Tensor.data_ptr, self._owned)) == self._places
            and self._optimizer.state is self.tensors.owner
            and len(self._states) == len(self.tensors.owner)
            and all(map(operator.is_, self.tensors.owner.values(), self._states))
            and all(map(operator.is_, map(dict.get, *self._entries), self._kept))
        )

    def numbers(self, num_steps: int) -> Tensor:
        """Return the numbers of the next updates as a tensor, one row for each step."""
        groups, scalars = self._optimizer.param_groups, self._rule.scalars
        rows: list[list[float]] = [[] for _ in range(num_steps)]
        for number, read in self._counts:
            options, step = NumbersOf(groups[number]), int(read())
            for row in rows:
                step += 1
                row += scalars(options, step)
        return torch.tensor(rows, dtype=self.dtype, device=self._device)

    def update_numbers(self) -> UpdateNumbers:
        """Return the C code of these numbers."""
        groups = self._optimizer.param_groups
        return UpdateNumbers(self._rule, groups, [pack.group for pack in self.packs])

    @property
    def groups(self) -> Sequence[dict[str, Any]]:
        """Return the optimizer's groups."""
        return self._optimizer.param_groups

    def guards(self) -> Iterator[Guard]:
        """Yield what must hold for these tensors to be in use still."""
        for tensor, place in zip(self._owned, self._places, strict=True):
            yield Check.ADDRESS, tensor, None, place
        owner = self.tensors.owner
        yield Check.ITEM, self._optimizer.__dict__, "state", owner
        yield Check.VALUES, owner, None, list(owner.values())
        for place, name, tensor in self.tensors.entries:
            yield Check.ITEM, place, name, tensor

    def counts(self) -> list[float]:
        """Return how many updates each pack has had."""
        return [read() for _, read in self._counts]

    def count(self, num_steps: int) -> None:
        """Tell the optimizer that so many steps were done."""
        if self._counters:  # as the stock optimizers count: one call for all of them
            torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
                self._counters, num_steps
            )

    @property
    def owned(self) -> list[Tensor]:
        """Return the parameters and buffers, which a step writes to or reads."""
        return self._owned

    def mark_written(self) -> None:
        """Tell autograd that the tensors were written to, by other means than torch's."""
        torch.autograd.graph.increment_version(self._owned)
