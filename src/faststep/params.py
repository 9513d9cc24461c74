"""The tensors that a step reads and writes: parameters, buffers, optimizer state."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from faststep.errors import FastStepError
from faststep.fast_path import Check, Guard
from faststep.recipe import Recipe
from faststep.several import AnyOptimizer
from faststep.updates import NumbersOf, UpdateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One parameter that the step updates.

    Args:
        name: Its first name in the model.
        param: The model's parameter.
        group: Number of its group in the optimizer.
        state: Its state tensors, in the order of the rule.
        counter: The optimizer's count of its updates, if it keeps one.
        num_steps: Number of its updates so far; 0 without a counter.
    """

    name: str
    param: nn.Parameter
    group: int
    state: tuple[Tensor, ...]
    counter: Tensor | None
    num_steps: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Parameters with the same numbers of the update: same group, updates, dtype and device."""

    group: int
    members: tuple[Trained, ...]


class Params:
    """The tensors of model and optimizer, as arguments of compiled steps.

    Args:
        trained: Parameters that the step updates.
        fixed: Other parameters and the buffers of the model, by their names.
        of_loss: Parameters and buffers of the loss, if it is a module.
        optimizer: The optimizer.
        rule: The optimizer's rule.
    """

    def __init__(
        self,
        trained: Sequence[Trained],
        fixed: Mapping[str, Tensor],
        of_loss: Mapping[str, Tensor],
        optimizer: AnyOptimizer,
        rule: UpdateRule,
    ) -> None:
        self.trained = tuple(trained)
        self.fixed_names = (*fixed, *of_loss)
        self.num_loss_fixed = len(of_loss)
        kept = (*fixed.values(), *of_loss.values())
        # The tensors that a step reads and may write, in the order of its arguments.
        self.arguments: tuple[Tensor, ...] = (
            *(one.param.detach() for one in trained),
            *kept,
            *(state for one in trained for state in one.state),
        )
        # The parameters and buffers: a step uses their addresses.
        self.owned: list[Tensor] = [*(one.param for one in trained), *kept]
        self._addresses = [tensor.data_ptr() for tensor in self.owned]
        # The optimizer's counts of steps, and one reader for each pack.
        self.counters = [one.counter for one in trained if one.counter is not None]

        def key(one: Trained) -> tuple[int, int, str, str]:
            return one.group, one.num_steps, str(one.param.dtype), str(one.param.device)

        ordered = sorted(trained, key=key)
        self.packs = tuple(Pack(k[0], tuple(members)) for k, members in groupby(ordered, key))
        self._counts = [(pack.group, _reader(pack.members[0].counter)) for pack in self.packs]
        self._optimizer = optimizer
        self._rule = rule
        # The optimizer's state: the mapping, which load_state_dict replaces; its dicts; and the
        # names and tensors in these.
        self._owner = optimizer.state
        self._states = list(self._owner.values())
        self._entries: list[tuple[dict[str, Any], str, Tensor]] = []
        for one in trained:
            names = rule.state_names(self.groups[one.group])
            found = [*zip(names, one.state, strict=True)]
            found += [] if one.counter is None else [("step", one.counter)]
            place = self._owner.get(one.param, {})
            self._entries += [(place, name, tensor) for name, tensor in found]
        has_double = any(one.param.dtype == torch.float64 for one in trained)
        self.dtype = torch.float64 if has_double else torch.float32

    @property
    def groups(self) -> Sequence[dict[str, Any]]:
        """The optimizer's groups."""
        return self._optimizer.param_groups

    @property
    def key(self) -> tuple[Any, ...]:
        """The shapes, packs and names that a compiled step is specialized for."""
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in self.arguments)
        packs = tuple((p.group, tuple(one.name for one in p.members)) for p in self.packs)
        return shapes, packs, self.fixed_names

    def is_current(self) -> bool:
        """Whether model and optimizer still hold these tensors at the same addresses."""
        return (
            list(map(Tensor.data_ptr, self.owned)) == self._addresses
            and self._optimizer.state is self._owner
            and len(self._states) == len(self._owner)
            and all(map(operator.is_, self._owner.values(), self._states))
            and all(place.get(name) is tensor for place, name, tensor in self._entries)
        )

    def guards(self) -> Iterator[Guard]:
        """Yield the checks of ``is_current`` as guards of the fast path."""
        for tensor, address in zip(self.owned, self._addresses, strict=True):
            yield Check.ADDRESS, tensor, None, address
        yield Check.ITEM, self._optimizer.__dict__, "state", self._owner
        yield Check.VALUES, self._owner, None, list(self._owner.values())
        for place, name, tensor in self._entries:
            yield Check.ITEM, place, name, tensor

    def numbers(self, num_steps: int) -> Tensor:
        """Compute the numbers of the next updates, one row for each step."""
        rows: list[list[float]] = [[] for _ in range(num_steps)]
        for number, read in self._counts:
            options, step = NumbersOf(self.groups[number]), int(read())
            for row in rows:
                step += 1
                row += self._rule.scalars(options, step)
        return torch.tensor(rows, dtype=self.dtype, device=self.owned[0].device)

    def counts(self) -> list[float]:
        """Return the number of updates of each pack so far."""
        return [read() for _, read in self._counts]

    def count(self, num_steps: int) -> None:
        """Add to the optimizer's counts of steps."""
        if self.counters:  # one call for all, as in the stock optimizers
            torch._foreach_add_(self.counters, num_steps)  # pyright: ignore

    def mark_written(self) -> None:
        """Increment the version counters: autograd does not see writes of generated code."""
        torch.autograd.graph.increment_version(self.owned)


