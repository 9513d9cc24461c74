"""`breakeven.fast_step`: forward, backward and update as one compiled call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from breakeven.errors import BreakevenError, UsageError
from breakeven.whole_step.compiled_step import CompiledStep
from breakeven.whole_step.compiling import Mode
from breakeven.whole_step.gate import StepCost, check_step_numbers
from breakeven.whole_step.generated_step import GeneratedStep, one_batch
from breakeven.whole_step.hooks import call_step_hooks, refuse_hooks
from breakeven.whole_step.joint_optimizer import AnyOptimizer, JointOptimizer
from breakeven.whole_step.quick_slot import QuickSlot
from breakeven.whole_step.situation import Situation
from breakeven.whole_step.step_function import (
    AuxLayout,
    Batch,
    PairFacts,
    Recipe,
    num_steps_of,
    take_apart,
)
from breakeven.whole_step.stock_step import Snapshot, StockStep
from breakeven.whole_step.tensors import BoundTensors, check_tensors, read_tensors
from breakeven.whole_step.update_rules import rule_and_options
from breakeven.whole_step.whole_loss import WholeLoss, as_output

AnyStep = CompiledStep | GeneratedStep
Engine = Literal["auto", "generated", "inductor"]
_ENGINES = get_args(Engine)
# Batches of another shape than the first: this many are done by stock steps, such as the last
# batch of each of three epochs, before one is thought worth compiling for.
NUM_RARE = 3
# A loop in which every batch has another shape would compile for ever.
MOST_COMPILED = 16


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
        engine: ``generated`` for C code of breakeven's own, on the CPU; ``inductor`` for torch's
            compiler; ``auto`` for generated code where it can be had and is faster than the stock
            step, else Inductor.
        has_aux: ``loss_fn`` returns a pair: the loss, and tensors in tuples, lists or dicts that a
            step returns beside it, such as an accuracy.
        calls_model: ``loss_fn`` calls the model itself, in whatever way: it gets the inputs that a
            step is called with as its arguments, and no targets.

    Raises:
        UsageError: The model or the optimizer cannot be compiled, or an argument is wrong.
    """
    if steps_per_call < 1:
        raise UsageError(f"steps_per_call is {steps_per_call}: it must be 1 or more")
    if mode not in ("default", "reduce-overhead"):
        raise UsageError(f"mode is {mode!r}: it must be 'default' or 'reduce-overhead'")
    if engine not in _ENGINES:
        raise UsageError(f"engine is {engine!r}: it must be one of {', '.join(_ENGINES)}")
    if autocast not in (None, torch.bfloat16):
        raise UsageError(
            f"autocast is {autocast}: only torch.bfloat16 is supported",
            hint="float16 needs a gradient scaler, which a compiled step has not.",
        )
    used: AnyOptimizer
    if isinstance(optimizer, Optimizer):
        used = optimizer
    else:
        if max_grad_norm is not None or autocast or steps_per_call > 1:
            raise UsageError(
                "a step with several optimizers has no max_grad_norm, autocast or steps_per_call",
                hint="What clips gradients or casts belongs into loss_fn, which updates by itself.",
            )
        used, calls_model = JointOptimizer(optimizer), True
    if not isinstance(model, nn.Module):
        if not calls_model:
            raise UsageError(
                "several models were given, and calls_model=True was not",
                hint="A loss function that calls them itself says which gets what.",
            )
        if not model or not all(isinstance(one, nn.Module) for one in model):
            raise UsageError("the models are no list of modules of torch")
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
        self.num_compiled = 0
        self.cost: StepCost | None = None
        # Why the last step compiled is not generated code; None where it is.
        self.not_generated: str | None = None
        self._recipe = recipe
        self._optimizer = optimizer
        self._mode: Mode = mode
        self._checks_numbers = checks_numbers
        self._engine: Engine = engine
        # Unknown until a backward pass has shown which parameters get gradients.
        self._trained_names: frozenset[str] | None = None
        self._bound: BoundTensors | None = None
        self._situation: Situation | None = None
        self._steps: dict[Any, AnyStep] = {}
        self._all_steps: dict[Any, dict[Any, AnyStep]] = {}
        # Of the last call, where it was generated and for one tensor and one tensor: the next one
        # like it goes straight there.
        self._usual: tuple[GeneratedStep, PairFacts] | None = None
        # The same in C alone, with what asks whether anything has changed.
        self._quick_one, self._quick_several = QuickSlot(), QuickSlot()
        self._num_seen: dict[Any, int] = {}

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        """Do one step; return its loss, detached, or the loss and what ``loss_fn`` has beside it.

        Args:
            inputs: What the model takes: a tensor, or a tuple or a dict of arguments.
            targets: What the loss takes beside the model's output.

        Raises:
            BreakevenError: The step cannot be compiled, or computes something else than the stock
                step; model, optimizer and random numbers are as before the call.
        """
        quick = self._quick_one.call
        if quick is not None:
            loss = quick.function(inputs, targets)
            if loss is not None:
                return loss
        usual = self._usual
        if usual is not None and usual[1].holds(inputs, targets) and self._is_current():
            results = usual[0].do_one(inputs, targets)
            call_step_hooks(self._optimizer, 1)
            self._prepare_quick_call(usual[0], take_apart(inputs, targets), None)
        else:
            results = self._do(take_apart(inputs, targets), None)
        return self._as_returned(results)

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
            BreakevenError: As for a single step.
        """
        data = _take_data(inputs, targets)
        is_number = indices.dtype in (torch.int32, torch.int64)
        if indices.ndim != 2 or not len(indices) or not is_number:
            raise UsageError(
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
            chosen = replace(data, tensors=tuple(tensor[row] for tensor in data.tensors))
            results.append(tuple(one[None] for one in self._do(chosen, None)))
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
            BreakevenError: As for a single step; or a number makes no sense.
        """
        if self._recipe.aux is not None:
            raise UsageError(
                "train returns losses alone, and has_aux=True asks for more",
                hint="Call the step for each batch, or run() for the batches of an epoch.",
            )
        data = _take_data(inputs, targets)
        count = min((len(tensor) for tensor in data.tensors), default=0)
        for name, value in (("batch_size", batch_size), ("epochs", epochs), ("every", every)):
            if value < 1:
                raise UsageError(f"{name} is {value}: it must be 1 or more")
        num_whole = count - count % batch_size
        if not count or (drop_last and not num_whole):
            raise UsageError(f"{count} samples do not fill a batch of {batch_size}")
        losses: list[Tensor] = []
        for _ in range(epochs):
            order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
            parts = list(order[:num_whole].view(-1, batch_size).split(every)) if num_whole else []
            if num_whole < count and not drop_last:
                parts.append(order[num_whole:].view(1, -1))
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
        self._refresh_bindings()
        if self._bound is None:
            return self.do_stock(batch, indices)
        key = (batch.key, None if indices is None else indices.shape)
        step = self._steps.get(key)
        if step is None and indices is not None:  # generated code does any number of steps
            step = self._steps.get((batch.key, indices.shape[1:]))
        if step is None:
            if self._is_rare(key):
                return self.do_stock(batch, indices)
            return self.compile(key, batch, indices)
        results = step(self._bound, batch, indices)
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
        situation, bound, cost = self._situation, self._bound, self.cost
        optimizer = self._optimizer
        if cost is None or self._recipe.aux is not None or isinstance(optimizer, JointOptimizer):
            return
        assert situation is not None
        assert bound is not None
        slot = self._quick_one if indices is None else self._quick_several
        slot.prepare(
            step,
            lambda: step.quick_call(situation, bound, optimizer, batch, indices),
            num_steps=None if indices is None else len(indices),
            step_ns=cost.fast_step_ns,
        )

    def _forget_quick_calls(self) -> None:
        self._quick_one, self._quick_several = QuickSlot(), QuickSlot()

    def _refresh_bindings(self) -> None:
        """Bind tensors and options anew where what a compiled step depends on has changed."""
        if self._is_current():
            return
        recipe, optimizer = self._recipe, self._optimizer
        if self._situation is None or not self._situation.is_same():
            rule, groups = rule_and_options(optimizer)
            self._recipe = replace(recipe, groups=groups)
            self._situation = Situation(recipe.model, recipe.loss_fn, optimizer, rule)
            self._trained_names = None
        refuse_hooks(self._situation.modules, optimizer)
        check_tensors(recipe.model, optimizer)
        self._bind()

    def _is_current(self) -> bool:
        """Return whether nothing has changed that a compiled step depends on."""
        bound, situation = self._bound, self._situation
        return (
            bound is not None
            and situation is not None
            and situation.is_same()
            and bound.is_current()
        )

    def _bind(self) -> None:
        """Read the tensors of model and optimizer, where it is known which of them are trained."""
        self._bound = self._usual = None
        self._forget_quick_calls()
        if self._trained_names is None:
            return
        recipe = self._recipe
        tensors = read_tensors(
            recipe.model, recipe.loss_fn, self._optimizer, recipe.rule, self._trained_names
        )
        if tensors is not None:
            self._bound = BoundTensors(tensors, self._optimizer, recipe.rule)
            assert self._situation is not None
            place = (self._bound.key, self._situation.key)
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

    def do_stock(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps as the loop did them before."""
        recipe = self._recipe
        stock = StockStep(recipe, self._optimizer)
        if recipe.updating is not None and self._trained_names is None:
            # What is not one plain update with each optimizer is seen only when it is done.
            before = Snapshot(recipe.model, recipe.loss_fn, self._optimizer, has_grads=True)
            try:
                results = stock.run(batch, indices)
            except UsageError:
                before.restore()
                raise
        else:
            results = stock.run(batch, indices)
        if self._trained_names is None:
            self._trained_names = stock.trained_names
            self._bind()
        return results

    def compile(self, key: Any, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Compile, check on copies, and do the steps; replaced where nothing may be compiled.

        Generated code comes first; what it cannot do, does wrong or does no faster than the stock
        step is left to torch's compiler.
        """
        bound = self._bound
        assert bound is not None
        recipe = self._recipe
        before = Snapshot(recipe.model, recipe.loss_fn, self._optimizer)
        self._usual = None
        self._forget_quick_calls()
        results: tuple[Tensor, ...] | None = None
        try:
            if self._engine == "generated":
                self._check_may_generate(bound)
                generated = self._generate(bound, one_batch(batch, indices))
                results = self._use(key, generated, before, bound, batch, indices)
            elif self._engine == "auto" and self._may_generate(bound):
                results = self._try_generated(key, before, bound, batch, indices)
            if results is None and recipe.updating is not None:
                raise BreakevenError(
                    "a step with several optimizers is generated code or none: "
                    f"{self.not_generated}",
                    hint="Keep the loop as it is, or make a step for each optimizer.",
                )
            if results is None:
                step = CompiledStep(recipe, bound, batch, indices, self._mode)
                results = self._use(key, step, before, bound, batch, indices)
        except BaseException:
            self._forget(key, batch, indices)
            before.restore()
            raise
        self.num_compiled += 1
        return results

    def _check_may_generate(self, bound: BoundTensors) -> None:
        if not self._may_generate(bound):
            raise UsageError(
                "generated steps are for the CPU, without autocast and mode='reduce-overhead'",
                hint="Leave engine out, or name 'inductor'.",
            )

    def _may_generate(self, bound: BoundTensors) -> bool:
        on_cpu = all(tensor.device.type == "cpu" for tensor in bound.arguments)
        return on_cpu and self._mode == "default" and self._recipe.autocast is None

    def _try_generated(
        self, key: Any, before: Snapshot, bound: BoundTensors, batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...] | None:
        """Do the steps by generated code; None, with the reason kept, where that is no use."""
        try:
            step = self._generate(bound, one_batch(batch, indices))
            results = self._use(key, step, before, bound, batch, indices)
        except BreakevenError as error:
            self.not_generated = error.message
        else:
            if self.cost is None or self.cost.speedup >= 1:
                self.not_generated = None
                return results
            self.not_generated = "generated code is slower here than the stock step"
        self._forget(key, batch, indices)
        before.restore()
        return None

    def _forget(self, key: Any, batch: Batch, indices: Tensor | None) -> None:
        self._steps.pop(key, None)
        if indices is not None:
            self._steps.pop((batch.key, indices.shape[1:]), None)

    def _generate(self, bound: BoundTensors, single: Batch) -> GeneratedStep:
        """Return generated code of a step; that of single steps serves several as well."""
        found = self._steps.get((single.key, None))
        if isinstance(found, GeneratedStep):
            return found
        return GeneratedStep(self._recipe, bound, single)

    def _use(
        self,
        key: Any,
        step: AnyStep,
        before: Snapshot,
        bound: BoundTensors,
        batch: Batch,
        indices: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Keep a step for its shapes, and do it for the first time, compared with the stock one."""
        if isinstance(step, GeneratedStep) and indices is not None:
            self._steps[batch.key, indices.shape[1:]] = step
        else:
            self._steps[key] = step
        if not self._checks_numbers:
            results = step(bound, batch, indices)
            call_step_hooks(self._optimizer, num_steps_of(indices))
            return results
        stock = StockStep(self._recipe, self._optimizer)
        results, self.cost = check_step_numbers(
            step, stock, bound, before, batch, indices, lambda: self._do(batch, indices)
        )
        return results

    @property
    def engine(self) -> str | None:
        """Return what the last compiled step was made by; None before there is one."""
        return next((step.engine for step in reversed(self._steps.values())), None)


def _take_data(inputs: Any, targets: Any) -> Batch:
    data = take_apart(inputs, targets)
    if data.is_sparse:
        raise UsageError(
            "samples cannot be taken from a sparse tensor",
            hint="Call the step itself for each batch.",
        )
    return data
