"""Search for the fastest configuration of a training step by measurement, and confirm it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.tune.run_target import RunTarget as RunTarget
    from breakeven.tune.run_target import check_runnable as check_runnable
    from breakeven.tune.run_target import end_request as end_request
    from breakeven.tune.run_target import machine_changes as machine_changes
    from breakeven.tune.run_target import pays_after_s as pays_after_s
    from breakeven.tune.run_target import stored_configuration as stored_configuration
    from breakeven.tune.target import tune_target as tune_target

# Default budget of trials; ``--help`` reads it without loading torch.
# Limits in seconds; between them, the budget is this share of the run's time.
_LEAST_BUDGET_S = 60.0
_MOST_BUDGET_S = 600.0
_RUN_FRACTION = 0.01
DEFAULT_BUDGET = "60s, or a hundredth of the run where that is longer, up to 10m"

# Loaded on first use: the process that becomes the user's script does not need torch earlier.
__getattr__ = exported_on_use(__name__)


def default_budget_s(run_s: float) -> float:
    """Return the default time for all trials, in seconds.

    Args:
        run_s: Duration of the run to tune for, in seconds.
    """
    return min(max(_LEAST_BUDGET_S, _RUN_FRACTION * run_s), _MOST_BUDGET_S)
