"""Rules about how the script runs its steps."""
