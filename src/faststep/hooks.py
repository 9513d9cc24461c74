"""Hooks that a compiled step would pass by are refused; those that watch steps are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from faststep.errors import FastStepError
from faststep.joint_optimizer import AnyOptimizer, parts_of
from faststep.quick_call import Check, Guard

# Private names of torch 2.13: there is no public way to ask for hooks.
_PARAM_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def refuse_hooks(modules: Iterable[nn.Module], optimizer: AnyOptimizer) -> None:
    """Raise where the model or the optimizer has hooks.

    Raises:
        FastStepError: There is one.
    """
    for module in modules:
        own = module.__dict__
        for name in _MODULE_HOOKS:
            if own[name]:
                raise FastStepError(
                    f"a {type(module).__name__} of the model has hooks, which a compiled step "
                    "would run once and never again",
                    hint="Remove them, or keep the loop as it is.",
                )
        for name, param in module.named_parameters(recurse=False):
            if any(getattr(param, hooks, None) for hooks in _PARAM_HOOKS):
                raise FastStepError(
                    f"the parameter {name} of a {type(module).__name__} has hooks, which a "
                    "compiled step would run once and never again",
                    hint="Remove them, or keep the loop as it is.",
                )
    for hooks in _hooks_of(optimizer):
        if hooks:
            raise FastStepError(
                "the optimizer has step hooks, and a compiled step never calls optimizer.step()",
                hint="Remove them, and call what they do after each step.",
            )


def hook_places(modules: Iterable[nn.Module], optimizer: AnyOptimizer) -> list[Any]:
    """Return the dicts that hold the hooks of modules and optimizer: empty where there are none."""
    places = [module.__dict__[name] for module in modules for name in _MODULE_HOOKS]
    return places + _hooks_of(optimizer)


def _hooks_of(optimizer: AnyOptimizer) -> list[Any]:
    return [getattr(one, name, None) for one in parts_of(optimizer) for name in _OPTIMIZER_HOOKS]


def step_hook_guards(optimizer: Optimizer) -> Iterator[Guard]:
    """Yield what must hold for ``call_step_hooks`` to have nothing to do."""
    yield Check.ITEM, optimizer.__dict__, "_opt_called", True
    yield Check.SIZE, _global_optimizer_post_hooks, None, 0


def call_step_hooks(optimizer: AnyOptimizer, num_steps: int) -> None:
    """Tell those who watch the steps of all optimizers of so many steps, after they are done."""
    # A scheduler warns where it is stepped before its optimizer.
    parts = parts_of(optimizer)
    for part in parts:
        part._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
    if _global_optimizer_post_hooks:
        for part in parts * num_steps:
            for hook in tuple(_global_optimizer_post_hooks.values()):
                hook(part, (), {})


@contextmanager
def unwatched_steps() -> Iterator[None]:
    """Inside, steps of optimizers call none of the hooks that were registered for all of them.

    Those count the user's steps, not such as are done to be timed.
    """
    all_hooks: list[dict[int, Any]] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    kept = [dict(hooks) for hooks in all_hooks]
    for hooks in all_hooks:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(all_hooks, kept, strict=True):
            hooks.clear()
            hooks.update(before)
