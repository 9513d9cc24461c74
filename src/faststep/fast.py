"""`fast_step`: forward, backward and update as one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.batch import Batch, epoch_rows, num_steps_of, take_apart, take_data
from faststep.engines import CompiledSteps, Engine
from faststep.equivalence import StepCost
from faststep.errors import FastStepError
from faststep.fast_path import FastCall
from faststep.generated_step import GeneratedStep
from faststep.guards import Guards, call_step_hooks
from faststep.inductor import Mode
from faststep.params import Params, check_params, read_params
from faststep.recipe import AuxLayout, Recipe, WholeLoss, as_output
from faststep.several import AnyOptimizer, JointOptimizer, rule_and_options
from faststep.stock_step import Snapshot, StockStep


def fast_step(
    model: nn.Module | Sequence[nn.Module],
    loss_fn: Callable[..., Any],
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    steps_per_call: int = 1,
    mode: Mode = "default",
    max_grad_norm: float | None = None,
    autocast: torch.dtype | None = None,
    checks_numbers: bool = True,
    engine: Engine = "auto",
    has_aux: bool = False,
    calls_model: bool = False,
) -> FastStep:
    """Return a function that does whole training steps, each as one compiled call.

    ``loss = step(inputs, targets)`` replaces ``zero_grad``, forward, loss, ``backward`` and
    ``optimizer.step()``. Model and optimizer stay the user's own, and can be saved, loaded,
    evaluated and scheduled between calls.

    Args:
        model: The model that is trained; or all models that ``loss_fn`` calls.
        loss_fn: Returns the loss, a single number, from the model's output and the targets.
        optimizer: ``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` or ``Adagrad`` of ``torch.optim``.
            Of several, in a list, ``loss_fn`` calls ``zero_grad`` and ``step`` by itself, once
            each, and ``backward`` of its losses; it returns one of these. Implies ``calls_model``.
        steps_per_call: Steps that one compiled call of ``FastStep.run`` does.
        mode: ``reduce-overhead`` replays a CUDA graph on CUDA.
        max_grad_norm: Clips the gradients as ``clip_grad_norm_`` does.
        autocast: ``torch.bfloat16`` for an autocast region around model and loss.
        checks_numbers: Compare each compiled step with the stock one before it is used.
        engine: ``generated`` for C code of this package, on the CPU; ``inductor`` for torch's
            compiler; ``auto`` for generated code where it can be had and is faster than the stock
            step, else Inductor.
        has_aux: ``loss_fn`` returns a pair: the loss, and tensors in tuples, lists or dicts that a
            step returns beside it, such as an accuracy.
        calls_model: ``loss_fn`` calls the model itself, in whatever way: it gets the inputs that a
            step is called with as its arguments, and no targets.

    Raises:
        FastStepError: The model or the optimizer cannot be compiled, or an argument is wrong.
    """
    if steps_per_call < 1:
        raise FastStepError(f"steps_per_call is {steps_per_call}: it must be 1 or more")
    if mode not in ("default", "reduce-overhead"):
        raise FastStepError(f"mode is {mode!r}: it must be 'default' or 'reduce-overhead'")
    engines = get_args(Engine)
    if engine not in engines:
        raise FastStepError(f"engine is {engine!r}: it must be one of {', '.join(engines)}")
    if autocast not in (None, torch.bfloat16):
        raise FastStepError(
            f"autocast is {autocast}: only torch.bfloat16 is supported",
            hint="float16 needs a gradient scaler, which a compiled step has not.",
        )
    used: AnyOptimizer
    if isinstance(optimizer, Optimizer):
        used = optimizer
    else:
        if max_grad_norm is not None or autocast or steps_per_call > 1:
            raise FastStepError(
                "a step with several optimizers has no max_grad_norm, autocast or steps_per_call",
                hint="Clip gradients and cast in loss_fn, which steps the optimizers itself.",
            )
        used, calls_model = JointOptimizer(optimizer), True
    if not isinstance(model, nn.Module):
        if not calls_model:
            raise FastStepError(
                "several models need calls_model=True",
                hint="The loss function then calls each model itself.",
            )
        if not model or not all(isinstance(one, nn.Module) for one in model):
            raise FastStepError("model must be an nn.Module or a list of them")
        model = nn.ModuleList(model)
    if calls_model:
        model, loss_fn = WholeLoss(model, loss_fn), as_output
    rule, groups = rule_and_options(used)
    check_params(model, used)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        rule=rule,
        groups=groups,
        max_grad_norm=max_grad_norm,
        autocast=autocast,
        aux=AuxLayout() if has_aux else None,
        updating=used if isinstance(used, JointOptimizer) else None,
    )
    steps = CompiledSteps(engine, mode, checks_numbers=checks_numbers)
    return FastStep(recipe, used, steps, steps_per_call)


class FastStep:
    """Training steps as compiled calls; made by ``fast_step``.

    The first step is the stock one, and shows which parameters get gradients; the second compiles.
    A batch of another shape is done by the stock step until that shape has come more than
    ``NUM_RARE`` times. Gradients do not outlive a step: ``param.grad`` is None after each call.
    """

    def __init__(
        self, recipe: Recipe, optimizer: AnyOptimizer, steps: CompiledSteps, steps_per_call: int
    ) -> None:
        self.steps_per_call = steps_per_call
        self._recipe = recipe
        self._optimizer = optimizer
        self._steps = steps
        # None until the optimizer has state, or while it is not known what is trained.
        self._params: Params | None = None
        self._guards: Guards | None = None
        # Unknown until a backward pass has shown which parameters get gradients.
        self._trained_names: frozenset[str] | None = None
        self._forget_fast_paths()

    @property
    def num_compiled(self) -> int:
        """How many steps were compiled, for different shapes or modes."""
        return self._steps.num_compiled

    @property
    def cost(self) -> StepCost | None:
        """The times of the step that was last compared with the stock step."""
        return self._steps.cost

    @property
    def engine(self) -> str | None:
        """What the last compiled step was made by; None before there is one."""
        step = self._steps.latest
        return None if step is None else step.engine

    @property
    def not_generated(self) -> str | None:
        """Why the last step compiled is not generated code; None if it is."""
        return self._steps.not_generated

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        """Do one step; return its loss, detached, or the loss and what ``loss_fn`` has beside it.

        Args:
            inputs: What the model takes: a tensor, or a tuple or a dict of arguments.
            targets: What the loss takes beside the model's output.

        Raises:
            FastStepError: The step cannot be compiled, or computes something else than the stock
                step; model, optimizer and random numbers are as before the call.
        """
        fast = self._fast_one.call
        if fast is not None:
            loss = fast.function(inputs, targets)
            if loss is not None:
                return loss
        return self._as_returned(self._do(take_apart(inputs, targets), None))

    def _as_returned(self, results: Sequence[Tensor]) -> Any:
        aux = self._recipe.aux
        return results[0] if aux is None else (results[0], aux.rebuild(results[1:]))

    def run(self, inputs: Any, targets: Any, indices: Tensor) -> Any:
        """Do one step for each row of indices, ``steps_per_call`` of them in one compiled call.

        Steps that are left over are done one by one.

        Args:
            inputs: Inputs of the whole data set, samples along the first dimension.
            targets: Its targets.
            indices: Samples of each step, of shape (steps, batch size); on the data's device.

        Returns:
            The loss of each step; with ``has_aux``, also what comes beside them, stacked.

        Raises:
            FastStepError: As for a single step.
        """
        data = take_data(inputs, targets)
        is_number = indices.dtype in (torch.int32, torch.int64)
        if indices.ndim != 2 or not len(indices) or not is_number:
            raise FastStepError(
                f"indices are {indices.dtype} of shape {tuple(indices.shape)}",
                hint="One row of sample numbers for each step: integers of shape (steps, batch).",
            )
        size = self.steps_per_call
        num_whole = len(indices) - len(indices) % size if size > 1 else 0
        if num_whole == size:
            parts = [indices[:size] if len(indices) > size else indices]
        else:
            parts = indices[:num_whole].split(size) if num_whole else []
        results: list[tuple[Tensor, ...]] = []
        for rows in parts:
            fast, losses = self._fast_several.call, None
            if fast is not None and data.layout is None:
                losses = fast.function(*data.tensors, rows)
            results.append(self._do(data, rows) if losses is None else (losses,))
        for row in indices[num_whole:]:
            results.append(tuple(one[None] for one in self._do(data.rows(row), None)))
        if len(results) > 1:
            results = [tuple(torch.cat(one) for one in zip(*results, strict=True))]
        return self._as_returned(results[0])

    def train(
        self,
        inputs: Any,
        targets: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        callback: Callable[[int, Tensor], object] | None = None,
        every: int = 100,
    ) -> Tensor:
        """Train on a data set in memory: ``run`` over its samples, some epochs long.

        Not with ``has_aux``: batches of two sizes have tensors of two shapes beside the loss.

        Args:
            inputs: Inputs of the whole data set, samples along the first dimension.
            targets: Its targets.
            batch_size: Samples of a step.
            epochs: Times that every sample is taken.
            shuffle: Take the samples of each epoch in an order of its own, by ``torch.randperm``.
            drop_last: Leave out the samples that do not fill a batch.
            generator: What orders are drawn from; torch's own if there is none.
            callback: Called with the number of steps done and the losses since the last call.
            every: Steps from one call of it to the next; the end of an epoch comes too.

        Returns:
            The loss of each step.

        Raises:
            FastStepError: As for a single step; or a number makes no sense.
        """
        if self._recipe.aux is not None:
            raise FastStepError(
                "train returns losses alone, and has_aux=True asks for more",
                hint="Call the step for each batch, or run() for the batches of an epoch.",
            )
        data = take_data(inputs, targets)
        parts = epoch_rows(
            min((len(tensor) for tensor in data.tensors), default=0),
            batch_size=batch_size,
            epochs=epochs,
            every=every,
            shuffle=shuffle,
            drop_last=drop_last,
            generator=generator,
        )
        losses: list[Tensor] = []
        for rows in parts:
            losses.append(self.run(inputs, targets, rows.to(data.tensors[0].device)))
            if callback is not None:
                callback(sum(map(len, losses)), losses[-1])
        return torch.cat(losses)

    def _do(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do a step, or the steps of one call; return the loss or losses, and what is beside."""
        params, guards = self._params, self._guards
        if params is None or guards is None or not guards.hold() or not params.is_current():
            self._forget_fast_paths()
            self._refresh()
        params, guards = self._params, self._guards
        if params is None:
            return self.do_stock(batch, indices)
        step = self._steps.find(batch, indices)
        if step is None:
            if self._steps.is_rare(batch, indices):
                return self.do_stock(batch, indices)
            return self.compile(batch, indices)
        results = step(params, batch, indices)
        call_step_hooks(self._optimizer, num_steps_of(indices))
        recipe, cost = self._recipe, self.cost
        is_plain = batch.layout is recipe.aux is recipe.updating is None
        if isinstance(step, GeneratedStep) and is_plain and cost is not None:
            assert guards is not None
            path = self._fast_one if indices is None else self._fast_several
            path.prepare(
                step,
                lambda: step.fast_call(guards, params, batch, indices),
                num_steps=None if indices is None else len(indices),
                step_ns=cost.fast_step_ns,
            )
        return results

    def _refresh(self) -> None:
        """Read tensors and options again, after something has changed.

        Raises:
            FastStepError: What is new cannot be compiled.
        """
        model = self._recipe.model
        if self._guards is None or not self._guards.hold():
            rule, groups = rule_and_options(self._optimizer)
            self._recipe = replace(self._recipe, groups=groups)
            self._guards = Guards(model, self._recipe.loss_fn, self._optimizer, rule)
            self._trained_names = None
        self._guards.refuse_hooks()
        check_params(model, self._optimizer)
        self._read_params()

    def _read_params(self) -> None:
        self._params = None
        if self._trained_names is not None:
            self._params = read_params(self._recipe, self._optimizer, self._trained_names)
        if self._params is not None:
            assert self._guards is not None
            self._steps.turn_to((self._params.key, self._guards.key))

    def _forget_fast_paths(self) -> None:
        # Of the last call like it, in C alone, with what asks whether anything has changed.
        self._fast_one, self._fast_several = _FastPath(), _FastPath()

    def do_stock(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps as the loop did them before."""
        recipe = self._recipe
        stock = StockStep(recipe, self._optimizer)
        if self._trained_names is not None:
            return stock.run(batch, indices)
        if recipe.updating is None:
            results = stock.run(batch, indices)
        else:
            # What is not one plain update with each optimizer is seen only when it is done.
            before = Snapshot(recipe.model, recipe.loss_fn, self._optimizer, has_grads=True)
            try:
                results = stock.run(batch, indices)
            except FastStepError:
                before.restore()
                raise
        self._trained_names = frozenset(stock.grads)
        self._read_params()
        return results

    def compile(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Compile a step for a call and do it; replaced where nothing may be compiled."""
        assert self._params is not None
        self._forget_fast_paths()
        stock = StockStep(self._recipe, self._optimizer)
        repeat = lambda: self._do(batch, indices)  # noqa: E731
        return self._steps.compile(stock, self._params, batch, indices, repeat)


# A fast call holds Python's lock: no longer than Python itself lets other threads wait for it.
_LONGEST_FAST_NS = 5_000_000
# Calls from one making of a fast call to the next, which takes as long as some twenty of them.
_FAST_EVERY = 256


@dataclass(slots=True)
class _FastPath:
    """The fast call of single steps, or of several: for what was called with last.

    Args:
        call: It; None if there is none, or none yet.
        step: What it is a call of.
        num_steps: How many steps it does, if it is one of several.
        calls_until_next: Calls by another way before another one is made.
    """

    call: FastCall | None = None
    step: GeneratedStep | None = None
    num_steps: int | None = None
    calls_until_next: int = 0

    def prepare(
        self,
        step: GeneratedStep,
        make: Callable[[], FastCall | None],
        *,
        num_steps: int | None,
        step_ns: float,
    ) -> None:
        """Let the next call be a fast one, after one that was not.

        It has run out of tensors for losses; or it was for another batch or other options: then a
        new one is made, but not at every call.

        Args:
            step: What was called.
            make: Returns a fast call of it, if it can be one.
            num_steps: How many steps that does; None for a single one.
            step_ns: What a step takes.
        """
        if self.call is not None and self.call.is_empty and self.step is step:
            self.call.refill(step.make_losses(self.num_steps))
        elif self.calls_until_next > 0:
            self.calls_until_next -= 1
        elif (num_steps or 1) * step_ns < _LONGEST_FAST_NS:
            self.call, self.step, self.calls_until_next = make(), step, _FAST_EVERY
            self.num_steps = num_steps
            if self.call is not None:
                self.call.refill(step.make_losses(num_steps))
