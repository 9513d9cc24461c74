"""Another implementation of torch's optimizers, where the script leaves the choice to torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import Count, Setting, StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    import torch

    from breakeven.settings.in_effect import configured

# In the order in which they are tried.
_CHOICES = ("fused", "foreach")


def _why_not(facts: StepFacts, current: Configuration, choice: str) -> str | None:
    own = [one for one in facts.trace.facts.optimizers if one.is_from_torch]
    if not own:
        return "the step has no optimizer of torch"
    if all(one.fused is not None or one.foreach is not None for one in own):
        return "the script chooses the implementation itself"
    return None


def _choose(run: configured) -> Count:
    """Have optimizers of torch made with ``foreach=True`` or ``fused=True``.

    An optimizer stays as the script makes it where that names one of the two, or asks for
    ``differentiable``; where its class knows no such choice or overrides the update; and where
    its parameters or learning rate do not meet what torch asks of them.
    """
    import torch

    choice, num_chosen = run.wanted.optimizer, 0

    def initializer(kind: type[torch.optim.Optimizer]) -> Callable[..., None]:
        original = kind.__init__
        signature = inspect.signature(original)
        update = inspect.unwrap(kind.step)

        @functools.wraps(original)
        def initialize(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal num_chosen
            try:
                bound = signature.bind(optimizer, *args, **kwargs)
            except TypeError:  # torch says it better
                return original(optimizer, *args, **kwargs)
            given = bound.arguments
            # Parameters may come from a generator, which can be read only once.
            given["params"] = _kept(given["params"])
            is_stock = inspect.unwrap(type(optimizer).step) is update
            if is_chosen := is_stock and _is_possible(choice, given):
                given[choice] = True
            original(*bound.args, **bound.kwargs)
            num_chosen += is_chosen
            return None

        return initialize

    for kind in vars(torch.optim).values():
        is_optimizer = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if is_optimizer and choice in inspect.signature(kind.__init__).parameters:
            run.replace(kind, "__init__", initializer(kind))
    return lambda _: num_chosen


def _is_possible(choice: str, given: dict[str, Any]) -> bool:
    import torch

    if any(given.get(name) is not None for name in _CHOICES) or given.get("differentiable"):
        return False
    tensors = list(_tensors(given["params"]))
    if choice == "fused":
        return bool(tensors) and all(tensor.is_floating_point() for tensor in tensors)
    return bool(tensors) and not isinstance(given.get("lr"), torch.Tensor)


def _kept(params: Any) -> Any:
    """Return what an optimizer is given, with every generator in it read into a list."""
    import torch

    if isinstance(params, torch.Tensor | dict):
        return params  # torch refuses the first, and the second is no list of groups
    groups = list(params)
    return [
        {**group, "params": list(group["params"])}
        if isinstance(group, dict) and not isinstance(group.get("params"), torch.Tensor | None)
        else group
        for group in groups
    ]


def _tensors(params: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors among parameters, named parameters and groups of either."""
    import torch

    if isinstance(params, torch.Tensor):
        yield params
    elif isinstance(params, dict):
        yield from _tensors(params.get("params", ()))
    elif isinstance(params, list | tuple):
        for each in params:
            yield from _tensors(each)


SETTINGS = (
    Setting(
        name="optimizer",
        meaning="which of torch's implementations of the optimizer runs",
        numerics=Numerics.REORDERED,
        family="optimizer",
        candidate=lambda choice: f"{choice}-optimizer",
        title=lambda _, choice: f"{choice} implementation of the optimizer",
        undo="the state of the optimizer is the same; its next construction is as the script "
        "has it",
        apply=_choose,
        values=_CHOICES,
        why_not=_why_not,
        # The loop over parameters.
        gain=lambda facts, choice: facts.update_fraction * (0.9 if choice == "fused" else 0.2),
    ),
)
