"""A fast step for an unmodified loop; if it fails, the loop's own code does all later steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError
from faststep.recipe import call_model

if TYPE_CHECKING:
    from faststep.fast import FastStep


class FallbackStep:
    """Does the steps of a loop by ``fast_step``, from when that pays until it fails.

    All other steps run the loop's plain statements.

    A fast step that does not compile or gives other results restores model, optimizer and random
    numbers; the plain statements then do that step and all later ones.

    Args:
        model: As for ``fast_step``.
        loss_fn: As for ``fast_step``.
        optimizer: As for ``fast_step``.
        on_given_up: Called once with the reason of a failure.
        pays_now: Returns whether the rest of the run pays for compiling; called until it is true.
        **options: ``max_grad_norm``, ``has_aux`` and ``calls_model`` of ``fast_step``.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        loss_fn: Callable[..., Any],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        on_given_up: Callable[[str], None],
        pays_now: Callable[[], bool] = lambda: True,
        **options: Any,
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._optimizer = optimizer
        self._options = options
        self._on_given_up = on_given_up
        self._pays_now = pays_now
        self._fast: FastStep | None = None
        self._has_begun = False
        if pays_now():
            self._begin()

    def _begin(self) -> None:
        """Switch to ``fast_step``; import it only now, since the import is slow."""
        from faststep.fast import fast_step
        from faststep.inductor import explained

        self._has_begun = True
        try:
            self._fast = fast_step(self._model, self._loss_fn, self._optimizer, **self._options)
        except FastStepError as error:
            self._on_given_up(error.message)
        else:
            # Turn compiler errors into FastStepError: they are not errors of the script.
            self._fast.compile = explained()(self._fast.compile)

    @property
    def is_fast(self) -> bool:
        """Whether the next step is a fast one."""
        return self._fast is not None

    def __call__(self, inputs: Any, targets: Any = None) -> Any:
        """Do one step; return the same values as ``FastStep``."""
        if not self._has_begun and self._pays_now():
            self._begin()
        if self._fast is not None:
            try:
                return self._fast(inputs, targets)
            except FastStepError as error:
                self._fast = None
                self._on_given_up(error.message)
        return self._do_plain(inputs, targets)

    def _do_plain(self, inputs: Any, targets: Any) -> Any:
        model, optimizer, options = self._model, self._optimizer, self._options
        if not isinstance(optimizer, Optimizer):  # the loss function itself steps several
            return pytree.tree_map_only(Tensor, Tensor.detach, self._loss_fn(*inputs))
        assert isinstance(model, nn.Module)
        optimizer.zero_grad()
        if options.get("calls_model"):
            returned = self._loss_fn(*inputs)
        else:
            returned = self._loss_fn(call_model(model, inputs, {}), targets)
        loss = returned[0] if options.get("has_aux") else returned
        loss.backward()
        if (max_norm := options.get("max_grad_norm")) is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        return pytree.tree_map_only(Tensor, Tensor.detach, returned)
