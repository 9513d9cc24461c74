"""`fast_step`: forward, backward and update as one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from faststep.batch import Batch, num_steps_of, take_apart, take_data
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
    """Return a function that does each whole training step as one compiled call.

    ``loss = step(inputs, targets)`` replaces ``zero_grad``, forward, loss, ``backward`` and
    ``optimizer.step()``. Model and optimizer stay the user's objects: save, load, evaluate and
    schedule them between calls.

    Args:
        model: The trained model; or all models that ``loss_fn`` calls.
        loss_fn: Returns the loss, a single number, from the model's output and the targets.
        optimizer: ``SGD``, ``Adam``, ``AdamW``, ``RMSprop`` or ``Adagrad`` of ``torch.optim``.
            For a list of several, ``loss_fn`` calls ``zero_grad`` and ``step`` of each once and
            ``backward`` of its losses, and returns one loss. A list implies ``calls_model``.
        steps_per_call: Number of steps of one compiled call of ``FastStep.run``.
        mode: ``reduce-overhead`` replays a CUDA graph on CUDA.
        max_grad_norm: Clips the gradients as ``clip_grad_norm_`` does.
        autocast: ``torch.bfloat16`` for an autocast region around model and loss.
        checks_numbers: Compare each compiled step with the stock step before using it.
        engine: ``generated`` for C code of this package, on the CPU; ``inductor`` for torch's
            compiler; ``auto`` for generated code if it compiles and is faster than the stock
            step, else Inductor.
        has_aux: ``loss_fn`` returns a pair: the loss, and tensors in tuples, lists or dicts, such
            as an accuracy. The step returns both.
        calls_model: ``loss_fn`` calls the model itself: it gets the inputs of the step as its
            arguments, and no targets.

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

    The first call does a stock step to find the parameters with gradients; the second compiles.
    The stock step does the first ``NUM_RARE`` batches of each further shape. ``param.grad`` is
    None after each call.
    """

    def __init__(
        self, recipe: Recipe, optimizer: AnyOptimizer, steps: CompiledSteps, steps_per_call: int
    ) -> None:
        self.steps_per_call = steps_per_call
        self._recipe = recipe
        self._optimizer = optimizer
        self._steps = steps
        # None until the optimizer has state and the trained parameters are known.
        self._params: Params | None = None
        self._guards: Guards | None = None
        # None until the first backward pass shows the parameters with gradients.
        self._trained_names: frozenset[str] | None = None
        self._forget_fast_paths()

    @property
    def num_compiled(self) -> int:
        """The number of compiled steps, for different shapes or modes."""
        return self._steps.num_compiled

    @property
    def cost(self) -> StepCost | None:
        """The times of the last compiled step that was compared with the stock step."""
        return self._steps.cost

    @property
    def engine(self) -> str | None:
        """The engine of the last compiled step; None before there is one."""
        step = self._steps.latest
        return None if step is None else step.engine

    @property
    def not_generated(self) -> str | None:
        """The reason that the last compiled step is not generated code; None if it is."""
        return self._steps.not_generated

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        """Do one step; return its detached loss; with ``has_aux``, also the auxiliary tensors.

        Args:
            inputs: The model's input: a tensor, or a tuple or a dict of arguments.
            targets: The second argument of the loss function.

        Raises:
            FastStepError: The step cannot be compiled, or its results differ from the stock step;
                model, optimizer and random numbers are as before the call.
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

        Remaining steps run one by one.

        Args:
            inputs: Inputs of the whole data set, samples along the first dimension.
            targets: Targets of the whole data set.
            indices: Samples of each step, of shape (steps, batch size); on the data's device.

        Returns:
            The loss of each step; with ``has_aux``, also the stacked auxiliary tensors.

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

    def _do(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the step or steps of one call; return loss or losses, and auxiliary tensors."""
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
        """Read tensors and options again after a change.

        Raises:
            FastStepError: The changed step cannot be compiled.
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
        # Fast calls like the last single-step call and the last several-step call.
        self._fast_one, self._fast_several = _FastPath(), _FastPath()

    def do_stock(self, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps by the model's and the optimizer's own code."""
        recipe = self._recipe
        stock = StockStep(recipe, self._optimizer)
        if self._trained_names is not None:
            return stock.run(batch, indices)
        if recipe.updating is None:
            results = stock.run(batch, indices)
        else:
            # Only a run shows whether the loss function updates once with each optimizer.
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
        """Compile a step for a call and do it; ``FallbackStep`` wraps this method."""
        assert self._params is not None
        self._forget_fast_paths()
        stock = StockStep(self._recipe, self._optimizer)
        repeat = lambda: self._do(batch, indices)  # noqa: E731
        return self._steps.compile(stock, self._params, batch, indices, repeat)


# A fast call holds the GIL; allow at most Python's own switch interval, 5 ms.
_LONGEST_FAST_NS = 5_000_000
# Least number of calls between two builds of a fast call; a build takes as long as about 20 calls.
_FAST_EVERY = 256


@dataclass(slots=True)
class _FastPath:
    """The fast call of single steps or of several steps, for inputs like the last ones.

    Args:
        call: The fast call; None if there is none.
        step: The step that it calls.
        num_steps: Number of steps of a call; None for a single step.
        calls_until_next: Slower calls before the next build of a fast call.
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
        """Make the next call fast, after one that was not.

        If the fast call has used all its tensors for losses, then refill it. If the batch or the
        options changed, then build a new one, but not at every call.

        Args:
            step: The step that was called.
            make: Builds a fast call of the step; returns None if that is impossible.
            num_steps: Number of steps of a call; None for a single step.
            step_ns: Time of one step, in nanoseconds.
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