def _reader(counter: Tensor | None) -> Callable[[], float]:
    """Return a reader of a step count; reading by address takes a tenth of ``item``'s time."""
    if counter is None:
        return lambda: 0
    if counter.device.type == "cpu" and counter.dtype == torch.float32:
        place = ctypes.c_float.from_address(counter.data_ptr())
        return lambda: place.value
    return counter.item


def read_params(recipe: Recipe, optimizer: AnyOptimizer, names: frozenset[str]) -> Params | None:
    """Read the tensors of a step; return None if the optimizer has no state for them yet.

    Args:
        recipe: The computation of a step.
        optimizer: The optimizer.
        names: Names of the parameters that get gradients.

    Raises:
        FastStepError: The optimizer counts the steps of a parameter without a tensor.
    """
    params = dict(recipe.model.named_parameters())
    groups = {
        id(param): number
        for number, group in enumerate(optimizer.param_groups)
        for param in group["params"]
    }
    trained: list[Trained] = []
    for name, param in params.items():
        number = groups.get(id(param))
        if name not in names or number is None:
            continue
        wanted = recipe.rule.state_names(optimizer.param_groups[number])
        place = optimizer.state.get(param, {})
        if any(place.get(state) is None for state in wanted):
            return None
        counter = place.get("step")
        if counter is not None and not isinstance(counter, Tensor):
            raise FastStepError(f"the optimizer's step count of {name} is not a tensor")
        trained.append(
            Trained(
                name=name,
                param=param,
                group=number,
                state=tuple(place[state] for state in wanted),
                counter=counter,
                num_steps=0 if counter is None else int(counter.item()),
            )
        )
    updated = {one.name for one in trained}
    fixed = {name: param.detach() for name, param in params.items() if name not in updated}
    fixed |= dict(recipe.model.named_buffers())
    of_loss: dict[str, Tensor] = {}
    if isinstance(recipe.loss_fn, nn.Module):
        of_loss = {name: param.detach() for name, param in recipe.loss_fn.named_parameters()}
        of_loss |= dict(recipe.loss_fn.named_buffers())
    return Params(trained, fixed, of_loss, optimizer, recipe.rule)


def check_params(model: nn.Module, optimizer: AnyOptimizer) -> None:
    """Refuse parameters and modules that a compiled step would update differently.

    Raises:
        FastStepError: Names the parameter or module, with a hint.
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
    """Return detached copies of tensors, with the same shapes and strides."""
    return tuple(tensor.detach().clone() for tensor in tensors)
