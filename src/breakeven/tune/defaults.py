"""What a tuning is given where the user says nothing; read by ``--help``, so without imports."""

# Seconds of trials, at least and at most; in between, this part of the run that they are for.
_LEAST_BUDGET_S = 60.0
_MOST_BUDGET_S = 600.0
_RUN_FRACTION = 0.01
DEFAULT_BUDGET = "60s, or a hundredth of the run where that is longer, up to 10m"
# A short training of a small network; whoever trains for longer says so.
DEFAULT_NUM_STEPS = 10_000


def default_budget_s(run_s: float) -> float:
    """Return how many seconds the trials may take where the user says nothing.

    Args:
        run_s: What the run takes that they are for, in seconds.
    """
    return min(max(_LEAST_BUDGET_S, _RUN_FRACTION * run_s), _MOST_BUDGET_S)
