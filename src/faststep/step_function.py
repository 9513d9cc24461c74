"""A step as a function of a flat list of tensors: parameters, state, batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from faststep.batch import Batch
from faststep.errors import FastStepError
from faststep.params import Params
from faststep.recipe import Recipe, compute_loss, detached, stack_results
from faststep.several import JointOptimizer, OwnUpdates, owners_of


def make_step(
    recipe: Recipe, params: Params, batch: Batch, num_steps: int
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of all tensors that does the steps in place and returns the losses.

    It also returns the auxiliary tensors, detached; for several steps, stacked.

    Its arguments are ``params.arguments``, the numbers of the updates (one row for each step), the
    tensors of the batch, and for several steps the indices of their samples.
    """
    if recipe.updating is not None:
        return _make_updating_step(recipe, recipe.updating, params, batch)
    places = {one.name: place for place, one in enumerate(params.trained)}
    first_loss = len(params.fixed_names) - params.num_loss_fixed
    device_type = params.trained[0].param.device.type

    def step(*args: Tensor) -> tuple[Tensor, ...]:
        given = _read(args, params, batch)
        named_fixed = list(zip(params.fixed_names, given.fixed, strict=True))
        of_model, of_loss = dict(named_fixed[:first_loss]), dict(named_fixed[first_loss:])
        values, states = list(given.params), list(given.states)
        results: list[tuple[Tensor, ...]] = []
        for number in range(num_steps):
            chosen = given.batch
            if num_steps > 1:
                (indices,) = given.indices
                chosen = tuple(tensor[indices[number]] for tensor in chosen)
            leaves = [value.detach().requires_grad_() for value in values]
            named = dict(zip(places, leaves, strict=True)) | of_model
            inputs, targets = batch.rebuild(chosen, is_traced=True)
            with _without_validation():
                found = compute_loss(recipe, inputs, targets, named, of_loss, device_type)
            grads = torch.autograd.grad(found[0], leaves)
            with torch.no_grad():
                if recipe.max_grad_norm is not None:  # mirrors ``clip_grad_norm_``
                    norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
                    factor = torch.clamp(recipe.max_grad_norm / (norm + 1e-6), max=1.0)
                    grads = tuple(grad * factor for grad in grads)
                numbers = _numbers_of(params, given.numbers[number])
                for scalars, pack in zip(numbers, params.packs, strict=True):
                    for place in (places[one.name] for one in pack.members):
                        values[place], states[place] = recipe.rule.update(
                            values[place],
                            grads[place],
                            states[place],
                            scalars,
                            recipe.groups[pack.group],
                        )
            results.append(detached(found))
        with torch.no_grad():
            for old, new in zip(given.params, values, strict=True):
                old.copy_(new)
            for old_state, new_state in zip(given.states, states, strict=True):
                for old, new in zip(old_state, new_state, strict=True):
                    old.copy_(new)
        return stack_results(results) if num_steps > 1 else results[0]

    return step


def _make_updating_step(
    recipe: Recipe, optimizer: JointOptimizer, params: Params, batch: Batch
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function of ``make_step`` for a single step whose loss function updates."""
    names = [one.name for one in params.trained]
    device_type = params.trained[0].param.device.type
    rows = {one.name: row for row, pack in enumerate(params.packs) for one in pack.members}
    owners = owners_of(optimizer)

    def step(*args: Tensor) -> tuple[Tensor, ...]:
        given = _read(args, params, batch)
        # Share memory with the arguments, so that later operators see an update.
        leaves = [param.detach().requires_grad_() for param in given.params]
        numbers = _numbers_of(params, given.numbers[0])
        inputs, targets = batch.rebuild(given.batch, is_traced=True)
        named = dict(zip(names, leaves, strict=True))
        named |= dict(zip(params.fixed_names, given.fixed, strict=True))

        def update(number: int) -> None:
            for one, leaf, state in zip(params.trained, leaves, given.states, strict=True):
                if owners[one.group] != number:
                    continue
                if leaf.grad is None:
                    raise FastStepError(f"{one.name} gets gradients in some steps only")
                with torch.no_grad():
                    group = recipe.groups[one.group]
                    new, new_state = recipe.rule.update(
                        leaf.detach(), leaf.grad, state, numbers[rows[one.name]], group
                    )
                    leaf.copy_(new)
                    for old, value in zip(state, new_state, strict=True):
                        old.copy_(value)

        run = OwnUpdates(recipe.model, optimizer, named, update)
        with _without_validation(), run.replaced():
            found = compute_loss(recipe, inputs, targets, named, {}, device_type)
        return detached(found)

    return step


class _Given(NamedTuple):
    """The arguments of a step.

    Args:
        params: Trained parameters.
        fixed: Other parameters, and buffers.
        states: The optimizer's state of each trained parameter.
        numbers: The numbers of the updates, a row for each step.
        batch: The tensors of the batch, or of the data set.
        indices: One tensor, the samples of each step, for several steps; else empty.
    """

    params: tuple[Tensor, ...]
    fixed: tuple[Tensor, ...]
    states: list[tuple[Tensor, ...]]
    numbers: Tensor
    batch: tuple[Tensor, ...]
    indices: tuple[Tensor, ...]


def _read(args: Sequence[Tensor], params: Params, batch: Batch) -> _Given:
    rest = iter(args)

    def take(count: int) -> tuple[Tensor, ...]:
        return tuple(next(rest) for _ in range(count))

    return _Given(
        params=take(len(params.trained)),
        fixed=take(len(params.fixed_names)),
        states=[take(len(one.state)) for one in params.trained],
        numbers=next(rest),
        batch=take(len(batch.tensors)),
        indices=tuple(rest),
    )


def _numbers_of(params: Params, row: Tensor) -> list[tuple[Tensor, ...]]:
    """Split the numbers of a step's update by pack."""
    return [numbers.unbind() for numbers in row.view(len(params.packs), -1).unbind()]


@contextlib.contextmanager
def _without_validation() -> Iterator[None]:
    """Disable the argument checks of distributions: a check reads values in Python."""
    kind = torch.distributions.Distribution
    before = kind._validate_args  # pyright: ignore[reportPrivateUsage]
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)
