"""`breakeven.fast_step`: forward, backward and update as one compiled call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from breakeven.errors import UsageError
from breakeven.whole_step.compiled_step import CompiledStep
from breakeven.whole_step.compiling import Mode
from breakeven.whole_step.gate import StepCost, check_step_numbers
from breakeven.whole_step.hooks import call_step_hooks, refuse_hooks
from breakeven.whole_step.step_function import Batch, Recipe, take_apart
from breakeven.whole_step.stock_step import Snapshot, StockStep
from breakeven.whole_step.tensors import BoundTensors, check_tensors, read_tensors
from breakeven.whole_step.update_rules import code_options, find_rule

# Batches of another shape than the first: this many are done by stock steps, such as the last
# batch of each of three epochs, before one is thought worth compiling for.
NUM_RARE = 3
# A loop in which every batch has another shape would compile for ever.
MOST_COMPILED = 16


def fast_step(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    *,
    steps_per_call: int = 1,
    mode: Mode = "default",
    max_grad_norm: float | None = None,
    autocast: torch.dtype | None = None,
    checks_numbers: bool = True,
) -> FastStep:
    """Return a function that does whole training steps, each as one compiled call.

    ``loss = step(inputs, targets)`` replaces ``zero_grad``, forward, loss, ``backward`` and
    ``optimizer.step()``. Model and optimizer stay the user's own, and can be saved, loaded,
    evaluated and scheduled between calls.

    Args:
        model: The model that is trained.
        loss_fn: Returns the loss, a single number, from the model's output and the targets.
        optimizer: ``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` or ``Adagrad`` of ``torch.optim``.
        steps_per_call: Steps that one compiled call of ``FastStep.run`` does.
        mode: ``reduce-overhead`` replays a CUDA graph on CUDA.
        max_grad_norm: Clips the gradients as ``clip_grad_norm_`` does.
        autocast: ``torch.bfloat16`` for an autocast region around model and loss.
        checks_numbers: Compare each compiled step with the stock one before it is used.

    Raises:
        UsageError: The model or the optimizer cannot be compiled, or an argument is wrong.
    """
    if steps_per_call < 1:
        raise UsageError(f"steps_per_call is {steps_per_call}: it must be 1 or more")
    if mode not in ("default", "reduce-overhead"):
        raise UsageError(f"mode is {mode!r}: it must be 'default' or 'reduce-overhead'")
    if autocast not in (None, torch.bfloat16):
        raise UsageError(
            f"autocast is {autocast}: only torch.bfloat16 is supported",
            hint="float16 needs a gradient scaler, which a compiled step has not.",
        )
    rule = find_rule(optimizer)
    check_tensors(model, optimizer)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        rule=rule,
        groups=tuple(code_options(rule, group, optimizer) for group in optimizer.param_groups),
        max_grad_norm=max_grad_norm,
        autocast=autocast,
    )
    return FastStep(recipe, optimizer, steps_per_call, mode, checks_numbers=checks_numbers)


class FastStep:
    """Training steps as compiled calls; made by ``fast_step``.

    The first step is the stock one, and shows which parameters get gradients; the second compiles.
    A batch of another shape is done by the stock step until that shape has come more than
    ``NUM_RARE`` times. Gradients do not outlive a step: ``param.grad`` is None after each call.
    """

    def __init__(
        self,
        recipe: Recipe,
        optimizer: Optimizer,
        steps_per_call: int,
        mode: Mode,
        *,
        checks_numbers: bool,
    ) -> None:
        self.steps_per_call = steps_per_call
        self.num_compiled = 0
        self.cost: StepCost | None = None
        self._recipe = recipe
        self._optimizer = optimizer
        self._mode: Mode = mode
        self._checks_numbers = checks_numbers
        self._modules = list(recipe.model.modules())
        if isinstance(recipe.loss_fn, nn.Module):
            self._modules += list(recipe.loss_fn.modules())
        self._params = list(recipe.model.parameters())
        # Unknown until a backward pass has shown which parameters get gradients.
        self._trained_names: frozenset[str] | None = None
        self._bound: BoundTensors | None = None
        self._situation: Any = None
        self._steps: dict[Any, CompiledStep] = {}
        self._all_steps: dict[Any, dict[Any, CompiledStep]] = {}
        self._num_seen: dict[Any, int] = {}

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Do one step; return its loss, detached.

        Args:
            inputs: What the model takes: a tensor, or a tuple or a dict of arguments.
            targets: What the loss takes beside the model's output.

        Raises:
            BreakevenError: The step cannot be compiled, or computes something else than the stock
                step; model, optimizer and random numbers are as before the call.
        """
        return self._do(take_apart(inputs, targets), None)

    def run(self, inputs: Any, targets: Any, indices: Tensor) -> Tensor:
        """Do one step for each row of indices, ``steps_per_call`` of them in one compiled call.

        Steps that are left over are done one by one.

        Args:
            inputs: Inputs of the whole data set, samples along the first dimension.
            targets: Its targets.
            indices: Samples of each step, of shape (steps, batch size); on the data's device.

        Returns:
            The loss of each step.

        Raises:
            BreakevenError: As for a single step.
        """
        data = take_apart(inputs, targets)
        if indices.ndim != 2 or not len(indices) or indices.is_floating_point():
            raise UsageError(
                f"indices are {indices.dtype} of shape {tuple(indices.shape)}",
                hint="One row of sample numbers for each step: integers of shape (steps, batch).",
            )
        size = self.steps_per_call
        num_whole = len(indices) - len(indices) % size if size > 1 else 0
        losses = (
            [self._do(data, rows) for rows in indices[:num_whole].split(size)] if num_whole else []
        )
        for row in indices[num_whole:]:
            chosen = replace(data, tensors=tuple(tensor[row] for tensor in data.tensors))
            losses.append(self._do(chosen, None).reshape(1))
        return losses[0] if len(losses) == 1 else torch.cat(losses)

    def _do(self, batch: Batch, indices: Tensor | None) -> Tensor:
        """Do a step, or the steps of one call; return the loss or the losses."""
        self._refresh_bindings()
        if self._bound is None:
            return self.do_stock(batch, indices)
        key = (batch.key, None if indices is None else indices.shape)
        step = self._steps.get(key)
        if step is None:
            if self._is_rare(key):
                return self.do_stock(batch, indices)
            return self.compile(key, batch, indices)
        losses = step(self._bound, batch, indices)
        call_step_hooks(self._optimizer, step.num_steps)
        return losses

    def _refresh_bindings(self) -> None:
        """Bind tensors and options anew where what a compiled step depends on has changed."""
        refuse_hooks(self._modules, self._optimizer)
        groups, rule = self._optimizer.param_groups, self._recipe.rule
        situation = (
            [module.training for module in self._modules],
            [param.requires_grad for param in self._params],
            [rule.choices(group) for group in groups],
        )
        is_same = situation == self._situation
        if is_same and self._bound is not None and self._bound.is_current():
            return
        check_tensors(self._recipe.model, self._optimizer)
        if not is_same:
            find_rule(self._optimizer)
            options = tuple(code_options(rule, group, self._optimizer) for group in groups)
            self._recipe = replace(self._recipe, groups=options)
            self._situation = situation
            self._trained_names = None
        self._bind()

    def _bind(self) -> None:
        """Read the tensors of model and optimizer, where it is known which of them are trained."""
        self._bound = None
        if self._trained_names is None:
            return
        recipe = self._recipe
        tensors = read_tensors(
            recipe.model, recipe.loss_fn, self._optimizer, recipe.rule, self._trained_names
        )
        if tensors is not None:
            self._bound = BoundTensors(tensors, self._optimizer, recipe.rule)
            place = (self._bound.key, repr(self._situation))
            self._steps = self._all_steps.setdefault(place, {})

    def _is_rare(self, key: Any) -> bool:
        """Return whether a new shape is left to the stock step."""
        if self.num_compiled == MOST_COMPILED:
            warnings.warn(
                f"{MOST_COMPILED} steps of different shapes were compiled: others stay uncompiled",
                stacklevel=4,
            )
            self.num_compiled += 1
        if self.num_compiled > MOST_COMPILED:
            return True
        # The first shape of either kind, single steps or several in a call, is the usual one.
        if not any(type(known[1]) is type(key[1]) for known in self._steps):
            return False
        self._num_seen[key] = self._num_seen.get(key, 0) + 1
        return self._num_seen[key] <= NUM_RARE

    def do_stock(self, batch: Batch, indices: Tensor | None) -> Tensor:
        """Do the steps as the loop did them before."""
        stock = StockStep(self._recipe, self._optimizer)
        losses = stock.run(batch, indices)
        if self._trained_names is None:
            self._trained_names = stock.trained_names
            self._bind()
        return losses

    def compile(self, key: Any, batch: Batch, indices: Tensor | None) -> Tensor:
        """Compile, check on copies, and do the steps; replaced where nothing may be compiled."""
        bound = self._bound
        assert bound is not None
        recipe = self._recipe
        before = Snapshot(recipe.model, recipe.loss_fn, self._optimizer)
        try:
            step = CompiledStep(recipe, bound, batch, indices, self._mode)
            self._steps[key] = step
            if self._checks_numbers:
                stock = StockStep(recipe, self._optimizer)
                losses, self.cost = check_step_numbers(
                    step, stock, bound, before, batch, indices, lambda: self._do(batch, indices)
                )
            else:
                losses = step(bound, batch, indices)
                call_step_hooks(self._optimizer, step.num_steps)
        except BaseException:
            self._steps.pop(key, None)
            before.restore()
            raise
        self.num_compiled += 1
        return losses
