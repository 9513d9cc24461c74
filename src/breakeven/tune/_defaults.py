"""What a tuning is given where the user says nothing; read by ``--help``, so without imports."""

DEFAULT_BUDGET_S = 60.0
# A short training of a small network; whoever trains for longer says so.
DEFAULT_NUM_STEPS = 10_000
