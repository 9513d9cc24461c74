"""What torch does around a step's work: the update, names for a profiler, tests of arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import Count, Setting, StepFacts, saves_too_little
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    import torch

    from breakeven.settings.in_effect import configured

# In the order in which they are tried.
_CHOICES = ("fused", "foreach")
# A range is opened and closed by an operator each, and an update has one, zero_grad another.
_RANGES_NS = 20_000.0
# A test compares, takes all, and reads the answer.
_OPS_PER_TEST = 3


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


def _gain_of_ranges(facts: StepFacts, value: object = True) -> float:
    return min(0.3, _RANGES_NS / facts.step_ns)


def _skip_ranges(run: configured) -> Count:
    """Let a range for the profiler cost nothing while no profiler runs.

    Every ``optimizer.step()``, ``zero_grad()`` and fetch of a batch opens one, which takes some
    10 µs each: operators of the dispatcher enter and leave it.
    """
    import torch
    import torch.autograd.profiler

    original = torch.autograd.profiler.record_function
    num_skipped = 0

    class record_function(original):  # noqa: N801 - torch's own name
        """A range that is opened only where a profiler sees it."""

        def __init__(self, name: str, args: str | None = None) -> None:
            nonlocal num_skipped
            super().__init__(name, args)
            self._is_seen = torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
            num_skipped += not self._is_seen

        def __enter__(self) -> Any:
            return super().__enter__() if self._is_seen else self

        def __exit__(self, *error: Any) -> None:
            if self._is_seen:
                super().__exit__(*error)

    # torch and libraries look it up at each use.
    run.replace(torch.autograd.profiler, "record_function", record_function)
    return lambda _: num_skipped


def _gain_of_tests(facts: StepFacts, value: object = True) -> float:
    num_ops = _OPS_PER_TEST * facts.num_distribution_checks
    return min(0.3, num_ops * facts.dispatch_ns / facts.step_ns)


def _why_not_untested(facts: StepFacts, current: Configuration, value: object) -> str | None:
    if not facts.num_distribution_checks:
        return "no distribution tests its arguments"
    return saves_too_little(_gain_of_tests(facts))


def _skip_tests(run: configured) -> Count:
    """Let ``torch.distributions`` test its arguments only where a script asks for it.

    Each distribution otherwise compares every parameter, and every value of ``log_prob``, with
    what it may be. The numbers are the same; a parameter that is not allowed raises no error.
    """
    from torch.distributions import Distribution

    run.callback(Distribution.set_default_validate_args, Distribution._validate_args)
    Distribution.set_default_validate_args(False)
    return lambda _: int(not Distribution._validate_args)


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
        is_for_loop=True,
        values=_CHOICES,
        why_not=_why_not,
        # The loop over parameters.
        gain=lambda facts, choice: facts.update_fraction * (0.9 if choice == "fused" else 0.2),
    ),
    Setting(
        name="skips_profiler_ranges",
        meaning="nothing is announced to a profiler while none runs",
        numerics=Numerics.EXACT,
        family="no-profiler-ranges",
        title="nothing announced to a profiler while none runs",
        undo="torch.autograd.profiler.record_function is put back",
        apply=_skip_ranges,
        why_not=lambda facts, *_: saves_too_little(_gain_of_ranges(facts)),
        gain=_gain_of_ranges,
    ),
    Setting(
        name="skips_distribution_checks",
        meaning="distributions do not test their arguments",
        note=", unless the script asks for it; a parameter that is not allowed raises no error "
        "then",
        numerics=Numerics.EXACT,
        family="no-distribution-checks",
        title="arguments of distributions not tested",
        undo="torch.distributions tests its arguments again",
        apply=_skip_tests,
        is_for_loop=True,
        why_not=_why_not_untested,
        gain=_gain_of_tests,
    ),
)
