"""What a step returns: its loss, and the tensors that the loss function has beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from faststep.errors import FastStepError


class AuxLayout:
    """How the tensors that come beside a loss go together: learnt in the first step, then fixed."""

    def __init__(self) -> None:
        self._spec: Any = None

    def split(self, returned: Any) -> tuple[Tensor, ...]:
        """Return the loss, and the tensors beside it in order.

        Raises:
            FastStepError: It is not a pair, holds something else than tensors, or goes together in
                another way than in the first step.
        """
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise FastStepError(
                "with has_aux=True the loss function returns a pair, the loss and what comes "
                f"beside it; it returned {type(returned).__name__}"
            )
        loss, aux = returned
        leaves, spec = pytree.tree_flatten(aux)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise FastStepError(
                    f"what comes beside the loss holds {type(leaf).__name__}: it must be tensors",
                    hint="What Python computes from other things would never change again.",
                )
        if self._spec is None:
            self._spec = spec
        elif spec != self._spec:
            raise FastStepError(
                "what comes beside the loss goes together in another way than at first"
            )
        return loss, *leaves

    def rebuild(self, leaves: Sequence[Tensor]) -> Any:
        """Return the tensors as the loss function has put them together."""
        return pytree.tree_unflatten(list(leaves), self._spec)


def detached(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the loss, and copies of what comes beside it: it may be what an update writes to."""
    loss, *beside = (one.detach() for one in results)
    return loss, *(one.clone() for one in beside)


def stack_results(results: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the losses of several steps, and what comes beside them, each as one tensor."""
    return tuple(torch.stack(one) for one in zip(*results, strict=True))
