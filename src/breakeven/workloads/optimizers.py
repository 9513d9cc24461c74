"""Optimizers by the names that tables give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from breakeven.errors import WorkloadError
from breakeven.workloads.near_names import suggest

_Factory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# All take the path of CUDA, which updates lists of tensors at once. SGD as it trains image
# classifiers, with momentum and weight decay; plain SGD has a name of its own.
_FACTORIES: dict[str, _Factory] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True),
    "sgd-plain": partial(torch.optim.SGD, lr=0.1, foreach=True),
    "adam": partial(torch.optim.Adam, lr=1e-3, foreach=True),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3, foreach=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2, foreach=True),
    "adadelta": partial(torch.optim.Adadelta, foreach=True),
    "nadam": partial(torch.optim.NAdam, foreach=True),
    "radam": partial(torch.optim.RAdam, foreach=True),
}


def make_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """Return the optimizer that a table calls ``name``; None for ``none``.

    Raises:
        WorkloadError: There is none of that name.
    """
    if name == "none":
        return None
    factory = _FACTORIES.get(name.lower())
    if factory is None:
        raise WorkloadError(
            f"there is no optimizer {name!r}", hint=suggest(name, ("none", *_FACTORIES))
        )
    return factory(parameters)
