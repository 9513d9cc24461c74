"""What torch does in each step for nobody: names for a profiler, tests of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from breakeven.settings.setting import Count, Setting, StepFacts, saves_too_little
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured

# A range is opened and closed by an operator each, and an update has one, zero_grad another.
_RANGES_NS = 20_000.0
# A test compares, takes all, and reads the answer.
_OPS_PER_TEST = 3


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
        why_not=_why_not_untested,
        gain=_gain_of_tests,
    ),
)
