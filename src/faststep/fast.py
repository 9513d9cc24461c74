"""`fast_step`: forward, backward and update as one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.batch import Batch, PairFacts, num_steps_of, take_apart, take_data
from faststep.binding import Binding
from faststep.compiling import Mode
from faststep.engines import Engine, FirstCall, StepCompiler
from faststep.epochs import epoch_rows
from faststep.errors import FastStepError
from faststep.gate import StepCost
from faststep.generated_step import GeneratedStep
from faststep.hooks import call_step_hooks
from faststep.joint_optimizer import AnyOptimizer, JointOptimizer
from faststep.quick_slot import QuickSlot
from faststep.recipe import Recipe
from faststep.results import AuxLayout
from faststep.step_table import StepTable
from faststep.stock_step import Snapshot, StockStep
from faststep.tensors import check_tensors
from faststep.update_rules import rule_and_options
from faststep.whole_loss import WholeLoss, as_output


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
                hint="What clips gradients or casts belongs into loss_fn, which updates by itself.",
            )
        used, calls_model = JointOptimizer(optimizer), True
    if not isinstance(model, nn.Module):
        if not calls_model:
            raise FastStepError(
                "several models were given, and calls_model=True was not",
                hint="A loss function that calls them itself says which gets what.",
            )
        if not model or not all(isinstance(one, nn.Module) for one in model):
            raise FastStepError("the models are no list of modules of torch")
        model = nn.ModuleList(model)
    if calls_model:
        model, loss_fn = WholeLoss(model, loss_fn), as_output
    rule, groups = rule_and_options(used)
    check_tensors(model, used)
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
    return FastStep(
        recipe, used, steps_per_call, mode, checks_numbers=checks_numbers, engine=engine
    )


class FastStep:
    """Training steps as compiled calls; made by ``fast_step``.

    The first step is the stock one, and shows which parameters get gradients; the second compiles.
    A batch of another shape is done by the stock step until that shape has come more than
    ``NUM_RARE`` times. Gradients do not outlive a step: ``param.grad`` is None after each call.
    """

    def __init__(
        self,
        recipe: Recipe,
        optimizer: AnyOptimizer,
        steps_per_call: int,
        mode: Mode,
        *,
        checks_numbers: bool,
        engine: Engine,
    ) -> None:
        self.steps_per_call = steps_per_call
        self._aux = recipe.aux
        self._optimizer = optimizer
        self._table = StepTable()
        self._binding = Binding(recipe, optimizer, self._table)
        self._compiler = StepCompiler(self._table, engine, mode, checks_numbers=checks_numbers)
        self._forget_last_calls()

    @property
    def num_compiled(self) -> int:
        """Return how many steps were compiled, for different shapes or modes."""
        return self._table.num_compiled

    @property
    def cost(self) -> StepCost | None:
        """Return the times of the step that was last compared with the stock step."""
        return self._compiler.cost

    @property
    def engine(self) -> str | None:
        """Return what the last compiled step was made by; None before there is one."""
        step = self._table.latest
        return None if step is None else step.engine

    @property
    def not_generated(self) -> str | None:
        """Return why the last step compiled is not generated code; None where it is."""
        return self._compiler.not_generated

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        """Do one step; return its loss, detached, or the loss and what ``loss_fn`` has beside it.

        Args:
            inputs: What the model takes: a tensor, or a tuple or a dict of arguments.
            targets: What the loss takes beside the model's output.

        Raises:
            FastStepError: The step cannot be compiled, or computes something else than the stock
                step; model, optimizer and random numbers are as before the call.
        """
        quick = self._quick_one.call
        if quick is not None:
            loss = quick.function(inputs, targets)
            if loss is not None:
                return loss
        usual = self._usual
        if usual is not None and usual[1].holds(inputs, targets) and self._binding.is_current():
            results = usual[0].do_one(inputs, targets)
            call_step_hooks(self._optimizer, 1)
            self._prepare_quick_call(usual[0], take_apart(inputs, targets), None)
        else:
            results = self._do(take_apart(inputs, targets), None)
        return self._as_returned(results)

    def _as_returned(self, results: Sequence[Tensor]) -> Any:
        aux = self._aux
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
        results = [self._do_several(data, rows) for rows in parts]
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
            generator: What orders are drawn from; torch's own where there is none.
            callback: Called with the number of steps done and the losses since the last call.
            every: Steps from one call of it to the next; the end of an epoch comes too.

        Returns:
            The loss of each step.

        Raises:
            FastStepError: As for a single step; or a number makes no sense.
        """
        if self._aux is not None:
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

    def _do_several(self, data: Batch, indices: Tensor) -> tuple[Tensor, ...]:
        """Do the steps of one call."""
        quick = self._quick_several.call
        if quick is not None and data.layout is None:
            losses = quick.function(*data.tensors, indices)
            if losses is not None:
                return (losses,)
        return self._do(data, indices)

    def _do(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do a step, or the steps of one call; return the loss or losses, and what is beside."""
        binding = self._binding
        if not binding.is_current():
            self._forget_last_calls()
            binding.refresh()
        if binding.tensors is None:
            return self.do_stock(batch, indices)
        step = self._table.find(batch, indices)
        if step is None:
            if self._table.is_rare(batch, indices):
                return self.do_stock(batch, indices)
            return self.compile(batch, indices)
        results = step(binding.tensors, batch, indices)
        call_step_hooks(self._optimizer, num_steps_of(indices))
        if isinstance(step, GeneratedStep) and batch.layout is None:
            if indices is None:
                self._usual = step, PairFacts(*batch.tensors)
            self._prepare_quick_call(step, batch, indices)
        return results

    def _prepare_quick_call(
        self, step: GeneratedStep, batch: Batch, indices: Tensor | None
    ) -> None:
        """Let the next call be a quick one, after one that was not."""
        situation, tensors, cost = self._binding.situation, self._binding.tensors, self.cost
        optimizer = self._optimizer
        if cost is None or self._aux is not None or isinstance(optimizer, JointOptimizer):
            return
        assert situation is not None
        assert tensors is not None
        slot = self._quick_one if indices is None else self._quick_several
        slot.prepare(
            step,
            lambda: step.quick_call(situation, tensors, optimizer, batch, indices),
            num_steps=None if indices is None else len(indices),
            step_ns=cost.fast_step_ns,
        )

    def _forget_last_calls(self) -> None:
        # Of the last call, where it was generated and for one tensor and one tensor: the next one
        # like it goes straight there.
        self._usual: tuple[GeneratedStep, PairFacts] | None = None
        # The same in C alone, with what asks whether anything has changed.
        self._quick_one, self._quick_several = QuickSlot(), QuickSlot()

    def do_stock(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps as the loop did them before."""
        binding = self._binding
        recipe = binding.recipe
        stock = StockStep(recipe, self._optimizer)
        if binding.knows_trained:
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
        binding.learn(stock.trained_names)
        return results

    def compile(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Compile a step for a call and do it; replaced where nothing may be compiled."""
        recipe, tensors = self._binding.recipe, self._binding.tensors
        assert tensors is not None
        self._forget_last_calls()
        return self._compiler.compile(
            FirstCall(
                stock=StockStep(recipe, self._optimizer),
                bound=tensors,
                before=Snapshot(recipe.model, recipe.loss_fn, self._optimizer),
                batch=batch,
                indices=indices,
                repeat=lambda: self._do(batch, indices),
            )
        )
